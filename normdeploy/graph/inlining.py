"""Functions that a model brings along are written where they are called: what is behind has operators alone."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from normdeploy.errors import GraphError
from normdeploy.graph.walk import bodies_of


def inline_functions(model: ir.Model) -> None:
    """Write each function of a model where it is called; those that nothing calls leave.

    Args:
        model: changed in place.

    Raises:
        GraphError: a call does not fit its function, functions call each other in a circle, or an operator of a
            function means something else in the model's operator set.
    """
    if not model.functions:
        return
    called = _called(model)
    for key in [key for key in model.functions if key not in called]:
        del model.functions[key]
    for function in model.functions.values():
        _read_in(model, function)
    common.InlinePass()(model)


def _called(model: ir.Model) -> set[ir.OperatorIdentifier]:
    """Return the functions that are called, by whatever the model computes."""
    found: set[ir.OperatorIdentifier] = set()

    def visit(nodes: ir.Graph | ir.Function, within: tuple[ir.OperatorIdentifier, ...]) -> None:
        for node in nodes:
            for body in bodies_of(node):
                visit(body, within)
            key = node.op_identifier()
            function = model.functions.get(key)
            if function is None:
                continue
            _require_fit(node, function)
            if key in within:
                raise GraphError(f"function {function.name!r} calls itself; expected functions that end: unroll it")
            if key not in found:
                found.add(key)
                visit(function, (*within, key))

    visit(model.graph, ())
    return found


def _require_fit(node: ir.Node, function: ir.Function) -> None:
    """Require that a call gives and takes no more than its function does."""
    for what, called, defined in (
        ("inputs", len(node.inputs), len(function.inputs)),
        ("outputs", len(node.outputs), len(function.outputs)),
    ):
        if called > defined:
            raise GraphError(
                f"{node.name or 'a node'} calls function {function.name!r} with {called} {what}; "
                f"expected at most {defined}: write the model again"
            )


def _read_in(model: ir.Model, function: ir.Function) -> None:
    """Read a function in the model's operator set, in which its operators have to mean the same."""
    for domain, version in list(function.opset_imports.items()):
        ours = model.opset_imports.setdefault(domain, version)
        if ours == version:
            continue
        for node in function.all_nodes():
            if node.domain == domain == "" and _form_at(node, ours) != _form_at(node, version):
                raise GraphError(
                    f"function {function.name!r} is written in operator set {version} and the model in {ours}, "
                    f"where {node.op_type} has another form; expected one operator set: convert the function"
                )
        function.opset_imports[domain] = ours


def _form_at(node: ir.Node, version: int) -> int | None:
    """Return the operator set that gave an operator the form that it has in another; None where there is none."""
    try:
        return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)
    except onnx.defs.SchemaError:
        return None
