r"""Rounding noise in float64: what a correct float32 run may differ by, measured on the graph itself.

Each operator that rounds gets its result multiplied by 1 + u max(1, sqrt(k)/4) U[-1, 1], with k the length of its
reductions (functions that are only accurate absolutely: :mod:`normdeploy.verification.bounds.accuracy`). Each weight is
multiplied by 1 + u U[-1, 1], because folding rounds weights anew. S is the pointwise RMS deviation of such runs from
the clean one.

Rounding is a function of the value, not a lottery: equal values round equally, at every position of a constant image,
and such errors do not average out in the next mean. The noise of results is therefore a hash of the value and of the
run's seed: equal values get equal noise.

Sums are rounded relative to their terms, not to a result that cancels
(:mod:`normdeploy.verification.bounds.cancellation`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import FLOATS, Evaluator, ExactTensor, constant_tensor, tensor64
from normdeploy.graph.evaluate import StandIn, promote
from normdeploy.verification.bounds.accuracy import (
    CELL_REACH,
    FUNCTIONS,
    INITIAL_CELL,
    gate_weights,
    reduction_length,
    rounds,
)
from normdeploy.verification.bounds.cancellation import condensed, is_looked_at, row_shift, terms
from normdeploy.verification.bounds.decisions import arithmetic_before, decides, held, held_nodes, representable
from normdeploy.verification.bounds.hashing import hashed_noise
from normdeploy.verification.sides.values import SMALLEST_NORMAL, Array, Arrays, Feeds, to_numpy

_PATTERN = 1 << 18

_LARGEST = 1 << 24
"""Constants with more elements are not condensed: sums that long do not cancel by chance."""

_ORDINARY = 2.0**-80
"""A result that reaches this far is nowhere near underflow as a whole."""

_WRITTEN = 2.0**-12
"""Numbers of so few digits were written (0, 1, 2.5), not learned."""

FAST_ROUNDOFF = 2.0**-16
"""The noise of :meth:`NoisyGraph.spread_fast`."""


class NoiseHook:
    """A hook for :class:`normdeploy.graph.Evaluator` that adds simulated rounding errors.

    Args:
        roundoff: u.
        floor: smallest normal number of the precision: below it rounding is absolute.
        seed: of the noise.
        feeds: the run's inputs, for their shapes.
        plain: round each result once, without the growth of long sums (arithmetic with a wide accumulator); weights
            are taken as they are.
        distinct: equal values get unequal noise.
        operands: how often each value is an operand of a sum; such values are kept until the last of these has run.
        constants: returns a constant operand of a sum, given the node and the operand's place.
        exact: nodes whose results get no noise where a format of unit roundoff ``unit`` holds them.
    """

    def __init__(
        self,
        roundoff: float,
        floor: float,
        seed: int,
        feeds: Mapping[str, Tensor],
        *,
        plain: bool = False,
        distinct: bool = False,
        operands: Mapping[str, int] | None = None,
        constants: Callable[[ir.Node, int], Tensor | None] | None = None,
        exact: Collection[ir.Node] = (),
        unit: float = 0.0,
    ) -> None:
        self._plain, self._distinct = plain, distinct
        self._roundoff, self._floor = roundoff, floor
        self._seed = seed
        self._count = 0
        self._shapes: dict[str, tuple[int, ...]] = {name: tuple(a.shape) for name, a in feeds.items()}
        self._left = {} if plain or operands is None else dict(operands)
        self._kept = {name: tensor for name, tensor in feeds.items() if name in self._left}
        self._constants = constants
        self._exact, self._unit = exact, unit

    def __call__(self, node: ir.Node, results: list[Tensor]) -> list[Tensor]:
        """Return the results with noise."""
        for output, result in zip(node.outputs, results, strict=False):
            self._shapes[str(output.name)] = tuple(result.shape)
        if rounds(node):
            noisy = self._rounded(node, results)
            if node in self._exact and results[0].dtype == torch.float64:
                noisy = [torch.where(representable(results[0], self._unit), results[0], noisy[0])]
            results = noisy
        for output, result in zip(node.outputs, results, strict=False):
            if output.name in self._left:
                self._kept[str(output.name)] = result
        return results

    def _rounded(self, node: ir.Node, results: list[Tensor]) -> list[Tensor]:
        length = reduction_length(node, self._shape, tuple(results[0].shape))
        if self._plain:
            return [self._noisy(result, self._roundoff, 0.0) for result in results]
        relative, absolute = FUNCTIONS.get(node.op_type, (1.0, 0.0))
        amplitude = self._roundoff * max(relative, math.sqrt(length) / 4)
        inputs = self._operands(node)
        least = None if inputs is None else terms(node, inputs, length, seed=self._seed)
        cell = self._cell(node)
        noisy = [
            self._noisy(result, amplitude, absolute, cell if cell is not None else least if place == 0 else None)
            for place, result in enumerate(results)
        ]
        moved = None if inputs is None else row_shift(node, inputs, length)
        if moved is not None:
            by, key = moved
            self._count += 1
            shift = hashed_noise(key, self._seed * 1_000_003 + self._count).mul_(self._roundoff).mul_(by)
            noisy[0] = torch.where(shift.isfinite(), noisy[0] + shift, noisy[0])
        return noisy

    def _cell(self, node: ir.Node) -> Tensor | None:
        """Return the least noise of an LSTM's results in units of u: what its initial cell state makes of a gate's."""
        value = node.inputs[INITIAL_CELL] if node.op_type == "LSTM" and len(node.inputs) > INITIAL_CELL else None
        kept = None if value is None else self._kept.get(str(value.name))
        if kept is None:
            return None
        sizes = kept.abs()
        rows = sizes.amax(-1, keepdim=True) if not node.attributes.get_int("layout", 0) else sizes.amax()
        return CELL_REACH * rows

    def _operands(self, node: ir.Node) -> list[Tensor | None] | None:
        """Return a cancelling operator's operands; what no other one needs is let go."""
        if not self._left or not is_looked_at(node):
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

    def _noisy(self, result: Tensor, amplitude: float, absolute: float, least: Tensor | None = None) -> Tensor:
        """Return a result with noise of ``amplitude`` of its size, and of no less than ``least`` times u."""
        if not result.is_floating_point() or result.numel() == 0:
            return result
        self._count += 1
        noise = hashed_noise(result, self._seed * 1_000_003 + self._count, distinct=self._distinct)
        low, high = torch.aminmax(result)
        reach = max(-float(low), float(high))
        if least is None and absolute == 0 and reach >= _ORDINARY:
            return noise.mul_(amplitude).add_(1).mul_(result)  # zeros and infinities stay what they are
        # Underflow is gradual: below the smallest normal number the rounding error stops shrinking
        size = result.abs()
        if reach < _ORDINARY or absolute:
            size.clamp_(min=max(absolute, self._floor))
        size.mul_(amplitude)
        moves = result != 0
        if least is not None:
            size = torch.maximum(size, least.mul(self._roundoff))
            moves |= least > 0
        noisy = noise.mul_(size).add_(result)
        if math.isfinite(reach) and bool(moves.all()) and math.isfinite(float(size.max())):
            return noisy
        return torch.where(moves & result.isfinite() & size.isfinite(), noisy, result)

    def _shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        if value is None:
            return None
        if value.name in self._shapes:
            return self._shapes[str(value.name)]
        if value.const_value is not None:
            return tuple(int(n) for n in value.const_value.shape.numpy())
        return None


class NoisyGraph:
    """A graph that can be run in float64 with the noise of a lower precision.

    Weights are perturbed one at a time as the evaluator reads them, so no second copy of them is held.

    Args:
        model: the graph; it is left as it is.

    Attributes:
        deciding: the nodes whose decisions can be held or shuffled (:mod:`normdeploy.verification.bounds.decisions`).
        decides: the graph takes decisions.
    """

    def __init__(self, model: ir.Model) -> None:
        self.evaluator = Evaluator(model)
        self._seed = 0
        self._roundoff = self._exact = 0.0
        self._pattern = np.tile(np.random.default_rng(0).uniform(-1, 1, _PATTERN), 2)
        copy = model.clone()
        self.deciding, self.decides = held_nodes(copy.graph), decides(copy.graph)
        self._arithmetic, self._tables = arithmetic_before(self.deciding)
        gates = gate_weights(copy.graph)
        for number, value in enumerate(copy.graph.initializers.values()):
            tensor = value.const_value
            # A scalar is a constant of the program, which folding leaves alone
            if tensor is not None and tensor.dtype in FLOATS and tensor.size > 1:
                reach = gates.get(value, 1.0)
                value.const_value = self._perturbed(tensor, number, reach, written=value.name in self._tables)
        self._noisy = Evaluator(copy)
        self._fast = Evaluator(copy, dtype=torch.float32)
        self._operands: Counter[str] = Counter()
        for node in copy.graph.all_nodes():
            if node.op_type == "LSTM":
                self._operands.update(
                    str(v.name) for v in node.inputs[INITIAL_CELL : INITIAL_CELL + 1] if v is not None
                )
            if is_looked_at(node):
                self._operands.update(str(v.name) for v in node.inputs if v is not None and constant_tensor(v) is None)
        self._condensed: dict[tuple[str, str, int], Tensor] = {}

    @property
    def graph(self) -> ir.Graph:
        """The clean graph."""
        return self.evaluator.graph

    def _perturbed(self, tensor: ir.TensorProtocol, number: int, reach: float, *, written: bool) -> ExactTensor:
        def compute() -> npt.NDArray[np.float64]:
            value = tensor64(tensor)
            start = (self._seed * 40503 + number * 7919) % _PATTERN
            noise = self._pattern[start : start + min(value.size, _PATTERN)]
            if value.size > _PATTERN:
                noise = np.resize(noise, value.size)
            noisy = np.asarray(value * (1 + reach * self._roundoff * noise.reshape(value.shape)))
            if not (written and self._exact):
                return noisy
            return np.where(representable(torch.from_numpy(value.copy()), _WRITTEN).numpy(), value, noisy)

        return ExactTensor(compute, tensor.dtype, tuple(int(n) for n in tensor.shape.numpy()), tensor.name)

    def _constant(self, node: ir.Node, index: int, dtype: torch.dtype) -> Tensor | None:
        """Return a constant operand of a sum, products' weights condensed; None for anything else."""
        value = node.inputs[index]
        tensor = None if value is None else constant_tensor(value)
        if value is None or tensor is None or tensor.size > _LARGEST:
            return None
        key = (str(value.name), node.op_type, index)
        if key not in self._condensed:
            array = tensor64(tensor)
            self._condensed[key] = condensed(node, index, torch.from_numpy(np.array(array)))
        found = self._condensed[key]
        return found.to(dtype) if found.is_floating_point() else found

    def _hook(
        self,
        feeds: Feeds,
        roundoff: float,
        floor: float,
        seed: int,
        dtype: torch.dtype,
        *,
        plain: bool = False,
        distinct: bool = False,
        exact: float = 0.0,
    ) -> NoiseHook:
        return NoiseHook(
            roundoff,
            floor,
            seed,
            {name: promote(array, dtype) for name, array in feeds.items()},
            plain=plain,
            distinct=distinct,
            operands=self._operands,
            constants=lambda node, index: self._constant(node, index, dtype),
            exact=self._arithmetic if exact else (),
            unit=exact,
        )

    def run(
        self,
        feeds: Feeds,
        *,
        roundoff: float,
        floor: float,
        seed: int,
        plain: bool = False,
        distinct: bool = False,
        exact: float = 0.0,
        decisions: Mapping[ir.Node, StandIn] | None = None,
    ) -> Arrays:
        """Return the outputs of one noisy run.

        Args:
            roundoff, floor: u and the smallest normal number of the precision to imitate. seed: of the noise.
            plain, distinct: as for :class:`NoiseHook`. decisions: what decides in place of the graph.
            exact: arithmetic in front of decisions gets no noise where a format of this unit roundoff holds its result.
        """
        self._seed, self._roundoff, self._exact = seed, 0.0 if plain else roundoff, exact
        hook = self._hook(feeds, roundoff, floor, seed, torch.float64, plain=plain, distinct=distinct, exact=exact)
        with torch.no_grad(), np.errstate(over="ignore"):
            found = self._noisy.run(dict(feeds), hook=hook, stand_ins=decisions)
            return {name: to_numpy(t) for name, t in found.items()}

    def _clean(self, evaluator: Evaluator, feeds: Feeds) -> tuple[list[Array], dict[ir.Node, StandIn]]:
        """Return the outputs of a run without noise, and what decides as it did."""
        wanted = {str(node.outputs[0].name) for node in self.deciding}
        decided: dict[str, list[Tensor]] = {}

        def remember(node: ir.Node, results: list[Tensor]) -> None:
            name = str(node.outputs[0].name)
            if name in wanted:
                decided[name] = list(results)

        with torch.no_grad():
            found = evaluator.run(dict(feeds), hook=remember if wanted else None)
        return [to_numpy(t) for t in found.values()], held(self.deciding, decided)

    def _run_fast(self, feeds: Feeds, seed: int, decisions: Mapping[ir.Node, StandIn]) -> list[Array]:
        """Run in float32 with noise 256 times float32's."""
        self._seed, self._roundoff, self._exact = seed, FAST_ROUNDOFF, 0.0
        hook = self._hook(feeds, FAST_ROUNDOFF, SMALLEST_NORMAL["float32"], seed, torch.float32)
        with torch.no_grad(), np.errstate(over="ignore"):
            return [to_numpy(t) for t in self._fast.run(dict(feeds), hook=hook, stand_ins=decisions).values()]

    def spread_fast(self, feeds: Feeds, *, roundoff: float, runs: int = 4, seed: int = 0) -> list[Array]:
        """Return S from float32 runs whose noise is 256 times larger, scaled down: for networks slow in float64.

        Float32's own rounding is 1/256 of that noise; the noise is still small enough to act linearly.

        Args:
            feeds: the inputs. roundoff: u to scale to. runs: noisy runs. seed: of the noise.
        """
        self._roundoff = 0.0
        clean, decisions = self._clean(self._fast, feeds)
        squares = [np.zeros(c.shape) for c in clean]
        for run in range(runs):
            for i, n in enumerate(self._run_fast(feeds, seed + 1000 * run + 1, decisions)):
                if n.shape == clean[i].shape and n.dtype.kind == "f":
                    with np.errstate(invalid="ignore", over="ignore"):
                        change = np.square(n.astype(np.float64) - clean[i].astype(np.float64))
                    squares[i] += np.nan_to_num(change, nan=0.0, posinf=0.0, neginf=0.0)
        return [np.sqrt(s / runs) * (roundoff / FAST_ROUNDOFF) for s in squares]

    def spread(
        self, feeds: Feeds, *, roundoff: float, floor: float, runs: int = 4, seed: int = 0, plain: bool = False
    ) -> tuple[list[Array], list[Array]]:
        """Return S and the clean outputs.

        S is the pointwise RMS deviation of noisy runs from the clean one, per output; zeros where that is not a float.

        Args:
            feeds: the inputs. roundoff, floor: of the precision to imitate. runs: noisy runs, at least 2.
            seed: of the noise. plain: as for :class:`NoiseHook`.
        """
        clean, decisions = self._clean(self.evaluator, feeds)
        squares = [np.zeros(c.shape) for c in clean]
        for run in range(runs):
            one = seed + 1000 * run + 1
            noisy = self.run(feeds, roundoff=roundoff, floor=floor, seed=one, plain=plain, decisions=decisions)
            for i, (c, n) in enumerate(zip(clean, noisy.values(), strict=True)):
                if c.shape == n.shape and c.dtype.kind == "f":
                    with np.errstate(invalid="ignore"):
                        squares[i] += np.nan_to_num(np.square(n - c), nan=0.0, posinf=0.0, neginf=0.0)
        return [np.sqrt(s / runs) for s in squares], clean
