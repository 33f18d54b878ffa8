"""What a graph takes: dtype, sizes, which of them may change, and which integers mean something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.errors import InputError
from normdeploy.graph import constant64, constant_tensor
from normdeploy.graph.traits import MICROSOFT, Trait, has, is_standard, kind_of
from normdeploy.verification.samples.cut_sizes import compared_scales
from normdeploy.verification.samples.guards import (
    compared_numbers,
    compared_with_infinity,
    guarded,
    looked_at_for_nan,
)
from normdeploy.verification.samples.roles import hides_scores

_FORWARDS = Trait.MOVES | Trait.CONVERTS
_ARITHMETIC = frozenset({
    "Add", "Sub", "Mul", "Neg", "Abs", "Min", "Max", "Sum", "Sign", "Concat", "Where", "BitwiseAnd", "BitwiseOr",
    "BitwiseXor", "BitwiseNot",
})  # fmt: skip
_OF_THE_FIRST = frozenset({
    "Clip", "Mod", "BitShift", "CumSum", "Relu", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "Unique",
})  # fmt: skip
"""Operators that have a meaning for every integer that its type holds, as any operand or as the first; so have those
that compare, and those that pass their first operand on."""

_TABLES: dict[tuple[str, str], dict[int, int]] = {
    ("", "Gather"): {1: 0},
    ("", "GatherElements"): {1: 0},
    ("", "RotaryEmbedding"): {3: 1},
    (MICROSOFT, "RotaryEmbedding"): {1: 2},
    (MICROSOFT, "GatherBlockQuantized"): {1: 0},
    (MICROSOFT, "EmbedLayerNormalization"): {0: 2, 1: 4},
}
"""Operators that look integers up, by the operand: in which operand's rows."""

_CLASSES = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"})
"""Operators whose second operand says classes, which stand along axis 1 of the first."""

_PAIRS = (
    "a file takes complex numbers as pairs of real ones; export a module whose forward begins with "
    "torch.view_as_complex(x), and give it torch.view_as_real(x)"
)


@dataclass(frozen=True)
class InputRange:
    """One graph input.

    Args:
        name: its name. dtype: NumPy dtype. shape: concrete base shape.
        dynamic: axis to dimension name, for the axes that may change.
        low, high: inclusive range of an integer input.
        table: rows of the smallest table that an integer input indexes; 0 if it indexes none.
        ends: further ranges, (lowest, highest), to which an integer input that is only computed with may go.
        guarded: numbers worth trying of an integer input that something looks at before it is an index.
        removes: a float input of which minus infinity says which keys of an attention do not count.
        hides: a float input of which 0 and 1 say which keys of an attention count.
        may_be_nan: a float input of which the graph asks whether what is made of it is NaN, or infinite.
        compared: numbers that either graph compares an input with that is only computed with.
        scales: sizes of a float input at which what is made of it is near such a number.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    dynamic: Mapping[int, str]
    low: int = 0
    high: int = 1
    table: int = 0
    ends: tuple[tuple[int, int], ...] = ()
    guarded: tuple[int, ...] = ()
    removes: bool = False
    hides: bool = False
    may_be_nan: bool = False
    compared: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()

    @property
    def is_float(self) -> bool:
        """True for every floating dtype, bfloat16 included (NumPy knows it as a void kind)."""
        return self.dtype.kind == "f" or self.dtype.name == "bfloat16"

    @property
    def is_vector(self) -> bool:
        """True for integers on one axis."""
        return self.dtype.kind in "iu" and len(self.shape) == 1

    @property
    def is_mask(self) -> bool:
        """True for booleans, and for numbers of which only 0 and 1 are known to mean something."""
        return self.hides or self.dtype.kind == "b" or (self.dtype.kind in "iu" and (self.low, self.high) == (0, 1))


def input_specs(model: ir.Model, example: Mapping[str, Array], *, file: ir.Model | None = None) -> list[InputRange]:
    """Describe a graph's inputs from its declarations and one example.

    Args:
        model: the graph (the reference's where there is one: its tables bound the integer ids).
        example: one array per input.
        file: the file under verification; a size that it fixes does not change, and what it casts integers to says how
            far they are worth trying.

    Raises:
        InputError: the example lacks an input, or contradicts the declared dtype or rank.
    """
    specs = []
    fixed = {} if file is None else {str(v.name): v.shape for v in file.graph.inputs}
    others = {} if file is None else {str(v.name): v for v in file.graph.inputs}
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        name = str(value.name)
        if name not in example:
            raise InputError(f"no example for input {name!r}; expected one for each graph input: pass it in args")
        array = np.asarray(example[name])
        if value.dtype is not None and array.dtype != value.dtype.numpy():
            remedy = "convert the example" if array.dtype.kind != "c" else _PAIRS
            raise InputError(f"input {name!r} has dtype {array.dtype}; expected {value.dtype.numpy()}: {remedy}")
        dynamic: dict[int, str] = {}
        if value.shape is not None:
            if len(value.shape) != array.ndim:
                raise InputError(
                    f"input {name!r} has rank {array.ndim}; expected {len(value.shape)}: reshape the example"
                )
            dynamic = {i: str(d.value or f"{name}.{i}") for i, d in enumerate(value.shape) if not isinstance(d, int)}
        declared = fixed.get(name)
        if declared is not None and len(declared) == array.ndim:
            dynamic = {i: word for i, word in dynamic.items() if not isinstance(declared[i], int)}
        readers = [value, others[name]] if name in others else [value]
        specs.append(_with_range(InputRange(name, array.dtype, array.shape, dynamic), readers, array))
    return _fixed_alike(specs, model)


def _fixed_alike(specs: Sequence[InputRange], model: ir.Model) -> list[InputRange]:
    """Fix a dimension that the file fixes for one input for every input to which the reference gives it by name."""
    shapes = {str(v.name): v.shape for v in model.graph.inputs}
    fixed = {
        str(dim.value)
        for spec in specs
        for i, dim in enumerate(shapes[spec.name] or ())
        if not isinstance(dim, int) and dim.value and i not in spec.dynamic
    }
    return [replace(s, dynamic={i: word for i, word in s.dynamic.items() if word not in fixed}) for s in specs]


def _with_range(spec: InputRange, readers: Sequence[ir.Value], example: Array) -> InputRange:
    """Return a spec with the integers to try, and what a float is for.

    Args:
        readers: the input in the reference's graph, and in the file's. example: as given.
    """
    compared = tuple(dict.fromkeys(number for reader in readers for number in compared_numbers(reader)))
    if spec.is_float:
        return replace(
            spec,
            hides=hides_scores(readers[0]),
            removes=compared_with_infinity(readers[0]),
            may_be_nan=any(map(looked_at_for_nan, readers)),
            compared=compared,
            scales=tuple(dict.fromkeys(size for reader in readers for size in compared_scales(reader))),
        )
    if spec.dtype.kind not in "iu":
        return spec
    size = _table_size(readers[0])
    numbers = list(dict.fromkeys(n for reader in readers for n in guarded(reader, spec.dtype)))
    if size is not None:  # what counts from the end, where the reference takes it, reaches a guard alone
        ahead = tuple(n for n in numbers if -size <= n < 0)
        return replace(spec, low=0, high=size - 1, table=size, guarded=ahead)
    info = np.iinfo(spec.dtype)
    if spec.dtype in (np.uint8, np.int8):
        return replace(spec, low=int(info.min), high=int(info.max))
    low, high = (int(example.min()), int(example.max())) if example.size else (0, 1)
    # A mask shows only ones in most examples
    spec = replace(spec, low=min(low, 0 if high <= 1 else low), high=max(high, 1))
    reach = [_reach(reader, int(info.min), int(info.max)) for reader in readers]
    lowest, highest = max(low for low, _ in reach), min(high for _, high in reach)
    if highest <= spec.high:
        return replace(spec, guarded=tuple(numbers))
    # A little beyond what each width holds, with and without a sign
    beyond = [2**bits + 2 ** (bits - 2) for bits in (8, 16, 32) if 2 ** (bits + 1) <= highest]
    ends = [end for end in (*beyond, highest) if end > spec.high]
    near = [n + step for n in map(int, compared) for step in (0, -1, 1) if lowest <= n + step <= highest]
    return replace(spec, ends=tuple((max(-end, lowest), end) for end in ends), compared=tuple(near))


def _reach(value: ir.Value, lowest: int, highest: int) -> tuple[int, int]:
    """Return how far an integer may go that is only computed with; (0, 0) where it is an index, a size or a count.

    Where it becomes a float and an integer again, it has to be one that this type holds however it was rounded, and
    nothing may be computed of it in between.

    Args:
        value: the input. lowest, highest: what its type holds.
    """
    kinds = {value: value.dtype or ir.DataType.INT64}
    queue, itself = [value], {value}
    for current in queue:
        kind = kinds[current]
        for node, index in current.uses():
            if has(node, Trait.SIZES):
                continue
            any_operand = is_standard(node, *_ARITHMETIC) or has(node, Trait.COMPARES)
            plain = any_operand or (index == 0 and (_takes_any(node) or has(node, _FORWARDS)))
            if kind.is_integer() and not plain:
                return 0, 0
            if kind.is_floating_point() and node.op_type == "Cast" and _result(node, kind).is_integer():
                if current not in itself or _result(node, kind) not in _WHOLE:
                    return 0, 0
                held = np.iinfo(_result(node, kind).numpy())
                lowest, highest = max(lowest, int(held.min) // 2), min(highest, int(held.max) // 2)
            if current in itself and index == 0 and has(node, _FORWARDS):
                itself.update(node.outputs)
            for output in node.outputs:
                if output not in kinds:
                    kinds[output] = output.dtype or _result(node, kind)
                    queue.append(output)
    return lowest, highest


def _takes_any(node: ir.Node) -> bool:
    """Tell whether an operator has a meaning for every integer as its first operand."""
    if not is_standard(node, "Div"):
        return is_standard(node, *_OF_THE_FIRST)
    divisor = constant64(node.inputs[1])  # of the lowest integer by -1 the processor makes an exception
    return divisor is not None and not np.isin(divisor, (0, -1)).any()


_WHOLE = frozenset({
    ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64,
    ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64,
})  # fmt: skip
"""Integers that NumPy knows the ends of."""


def _result(node: ir.Node, kind: ir.DataType) -> ir.DataType:
    """Return the type of an operator's result, given that of an operand."""
    if node.op_type == "Cast":
        return ir.DataType(node.attributes.get_int("to", 1))
    return ir.DataType.BOOL if has(node, Trait.COMPARES) else kind


def _table_size(value: ir.Value, depth: int = 0) -> int | None:
    """Return the rows of the smallest table that an integer input indexes; None if it indexes none."""
    sizes = []
    for node, index in value.uses():
        if is_standard(node, *_CLASSES) and index == 1:
            shape = None if node.inputs[0] is None else node.inputs[0].shape
            sizes += [shape[1]] if shape is not None and len(shape) > 1 and isinstance(shape[1], int) else []
        elif index in (places := _TABLES.get(kind_of(node), {})):
            read = node.inputs[places[index]] if places[index] < len(node.inputs) else None
            tensor, shape = constant_tensor(read), None if read is None else read.shape
            axis = node.attributes.get_int("axis", node.attributes.get_int("gather_axis", 0))
            if tensor is not None:
                sizes.append(int(tensor.shape.numpy()[axis]))
            elif shape is not None:
                rows = shape[axis]
                sizes += [rows] if isinstance(rows, int) else []
        elif has(node, _FORWARDS) and index == 0 and depth < 4:
            size = _table_size(node.outputs[0], depth + 1)
            if size is not None:
                sizes.append(size)
    return min(sizes) if sizes else None


def resized(specs: Sequence[InputRange], sizes: Mapping[str, int]) -> list[InputRange]:
    """Return the specs with dynamic dimensions set by name."""
    return [replace(s, shape=tuple(sizes.get(s.dynamic.get(i, ""), n) for i, n in enumerate(s.shape))) for s in specs]


def dynamic_names(specs: Sequence[InputRange]) -> list[str]:
    """Return the names of the dynamic dimensions, first seen first."""
    return list(dict.fromkeys(name for spec in specs for _, name in sorted(spec.dynamic.items())))


def batch_name(specs: Sequence[InputRange]) -> str | None:
    """Return the name of the dynamic dimension that is axis 0 of the first input that has one."""
    for spec in specs:
        if 0 in spec.dynamic:
            return spec.dynamic[0]
    return None
