"""Operators that nothing explains and of whose results nothing reaches an output, in any sample.

In front of a Clip that lies at its bounds throughout, or of a Relu that reads nothing above 0, the outputs are the same
whatever stands there (a Cast to bfloat16, a factor of 2), so that no check could have failed by it. The derivatives of
the outputs say it of all operators in one run. What outputs decide on is asked for itself (:mod:`.open_decisions`).

What chooses, cuts off or keeps (:mod:`.idle`) has to show where it does something: a Min(x, 1000) acts on large inputs,
where a gate behind it is open as far as it goes, and where the gate moves it returns what it read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, constant_tensor
from normdeploy.graph.operator_evaluation import as_constant, promote
from normdeploy.graph.operators.random import has_effect
from normdeploy.graph.traits import Trait, has
from normdeploy.graph.walk import nodes_in, values_read
from normdeploy.verification.check_context import Context
from normdeploy.verification.checks.decisive import takes_steps
from normdeploy.verification.checks.open_decisions import shown_by
from normdeploy.verification.derivation.side.body_graphs import bodies_of
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.sides.clip_bounds import where_beyond
from normdeploy.verification.sides.exact_agreement import plural, shortened
from normdeploy.verification.sides.flat_values import Feeds
from normdeploy.verification.sides.watch import Watch, spread_over

_EVALUATIONS = 3.0
"""What a run with derivatives costs, in runs without."""


def check_hidden(context: Context) -> list[Check]:
    """Name the operators of the file that no algebra explains and that no output of a sample depends on."""
    report = context.proven
    told = context.failed or context.answered(Question.IDLE, Status.NOT_EXERCISED)  # an idle operator hides others
    if report is None or report.confirmed or told:
        return []
    outputs = [value for value in context.subject.model.graph.outputs if value.dtype in FLOATS]
    shown = set[str]().union(*map(shown_by, outputs))
    watch, unseen = context.subject.watch, dict[str, set[int]]()
    rows = [row.node for row in report.open if not row.is_close and row.result in shown]
    inside = [node for row in rows for node in _inside(row) if watch and node.outputs[0].name in watch.names]
    left = {str(node.outputs[0].name): node for node in (*rows, *inside) if has_effect(node.outputs[0])}
    for case in context.cases:
        if not left:
            break
        context.effort.spend(_EVALUATIONS, case.family.feeds)
        try:
            found = _Derivatives(left.values(), watch).of(context, case.family.feeds)
        except GraphError:
            continue  # the runtime takes what is not evaluated here
        for name, places in found.items():
            unseen[name] = unseen.get(name, places) & places
        left = {name: node for name, node in left.items() if unseen.get(name, {-1})}
    hidden = [f"{node.op_type} {str(node.name or name)!r}" for name, node in left.items() if name in unseen]
    if not hidden:
        return []
    text = (
        f"no output of {plural(len(context.cases), 'family', 'families')} depends on what is returned by "
        f"{shortened(hidden)} where it is not what was read, and no algebra explains it: whatever stood there would "
        "have passed; give inputs on which it shows (data=, --data)"
    )
    return [Check(Question.IDLE, Status.NOT_EXERCISED, text)]


def _inside(node: ir.Node) -> Iterator[ir.Node]:
    return (inner for body in bodies_of(node).values() for inner in nodes_in(body))


class _Derivatives:
    """Which operators' first results outputs depend on, by derivatives.

    A result reaches what a sum that reads it reaches, though it may be taken away again (x - x). What stands in a body
    returns something each time that it runs, which is shown where one of these is.

    Args:
        nodes: the operators. watch: of those that have to return there something else than they read, if any; a Clip
            has to read there something beyond each of its own bounds.
    """

    def __init__(self, nodes: Iterable[ir.Node], watch: Watch | None) -> None:
        found = {str(node.outputs[0].name): node for node in nodes}
        self._at = {name: _with_sums(node.outputs[0]) for name, node in found.items()}
        self._names = set[str]().union(*self._at.values())
        self._asked = {name for name in found if watch is not None and name in watch.names}
        self._ends = {} if watch is None else watch.ends
        self._read = {value.name for name in self._asked for value in found[name].inputs if value is not None}
        self._values: dict[str, Tensor] = {}
        self._apart: dict[str, list[dict[int, Tensor]]] = {}
        self._kept: dict[str, list[Tensor]] = {}
        self._graded: set[str] = set()
        self._lost = False

    def of(self, context: Context, feeds: Feeds) -> dict[str, set[int]]:
        """Return of each result what no output shows: -1 for itself, the places of operands that it seems to be.

        Where derivatives end somewhere, outputs may depend on all.

        Raises:
            GraphError: the file cannot be evaluated on these inputs.
        """
        self._enter({name: promote(feeds[name], torch.float64) for name in feeds if name in self._read})
        with torch.enable_grad():
            found = context.subject.evaluator.run(feeds, hook=self._keep, entered=self._enter)
            outputs = [made[made.isfinite()] for made in found.values() if made.requires_grad]
            draw = torch.Generator().manual_seed(context.seed)
            signs = [torch.randn(one.shape, generator=draw, dtype=one.dtype) for one in outputs]
            total = sum((torch.dot(one, sign) for one, sign in zip(outputs, signs, strict=True)), torch.zeros(()))
        ran = [name for name in self._at if name in self._kept]
        if self._lost or not total.requires_grad:
            return {name: set() if self._lost else {-1} for name in ran}
        kept = [one for runs in self._kept.values() for one in runs]
        given = iter(torch.autograd.grad(total, kept, allow_unused=True))
        felt = {
            name: [None if one is None else one != 0 for one in islice(given, len(runs))]  # NaN is not 0
            for name, runs in self._kept.items()
        }
        runs = {name: range(len(self._kept[name])) for name in ran}
        return {name: set.intersection(*(self._unseen(name, run, felt) for run in runs[name])) for name in ran}

    def _unseen(self, name: str, run: int, felt: Mapping[str, Sequence[Tensor | None]]) -> set[int]:
        """Return the same of one of the times that an operator ran."""
        count = len(felt[name])
        alike = [felt[at][run : run + 1] if len(felt[at]) == count else felt[at] for at in self._at[name] if at in felt]
        shown = [one for runs in alike for one in runs if one is not None and bool(one.any())]
        apart = self._apart[name][run] if name in self._asked else {}
        if not shown:
            return {-1, *apart}
        return {
            place
            for place, other in apart.items()
            if not any(bool((one & other if one.shape == other.shape else other).any()) for one in shown)
        }

    def _enter(self, known: Mapping[str, Tensor]) -> None:
        """See what the graph, or a body, is fed."""
        self._graded.update(name for name, held in known.items() if held.requires_grad)
        self._values.update({name: held.detach() for name, held in known.items() if name in self._read})

    def _apart_from_read(self, node: ir.Node, made: Tensor) -> dict[int, Tensor]:
        """Return where a result is not what was read, by the operand's place; of a Clip with bounds of its own, where
        it read something beyond, by the bound's side."""
        held = {place: one for place, value in enumerate(node.inputs) if (one := self._held(value)) is not None}
        sides = self._ends.get(str(node.outputs[0].name), ()) if node.op_type == "Clip" else ()
        if sides and 0 in held:
            beyond = where_beyond(node, held[0])
            return {side: beyond[side] for side in sides}
        alike = {place: spread_over(one, made) for place, one in held.items() if one.dtype == made.dtype}
        return {place: one != made for place, one in alike.items() if one is not None}

    def _held(self, value: ir.Value | None) -> Tensor | None:
        constant = None if value is None else constant_tensor(value)
        if constant is not None:
            return as_constant(constant, torch.float64)
        return None if value is None else self._values.get(str(value.name))

    def _keep(self, node: ir.Node, results: list[Tensor]) -> list[Tensor]:
        """Make each result that is asked about a tensor of its own, which derivatives are taken by."""
        read = any(value.name in self._graded for value in values_read(node))
        first = str(node.outputs[0].name)
        if first in self._asked:
            self._apart.setdefault(first, []).append(self._apart_from_read(node, results[0].detach()))
        for place, value in enumerate(node.outputs[: len(results)]):
            made, name = results[place], str(value.name)
            if name in self._read:
                self._values[name] = made.detach()
            if name in self._names and made.is_floating_point():
                made = made.clone() if made.requires_grad else made.detach().clone().requires_grad_(True)
                results[place] = made
                self._kept.setdefault(name, []).append(made)
            if made.requires_grad:
                self._graded.add(name)
            elif read and made.is_floating_point() and (not takes_steps(node, value) or has(node, Trait.HOMOGENEOUS)):
                self._lost = True
        return results


def _with_sums(value: ir.Value) -> set[str]:
    """Return the name of a value, and of the sums that read it."""
    sums = {str(node.outputs[0].name) for node, _ in value.uses() if has(node, Trait.ADDS)}
    return {str(value.name), *sums}
