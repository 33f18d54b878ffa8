"""Flips: values that the runtime's own optimizers put on the other side of a quantizer's tie.

A runtime that rounds something in front of a quantizer, as onnxruntime's WeightBiasQuantization rounds the float bias
of an int8 convolution to integers of scale(x) scale(w), turns the rounding of a few values: each is off by one step
there, far beyond float32's rounding and yet no fault of the file. Where that quantizer is the output's own, the output
is off by steps of its grid; where it lies inside, by what a step inside makes of it. Such outputs are taken out of the
rounding judgement and held against one of their own: they stay on their grid if they have one, agree where the
optimizer that moves them is switched off, and are near what float64 makes of the file, or of the file with its biases
rounded like that (:mod:`normdeploy.verification.sides.biases`): not much further than turning 1 % of the values at
each quantizer, those nearest to a tie, moves them (:mod:`normdeploy.verification.sides.grids`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator, constant64
from normdeploy.graph.operators.narrow_types import NARROW_FLOATS, quantized_type
from normdeploy.graph.traits import is_dequantizer, is_quantizer, is_standard
from normdeploy.verification.derivation.side.joined_operators import written_out
from normdeploy.verification.family_case import Case
from normdeploy.verification.judging.outputs import OutputResult, hold_against
from normdeploy.verification.sides.biases import rounded_biases
from normdeploy.verification.sides.flat_values import Feeds, run_evaluator
from normdeploy.verification.sides.grids import flipped, quantizes, turned
from normdeploy.verification.sides.sessions import Setting


@dataclass(frozen=True)
class Flips:
    """Elements of one output that one run moved by flips.

    Args:
        output: which output. setting: how the file was run. case: on what.
        count: elements that are off.
        size: what is left of the error, biases rounded or not, over the effect of the simulated flips, in the 2-norm.
    """

    output: int
    setting: Setting
    case: Case
    count: int
    size: float


_MOVED = 1e-6
"""Differences relative to the largest value that count as moved, of outputs that lie on no grid."""

FEW = 2.0
"""Times the simulated flips' effect that is allowed: of a few flips, which values they are makes so much.

``python benchmarks/quantized_flips.py`` measures it. It tells damage from flips only where an optimizer does no more
than round biases (0.000002 against 0.2 and more). Others compute products with fewer digits, and reach 1.
"""


@dataclass(frozen=True)
class _Reach:
    """What float64 says of one output on one input.

    Args:
        rounded: by how much it is off where the runtime rounds biases.
        flipped: how far it moves (2-norm) where SHARE of the values at each quantizer are flipped.
    """

    rounded: Array
    flipped: float


class Quantized(Protocol):
    """A file, or a part of one, that can be evaluated in float64."""

    model: ir.Model
    evaluator: Evaluator

    @property
    def output_names(self) -> Sequence[str]:
        """Names of the outputs, in the order in which runs return them."""

    def logic(self, feeds: Feeds) -> list[Array]:
        """Return the outputs in float64."""


class FlipRecord:
    """What runs of a file moved by flips, and how much of each output there was to move.

    Args:
        subject: the file, or a part of it.
    """

    def __init__(self, subject: Quantized) -> None:
        self._subject = subject
        # An operator that quantizes its own result has a quantizer whose values flip, as one that stands alone
        self._model = written_out(subject.model)
        self._evaluator = subject.evaluator if self._model is subject.model else Evaluator(self._model)
        self._quantizes = quantizes(self._evaluator)
        self.found: list[Flips] = []
        self.sizes: Counter[tuple[int, Setting]] = Counter()
        self._reach: dict[int, tuple[Case, list[_Reach]]] = {}

    def explain(self, case: Case, result: OutputResult, outputs: Sequence[Array], setting: Setting) -> bool:
        """Tell whether an output that fails differs from its truth by no more than flips explain; keep them if so.

        Args:
            result: what was found of the output. outputs: the run's. setting: how the file was run.
        """
        place = result.index
        got, truth = outputs[place], case.truth[place]
        if got.shape != truth.shape or not self._quantizes:
            return False
        self.sizes[place, setting] += int(got.size)
        if result.holds or not np.isfinite(got.astype(np.float64)).all():
            return False
        error = got.astype(np.float64) - np.asarray(truth, np.float64)
        step = step_of(self._model, self._subject.output_names[place], got.ndim)
        if step is not None:
            steps = np.round(error / step)
            settled = list(outputs)
            settled[place] = (got.astype(np.float64) - steps * step).astype(got.dtype)
            if not hold_against(case, settled)[place].holds:
                return False  # off the grid
        else:
            steps = np.abs(error) > _MOVED * np.abs(np.asarray(truth, np.float64)).max(initial=0.0)
        try:
            reach = self._reach_of(case)[place]
        except GraphError:  # the runtime may know what is not known here
            return False
        moved = min(float(np.linalg.norm(error)), float(np.linalg.norm(error - reach.rounded)))
        # flips inside may undo those at the output's own quantizer, in the few values of a small output
        own = 0.0 if step is None else float(np.max(step)) * math.sqrt(turned(got.size))
        most = max(reach.flipped, own)
        if moved > FEW * most:
            return False
        size = moved / most if most else float("inf")
        self.found.append(Flips(place, setting, case, int(np.count_nonzero(steps)), size))
        return True

    def _reach_of(self, case: Case) -> list[_Reach]:
        """Return how far each output moves where biases are rounded, and where values at the quantizers are flipped."""
        if id(case) not in self._reach:
            evaluator, feeds, names = self._evaluator, case.family.feeds, self._subject.output_names
            logic = [np.asarray(array, np.float64) for array in self._subject.logic(feeds)]
            biases = rounded_biases(evaluator)
            rounded = dict(zip(names, logic, strict=True))
            rounded |= run_evaluator(evaluator, feeds, stand_ins=biases) if biases else {}
            changed = run_evaluator(evaluator, feeds, stand_ins=flipped(evaluator))
            found = [
                _Reach(_off(rounded[name], own), float(np.linalg.norm(_off(changed[name], own))))
                for name, own in zip(names, logic, strict=True)
            ]
            self._reach[id(case)] = case, found  # the case is kept, so that no other takes its identity
        return self._reach[id(case)][1]


def _off(found: Array, own: Array) -> Array:
    """Return how far an output moved; not at all where there are other rows now."""
    moved = np.asarray(found, np.float64)
    return moved - own if moved.shape == own.shape else np.zeros_like(own)


def step_of(model: ir.Model, name: str, rank: int) -> Array | float | None:
    """Return the step of the grid that an output lies on, ready to divide it by; None where it lies on none.

    Args:
        model: the file's graph. name: of the output. rank: its number of axes.
    """
    value = next((v for v in model.graph.outputs if v.name == name), None)
    direct = _behind(value, frozenset({"Identity"}))
    node = _behind(value, _MOVES)
    if node is None:
        return None
    if is_quantizer(node):
        return None if quantized_type(node) in NARROW_FLOATS else 1.0
    scale = constant64(node.inputs[1]) if is_dequantizer(node) else None
    source = _behind(node.inputs[0], _MOVES)
    if source is None or not is_quantizer(source) or scale is None or not (scale > 0).all():
        return None
    if quantized_type(source) in NARROW_FLOATS:  # the numbers that they hold lie on no grid
        return None
    if scale.size == 1:
        return float(scale.reshape(()))
    if scale.ndim != 1 or node is not direct:  # blocked scales, or channels that were moved
        return None
    axis = node.attributes.get_int("axis", 1) % rank
    return np.asarray(scale).reshape([-1 if k == axis else 1 for k in range(rank)])


_MOVES = frozenset(
    {
        "Identity",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Slice",
        "Relu",
        "Clip",
        "MaxPool",
        "Gather",
    }
)
"""Operators that leave values on their grid; a Clip of integers stands between the quantizers of a narrow range."""


def _behind(value: ir.Value | None, passed: frozenset[str]) -> ir.Node | None:
    """Return the operator that computes a value, some seen through."""
    node = None if value is None else value.producer()
    while node is not None and is_standard(node, *passed):
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return node
