"""Clamps, slopes and quantizers as steps of a function, and where their results are levels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph.operators.qonnx import integer_range, rounding_of
from normdeploy.verification.derivation.integers.integer_values import COMPARISONS, clamp_of, number
from normdeploy.verification.derivation.integers.paths import End, Path, by_channel, further
from normdeploy.verification.derivation.integers.spans import ENDS
from normdeploy.verification.derivation.integers.stepwise import Cut, Decided, Scaled, Sloped, Step, scaled
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind


def _quantize(side: Side, path: Path, node: ir.Node) -> Iterator[Path | End]:
    inputs = inputs_of(node)
    step, zero = _steps(side, path, node), number(side, inputs[2]) if len(inputs) > 2 else 0.0
    dtype = side.type_of(node.outputs[0])
    if step is None or zero is None or (step <= 0).any() or dtype is None or dtype not in ENDS:
        return
    low, high = ENDS[dtype]
    exact = side.stored_in(inputs[1]) is not None
    cut = Cut(low - zero, high - zero)
    made = further(path, node, scaled(by=step, exact=exact), Decided("round"), cut, scaled(add=zero))
    yield made
    yield End(made, node.outputs[0])


def _steps(side: Side, path: Path, node: ir.Node) -> Floats | None:
    """Return the steps of a QuantizeLinear or DequantizeLinear: one, or one per channel; None of others."""
    array = side.constant(node.inputs[1])
    if array is None or node.attributes.get_int("block_size", 0) != 0 or not np.isfinite(array).all():
        return None
    if array.ndim == 1 and array.size > 1:
        axis = node.attributes.get_int("axis", 1) % max(path.rank, 1)
        array = array.reshape([-1 if at == axis else 1 for at in range(path.rank)])
    return by_channel(array, path)


def _dequantize(side: Side, path: Path, node: ir.Node) -> Iterator[Path | End]:
    inputs = inputs_of(node)
    step, zero = _steps(side, path, node), number(side, inputs[2]) if len(inputs) > 2 else 0.0
    if step is None or zero is None:
        return
    exact = side.stored_in(inputs[1]) is not None
    yield further(path, node, scaled(add=-zero), scaled(step, exact=exact))


def _cut(side: Side, path: Path, node: ir.Node) -> Iterator[Path | End]:
    low, high = clamp_of(side, node, path.value)
    if low is not None or high is not None:
        made = further(path, node, Cut(low, high))
        yield made
        if path.steps and _is_level(path.steps):
            yield End(made, node.outputs[0])


def _is_level(steps: tuple[Step, ...]) -> bool:
    """Tell whether a value is an integer: rounded, then cut or shifted by integers."""
    for step in reversed(steps):
        if isinstance(step, Decided):
            return True
        if isinstance(step, Scaled) and ((step.times != 1).any() or (step.by != 1).any()):
            return False
        numbers = (step.low, step.high) if isinstance(step, Cut) else ()
        added = step.add if isinstance(step, Scaled) else ()
        if isinstance(step, Sloped) or any(n is not None and n % 1 for n in (*numbers, *added)):
            return False
    return False


def _slope(side: Side, path: Path, node: ir.Node) -> Iterator[Path | End]:
    del side
    alpha = node.attributes.get_float("alpha", 0.01)
    if alpha >= 0:
        yield further(path, node, Sloped(alpha))


def _round(side: Side, path: Path, node: ir.Node) -> Iterator[Path | End]:
    del side
    made = further(path, node, Decided("round" if kind(node) == "Round" else "sign"))
    yield made
    yield End(made, node.outputs[0])


def _compare(side: Side, path: Path, node: ir.Node) -> Iterator[Path | End]:
    """Read x >= c ? a : b and its kin."""
    inputs = inputs_of(node)
    first = inputs[0] is path.value
    bound = number(side, inputs[1] if first else inputs[0])
    if bound is None:
        return
    greater = kind(node).startswith("Greater") == first
    reached = kind(node).endswith("OrEqual") == greater  # x < c is not (x >= c)
    decided = Decided("at least" if reached else "above", bound)
    for usage in node.outputs[0].uses():
        chosen = usage.node
        if kind(chosen) != "Where" or usage.idx != 0:
            continue
        yes, no = (number(side, value) for value in chosen.inputs[1:3])
        if yes is not None and no is not None:
            yield from _choice(path, chosen, decided, (no, yes) if greater else (yes, no))


def _choice(path: Path, node: ir.Node, decided: Decided, values: tuple[float, float]) -> Iterator[Path | End]:
    made = further(path, node, decided)
    yield End(made, node.outputs[0], choice=values)
    yield further(made, node, scaled(values[1] - values[0], add=values[0]))


def qonnx_steps(side: Side, path: Path, node: ir.Node) -> Iterator[Path | End]:
    """Read a quantizer of QONNX by its definition (:mod:`normdeploy.graph.operators.qonnx`)."""
    inputs = inputs_of(node)
    array = side.constant(inputs[1])
    step = None if array is None or not np.isfinite(array).all() else by_channel(array, path)
    if step is None or (step <= 0).any():
        return
    if node.op_type == "BipolarQuant":
        yield from _signs(path, node, step, 0.0)
        return
    zero, bits = (number(side, value) for value in inputs[2:4])
    signed, narrow = bool(node.attributes.get_int("signed", 1)), bool(node.attributes.get_int("narrow", 0))
    exact = side.stored_in(inputs[1]) is not None
    if zero is None or bits is None or bits % 1:
        return
    steps = scaled(by=step, add=zero, exact=exact)
    if signed and bits == 1:
        yield from _signs(replace(path, steps=(*path.steps, steps)), node, step, zero)
    elif rounding_of(node.attributes.get_string("rounding_mode", "ROUND") or "ROUND") == "ROUND":
        low, high = integer_range(int(bits), signed=signed, narrow=narrow)
        made = further(path, node, steps, Cut(low, high), Decided("round"))
        if step.size == 1:
            yield End(made, node.outputs[0], float(step[0]), zero, exact)
        yield further(made, node, scaled(add=-zero), scaled(step, exact=exact))


def _signs(path: Path, node: ir.Node, step: Floats, zero: float) -> Iterator[Path | End]:
    """Read step (1 - zero) where what is read is 0 or more, step (-1 - zero) elsewhere."""
    if step.size == 1:
        yield from _choice(path, node, Decided("at least"), (float((-1 - zero) * step[0]), float((1 - zero) * step[0])))
    else:
        yield further(path, node, Decided("at least"), scaled(2.0, add=-1 - zero), scaled(step))


READERS = {
    "QuantizeLinear": _quantize, "DequantizeLinear": _dequantize, "Relu": _cut, "Clip": _cut, "Max": _cut, "Min": _cut,
    "LeakyRelu": _slope, "Round": _round, "Sign": _round,
} | dict.fromkeys(COMPARISONS, _compare)  # fmt: skip
