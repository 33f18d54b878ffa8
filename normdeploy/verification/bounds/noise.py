r"""Rounding noise in float64: what a correct float32 run may differ by, measured on the graph itself.

Each operator that rounds gets its result multiplied by 1 + u max(1, sqrt(k)/4) U[-1, 1], with k the length of its
reductions (functions that are only accurate absolutely: :mod:`normdeploy.verification.bounds.accuracy`). Each weight is
multiplied by 1 + u U[-1, 1], because folding rounds weights anew. S is the pointwise RMS deviation of such runs from
the clean one.

Rounding is a function of the value, not a lottery: equal values round equally, at every position of a constant image,
and such errors do not average out in the next mean. The noise of results is therefore a hash of the value and of the
run's seed: equal values get equal noise. Sums are rounded relative to their terms, not to a result that cancels
(:mod:`normdeploy.verification.bounds.cancellation`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array, Arrays, Floats
from normdeploy.graph import FLOATS, Evaluator, ExactTensor, constant_tensor, tensor64
from normdeploy.graph.evaluate import StandIn
from normdeploy.graph.operator_evaluation import as_operand, promote
from normdeploy.graph.walk import nodes_in
from normdeploy.nn.as_numpy import to_numpy
from normdeploy.verification.bounds.accuracy import gate_weights, rounds
from normdeploy.verification.bounds.cancellation import condensed, is_looked_at, of_one_size
from normdeploy.verification.bounds.counts import counting
from normdeploy.verification.bounds.decisions import arithmetic_before, decides, held, held_nodes, representable
from normdeploy.verification.bounds.noise_hook import NARROW, NoiseHook
from normdeploy.verification.bounds.weight_noise import with_noise
from normdeploy.verification.sides.flat_values import SMALLEST_NORMAL, Feeds

_LARGEST = 1 << 24
"""Constants with more elements are not condensed: sums that long do not cancel by chance."""

_WRITTEN = 2.0**-12
"""Numbers of so few digits were written (0, 1, 2.5), not learned."""

_PLACES: dict[str, tuple[int, ...]] = {"Resize": (1, 2), "Upsample": (1,)}
"""Operands that say where is read, by operator: moved by a rounding, a whole pixel is taken for its neighbour."""

FAST_ROUNDOFF = 2.0**-16
"""The noise of :meth:`NoisyGraph.spreads_fast`."""


class NoisyGraph:
    """A graph that can be run in float64 with the noise of a lower precision.

    Weights are perturbed one at a time as the evaluator reads them, so no second copy of them is held.

    Args:
        model: the graph; it is left as it is.
        computed: its inputs that stand for what is computed in front of it: they are rounded as that result would be.
    """

    def __init__(self, model: ir.Model, *, computed: Collection[str] = ()) -> None:
        self.evaluator = Evaluator(model)
        self._computed = computed
        self._seed, self._roundoff, self._exact = 0, 0.0, 0.0
        self._condensed: dict[tuple[str, str, int], Tensor] = {}
        self._one_size: set[tuple[str, str, int]] = set()

    @cached_property
    def _noisy(self) -> Evaluator:
        return Evaluator(self.graph, stored=self._weights)

    @cached_property
    def _fast(self) -> Evaluator:
        return Evaluator(self.graph, dtype=torch.float32, stored=self._weights)

    @cached_property
    def _weights(self) -> dict[ir.Value, ir.TensorProtocol]:
        """What stands for weights, made with the first run that asks for it: many verdicts make none."""
        found, tables = dict[ir.Value, ir.TensorProtocol](), arithmetic_before(self.deciding)[1]
        gates = gate_weights(self.graph)
        for number, value in enumerate(self.graph.initializers.values()):
            tensor = value.const_value
            # A scalar is a constant of the program, which folding leaves alone
            if tensor is not None and tensor.dtype in FLOATS and tensor.size > 1 and not _only_places(value):
                found[value] = self._perturbed(tensor, number, gates.get(value, 1.0), written=value.name in tables)
        return found

    @cached_property
    def deciding(self) -> list[ir.Node]:
        """The nodes whose decisions can be held or shuffled (:mod:`normdeploy.verification.bounds.decisions`)."""
        return held_nodes(self.graph)

    @cached_property
    def narrow(self) -> bool:
        """Some results are declared in float16 or bfloat16."""
        return any(value.dtype in NARROW for node in nodes_in(self.graph) for value in node.outputs)

    @cached_property
    def decides(self) -> bool:
        """The graph takes decisions."""
        return decides(self.graph, self._computed)

    @cached_property
    def _arithmetic(self) -> set[ir.Node]:
        return arithmetic_before(self.deciding)[0]

    @cached_property
    def _rounding(self) -> Collection[ir.Node]:
        """The nodes whose results get noise."""
        return {node for node in nodes_in(self.graph) if rounds(node)} - counting(self.graph)

    @cached_property
    def _looked_at(self) -> Collection[ir.Node]:
        """The nodes whose operands say how much noise."""
        return {node for node in nodes_in(self.graph) if is_looked_at(node)}

    @cached_property
    def _operands(self) -> Counter[str]:
        """How often a value is asked for whose size noise depends on."""
        found: Counter[str] = Counter()
        for node in self._looked_at:
            found.update(str(v.name) for v in node.inputs if v is not None and constant_tensor(v) is None)
        return found

    @property
    def graph(self) -> ir.Graph:
        """The clean graph."""
        return self.evaluator.graph

    def _perturbed(self, tensor: ir.TensorProtocol, number: int, reach: float, *, written: bool) -> ExactTensor:
        def compute() -> Floats:
            if not self._roundoff:
                return tensor64(tensor)
            noisy = with_noise(tensor, reach * self._roundoff, self._seed * 40503 + number * 7919)
            if not (written and self._exact):
                return noisy
            value = tensor64(tensor)
            return np.where(representable(as_operand(value), _WRITTEN).numpy(), value, noisy)

        return ExactTensor(compute, tensor.dtype, tuple(int(n) for n in tensor.shape.numpy()), tensor.name)

    def _constant(self, node: ir.Node, index: int, dtype: torch.dtype) -> Tensor | None:
        """Return a constant operand of a sum, products' weights condensed; None for anything else."""
        value = node.inputs[index]
        tensor = None if value is None else constant_tensor(value)
        if value is None or tensor is None or tensor.size > _LARGEST:
            return None
        key = (str(value.name), node.op_type, index)
        if key not in self._condensed:
            whole = as_operand(tensor64(tensor))
            self._condensed[key] = condensed(node, index, whole)
            if of_one_size(node, index, whole):
                self._one_size.add(key)
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
            self._rounding,
            self._looked_at,
            roundoff,
            floor,
            seed,
            {name: promote(array, dtype) for name, array in feeds.items()},
            plain=plain,
            distinct=distinct,
            operands=self._operands,
            constants=lambda node, index: self._constant(node, index, dtype),
            one_size=lambda node, index: (_named(node, index), node.op_type, index) in self._one_size,
            exact=self._arithmetic if exact else (),
            unit=exact,
        )

    def _fed(self, feeds: Feeds, hook: NoiseHook, dtype: torch.dtype) -> dict[str, Array | Tensor]:
        """Return the feeds, those that stand for computed values rounded."""
        return {**feeds, **{name: hook.rounded_once(promote(feeds[name], dtype)) for name in self._computed}}

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
            instead = {**hook.recurrent(self.graph), **(decisions or {})}
            found = self._noisy.run(self._fed(feeds, hook, torch.float64), hook=hook, stand_ins=instead)
            return {name: to_numpy(t) for name, t in found.items()}

    def _clean(self, evaluator: Evaluator, feeds: Feeds) -> tuple[list[Array], dict[ir.Node, StandIn]]:
        """Return the outputs of a run without noise, and what decides as it did."""
        wanted = {str(node.outputs[0].name) for node in self.deciding}
        decided: dict[str, list[Tensor]] = {}

        def remember(node: ir.Node, results: list[Tensor]) -> None:
            if (name := str(node.outputs[0].name)) in wanted:
                decided[name] = list(results)

        with torch.no_grad():
            found = evaluator.run(dict(feeds), hook=remember if wanted else None)
        return [to_numpy(t) for t in found.values()], held(self.deciding, decided)

    def _run_fast(self, feeds: Feeds, seed: int, decisions: Mapping[ir.Node, StandIn]) -> list[Array]:
        """Run in float32 with noise 256 times float32's."""
        self._seed, self._roundoff, self._exact = seed, FAST_ROUNDOFF, 0.0
        hook = self._hook(feeds, FAST_ROUNDOFF, SMALLEST_NORMAL["float32"], seed, torch.float32)
        with torch.no_grad(), np.errstate(over="ignore"):
            fed = self._fed(feeds, hook, torch.float32)
            instead = {**hook.recurrent(self.graph), **decisions}
            return [to_numpy(t) for t in self._fast.run(fed, hook=hook, stand_ins=instead).values()]

    def spreads_fast(self, feeds: Feeds, *, roundoff: float, runs: int = 4, seed: int = 0) -> Iterator[list[Array]]:
        """Yield S from float32 runs whose noise is 256 times larger, scaled down: for networks slow in float64.

        Float32's own rounding is 1/256 of that noise; the noise is still small enough to act linearly, but for that of
        narrower types (:attr:`narrow`).

        Args:
            feeds: the inputs. roundoff: u to scale to. runs: noisy runs. seed: of the noise.
        """
        # weights that are as they are stored need no copy: those with noise are computed anew at each use
        clean, decisions = self._clean(Evaluator(self.graph, dtype=torch.float32), feeds)
        noisy = (self._run_fast(feeds, seed + 1000 * run + 1, decisions) for run in range(runs))
        for found in deviations([c.astype(np.float64) for c in clean], noisy, runs):
            yield [s * (roundoff / FAST_ROUNDOFF) for s in found]

    def spreads(
        self, feeds: Feeds, *, roundoff: float, floor: float, runs: int = 4, seed: int = 0, plain: bool = False
    ) -> Iterator[list[Array]]:
        """Yield S per output: with each run what it is at least, and with the last what it is; zeros where no float.

        Args:
            feeds: the inputs. roundoff, floor: of the precision to imitate. runs: noisy runs, at least 2.
            seed: of the noise. plain: as for :class:`NoiseHook`.
        """
        clean, decisions = self._clean(self.evaluator, feeds)
        given: dict[str, Any] = {"roundoff": roundoff, "floor": floor, "plain": plain, "decisions": decisions}
        noisy = (self.run(feeds, seed=seed + 1000 * run + 1, **given).values() for run in range(runs))
        yield from deviations(clean, noisy, runs)


def deviations(clean: Sequence[Array], noisy: Iterable[Iterable[Array]], runs: int) -> Iterator[list[Array]]:
    """Yield the pointwise RMS deviation of runs from a clean one, with each run; ``runs`` are counted at least, those
    that are not made yet as if like the clean one.
    """
    squares = [np.zeros(c.shape) for c in clean]
    for made, outputs in enumerate(noisy, 1):
        for i, (c, n) in enumerate(zip(clean, outputs, strict=True)):
            if c.shape == n.shape and n.dtype.kind == "f":
                with np.errstate(invalid="ignore", over="ignore"):
                    squares[i] += np.nan_to_num(np.square(n - c), nan=0.0, posinf=0.0, neginf=0.0)
        yield [np.sqrt(s / max(runs, made)) for s in squares]


def _named(node: ir.Node, index: int) -> str:
    value = node.inputs[index]
    return "" if value is None else str(value.name)


def _only_places(value: ir.Value) -> bool:
    """Tell whether an initializer says nothing but where operators read: the runtime reads there, too."""
    uses = list(value.uses())
    return bool(uses) and all(usage.idx in _PLACES.get(usage.node.op_type, ()) for usage in uses)
