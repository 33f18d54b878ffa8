"""Rules of one's own: a spelling that others use, said in standard operators, before anything is recognised.

A rule is a function of one node, the last one of a spelling. It returns the nodes that compute the same from the values
that the spelling reads, the last one's first output in place of the node's, or None where the node is none of it::

    def rule(node: onnx_ir.Node) -> list[onnx_ir.Node] | None

Rules are found in the entry points of the group ``normdeploy.rules``, or added by :func:`add_rule`. What they return is
checked like our own rewrites, in float64 on random inputs, and leaves a row in the ledger.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import entry_points

import onnx_ir as ir

from normdeploy.errors import RewriteError, UsageError
from normdeploy.graph import module_path
from normdeploy.graph.edit import take_out, take_place
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.ledger import LedgerRow
from normdeploy.rewrite.rewrite_context import RewritePass

Rule = Callable[[ir.Node], "list[ir.Node] | None"]
GROUP = "normdeploy.rules"

_added: dict[str, Rule] = {}


def add_rule(rule: Rule, name: str = "") -> None:
    """Add a rule for this process.

    Args:
        rule: see the module. name: for the ledger and for errors; the function's own by default.
    """
    _added[name or rule.__name__] = rule


def remove_rule(name: str) -> None:
    """Take an added rule away again."""
    _added.pop(name, None)


@functools.cache
def installed_rules() -> dict[str, Rule]:
    """Return the rules that installed packages bring.

    Raises:
        UsageError: one cannot be loaded, or is no function.
    """
    found: dict[str, Rule] = {}
    for entry in entry_points(group=GROUP):
        try:
            rule = entry.load()
        except Exception as error:  # whatever somebody's package raises when it is imported
            raise UsageError(
                f"the rule {entry.name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}; expected "
                "a function of a node: mend or uninstall the package that brings it"
            ) from error
        if not callable(rule):
            raise UsageError(f"the rule {entry.name!r} is a {type(rule).__name__}; expected a function of a node")
        found[entry.name] = rule
    return found


class OutsideRules(RewritePass):
    """Apply the rules of other packages, wherever one answers.

    Args:
        context: checks what they return and takes their rows.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Ask every rule about every node of every graph."""
        rules, modified = {**installed_rules(), **_added}, False
        for graph in graphs_of(model) if rules else ():
            for node in list(graph):
                if node.graph is graph:
                    modified |= any(self._apply(graph, node, name, rule) for name, rule in rules.items())
        return ir.passes.PassResult(model, modified)

    def _apply(self, graph: ir.Graph, node: ir.Node, name: str, rule: Rule) -> bool:
        if node.graph is not graph:
            return False
        made = rule(node)
        if not made:
            return False
        where = module_path(node)
        made_values = {value for new in made for value in new.outputs}
        reads = {value for new in made for value in new.inputs if value is not None} - made_values
        before = _between(node, reads)
        inputs = [value for value in reads if value.const_value is None]
        old, new = node.outputs[0], made[-1].outputs[0]
        self.context.check_region(f"rule {name}", where, before, made, inputs, [(old, new)])
        graph.insert_before(node, made)
        take_place(new, old)
        take_out(before)
        operators = ", ".join(dict.fromkeys(part.op_type for part in made))
        self.context.ledger.add(LedgerRow(where, name, "fused", operators, f"by the rule {name} of another package"))
        return True


def _between(node: ir.Node, reads: set[ir.Value]) -> list[ir.Node]:
    """Return the nodes that compute a node's result from the given values, in order.

    Raises:
        RewriteError: they do not: something else is read, too.
    """
    found: dict[ir.Node, None] = {}

    def visit(one: ir.Node) -> None:
        if one in found:
            return
        for value in one.inputs:
            if value is None or value in reads or value.const_value is not None:
                continue
            maker = value.producer()
            if maker is None or maker.graph is not node.graph:
                raise RewriteError(
                    "a rule of another package",
                    module_path(node),
                    f"{value.name} is read, and the new nodes read it not",
                )
            visit(maker)
        found[one] = None

    visit(node)
    return list(found)
