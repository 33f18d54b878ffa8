"""Sizes that operands tell by themselves are those that evaluating the operator on zeros has."""

from __future__ import annotations

import itertools

import onnx_ir as ir
import pytest
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph import evaluate_node
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.told_sizes import told_by_operands, told_with_statistics

SHAPES = [(), (1,), (4,), (3, 4), (4, 3), (4, 4), (2, 3, 4), (1, 4, 3), (5, 1, 4, 4), (2, 0, 4), (2, 3, 4, 2)]


def node_of(op_type: str, count: int, **attributes: int) -> ir.Node:
    kept = [ir.AttrInt64(name, value) for name, value in attributes.items()]
    return ir.Node("", op_type, [ir.Value(name=f"x{i}") for i in range(count)], kept, num_outputs=1, version=20)


def really(node: ir.Node, operands: list[Tensor]) -> tuple[int, ...] | None:
    try:
        return tuple(evaluate_node(node, [torch.zeros(t.shape, dtype=t.dtype) for t in operands])[0].shape)
    except GraphError:
        return None


def sizes(shape: tuple[int, ...], *, told: bool = True) -> Tensor:
    return torch.empty(shape, dtype=torch.float64, device="meta" if told else "cpu")


@pytest.mark.parametrize(
    ("op_type", "count", "attributes"),
    [
        ("Add", 2, {}),
        ("Mul", 2, {}),
        ("Pow", 2, {}),
        ("MatMul", 2, {}),
        ("Gemm", 2, {}),
        ("Gemm", 2, {"transA": 1}),
        ("Gemm", 2, {"transB": 1}),
        ("Softmax", 1, {}),
        ("LogSoftmax", 1, {"axis": 0}),
        ("Relu", 1, {}),
        ("Concat", 2, {"axis": 0}),
        ("Concat", 2, {"axis": -1}),
        ("Concat", 2, {"axis": 2}),
    ],
)
def test_all_pairs_of_shapes(op_type: str, count: int, attributes: dict[str, int]):
    """Told is what is computed; what cannot be computed is not told, nor is what nobody can be asked of but torch."""
    node, told = node_of(op_type, count, **attributes), 0
    for shapes in itertools.product(SHAPES, repeat=count):
        for real in range(count):  # a number beside sizes alone
            operands = [sizes(shape, told=place != real or count == 1) for place, shape in enumerate(shapes)]
            found = told_by_operands(node, operands)
            if found is not None:
                assert tuple(found.shape) == really(node, operands), (op_type, shapes)
                assert found.is_meta
                assert found.dtype == torch.float64
                told += 1
    assert told > 5


@pytest.mark.parametrize("bias", [(), (5,), (1, 5), (3, 1), (3, 5)])
def test_a_product_with_a_third_operand(bias: tuple[int, ...]):
    node, operands = node_of("Gemm", 3), [sizes((3, 4)), sizes((4, 5)), sizes(bias)]
    found = told_by_operands(node, operands)
    assert found is not None
    assert tuple(found.shape) == (3, 5) == really(node, operands)


@pytest.mark.parametrize("bias", [(4, 5), (3,), (2, 3, 5)])
def test_a_third_operand_that_a_product_is_not_brought_to(bias: tuple[int, ...]):
    assert told_by_operands(node_of("Gemm", 3), [sizes((3, 4)), sizes((4, 5)), sizes(bias)]) is None


@pytest.mark.parametrize("shapes", [((2, 1), (1, 3), ()), ((3,), (2, 3), (4, 2, 1)), ((2,), (3,), (3,))])
def test_a_choice_is_of_all_three_shapes(shapes: tuple[tuple[int, ...], ...]):
    node = node_of("Where", 3)
    operands = [torch.zeros(shapes[0], dtype=torch.bool), sizes(shapes[1]), sizes(shapes[2])]
    found = told_by_operands(node, operands)
    assert (None if found is None else tuple(found.shape)) == really(node, operands)


@pytest.mark.parametrize(
    ("x", "grid"), [((2, 3, 4, 5), (2, 6, 7, 2)), ((1, 3, 4, 5, 2), (1, 2, 3, 4, 3)), ((2, 3, 4, 5), (1, 6, 7, 2))]
)
def test_samples_are_as_many_as_their_places(x: tuple[int, ...], grid: tuple[int, ...]):
    node = node_of("GridSample", 2)
    found = told_by_operands(node, [sizes(x), sizes(grid)])
    want = (*x[:2], *grid[1:-1]) if x[0] == grid[0] else None
    assert (None if found is None else tuple(found.shape)) == want


PICTURES = [(2, 4, 9), (2, 4, 9, 7), (1, 6, 8, 5), (1, 4, 6, 5, 4), (2, 4, 2, 2), (0, 4, 9, 7), (2, 4)]
KERNELS = [(6, 4, 3), (6, 2, 3, 1), (6, 4, 3, 3), (6, 1, 2, 3), (8, 1, 3, 3), (4, 4, 1, 2, 3), (5, 2, 3, 3), (6, 4)]
WINDOWS: list[dict[str, int | list[int]]] = [
    {},
    {"strides": [2, 3]},
    {"dilations": [2, 1], "group": 2},
    {"pads": [1, 0, 2, 3], "strides": [2, 2]},
    {"pads": [1, 1], "strides": [2]},
    {"group": 4},
    {"group": 6},
    {"kernel_shape": [3, 3], "dilations": [3, 3]},
    {"pads": [-1, -1, -1, -1]},
    {"strides": [1, 2, 1], "dilations": [2, 2, 1], "pads": [1, 2, 0, 0, 1, 1]},
]


@pytest.mark.parametrize("attributes", WINDOWS)
@pytest.mark.parametrize("bias", [[], [(6,)], [(1,)]])
def test_a_convolution_is_as_large_as_its_evaluation(
    attributes: dict[str, int | list[int]], bias: list[tuple[int, ...]]
):
    kept = [
        ir.Attr(n, ir.AttributeType.INT if isinstance(v, int) else ir.AttributeType.INTS, v)
        for n, v in attributes.items()
    ]
    values = [ir.Value(name=f"x{i}") for i in range(2 + len(bias))]
    node, told = ir.Node("", "Conv", values, kept, num_outputs=1, version=20), 0
    for shapes in itertools.product(PICTURES, KERNELS):
        operands = [sizes(shape) for shape in (*shapes, *bias)]
        found = told_by_operands(node, operands)
        if found is not None:
            assert tuple(found.shape) == really(node, operands), shapes
            told += 1
    assert told or bias or attributes in ({"pads": [-1, -1, -1, -1]}, {"group": 6})


POOLS: list[dict[str, list[int]]] = [
    {"kernel_shape": [2, 3]},
    {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 2, 1]},
    {"kernel_shape": [5], "strides": [2], "pads": [4, 0]},
    {"kernel_shape": [2], "pads": [2, 0]},
    {"kernel_shape": [10, 7], "pads": [1, 0, 0, 0]},
    {"kernel_shape": [1, 2, 2], "strides": [1, 2, 1]},
]


@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("attributes", POOLS)
def test_a_pool_is_as_large_as_its_evaluation(op_type: str, attributes: dict[str, list[int]]):
    kept = [ir.AttrInt64s(name, numbers) for name, numbers in attributes.items()]
    node, told = ir.Node("", op_type, [ir.Value(name="x")], kept, num_outputs=1, version=20), 0
    for shape in PICTURES:
        found = told_by_operands(node, [sizes(shape)])
        if found is not None:
            assert tuple(found.shape) == really(node, [sizes(shape)]), shape
            told += 1
    assert told or attributes["kernel_shape"] == [2]  # a border as wide as the kernel is left to the evaluation


@pytest.mark.parametrize("extra", [ir.AttrInt64("ceil_mode", 1), ir.AttrInt64s("dilations", [2, 2])])
def test_windows_of_another_kind_are_left_to_the_evaluation(extra: ir.Attr):
    kept = [ir.AttrInt64s("kernel_shape", [2, 2]), extra]
    node = ir.Node("", "MaxPool", [ir.Value(name="x")], kept, num_outputs=1, version=20)
    assert told_by_operands(node, [sizes((1, 2, 7, 7))]) is None


@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("axes", [[0], [-1], [1, -1], [2], [5], []])
@pytest.mark.parametrize("keeps", [0, 1])
def test_what_is_left_of_whole_axes(op_type: str, axes: list[int], keeps: int):
    node, told = node_of(op_type, 2, keepdims=keeps), 0
    for shape in SHAPES:
        operands = [sizes(shape), torch.tensor(axes, dtype=torch.int64)]
        found = told_by_operands(node, operands)
        if found is not None:
            want = evaluate_node(node, [torch.zeros(shape, dtype=torch.float64), operands[1]])[0]
            assert (found.shape, found.dtype) == (want.shape, want.dtype), shape
            told += 1
    assert told or axes in ([5], [])
    if axes == [1, -1]:  # of two axes one, which is named twice: it is left to the evaluation
        operands = [sizes((3, 4)), torch.tensor(axes, dtype=torch.int64)]
        assert told_by_operands(node, operands) is None


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 2], [1, 1, 0.5, 1.7], [1, 1, 1 / 3, 0.1], []])
@pytest.mark.parametrize("place", ["asymmetric", "half_pixel", "align_corners"])
def test_a_resized_picture_is_as_large_as_its_evaluation(mode: str, scales: list[float], place: str):
    kept = [ir.AttrString("mode", mode), ir.AttrString("coordinate_transformation_mode", place)]
    values = [ir.Value(name=name) if name else None for name in (("x", "", "s") if scales else ("x", "", "", "s"))]
    node, told = ir.Node("", "Resize", values, kept, outputs=[ir.Value(name="y")], version=20), 0
    for shape in [(1, 2, 7, 9), (2, 3, 14, 30), (1, 1, 3, 1), (1, 2, 3)]:
        factors = torch.tensor(scales, dtype=torch.float64)
        more: list[Tensor | None] = [None, factors] if scales else [None, None, torch.tensor([*shape[:2], 5, 4])]
        found = told_by_operands(node, [sizes(shape), *more])
        if found is not None:
            want = evaluate_node(node, [torch.zeros(shape, dtype=torch.float64), *more])[0]
            assert (found.shape, found.dtype) == (want.shape, want.dtype), shape
            told += 1
    assert told


@pytest.mark.parametrize("axis", [-1, -2, 0, 1])
@pytest.mark.parametrize("results", [2, 3])
def test_a_norm_with_its_statistics(axis: int, results: int):
    values = [ir.Value(name=name) for name in ("x", "s")]
    node = ir.Node("", "LayerNormalization", values, [ir.AttrInt64("axis", axis)], num_outputs=results, version=20)
    for shape in [(2, 3, 4), (5, 4)]:
        scale = torch.ones(shape[axis % len(shape) :], dtype=torch.float64)
        found = told_with_statistics(node, [sizes(shape), scale])
        want = evaluate_node(node, [torch.zeros(shape, dtype=torch.float64), scale])
        assert found is not None
        assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in want[:results]]
    assert told_with_statistics(node, [sizes(()), scale]) is None


def test_borders_that_sizes_decide_are_left_to_the_evaluation():
    values = [ir.Value(name=name) for name in ("x", "w")]
    node = ir.Node("", "Conv", values, [ir.AttrString("auto_pad", "SAME_UPPER")], num_outputs=1, version=20)
    assert told_by_operands(node, [sizes((1, 2, 5, 5)), sizes((3, 2, 3, 3))]) is None


@pytest.mark.parametrize("op_type", ["Equal", "IsNaN", "CumSum", "Reshape"])
def test_what_is_of_another_type_or_shape_is_left_to_its_evaluation(op_type: str):
    count = 1 if op_type == "IsNaN" else 2
    assert told_by_operands(node_of(op_type, count), [sizes((2, 3))] * count) is None


def test_numbers_alone_are_evaluated():
    assert told_by_operands(node_of("Add", 2), [torch.zeros(3, dtype=torch.float64)] * 2) is None


def test_a_large_constant_that_is_moved_is_followed_by_its_sizes(monkeypatch: pytest.MonkeyPatch):
    """A Transpose of weights is not computed to know its shape; the product behind it has the right one."""
    numbers = ", ".join(["0.5"] * 120)
    graph = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 20]> g (float[N,10] x) => (float[N,12] y)
        <float[12,10] w = {{{numbers}}}> {{ t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t) }}"""
    )
    monkeypatch.setattr(Side, "_fold", lambda *_: pytest.fail("the constant was computed"))
    side = Side(graph, [{"x": (3, 10)}, {"x": (7, 10)}])
    (y,) = graph.graph.outputs
    assert side.shapes(y) == ((3, 12), (7, 12))
