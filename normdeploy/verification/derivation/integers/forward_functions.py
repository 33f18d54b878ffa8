"""Forward in the source, from sums or integers to what makes integers of them: the functions between, step by step.

Read are channel-wise affine maps, clamps, slopes, quantizers (QuantizeLinear, Round, Sign, comparisons with Where,
QONNX's Quant and BipolarQuant) and operators that move elements, MaxPool among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from normdeploy.graph.operators.qonnx import DOMAINS
from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.integers.integer_values import COMPARISONS
from normdeploy.verification.derivation.integers.paths import End, Path, by_channel
from normdeploy.verification.derivation.integers.quantizer_steps import READERS, qonnx_steps
from normdeploy.verification.derivation.integers.stepwise import Scaled, Step
from normdeploy.verification.derivation.side.affine_laws import spread, step_of
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind

_MOST, _LONGEST = 256, 48
"""Values that are looked at, and operators in a row."""


def ends(side: Side, start: Path) -> Iterator[End]:
    """Return what makes integers of a start, nearest first.

    Args:
        side: the source. start: sums or integers.
    """
    yield from (found for found in _all(side, start) if isinstance(found, End))


def _all(side: Side, start: Path) -> Iterator[Path | End]:
    queue, seen = [start], {start.value}
    for path in queue:
        for usage in path.value.uses():
            for found in _read(side, path, usage.node, usage.idx):
                if isinstance(found, Path):
                    if found.value in seen or len(seen) >= _MOST or len(found.steps) >= _LONGEST:
                        continue
                    seen.add(found.value)
                    queue.append(found)
                yield found


def as_function(side: Side, start: Path, value: ir.Value) -> Path | None:
    """Return one value as a function of a start; None where it is none that is followed."""
    found = (one for one in _all(side, start) if isinstance(one, Path) and one.value is value)
    return next(found, None)


def _read(side: Side, path: Path, node: ir.Node, index: int) -> Iterator[Path | End]:
    """Return what a reader makes of a value: a further path, and an end where that is a level."""
    output = node.outputs[0]
    step = step_of(side, output)
    if step is not None and step.value is path.value:
        made = _map(side, path, node)
        if made is not None:
            yield replace(path, value=output, steps=(*path.steps, made))
        return
    if index != 0 and kind(node) not in ("Max", "Min", *COMPARISONS):
        return
    if kind(node) in READERS:
        yield from READERS[kind(node)](side, path, node)
    elif node.domain in DOMAINS:
        yield from qonnx_steps(side, path, node)
    elif kind(node) == "MaxPool":
        if not any(other.uses() for other in node.outputs[1:]):
            pooled = len(path.steps) if path.pooled is None else path.pooled
            yield replace(path, value=output, moves=(*path.moves, node), pooled=pooled)
    elif has(node, Trait.PERMUTES) and side.shapes(output):
        rank = len(side.shapes(output)[0])
        yield replace(path, value=output, moves=(*path.moves, node), rank=rank, axis=None)


def _map(side: Side, path: Path, node: ir.Node) -> Step | None:
    """Return an affine operator's map, exact where its constants are stored."""
    found = step_of(side, node.outputs[0])
    assert found is not None
    inputs = inputs_of(node)
    exact = kind(node) != "BatchNormalization" and all(
        value is path.value or value is None or side.stored_in(value) is not None or _shapes_only(node)
        for value in inputs
    )
    parts = (found.scale, np.ones(()), found.shift)
    if kind(node) == "Div" and inputs[0] is path.value:
        divisor = spread(side, inputs[1])
        if divisor is None:
            return None
        parts = (np.ones(()), divisor[0], found.shift)
    vectors = [by_channel(part, path) for part in parts]
    if any(vector is None or not np.isfinite(vector).all() for vector in vectors):
        return None
    times, by, add = (vector for vector in vectors if vector is not None)
    return Scaled(times, by, add, exact)


def _shapes_only(node: ir.Node) -> bool:
    return kind(node) in ("Reshape", "Expand", "Squeeze", "Unsqueeze", "Flatten", "Cast", "CastLike", "Dropout")
