"""Values of a graph as functions of an earlier one, step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.verification.derivation.gauges import along, ranked
from normdeploy.verification.derivation.integers.stepwise import Step


@dataclass(frozen=True)
class Path:
    """A value of the source as a function of a start.

    Args:
        value: it. steps: the function. rank: of the value.
        axis: its axis that counts channels, from the end; None where a move left it unknown. channels: how many.
        moves: operators that move elements, in order. pooled: how many steps stand in front of the first MaxPool.
    """

    value: ir.Value
    steps: tuple[Step, ...]
    rank: int
    axis: int | None
    channels: int
    moves: tuple[ir.Node, ...] = ()
    pooled: int | None = None


@dataclass(frozen=True)
class End:
    """A value of the source that is one of a few numbers: value = step (level - zero).

    Args:
        path: to the level. value: the source's. step, zero: what a level is worth; exact: in float64.
        choice: what stands for level 0 and 1, where there are these two: ``step`` and ``zero`` say nothing then.
    """

    path: Path
    value: ir.Value
    step: float = 1.0
    zero: float = 0.0
    exact: bool = True
    choice: tuple[float, float] | None = None


def by_channel(part: Floats, path: Path) -> Floats | None:
    """Return a constant as one number, or one per channel of a path's value; None where it varies otherwise."""
    if part.size == 1:
        return part.reshape(1).astype(np.float64)
    array = None if path.axis is None else ranked(part, path.rank)
    return None if array is None or path.axis is None else along(array, path.axis, path.channels)


def further(path: Path, node: ir.Node, *steps: Step) -> Path:
    """Return the path to an operator's result."""
    return replace(path, value=node.outputs[0], steps=(*path.steps, *steps))
