"""Evaluate an ONNX graph in float64 (or float32) with torch.

Initializers, inputs and every float inside the graph are promoted to one dtype, so that the emitted graph's *logic*
can be compared without its rounding. onnxruntime's CPU convolution has no float64 kernel; torch has.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array
from normdeploy.errors import GraphError, InputError
from normdeploy.graph.bodies import BODIES, run_scans
from normdeploy.graph.evaluation_plan import Plans, needed
from normdeploy.graph.inlining import inline_functions
from normdeploy.graph.operator_evaluation import OPERATOR_ERRORS, as_constant, evaluate_node, failed, opset_of, promote

Hook = Callable[[ir.Node, list[Tensor]], list[Tensor] | None]
"""Sees each node's results; what it returns (unless None) replaces them."""

StandIn = Callable[[Sequence[Tensor | None]], Tensor | Sequence[Tensor]]
"""Computes a node's result, or all of them, from its inputs in the node's place."""


Entered = Callable[[Mapping[str, Tensor]], None]
"""Sees what a body is fed, by name, each time it runs."""

_SMALL = 1 << 12
"""Numbers of a constant that is kept between runs: sizes, axes, parameters of norms, of which a graph has hundreds."""


@dataclass(frozen=True)
class _Changes:
    """What a caller puts in place of what the graph computes (:meth:`Evaluator.run`)."""

    overrides: Mapping[str, Tensor]
    hook: Hook | None
    stand_ins: Mapping[ir.Node, StandIn]
    entered: Entered | None = None


class Evaluator:
    """Evaluate a graph with every float promoted to one dtype.

    Args:
        model: the model, or a graph of one. Functions are inlined in a copy.
        dtype: float64 for logic, float32 for a second opinion.
        stored: what stands for initializers' own tensors.

    Initializers are promoted as they are needed and freed after use. All that is kept between runs are small ones,
    small Constants, and the few numbers that operators compute of these alone, for as long as they hold what they held.
    """

    def __init__(
        self,
        model: ir.Model | ir.Graph,
        *,
        dtype: torch.dtype = torch.float64,
        stored: Mapping[ir.Value, ir.TensorProtocol] | None = None,
    ) -> None:
        if isinstance(model, ir.Model):
            if model.functions:
                model = model.clone()
                inline_functions(model)
            self.graph: ir.Graph = model.graph
        else:
            self.graph = model
        self.dtype, self._stored = dtype, stored or {}
        self._imports = dict(self.graph.opset_imports)
        self._kept: dict[ir.Node | ir.Value, tuple[object, list[Tensor]]] = {}
        self._fixed: dict[ir.Node, tuple[list[Tensor | None], list[ir.Attr], list[Tensor]]] = {}
        self._plans = Plans()

    @property
    def input_names(self) -> list[str]:
        """Names a caller must feed."""
        return [str(v.name) for v in self.graph.inputs if v.name not in self.graph.initializers]

    @property
    def output_names(self) -> list[str]:
        """Names of the graph outputs."""
        return [str(v.name) for v in self.graph.outputs]

    def run(
        self,
        feeds: Mapping[str, Array | Tensor],
        *,
        fetch: Sequence[str] | None = None,
        replace: Mapping[str, Tensor] | None = None,
        hook: Hook | None = None,
        stand_ins: Mapping[ir.Node, StandIn] | None = None,
        among: Sequence[ir.Node] | None = None,
        entered: Entered | None = None,
    ) -> dict[str, Tensor]:
        """Evaluate the graph.

        Args:
            feeds: value per input name.
            fetch: names of the values wanted, any in the graph; the graph outputs by default.
            replace: values that override computed ones, by name (teacher forcing, mutants; initializers too).
            hook: sees each node's results and may replace them.
            stand_ins: what computes the results of some nodes in their place, in bodies too.
            among: the nodes, in order, that are looked through for what is needed; by default all of the graph.
            entered: sees what bodies are fed.

        Returns:
            tensor per fetched name.

        Raises:
            InputError: a feed is missing.
            GraphError: an operator failed or is unknown, or a fetched name does not exist.
        """
        wanted = list(fetch) if fetch is not None else self.output_names
        missing = [name for name in self.input_names if name not in feeds]
        if missing:
            raise InputError(f"no value for input {missing[0]!r}; expected one for each of {self.input_names}")
        overrides = {name: promote(value, self.dtype) for name, value in (replace or {}).items()}
        known: dict[str, Tensor] = {
            name: promote(feeds[name], self.dtype) for name in (str(v.name) for v in self.graph.inputs) if name in feeds
        }
        known.update(overrides)
        changes = _Changes(overrides, hook, stand_ins or {}, entered)
        return self._run(self.graph, known, wanted, changes, among=among)

    def _run(
        self,
        graph: ir.Graph,
        known: dict[str, Tensor],
        wanted: Sequence[str],
        changes: _Changes,
        outer: Callable[[str], Tensor | None] | None = None,
        *,
        among: Sequence[ir.Node] | None = None,
    ) -> dict[str, Tensor]:
        overrides, hook = changes.overrides, changes.hook
        steps = self._plans.of(graph, wanted, overrides) if among is None else needed(among, wanted, overrides)
        uses: dict[str, int] = {}
        for names in (wanted, *(step.reads for step in steps)):
            for name in names:
                uses[name] = uses.get(name, 0) + 1
        initializers = graph.initializers.data

        def look_up(name: str) -> Tensor | None:
            if name in known:
                return known[name]
            initializer = initializers.get(name)
            held = None if initializer is None else self._stored.get(initializer, initializer.const_value)
            if initializer is not None and held is not None:
                return self._small(initializer, held, lambda: [as_constant(held, self.dtype)])[0]
            return outer(name) if outer is not None else None

        for step in steps:
            node = step.node
            inputs: list[Tensor | None] = []
            for value in step.inputs:
                read = None if value is None else value.name
                held = known.get(read) if read else None
                inputs.append(held if held is not None or not read else _required(look_up(read), read))
            if step.fixed and node not in changes.stand_ins:
                results = self._of_constants(node, inputs)
            else:
                results = self._evaluate(node, inputs, changes, look_up)
            if hook is not None:
                results = hook(node, results) or results
            for output, result in zip(step.outputs, results, strict=False):
                made = output.name
                if made and made not in overrides and made in uses:
                    known[made] = result
            for name in step.reads:
                uses[name] -= 1
                if not uses[name] and name not in overrides:
                    known.pop(name, None)
        return {name: _required(look_up(name), name) for name in wanted}

    def _evaluate(
        self,
        node: ir.Node,
        inputs: list[Tensor | None],
        changes: _Changes,
        look_up: Callable[[str], Tensor | None],
    ) -> list[Tensor]:
        stand_in = changes.stand_ins.get(node) if changes.stand_ins else None
        if stand_in is not None:
            result = stand_in(inputs)
            return [result] if isinstance(result, Tensor) else list(result)
        standard, kind = not node.domain, node.op_type
        if standard and kind == "Constant" and not inputs:
            return list(self._constant(node))
        if standard and kind in BODIES:

            def run_body(body: ir.Graph, values: list[Tensor]) -> list[Tensor]:
                known = dict(zip((str(v.name) for v in body.inputs), values, strict=True))
                if changes.entered is not None:
                    changes.entered(known)
                names = [str(v.name) for v in body.outputs]
                found = self._run(body, known, names, changes, look_up)
                return [found[name] for name in names]

            try:
                scans = kind == "Scan" and opset_of(node, self._imports) < 9
                return (run_scans if scans else BODIES[kind])(node, inputs, run_body)
            except OPERATOR_ERRORS as error:
                raise failed(node, inputs, error) from error
        return evaluate_node(node, inputs, dtype=self.dtype, opset_imports=self._imports)

    def _of_constants(self, node: ir.Node, inputs: list[Tensor | None]) -> list[Tensor]:
        """Return what an operator computes of constants; where that is little, what it did of these very ones."""
        attributes, known = list(node.attributes.data.values()), self._fixed.get(node)
        if known is not None and known[1] == attributes and all(map(operator.is_, known[0], inputs)):
            return list(known[2])
        found = evaluate_node(node, inputs, dtype=self.dtype, opset_imports=self._imports)
        if all(not isinstance(t, Tensor) or t.numel() <= _SMALL for t in (*inputs, *found)):
            self._fixed[node] = inputs, attributes, found
        return list(found)

    def _constant(self, node: ir.Node) -> list[Tensor]:
        attribute = next(iter(node.attributes.data.values()), None)
        evaluated = partial(evaluate_node, node, [], dtype=self.dtype, opset_imports=self._imports)
        return self._small(node, attribute, evaluated)

    def _small(self, owner: ir.Node | ir.Value, held: object, promoted: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Return a constant's numbers; where they are few, those of the last run while it holds the same."""
        known = self._kept.get(owner)
        if known is not None and known[0] is held:
            return known[1]
        found = promoted()
        # what is computed on each use may draw its numbers anew, as weights with noise do
        if held is not None and not isinstance(held, ir.LazyTensor) and found[0].numel() <= _SMALL:
            self._kept[owner] = held, found
        return found


def _required(value: Tensor | None, name: str) -> Tensor:
    if value is None:
        raise GraphError(f"value {name!r} is not in the graph; expected an input, an initializer or a node's output")
    return value
