"""Whether the sizes of an operator's inputs fit it: a norm's parameters are as long as its channels, an axis is there.

onnx's inference asks some of this, and runtimes the rest when they run. Where it is not asked, a vector of another
length broadcasts and an axis is taken modulo the rank: what is computed then is what no runtime computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph.operators.call import axis_of
from normdeploy.graph.traits import MICROSOFT, Trait, kind_of, kinds

Sizes = Sequence[int | None] | None
"""The sizes of a value, None where it is not known how many it has, or how long one is."""
_Row = Callable[[ir.Node, int, list[Sizes]], Iterator[str]]
_MEAN_AXES = 3
"""Axes that an InstanceNormalization has at least: samples, channels and one to average over."""
_LAST_AXIS = 13
"""From this operator set on a Softmax is along one axis, by default the last."""
_CHANNELS_SCALED = 21
"""Before this operator set a GroupNormalization had one scale for each group."""


def may_misfit(node: ir.Node) -> bool:
    """Tell whether anything is asked of the sizes of a node's inputs."""
    return kind_of(node) in _ROWS


def misfit(node: ir.Node, opset: int, shapes: Sequence[Sizes]) -> str | None:
    """Return in what the sizes of a node's inputs do not fit it, or None where they do, as far as they are known.

    Args:
        node: the node.
        opset: version of the node's domain.
        shapes: of its inputs, None where one is absent or unknown.
    """
    row = _ROWS.get(kind_of(node))
    return None if row is None else next(row(node, opset, [*shapes, *[None] * (6 - len(shapes))]), None)


def require_fit(model: ir.Model) -> None:
    """Check the nodes of a graph and of the bodies in it against the sizes that are known.

    Raises:
        GraphError: the inputs of one do not fit it.
    """
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        opset = node.version or model.opset_imports.get(node.domain, 1)
        if said := misfit(node, opset, [_sizes(value) for value in node.inputs]):
            raise GraphError(
                f"the graph contradicts itself: {node.op_type} {node.name or node.outputs[0].name!r}: {said}; no "
                "runtime takes it: export it again"
            )


def _sizes(value: ir.Value | None) -> Sizes:
    if value is None:
        return None
    shape = value.const_value.shape if value.const_value is not None else value.shape
    return None if shape is None else [size if isinstance(size, int) else None for size in shape]


def _axis(shape: Sizes, axis: int) -> int | None:
    """Return how long a value is along an axis; None where that is unknown."""
    return None if shape is None or not -len(shape) <= axis < len(shape) else shape[axis]


def _is_vector(shapes: list[Sizes], place: int, *lengths: int | None) -> Iterator[str]:
    """Yield what is no vector of one of these lengths; an unknown length may be any."""
    shape = shapes[place]
    if shape is None or (len(shape) == 1 and (shape[0] is None or None in lengths or shape[0] in lengths)):
        return
    wanted = " or ".join("one axis" if length is None else f"[{length}]" for length in dict.fromkeys(lengths))
    yield f"input {place} has the shape {list(shape)}; expected {wanted}"


def _spreads(shapes: list[Sizes], place: int, over: Sizes) -> Iterator[str]:
    """Yield what does not broadcast over a value without making it larger."""
    shape = shapes[place]
    if shape is None or over is None:
        return
    pairs = zip(reversed(shape), reversed(over), strict=False)
    if len(shape) > len(over) or any(a is not None and b is not None and a not in (1, b) for a, b in pairs):
        yield f"input {place} has the shape {list(shape)}; expected one that broadcasts over {list(over)}"


def _there(shape: Sizes, axis: int) -> Iterator[str]:
    if shape is not None:
        try:
            axis_of(axis, max(len(shape), 1))
        except ValueError as error:
            yield str(error)


def _batch_norm(node: ir.Node, opset: int, shapes: list[Sizes]) -> Iterator[str]:
    if opset < 9 and not node.attributes.get_int("spatial", 1):
        return  # one parameter for each element of a sample
    x = shapes[0]
    known = 1 if x is not None and len(x) == 1 else _axis(x, 1)
    known = next((size for size in (known, *(_axis(shape, 0) for shape in shapes[1:5])) if size is not None), None)
    for place in range(1, 5):
        yield from _is_vector(shapes, place, known)


def _instance_norm(_: ir.Node, __: int, shapes: list[Sizes]) -> Iterator[str]:
    if shapes[0] is not None and len(shapes[0]) < _MEAN_AXES:
        yield f"input 0 has the shape {list(shapes[0])}; expected at least {_MEAN_AXES} axes"
    for place in (1, 2):
        yield from _is_vector(shapes, place, _axis(shapes[0], 1))


def _group_norm(node: ir.Node, opset: int, shapes: list[Sizes], *, standard: bool = True) -> Iterator[str]:
    groups = node.attributes.get_int("num_groups" if standard else "groups", 1)
    channels = _axis(shapes[0], 1 if standard or not node.attributes.get_int("channels_last", 1) else -1)
    if groups < 1 or (channels is not None and channels % groups):
        yield f"{groups} groups of {channels} channels; expected a number that divides them"
    lengths = (channels,) if not standard else (channels, 1) if opset >= _CHANNELS_SCALED else (channels, groups, 1)
    for place in (1, 2):
        yield from _is_vector(shapes, place, *lengths)


def _row_norm(node: ir.Node, _: int, shapes: list[Sizes]) -> Iterator[str]:
    yield from _there(shapes[0], node.attributes.get_int("axis", -1))
    for place in (1, 2):
        yield from _spreads(shapes, place, shapes[0])


def _along_last(_: ir.Node, __: int, shapes: list[Sizes], *, places: Sequence[int]) -> Iterator[str]:
    for place in places:
        yield from _is_vector(shapes, place, _axis(shapes[0], -1))


def _convolution(node: ir.Node, _: int, shapes: list[Sizes], *, transposed: bool = False) -> Iterator[str]:
    groups, (x, weight) = node.attributes.get_int("group", 1), shapes[:2]
    rows, columns = _axis(weight, 0), _axis(weight, 1)
    columns = None if columns is None else columns * groups
    read, written = (rows, columns) if transposed else (columns, rows)
    if None not in (read, _axis(x, 1)) and read != _axis(x, 1):
        yield f"its weight of shape {list(weight or ())} reads {read} channels; expected {_axis(x, 1)}"
    yield from _is_vector(shapes, 2, written)


def _gemm(node: ir.Node, _: int, shapes: list[Sizes]) -> Iterator[str]:
    turned, weight_turned = (bool(node.attributes.get_int(name, 0)) for name in ("transA", "transB"))  # 2 is true too
    rows, columns = _axis(shapes[0], int(turned)), _axis(shapes[1], int(not weight_turned))
    yield from _spreads(shapes, 2, (rows, columns))


def _along_axis(node: ir.Node, opset: int, shapes: list[Sizes], *, default: int, before: int = 0) -> Iterator[str]:
    """``before``: the default of operator sets before 13."""
    yield from _there(shapes[0], node.attributes.get_int("axis", before if opset < _LAST_AXIS else default))


def _quantizer(node: ir.Node, _: int, shapes: list[Sizes]) -> Iterator[str]:
    if shapes[1] and tuple(shapes[1]) != (1,):  # one step for each channel, not one for all
        yield from _there(shapes[0], node.attributes.get_int("axis", 1))


def _cumulated(node: ir.Node, _: int, shapes: list[Sizes]) -> Iterator[str]:
    given = node.inputs[1]
    axis = None if given is None else ir.convenience.get_const_tensor(given)
    if axis is not None and axis.size == 1:
        yield from _there(shapes[0], int(axis.numpy().reshape(-1)[0]))


def _reversed(node: ir.Node, _: int, shapes: list[Sizes]) -> Iterator[str]:
    for name, default in (("batch_axis", 1), ("time_axis", 0)):
        yield from _there(shapes[0], node.attributes.get_int(name, default))


def _over_axes(node: ir.Node, _: int, shapes: list[Sizes]) -> Iterator[str]:
    for axis in node.attributes.get_ints("axes", ()):
        yield from _there(shapes[0], axis)


_SHARES = partial(_along_axis, default=-1, before=1)
_ROWS: dict[tuple[str, str], _Row] = {
    ("", "BatchNormalization"): _batch_norm,
    ("", "InstanceNormalization"): _instance_norm,
    ("", "GroupNormalization"): _group_norm,
    ("", "LayerNormalization"): _row_norm,
    ("", "RMSNormalization"): _row_norm,
    ("", "SimplifiedLayerNormalization"): _row_norm,
    ("", "PRelu"): lambda _, __, shapes: _spreads(shapes, 1, shapes[0]),
    ("", "Conv"): _convolution,
    ("", "ConvTranspose"): partial(_convolution, transposed=True),
    ("", "Gemm"): _gemm,
    ("", "CumSum"): _cumulated,
    ("", "ReverseSequence"): _reversed,
    **{("", name): _SHARES for name in ("Softmax", "LogSoftmax", "Hardmax")},
    **{("", name): partial(_along_axis, default=0) for name in ("ArgMax", "ArgMin", "Gather", "Split")},
    **{("", name): partial(_along_axis, default=0) for name in ("GatherElements", "ScatterElements")},
    ("", "LpNormalization"): partial(_along_axis, default=-1, before=-1),
    **{(domain, name): _quantizer for domain in ("", MICROSOFT) for name in ("QuantizeLinear", "DequantizeLinear")},
    **dict.fromkeys(kinds(Trait.REDUCES) - kinds(Trait.POOLS), _over_axes),
    ("", "MeanVarianceNormalization"): _over_axes,
    (MICROSOFT, "GroupNorm"): partial(_group_norm, standard=False),
    (MICROSOFT, "SkipLayerNormalization"): partial(_along_last, places=(2, 3, 4)),
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): partial(_along_last, places=(2, 3)),
    (MICROSOFT, "FusedConv"): _convolution,
    (MICROSOFT, "FusedGemm"): _gemm,
    (MICROSOFT, "BiasGelu"): partial(_along_last, places=(1,)),
}
"""By (domain, operator): what does not fit, sentence by sentence."""
