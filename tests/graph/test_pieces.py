"""Products whose large weight is read and computed in pieces: what torch makes of the whole."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from normdeploy.graph import ExactTensor, constant_parts, evaluate_alike, evaluate_region, parts64, tensor64
from normdeploy.graph.operators import pieces

SEED = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True, scope="module")
def small_pieces():
    """Let a handful of elements be a large weight."""
    patch = pytest.MonkeyPatch()
    patch.setattr(constant_parts, "BLOCK", 24)
    patch.setattr(pieces, "BLOCK", 0)
    yield
    patch.undo()


def constant(name: str, tensor: ir.TensorProtocol) -> ir.Value:
    value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph = ir.Graph([], [], nodes=[], initializers=[value], opset_imports={"": 20}, name="g")
    assert value.graph is graph
    return value


def run(op_type: str, x: torch.Tensor, weight: ir.TensorProtocol, addend: np.ndarray | None = None, **attributes):
    """Evaluate one node with a constant weight; the pieces must have been used."""
    source = ir.Value(name="x")
    inputs = [source, constant("w", weight)]
    if addend is not None:
        inputs.append(constant("b", ir.tensor(addend)))
    node = ir.node(op_type, inputs, attributes, version=20)
    assert pieces.large_weight(node) is not None
    return evaluate_region([node], {source: x}, node.outputs)[0].numpy()


def spellings(array: np.ndarray) -> list[ir.TensorProtocol]:
    """One value as a plain tensor in each memory order, and as exact constants made of another."""
    half = ir.tensor((array / 2).astype(array.dtype))
    turned = ir.tensor(np.ascontiguousarray(array.T))
    doubled, back = (
        parts64(half).scaled(np.full((1,) * array.ndim, 2.0)),
        parts64(turned).transposed(range(array.ndim)[::-1]),
    )
    return [
        ir.tensor(array),
        ir.Tensor(np.asfortranarray(array)),
        ExactTensor(lambda: 2 * tensor64(half), ir.DataType.FLOAT, array.shape, parts=doubled),
        ExactTensor(lambda: tensor64(turned).T, ir.DataType.FLOAT, array.shape, parts=back),
    ]


@given(SEED, st.integers(0, 3), st.integers(1, 9), st.integers(1, 40), st.lists(st.integers(1, 3), max_size=2))
@settings(deadline=None, max_examples=40)
def test_matmul(seed, spelling, columns, depth, leading):
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(depth, columns)).astype(np.float32)
    x = rng.normal(size=(*leading, depth))
    got = run("MatMul", torch.from_numpy(x), spellings(weight)[spelling])
    np.testing.assert_allclose(got, x @ weight.astype(np.float64), rtol=1e-12, atol=1e-12)


@given(SEED, st.integers(0, 3), st.booleans(), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=40)
def test_gemm(seed, spelling, trans_a, trans_b, with_addend):
    rng = np.random.default_rng(seed)
    x, weight, addend = rng.normal(size=(3, 17)), rng.normal(size=(17, 11)).astype(np.float32), rng.normal(size=(3, 1))
    stored = np.ascontiguousarray(weight.T) if trans_b else weight
    got = run(
        "Gemm",
        torch.from_numpy(np.ascontiguousarray(x.T) if trans_a else x),
        spellings(stored)[spelling],
        addend if with_addend else None,
        alpha=0.5,
        beta=2.0,
        transA=int(trans_a),
        transB=int(trans_b),
    )
    expected = 0.5 * x @ weight.astype(np.float64) + (2 * addend if with_addend else 0)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@given(
    SEED,
    st.integers(1, 3),
    st.sampled_from([1, 2, 3]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_conv(seed, rank, groups, kernel, stride, dilation, with_bias):
    rng = np.random.default_rng(seed)
    outs, ins = groups * int(rng.integers(1, 4)), groups * int(rng.integers(1, 4))
    sizes = rng.integers(1, kernel + 1, rank).tolist()
    pads = rng.integers(0, 3, 2 * rank).tolist()
    x = rng.normal(size=(2, ins, *rng.integers(5, 8, rank)))
    weight = rng.normal(size=(outs, ins // groups, *sizes)).astype(np.float32)
    bias = rng.normal(size=outs) if with_bias else None
    got = run(
        "Conv",
        torch.from_numpy(x),
        ir.tensor(weight),
        bias,
        group=groups,
        strides=[stride] * rank,
        dilations=[dilation] * rank,
        pads=pads,
    )
    widths = [width for axis in reversed(range(rank)) for width in (pads[axis], pads[axis + rank])]
    expected = getattr(functional, f"conv{rank}d")(
        functional.pad(torch.from_numpy(x), widths),
        torch.from_numpy(weight.astype(np.float64)),
        None if bias is None else torch.from_numpy(bias),
        stride,
        0,
        dilation,
        groups,
    )
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-12, atol=1e-12)


def test_a_fed_weight_is_read_from_the_feed():
    source, weight = ir.Value(name="x"), constant("w", ir.tensor(np.ones((4, 8), np.float32)))
    node = ir.node("MatMul", [source, weight], version=20)
    feeds = {source: torch.ones(1, 4), weight: torch.full((4, 8), 2.0)}
    assert evaluate_region([node], feeds, node.outputs)[0].tolist() == [[8.0] * 8]


@pytest.mark.parametrize("spelling", range(4))
@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.FLOAT16])
def test_rounding_in_pieces_is_rounding_of_the_whole(spelling, dtype):
    rng = np.random.default_rng(0)
    base = spellings(rng.normal(size=(13, 7)).astype(np.float32))[spelling]
    factor, addend = rng.normal(size=(13, 1)), rng.normal(size=(1, 7))
    parts = parts64(base).scaled(factor).shifted(addend)
    exact64 = tensor64(base) * factor + addend
    tensor = ExactTensor(lambda: exact64, dtype, exact64.shape, parts=parts)
    np.testing.assert_array_equal(tensor.numpy(), exact64.astype(dtype.numpy()))


def test_what_has_no_pieces():
    assert parts64(ir.tensor(np.array(2.0))) is None
    assert parts64(ir.tensor(np.zeros((0, 3), np.float32))) is None
    assert parts64(ir.tensor(np.arange(6))) is None
    assert parts64(ExactTensor(lambda: np.zeros(3), ir.DataType.FLOAT, (3,))) is None


@given(SEED, st.sampled_from(["MatMul", "Gemm", "Conv"]), st.sampled_from([1, 2]), st.booleans())
@settings(deadline=None, max_examples=40)
def test_two_versions_of_one_weight_are_read_together(seed, op_type, groups, shifted):
    rng = np.random.default_rng(seed)
    conv = op_type == "Conv"
    weight = rng.normal(size=(6, 4 // groups, 3) if conv else (8, 6)).astype(np.float32)
    base, factor, addend = ir.tensor(weight), rng.normal(size=weight.shape), rng.normal(size=(1,) * weight.ndim)
    first = parts64(base).scaled(factor)
    second = first.shifted(addend) if shifted else first.scaled(addend)
    values = [weight * factor, weight * factor + addend if shifted else weight * factor * addend]
    tensors = [
        ExactTensor(lambda array=array: array, ir.DataType.FLOAT, weight.shape, parts=parts)
        for array, parts in zip(values, (first, second), strict=True)
    ]
    source = ir.Value(name="x")
    attributes = {"group": groups, "pads": [1, 0]} if conv else {}
    biases = [rng.normal(size=6), rng.normal(size=6)]
    nodes = []
    for tensor, bias in zip(tensors, biases, strict=True):
        operands = [source, constant("w", tensor), *([] if op_type == "MatMul" else [constant("b", ir.tensor(bias))])]
        nodes.append(ir.node(op_type, operands, attributes, version=20))
    assert pieces.alike(*nodes)
    assert not pieces.alike(*reversed(nodes))
    feeds = {source: torch.from_numpy(rng.normal(size=(2, 4, 7) if conv else (3, 8)))}
    found = evaluate_alike(nodes[:1], nodes[1:], feeds)
    assert set(found) == {node.outputs[0] for node in nodes}
    for node, array, bias in zip(nodes, values, biases, strict=True):
        if conv:
            expected = functional.conv1d(
                functional.pad(feeds[source], (1, 0)), torch.from_numpy(array), torch.from_numpy(bias), groups=groups
            ).numpy()
        else:
            expected = feeds[source].numpy() @ array + (0 if op_type == "MatMul" else bias)
        np.testing.assert_allclose(found[node.outputs[0]].numpy(), expected, rtol=1e-12, atol=1e-12)
        # a node whose result is fed is not run again
        assert evaluate_region([node], {**feeds, **found}, node.outputs)[0] is found[node.outputs[0]]


def test_other_products_are_not_read_together():
    weight = np.ones((8, 6), np.float32)
    source, other = ir.Value(name="x"), ir.Value(name="z")
    tensor = ir.tensor(weight)
    double = ExactTensor(
        lambda: 2.0 * weight, ir.DataType.FLOAT, (8, 6), parts=parts64(tensor).scaled(np.full((1, 1), 2))
    )
    mine, theirs = constant("w", tensor), constant("w", double)
    old = ir.node("MatMul", [source, mine], version=20)
    assert pieces.alike(old, ir.node("MatMul", [source, theirs], version=20))
    assert not pieces.alike(old, ir.node("MatMul", [other, theirs], version=20))
    assert not pieces.alike(old, ir.node("Gemm", [source, theirs], version=20))
    assert not pieces.alike(old, ir.node("MatMul", [source, constant("w", ir.tensor(weight))], version=20))
    gemm = ir.node("Gemm", [source, mine], version=20)
    assert not pieces.alike(gemm, ir.node("Gemm", [source, theirs], {"transA": 1}, version=20))


@pytest.mark.parametrize(
    ("shape", "per_group", "settings_"),
    [
        ((2, 32, 9), (2, 1), {"strides": [2], "dilations": [2], "pads": [1, 0]}),
        ((1, 48, 7, 8), (1, 3), {"strides": [2, 1], "dilations": [1, 2], "pads": [0, 1, 2, 1]}),
        ((2, 16, 5, 4, 6), (2, 1), {"strides": [1, 2, 1], "pads": [1, 1, 1, 1, 1, 1]}),
    ],
)
def test_a_convolution_of_many_groups_is_one_of_each_group(shape, per_group, settings_):
    outs, ins = per_group
    groups, rank = shape[1] // ins, len(shape) - 2
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal(shape))
    w, b = rng.standard_normal((groups * outs, ins, *(3, 2, 3)[:rank])), rng.standard_normal(groups * outs)
    node = ir.Node("", "Conv", [ir.Value(name=name) for name in "xwb"], version=20, attributes=[])
    for name, value in {"group": groups, **settings_}.items():
        node.attributes[name] = ir.convenience.convert_attribute(name, value)
    feeds = dict(zip(node.inputs, (x, torch.from_numpy(w), torch.from_numpy(b)), strict=True))
    (found,) = evaluate_region([node], feeds, list(node.outputs))
    pads = settings_["pads"]
    padded = functional.pad(x, [n for axis in reversed(range(rank)) for n in (pads[axis], pads[axis + rank])])
    convolve = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[rank]
    wanted = [
        convolve(
            padded[:, group * ins : (group + 1) * ins],
            torch.from_numpy(w[group * outs : (group + 1) * outs]),
            torch.from_numpy(b[group * outs : (group + 1) * outs]),
            stride=settings_["strides"],
            dilation=settings_.get("dilations", 1),
        )
        for group in range(groups)
    ]
    assert float((found - torch.cat(wanted, dim=1)).abs().max()) <= 1e-13


def test_factors_in_a_row_are_one_and_keep_their_place_among_sums():
    """Two factors of fewer numbers than the weight are multiplied with each other first, and pass no sum."""
    rng = np.random.default_rng(0)
    array = rng.standard_normal((40, 30, 3, 3))
    one, other, added, last = (
        rng.uniform(0.5, 2, shape) for shape in ((40, 1, 1, 1), (1, 30, 1, 1), (40, 1, 1, 1), (1, 1, 3, 1))
    )
    parts = parts64(ir.tensor(array)).scaled(one).scaled(other).shifted(added).scaled(last)
    found = np.concatenate([piece.copy() for _, _, piece in parts.pieces(array.shape)])
    np.testing.assert_allclose(found, (array * one * other + added) * last, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e25])
@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16])
def test_a_bound_is_none_too_small(dtype, size):
    """Squares that vanish or overflow in the stored type do not make it less."""
    rng = np.random.default_rng(0)
    factor = rng.standard_normal((300, 1, 1)) * 1e20
    with np.errstate(all="ignore"):
        array = (rng.standard_normal((300, 7, 90)) * size).astype(dtype.numpy())
        tensor = ir.tensor(array)
        plain, scaled = (float(np.linalg.norm(array.astype(np.float64) * by)) for by in (1.0, factor))
    parts = parts64(tensor)
    assert parts.bound(array.shape) >= plain
    assert parts.scaled(factor).bound(array.shape) >= scaled
    assert parts.shifted(factor).bound(array.shape) == np.inf
    if size == 1.0 and dtype != ir.DataType.FLOAT16:
        assert parts.bound(array.shape) < 3 * plain
