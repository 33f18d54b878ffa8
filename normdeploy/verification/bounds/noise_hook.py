"""The noise of one operator's results (:mod:`normdeploy.verification.bounds.noise`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph.evaluate import StandIn
from normdeploy.graph.operator_evaluation import imports_of, opset_of
from normdeploy.graph.operators import Call
from normdeploy.graph.operators.recurrent import RECURRENT
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import nodes_in
from normdeploy.verification.bounds.accuracy import GATES, reduction_length
from normdeploy.verification.bounds.cancellation import drift, row_shift, terms
from normdeploy.verification.bounds.decisions import representable
from normdeploy.verification.bounds.hashing import hashed_noise
from normdeploy.verification.bounds.interpolation import interpolates, interpolation_terms
from normdeploy.verification.sides.flat_values import SMALLEST_NORMAL, UNIT_ROUNDOFF
from normdeploy.verification.sides.function_accuracy import FUNCTIONS

_ORDINARY = 2.0**-80
"""A result that reaches this far is nowhere near underflow as a whole."""

_CALLED = {"GRU": 3, "LSTM": 5, "RNN": 1}
"""How many functions a step of a recurrent operator computes."""

NARROW = {ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16"}
"""Types whose results a runtime rounds, or keeps in float32: it has no kernel for them, or takes two Casts out."""


class NoiseHook:
    """A hook for :class:`normdeploy.graph.Evaluator` that adds simulated rounding errors.

    A result that the graph declares narrower than that is rounded as its own type is.

    Args:
        rounding: the nodes whose results get noise. looked_at: those whose operands say how much.
        roundoff: u.
        floor: smallest normal number of the precision: below it rounding is absolute.
        seed: of the noise.
        feeds: the run's inputs, for their shapes.
        plain: round each result once, without the growth of long sums (arithmetic with a wide accumulator); weights
            are taken as they are.
        distinct: equal values get unequal noise.
        operands: how often each value is an operand of a sum; such values are kept until the last of these has run.
        constants: returns a constant operand of a sum, given the node and the operand's place.
        one_size: tells whether a constant operand of a product, given as above, is of one size, signs aside.
        exact: nodes whose results get no noise where a format of unit roundoff ``unit`` holds them.
    """

    def __init__(
        self,
        rounding: Collection[ir.Node],
        looked_at: Collection[ir.Node],
        roundoff: float,
        floor: float,
        seed: int,
        feeds: Mapping[str, Tensor],
        *,
        plain: bool = False,
        distinct: bool = False,
        operands: Mapping[str, int] | None = None,
        constants: Callable[[ir.Node, int], Tensor | None] | None = None,
        one_size: Callable[[ir.Node, int], bool] | None = None,
        exact: Collection[ir.Node] = (),
        unit: float = 0.0,
    ) -> None:
        self._rounding, self._looked_at = rounding, looked_at
        self._plain, self._distinct = plain, distinct
        self._roundoff, self._floor = roundoff, floor
        self._seed = seed
        self._count = 0
        self._shapes: dict[str, tuple[int, ...]] = {name: tuple(a.shape) for name, a in feeds.items()}
        self._left = {} if plain or operands is None else dict(operands)
        self._kept = {name: tensor for name, tensor in feeds.items() if name in self._left}
        self._constants, self._one_size = constants, one_size
        self._exact, self._unit = exact, unit
        self._reach = roundoff / unit if unit else 1.0

    def __call__(self, node: ir.Node, results: list[Tensor]) -> list[Tensor]:
        """Return the results with noise."""
        for output, result in zip(node.outputs, results, strict=False):
            self._shapes[str(output.name)] = tuple(result.shape)
        if node in self._rounding:
            noisy = self._rounded(node, results)
            unit = self._holds(node)
            if unit and results[0].dtype == torch.float64:
                noisy = [torch.where(representable(results[0], unit), results[0], noisy[0])]
            results = noisy
        for output, result in zip(node.outputs, results, strict=False):
            if output.name in self._left:
                self._kept[str(output.name)] = result
        return results

    def recurrent(self, graph: ir.Graph) -> dict[ir.Node, StandIn]:
        """Return what computes the recurrent operators of a graph with the noise of the functions in their gates.

        An error of a gate is carried on through time, and multiplied by the state. Functions err by the value that they
        compute: a gate that stays where it is errs alike at each step, and two that are closed err apart.
        """
        nodes = [] if self._plain else [node for node in nodes_in(graph) if is_standard(node, *RECURRENT)]
        return {node: partial(self._run_recurrent, node) for node in nodes}

    def _run_recurrent(self, node: ir.Node, inputs: Sequence[Tensor | None]) -> Sequence[Tensor]:
        roundoff, floor = self._own(node)
        first, called = self._count, count()

        def noisy(name: str, result: Tensor) -> Tensor:
            relative, absolute = GATES.get(name, (1.0, 0.0))
            self._count = first + next(called) % _CALLED[node.op_type]
            return self._noisy(result, relative * roundoff, absolute, floor=floor)

        dtype = next(value.dtype for value in inputs if value is not None)
        call = Call(node, opset_of(node, imports_of(node)), dtype, gates=noisy)
        found = RECURRENT[node.op_type](call, list(inputs))
        self._count = first + _CALLED[node.op_type]
        return [found] if isinstance(found, Tensor) else found

    def _holds(self, node: ir.Node) -> float:
        """Return the unit roundoff of the format that holds some of a node's results exactly; 0 where none is asked."""
        if is_standard(node, "Cast"):
            return UNIT_ROUNDOFF[ir.DataType(node.attributes.get_int("to", 1)).numpy().name]
        return self._unit if node in self._exact else 0.0

    def rounded_once(self, value: Tensor) -> Tensor:
        """Return what an operator outside the graph would have computed, with the noise of its one rounding."""
        return self._noisy(value, self._roundoff, 0.0)

    def _rounded(self, node: ir.Node, results: list[Tensor]) -> list[Tensor]:
        length = reduction_length(node, self._shapes, tuple(results[0].shape))
        if self._plain:
            return [self._noisy(result, self._roundoff, 0.0) for result in results]
        relative, absolute = FUNCTIONS.get(node.op_type, (1.0, 0.0))
        roundoff, floor = self._own(node)
        amplitude = roundoff * max(relative, math.sqrt(length) / 4)
        inputs = self._operands(node)
        if inputs is not None:
            alike = self._one_size
            reach = drift(node, inputs, length, lambda index: alike is not None and alike(node, index))
            amplitude = max(amplitude, roundoff * reach)
        of_terms: Tensor | None = None
        if inputs is not None and interpolates(node):
            of_terms = interpolation_terms(node, inputs[0], results[0].shape)
        elif inputs is not None:
            of_terms = terms(node, inputs, length, seed=self._seed)
        least = [of_terms if place == 0 else None for place in range(len(results))]
        noisy = [
            self._noisy(result, amplitude, absolute, None if own is None else own.mul(roundoff), floor=floor)
            for result, own in zip(results, least, strict=True)
        ]
        moved = None if inputs is None else row_shift(node, inputs, length)
        if moved is not None:
            by, key = moved
            self._count += 1
            shift = hashed_noise(key, self._seed * 1_000_003 + self._count).mul_(roundoff).mul_(by)
            noisy[0] = torch.where(shift.isfinite(), noisy[0] + shift, noisy[0])
        return noisy

    def _own(self, node: ir.Node) -> tuple[float, float]:
        """Return u of a node's results, and the smallest normal number: those of a narrower type that is declared."""
        dtype = next((value.dtype for value in node.outputs if value.dtype in NARROW), None)
        if dtype is None:
            return self._roundoff, self._floor
        name = NARROW[dtype]
        return max(self._roundoff, self._reach * UNIT_ROUNDOFF[name]), max(self._floor, SMALLEST_NORMAL[name])

    def _operands(self, node: ir.Node) -> list[Tensor | None] | None:
        """Return a cancelling operator's operands; what no other one needs is let go."""
        if not self._left or node not in self._looked_at:
            return None
        inputs: list[Tensor | None] = []
        for index, value in enumerate(node.inputs):
            name = "" if value is None else str(value.name)
            if name in self._kept:
                inputs.append(self._kept[name])
                self._left[name] -= 1
                if not self._left[name]:
                    del self._kept[name]
            else:
                inputs.append(None if self._constants is None else self._constants(node, index))
        return inputs

    def _noisy(
        self,
        result: Tensor,
        amplitude: float,
        absolute: float,
        least: Tensor | None = None,
        *,
        floor: float | None = None,
    ) -> Tensor:
        """Return a result with noise of ``amplitude`` of its size, and of no less than ``least``."""
        if not result.is_floating_point() or result.numel() == 0:
            return result
        floor = self._floor if floor is None else floor
        self._count += 1
        # most results are small, of which NumPy takes half of torch's time
        clean = result.numpy()
        noisy = hashed_noise(result, self._seed * 1_000_003 + self._count, distinct=self._distinct).numpy()
        with np.errstate(invalid="ignore", over="ignore"):
            reach = max(-float(clean.min()), float(clean.max()))
            if least is None and absolute == 0 and reach >= _ORDINARY and not self._distinct:
                noisy *= amplitude
                noisy += 1
                noisy *= clean  # zeros and infinities stay what they are
                return torch.from_numpy(noisy)
            # Underflow is gradual: below the smallest normal number the rounding error stops shrinking
            size = np.abs(clean, out=np.empty_like(clean))
            gone = size < floor if self._distinct else None  # it may be 0 elsewhere: a tie with all that is 0
            if reach < _ORDINARY or absolute:
                np.maximum(size, max(absolute, floor), out=size)
            size *= amplitude
            if gone is not None:
                size[gone] = floor
            moves = clean != 0
            if least is not None:
                own = least.numpy()
                np.maximum(size, own, out=size)
                moves |= own > 0
            noisy *= size
            noisy += clean
        if not (math.isfinite(reach) and bool(moves.all()) and math.isfinite(float(size.max()))):
            kept = ~(moves & np.isfinite(clean) & np.isfinite(size))
            noisy[kept] = clean[kept]
        return torch.from_numpy(noisy)
