"""Layers on integers as operators of the standard, and what their accumulators become.

- the sums: ConvInteger, MatMulInteger;
- two levels: a comparison of the accumulator with an integer, and Where;
- more of them: an integer multiplier (:mod:`.multiplier`), four elementwise operators, where one is equal;
- else a search among the thresholds: with K <= 2^r - 1 of them r comparisons, each with the threshold in the middle of
  what is left, which a Gather fetches from a table of all channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.array_types import Floats, Ints
from normdeploy.graph.edit import free_name, put_constant, put_exact
from normdeploy.graph.linear_view import Form
from normdeploy.rewrite.integer.integer_source import BYTES, Range, Source, Stays
from normdeploy.rewrite.integer.layer import Layer
from normdeploy.rewrite.integer.multiplier import Multiplier
from normdeploy.rewrite.integer.thresholds import Thresholds

_UNREACHED = 2**31 - 1
"""A threshold that no accumulator reaches."""


class Writer:
    """Makes operators in front of one operator of a graph.

    Args:
        graph: the graph. before: where the new operators go. like: what they stand for, for names.
    """

    def __init__(self, graph: ir.Graph, before: ir.Node, like: ir.Node) -> None:
        self.graph, self.before, self.like = graph, before, like
        self.nodes: list[ir.Node] = []
        self.stem = like.name or str(like.outputs[0].name)

    def constant(self, array: npt.ArrayLike, dtype: ir.DataType, name: str) -> ir.Value:
        """Register integers."""
        return put_constant(self.graph, array, f"{self.stem}.{name}", dtype)

    def real(self, array: Floats, dtype: ir.DataType, name: str) -> ir.Value:
        """Register numbers that are rounded once."""
        return put_exact(self.graph, lambda: array, array.shape, dtype, f"{self.stem}.{name}")

    def make(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        dtype: ir.DataType,
        shape: ir.Shape | None,
        attributes: Sequence[ir.Attr] = (),
        domain: str = "",
    ) -> ir.Value:
        """Add an operator; return its result."""
        name = free_name(self.graph, f"{self.stem}.{op_type.lower()}")
        result = ir.Value(name=name, shape=shape, type=ir.TensorType(dtype))
        node = ir.Node(
            domain, op_type, inputs, attributes, outputs=[result], name=f"{self.stem}.{op_type.lower()}",
            metadata_props=dict(self.like.metadata_props),
        )  # fmt: skip
        self.graph.insert_before(self.before, node)
        self.nodes.append(node)
        return result

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return a value in another type."""
        if value.dtype == dtype:
            return value
        return self.make("Cast", [value], dtype, value.shape, [ir.AttrInt64("to", int(dtype))])

    def moved(self, move: ir.Node, value: ir.Value) -> ir.Value:
        """Apply to integers an operator that moves elements."""
        assert value.dtype is not None
        inputs = [value, *move.inputs[1:]]
        return self.make(
            move.op_type, inputs, value.dtype, move.outputs[0].shape, list(move.attributes.values()), move.domain
        )


def byte_type(low: int, high: int) -> ir.DataType:
    """Return the byte that holds integers from low to high.

    Raises:
        Stays: none does.
    """
    for dtype, (least, most) in BYTES.items():
        if least <= low and high <= most:
            return dtype
    raise Stays(f"its integers from {low} to {high} need more than a byte")


def write_source(writer: Writer, source: Source) -> ir.Value:
    """Return the integers that a layer reads, as bytes, where it reads them."""
    value = source.integers
    low, high = min(source.low, source.zero), max(source.high, source.zero)
    dtype = value.dtype if value.dtype in BYTES else byte_type(low, high)
    assert dtype is not None
    value = writer.cast(value, dtype)
    for move in source.moves:
        value = writer.moved(move, value)
    return value


def write_sums(writer: Writer, layer: Layer, data: ir.Value, turned: npt.NDArray[np.bool_]) -> ir.Value:
    """Return the accumulator of a layer, its sign changed in some channels.

    Raises:
        Stays: the weights fit no byte.
    """
    node, linear = layer.linear.node, layer.linear
    integers = layer.whole.integers
    axis = linear.output_axis(integers.ndim)
    assert axis is not None
    spread = [-1 if at == axis else 1 for at in range(integers.ndim)]
    integers = np.where(turned.reshape(spread), -integers, integers)
    result = node.outputs[0]
    assert data.dtype is not None
    stored, zero = _stored(integers, data.dtype)
    if linear.form is Form.PRODUCT and linear.turned_weight:
        stored = stored.T
    inputs: list[ir.Value | None] = [
        data,
        writer.constant(stored, data.dtype, "weight"),
        writer.constant(layer.source.zero, data.dtype, "data_zero"),
        writer.constant(zero, data.dtype, "weight_zero"),
    ]
    kept = [attribute for name, attribute in node.attributes.items() if name in _CONVOLUTION]
    name = "ConvInteger" if linear.form is Form.CONVOLUTION else "MatMulInteger"
    return writer.make(name, inputs, ir.DataType.INT32, result.shape, kept if name == "ConvInteger" else [])


_CONVOLUTION = frozenset({"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"})


def _stored(integers: Ints, dtype: ir.DataType) -> tuple[Ints, int]:
    """Return a weight's integers as bytes of the data's type, and their zero point.

    Not of the other type: without the instructions that were made for it (VNNI), onnxruntime multiplies uint8 by int8
    in pairs whose sums it cuts to 16 bits, whichever of the two is the weight.
    """
    low, high = int(integers.min(initial=0)), int(integers.max(initial=0))
    zero = 128 if low >= -128 and high <= 127 else -low
    if high + zero > 255:
        raise Stays(f"its weights are integers from {low} to {high}, which no byte holds")
    least = BYTES[dtype][0]
    return integers + zero + least, zero + least


def write_levels(
    writer: Writer,
    sums: ir.Value,
    found: Thresholds,
    multiplier: Multiplier | None,
    axis: int,
    values: Range,
    dtype: ir.DataType,
) -> ir.Value:
    """Return the levels of an accumulator.

    Args:
        sums: the accumulator, any integers. found: the levels. multiplier: an equal one, if there is.
        axis: of the channels.
        values: what stands for the levels 0 and 1, where there are two; elsewhere the levels stand for themselves.
        dtype: of the result.
    """
    rank = 1 if sums.shape is None else sums.shape.rank()
    columns = (-1,) + (1,) * (rank - 1 - axis % max(rank, 1))
    if found.count == 1:
        return _compared(writer, sums, found, columns, values, dtype)
    if multiplier is not None:
        return _multiplied(writer, sums, found, multiplier, columns, dtype)
    return _searched(writer, sums, found, columns, dtype)


def _signed(writer: Writer, sums: ir.Value, found: Thresholds, columns: tuple[int, ...]) -> ir.Value:
    sums = writer.cast(sums, ir.DataType.INT32)
    if (found.direction > 0).all():
        return sums
    signs = writer.constant(found.direction.reshape(columns), ir.DataType.INT32, "direction")
    return writer.make("Mul", [sums, signs], ir.DataType.INT32, sums.shape)


def _compared(
    writer: Writer, sums: ir.Value, found: Thresholds, columns: tuple[int, ...], values: Range, dtype: ir.DataType
) -> ir.Value:
    signed = _signed(writer, sums, found, columns)
    bound = writer.constant(found.rises.reshape(columns), ir.DataType.INT32, "threshold")
    above = writer.make("GreaterOrEqual", [signed, bound], ir.DataType.BOOL, sums.shape)
    # onnxruntime 1.28 and 1.29 have no Where of int8
    kind = ir.DataType.INT32 if dtype == ir.DataType.INT8 else dtype
    yes, no = (writer.constant(number, kind, "level") for number in (values[1], values[0]))
    return writer.cast(writer.make("Where", [above, yes, no], kind, sums.shape), dtype)


def _multiplied(
    writer: Writer, sums: ir.Value, found: Thresholds, by: Multiplier, columns: tuple[int, ...], dtype: ir.DataType
) -> ir.Value:
    kind = ir.DataType.INT32 if by.bits == 32 else ir.DataType.INT64
    value = writer.cast(sums, kind)
    for op_type, numbers, name in (
        ("Mul", by.factor.reshape(columns), "factor"),
        ("Add", by.addend.reshape(columns), "addend"),
        ("Div", by.divisor, "divisor"),  # cuts towards 0: what is below 0 is cut to 0 next, either way
    ):
        value = writer.make(op_type, [value, writer.constant(numbers, kind, name)], kind, sums.shape)
    ends = [writer.constant(number, kind, "level") for number in (0, found.count)]
    value = writer.make("Clip", [value, *ends], kind, sums.shape)
    if found.base:
        value = writer.make("Add", [value, writer.constant(found.base, kind, "base")], kind, sums.shape)
    return writer.cast(value, dtype)


def _searched(
    writer: Writer, sums: ir.Value, found: Thresholds, columns: tuple[int, ...], dtype: ir.DataType
) -> ir.Value:
    kind = ir.DataType.INT32
    signed = _signed(writer, sums, found, columns)
    rounds = int(found.count).bit_length()
    size = 1 << rounds
    channels = found.rises.shape[0]
    table = np.full((channels, size), _UNREACHED, np.int64)
    table[:, 1 : found.count + 1] = found.rises
    starts = np.arange(channels) * size
    half = size >> 1
    # the first comparison is with a constant
    bound = writer.constant(table[:, half].reshape(columns), kind, "threshold")
    above = writer.make("GreaterOrEqual", [signed, bound], ir.DataType.BOOL, sums.shape)
    places = [writer.constant((starts + offset).reshape(columns), kind, "place") for offset in (half, 0)]
    place = writer.make("Where", [above, *places], kind, sums.shape)
    flat = writer.constant(table.reshape(-1), kind, "thresholds")
    while half > 1:
        half >>= 1
        tried = writer.make("Add", [place, writer.constant(half, kind, "half")], kind, sums.shape)
        bound = writer.make("Gather", [flat, tried], kind, sums.shape)
        above = writer.make("GreaterOrEqual", [signed, bound], ir.DataType.BOOL, sums.shape)
        place = writer.make("Where", [above, tried, place], kind, sums.shape)
    start = writer.constant((starts - found.base).reshape(columns), kind, "start")
    return writer.cast(writer.make("Sub", [place, start], kind, sums.shape), dtype)
