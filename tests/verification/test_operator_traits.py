"""Where the verifier's tables of operators differed from each other, and were wrong: each difference, as a case."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from normdeploy.graph import evaluate_node
from normdeploy.graph.traits import MICROSOFT
from normdeploy.verification.bounds.accuracy import reduction_length, rounds
from normdeploy.verification.bounds.cancellation import condensed, is_looked_at, terms
from normdeploy.verification.bounds.decisions import held_nodes
from normdeploy.verification.mutation.mutants import Site, is_norm
from normdeploy.verification.mutation.mutate_affine import epsilon_sites
from normdeploy.verification.mutation.zeros import behind_zeros
from normdeploy.verification.samples.ranges import input_specs

HEAD = '<ir_version: 10, opset_import: ["" : 21, "my.own" : 1, "com.microsoft" : 1]> g'


def parsed(text: str, **weights: np.ndarray) -> ir.Model:
    model = ir.from_onnx_text(f"{HEAD} {text}")
    for name, array in weights.items():
        old = next(value for node in model.graph for value in node.inputs if value is not None and value.name == name)
        new = ir.Value(name=name, const_value=ir.tensor(array.astype(np.float32), name=name))
        old.replace_all_uses_with(new)
        model.graph.register_initializer(new)
    return model


def unseen(model: ir.Model) -> bool:
    """Tell whether the first operator's result counts as hidden behind zeros."""
    node = next(iter(model.graph))
    site = Site("here", node, ("x",), str(node.outputs[0].name), [])
    return bool(behind_zeros(model.graph, [site]))


@pytest.mark.parametrize(
    "made",
    [
        "w = Tile(z, two)",
        "w = Concat<axis=0>(z, z)",
        "a, b = Split<axis=0, num_outputs=2>(z) w = Concat<axis=0>(a, b)",
        "w = Slice(z, nought, four)",
        "w = Flatten(z)",
    ],
)
@pytest.mark.parametrize("product", ["MatMul(h, w)", "com.microsoft.FusedMatMul(h, w)"])
def test_zeros_that_are_moved_are_zeros(made: str, product: str) -> None:
    text = f"(float[N,4] x) => (float[N,4] y) {{ h = Relu(x) {made} y = {product} }}"
    rows = 4 if "Tile" not in made and "Concat<axis=0>(z" not in made else 2
    constants = {"two": np.array([2, 1]), "nought": np.array([0]), "four": np.array([4])}
    head = "<" + ", ".join(f"int64[{a.size}] {n} = {{{', '.join(map(str, a))}}}" for n, a in constants.items()) + ">"
    for number, expected in ((0.0, True), (0.5, False)):
        model = parsed(text.replace("{", head + " {", 1), z=np.full((rows, 4), number))
        assert unseen(model) is expected


def test_one_part_of_a_joined_weight_that_is_not_zero_shows() -> None:
    text = "(float[N,4] x) => (float[N,4] y) { h = Relu(x) w = Concat<axis=0>(z, o) y = MatMul(h, w) }"
    assert not unseen(parsed(text, z=np.zeros((2, 4)), o=np.ones((2, 4))))


def test_an_operator_of_another_domain_moves_nothing_and_multiplies_nothing() -> None:
    body = "(float[N,4] x) => (float[N,4] y) {{ h = Relu(x) w = {}(z) y = {}(h, w) }}"
    zeros = np.zeros((4, 4))
    assert unseen(parsed(body.format("Identity", "MatMul"), z=zeros))
    assert not unseen(parsed(body.format("my.own.Identity", "MatMul"), z=zeros))
    assert not unseen(parsed(body.format("Identity", "my.own.MatMul"), z=zeros))


def test_a_batch_normalization_of_zeros_still_shows_its_scale() -> None:
    """y = scale (0 - mean) / sqrt(var + e) + shift: the scale is in it."""
    text = "(float[4] s) => (float[2,4] y) { h = Relu(s) y = BatchNormalization(x, h, b, m, v) }"
    model = parsed(text, x=np.zeros((2, 4)), b=np.zeros(4), m=np.ones(4), v=np.ones(4))
    assert not unseen(model)


@pytest.mark.parametrize("between", ["q = Transpose(p)", "q = Squeeze(p)", "q = Flatten(p)", "q = Cast<to=1>(p)"])
def test_an_epsilon_is_found_through_whatever_only_moves_it(between: str) -> None:
    text = f"(float[2,3] v) => (float[a,b] y) <float e = {{1e-5}}> {{ p = Add(v, e) {between} y = Sqrt(q) }}"
    (site,) = epsilon_sites(parsed(text), {})
    assert site.epsilon == pytest.approx(1e-5)


def node_of(kind: str, count: int, domain: str = "", **attributes: object) -> ir.Node:
    return ir.Node(
        domain,
        kind,
        [ir.Value(name=f"x{i}") for i in range(count)],
        ir.convenience.convert_attributes(attributes),
        outputs=[ir.Value(name="y")],
    )


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "FusedConv"])
def test_a_sum_has_as_many_terms_as_ones_add_up_to(kind: str, groups: int) -> None:
    weight = (6, 6 // groups, 2, 2)
    node = node_of(kind, 2, MICROSOFT if kind.startswith("Fused") else "", group=groups)
    shapes = {"x0": (1, 6, 5, 5), "x1": weight}
    (y,) = evaluate_node(node, [torch.ones(shape, dtype=torch.float64) for shape in shapes.values()])
    assert reduction_length(node, shapes, tuple(y.shape)) == int(y.max())


def test_what_rounds_and_what_does_not() -> None:
    for kind in ("SequenceAt", "Scan", "Constant", "ThresholdedRelu", "CastLike", "Hardmax"):
        assert not rounds(node_of(kind, 1)), kind
    assert rounds(node_of("Relu", 1, "my.own")), "nothing is known of another domain's operator"
    assert rounds(node_of("Softmax", 1))


@pytest.mark.parametrize(("kind", "turned"), [("Gemm", 0), ("Gemm", 1), ("FusedMatMul", 0), ("FusedMatMul", 1)])
def test_the_terms_of_a_product_are_the_norms_of_its_rows_and_columns(kind: str, turned: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 64), (64, 5)))
    node = node_of(kind, 2, MICROSOFT if kind.startswith("Fused") else "", transA=turned, transB=turned, alpha=0.5)
    operands = [x.T.contiguous(), w.T.contiguous()] if turned else [x, w]
    found = terms(node, operands, 64)
    assert found is not None
    expected = 0.5 / np.pi * x.norm(dim=1)[:, None] * w.norm(dim=0)
    assert torch.allclose(found, expected)
    short = [operands[0], condensed(node, 1, operands[1])]
    assert torch.allclose(terms(node, short, 64), found)


def test_a_norm_over_axes_of_its_own_is_not_taken_for_one_of_channels() -> None:
    assert is_looked_at(node_of("InstanceNormalization", 3))
    assert not is_looked_at(node_of("MeanVarianceNormalization", 1))
    assert is_norm(node_of("InstanceNormalization", 3))
    assert not is_norm(node_of("MeanVarianceNormalization", 1)), "it has no epsilon and no scale to damage"
    assert not is_norm(node_of("LayerNormalization", 3, "my.own"))


def test_interpolated_samples_are_sums_too() -> None:
    assert is_looked_at(node_of("GridSample", 2))


def test_steps_of_a_quantizer_are_results_and_not_held() -> None:
    model = parsed("(float[4] x) => (float[4] y) { a = Floor(x) b, c, d = DynamicQuantizeLinear(a) y = Round(a) }")
    assert [node.op_type for node in held_nodes(model.graph)] == ["Floor", "Round"]


@pytest.mark.parametrize("moved", ["Tile(i, two)", "Slice(i, nought, two)", "DepthToSpace<blocksize=2>(i)"])
def test_integers_that_are_only_moved_and_computed_with_are_tried_far_out(moved: str) -> None:
    shape = "1,4,2,2" if moved.startswith("Depth") else "4"
    head = "<int64[1] two = {2}, int64[1] nought = {0}>"
    model = parsed(f"(int64[{shape}] i) => (int64[n] y) {head} {{ j = {moved} y = Mul(j, j) }}")
    (spec,) = input_specs(model, {"i": np.ones([int(n) for n in shape.split(",")], np.int64)})
    assert spec.ends
