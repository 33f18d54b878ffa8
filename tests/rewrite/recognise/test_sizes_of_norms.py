"""No size decides by chance: not one that a stride makes 1, not two that coincide, not a bound that no size reaches."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from normdeploy.errors import GraphError
from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite
from normdeploy.rewrite.recognise.trial_sizes import TURNS, Sizes


def value(*dims: int | str | None) -> ir.Value:
    shape = ir.Shape([dim if isinstance(dim, int) else ir.SymbolicDim(dim) for dim in dims])
    return ir.Value(name="x", shape=shape, type=ir.TensorType(ir.DataType.FLOAT))


DIMS = st.one_of(
    st.sampled_from(["n", "h", "w", "(h - 1)//4 + 1", "(w - 1)//4 + 1", "h//32", "n*h", "2*w", "?", "two words", None]),
    st.integers(1, 8),
)


@given(dims=st.lists(DIMS, min_size=1, max_size=5))
@settings(deadline=None)
def test_dynamic_dimensions_of_the_input_are_never_one_and_change_with_the_turn(dims: list[int | str | None]):
    x = value(*dims)
    found = [Sizes(turn, x).of(x) for turn in range(TURNS)]
    for axis, dim in enumerate(dims):
        seen = [sizes[axis] for sizes in found]
        if isinstance(dim, int):
            assert seen == [dim] * TURNS
        else:
            assert min(seen) >= 2
            assert len(set(seen)) >= 2


@pytest.mark.parametrize(
    "dims", [("n", 8, "(h - 1)//4 + 1", "(w - 1)//4 + 1"), ("n", 3, "h//32", "w//32"), ("a", 5, "b", 7)]
)
def test_dimensions_that_can_differ_do(dims: tuple[int | str, ...]):
    for turn in range(TURNS):
        sizes = Sizes(turn, value(*dims)).of(value(*dims))
        assert len(set(sizes)) == len(sizes)


def test_more_names_than_small_numbers_stay_apart():
    names = [f"d{index}" for index in range(9)]
    for turn in range(TURNS):
        assert len(set(Sizes(turn, value(*names)).of(value(*names)))) == len(names)


def test_one_name_has_one_size_everywhere():
    sizes = Sizes(0, value("n", "h//4"))
    n, quarter = sizes.of(value("n", "h//4"))
    assert sizes.of(value("h", "n", 3))[1:] == (n, 3)
    assert sizes.of(value("h"))[0] // 4 == quarter


def test_a_dimension_that_is_one_at_all_sizes_is_refused_with_its_name():
    with pytest.raises(
        GraphError, match=r"dimension 1 of 'x' \(Min\(1, h//2\)\) is 1 at every size tried; expected .*: declare"
    ):
        Sizes(0, value("n", "Min(1, h//2)"))


def strided(norm: nn.Module, strides: tuple[int, ...]) -> nn.Sequential:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(3 if not index else 8, 8, 3, stride=s, padding=1) for index, s in enumerate(strides)]
    model = nn.Sequential(*convolutions, norm, nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return model


NORMS = {
    "groups": (lambda: nn.GroupNorm(4, 8), "GroupNormalization"),
    "groups without affine": (lambda: nn.GroupNorm(4, 8, affine=False), "GroupNormalization"),
    "one group": (lambda: nn.GroupNorm(1, 8), "LayerNormalization"),
    "a group per channel": (lambda: nn.GroupNorm(8, 8), "InstanceNormalization"),
    "instances": (lambda: nn.InstanceNorm2d(8), "InstanceNormalization"),
}
SIZES = [(2, 40, 72), (3, 33, 33), (1, 64, 17), (8, 32, 32)]


@pytest.mark.parametrize(
    ("name", "strides"), [*((name, (2, 2)) for name in NORMS), *((name, (4, 4, 2)) for name in ("groups", "instances"))]
)
def test_norms_of_images_of_any_size_behind_strides(name: str, strides: tuple[int, ...]):
    make, kind = NORMS[name]
    model = strided(make(), strides)
    dynamic = ({0: "n", 2: "h", 3: "w"},)
    traced = trace(model, (torch.randn(2, 3, 64, 64),), dynamic_shapes=dynamic).model
    result = rewrite(traced)
    (row,) = [row for row in result.ledger if row.kind.endswith("Normalization")]
    assert (row.kind, row.action) == (kind, "fused")
    assert not any("could not be checked" in row.reason for row in result.ledger)
    name_in, name_out = str(traced.graph.inputs[0].name), str(traced.graph.outputs[0].name)
    reference = model.double()
    for n, h, w in SIZES:
        x = torch.randn(n, 3, 2 * h, 2 * w, dtype=torch.float64)  # at least two positions behind all strides
        with torch.no_grad():
            expected = reference(x)
        found = Evaluator(result.model).run({name_in: x})[name_out]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


NORMALIZED = """
  m = ReduceMean <keepdims = 1> (c, last)
  d = Sub(c, m)
  q = Mul(d, d)
  v = ReduceMean <keepdims = 1> (q, last)
  ve = Add(v, e)
  s = Sqrt(ve)
  y = Div(d, s)
"""


def cut(lines: str, dims: str = "n, t, 6") -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net (float[{dims}] x) => (float[a, b, 6] y)
        <int64[1] last = {{-1}}, float e = {{0.00001}}, int64[1] zero = {{0}}, int64[1] many = {{40}},
         int64[1] one = {{1}}, int64 forty = {{40}}, int64[1] end = {{9223372036854775807}}, int64[1] six = {{6}}>
        {{ {lines} {NORMALIZED} }}"""
    )


CUTS = {
    "a slice": "c = Slice(x, zero, many, one)",
    "a slice from the end": "minus = Neg(many)\n c = Slice(x, minus, end, one)",
    "a size clamped": """
        t = Shape <start = 1, end = 2> (x)
        u = Min(t, many)
        target = Concat <axis = 0> (zero, u, six)
        flat = Slice(x, zero, u, one)
        c = Reshape(flat, target)""",
}


@pytest.mark.parametrize("name", CUTS)
def test_a_bound_above_every_size_tried_is_not_overlooked(name: str):
    """x[:, :40] is x at 2 to 9 elements: the norm behind it is one operator, the slice stays."""
    model = cut(CUTS[name])
    result = rewrite(model)
    assert [row.action for row in result.ledger] == ["fused"]
    x = torch.randn(2, 50, 6, dtype=torch.float64)
    expected = Evaluator(model).run({"x": x})["y"]
    found = Evaluator(result.model).run({"x": x})["y"]
    assert found.shape == expected.shape == (2, 40, 6)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_slice_that_cuts_nothing_is_no_obstacle():
    result = rewrite(cut("c = Slice(x, zero, end, one)"))
    assert "LayerNormalization" in [node.op_type for node in result.model.graph]


@pytest.mark.parametrize("shape", [(8, 8), (4, 4, 4), (6, 5)])
def test_as_many_channels_as_samples_are_no_batch(shape: tuple[int, ...], sketch):
    """Statistics over axis 0 of x transposed: samples never meet, whatever the sizes."""
    drawing = sketch()
    turned = drawing.input(shape).transpose(*range(len(shape))[::-1])
    m = turned.mean((0,))
    model = drawing.model((turned - m) / (((turned - m) ** 2).mean((0,)) + 1e-5).sqrt())
    (row,) = rewrite(model).ledger
    assert (row.kind, row.action) == ("LayerNormalization", "fused")


@pytest.mark.parametrize("shape", [(8, 8), (4, 4, 4)])
def test_a_square_batch_is_still_a_batch(shape: tuple[int, ...], sketch):
    drawing = sketch()
    x = drawing.input(shape)
    m = x.mean((0,))
    model = drawing.model((x - m) / (((x - m) ** 2).mean((0,)) + 1e-5).sqrt())
    (row,) = rewrite(model).ledger
    assert (row.kind, row.action) == ("batch statistics", "kept")


GROUPS = list(itertools.product([(1, 1), (1, 4), (4, 1), (4, 4), (2, 8)], [1, 2, 4, 8], [1, 8, 2]))


@pytest.mark.parametrize(("image", "groups", "batch"), GROUPS)
def test_static_sizes_that_coincide(image: tuple[int, int], groups: int, batch: int, sketch, reference):
    """H = W, H = 1, batch = channels: whatever it is called, it computes the GroupNorm of these sizes."""
    scale = np.linspace(0.5, 1.5, 8).reshape(8, 1, 1)
    drawing = sketch()
    parts = drawing.input((batch, 8, *image)).reshape(batch, groups, -1)
    d = parts - parts.mean()
    y = (d / ((d * d).mean() + 1e-5).sqrt()).reshape(batch, 8, *image) * scale
    result = rewrite(drawing.model(y))
    x = torch.randn(batch, 8, *image, dtype=torch.float64)
    expected = reference(x, (), epsilon=1e-5, scale=scale, groups=groups)
    torch.testing.assert_close(Evaluator(result.model).run({"x": x})["y0"], expected, rtol=1e-6, atol=1e-6)
