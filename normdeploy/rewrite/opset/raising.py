"""Operator set versions: graphs of an old version are raised, node by node, to one whose forms the rules know.

Versions below 18 spell the same operation differently (axes as attributes of Squeeze and ReduceMean, ratio as an
attribute of Dropout, Upsample for Resize). A graph at 18 or above keeps its version; an older one is raised to 18, no
further. Where a rule emits an operator that is younger than the graph's version, :func:`raise_opset` raises the graph
that far.

onnx's version converter knows how most operators changed, but given a whole model it loses the domain of operators
outside the standard, node metadata and some names. So it is given nodes side by side, each between values of its own,
and only nodes whose form changed between the two versions: everything else of the graph stays the very same object.
What it does not know is in :mod:`normdeploy.rewrite.opset.own_conversions`. ``tests/rewrite/test_opset_meaning.py``
runs every operator of every version, old file against raised file.
"""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
from onnx import defs

from normdeploy.errors import GraphError
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import bodies_of, graphs_of, nodes_of
from normdeploy.rewrite.infer import infer_missing_types
from normdeploy.rewrite.opset.convert import converted_by_onnx
from normdeploy.rewrite.opset.own_conversions import describe, own_translation
from normdeploy.rewrite.opset.put_in_place import put_in_place

OLDEST = 7
"""Versions below this one broadcast by attributes; no tool in use writes them."""

RULES_OPSET = 18
"""The lowest version whose forms the rewriting rules read."""

_RULES_IR_VERSION = 8

_NEW_BODIES = 23
"""The version of If and Loop from which on onnxruntime has no kernel for optional values."""

WITHOUT_KERNEL = dict.fromkeys(
    (
        "GlobalLpPool",
        "MaxRoiPool",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "RoiAlign",
    ),
    22,
)
"""Operators whose latest definition no onnxruntime has a kernel for, by the version that brought it."""


class RaiseOpset(ir.passes.InPlacePass):
    """Raise a graph below opset 18 to it; drop initializers from the inputs where the format demanded them there.

    IR versions below 4 list every initializer among the graph inputs too; there it says nothing about the caller's
    wish to override it. From version 4 on such an input is a choice, and is kept.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Raise the model in place.

        Raises:
            GraphError: the version is below 7 or unknown to onnx, or an operator cannot be converted.
        """
        modified = False
        if model.ir_version < 4:
            modified = common_passes.RemoveInitializersFromInputsPass()(model).modified
        if model.ir_version < _RULES_IR_VERSION:
            model.ir_version = _RULES_IR_VERSION
            modified = True
        version = model.opset_imports.get("")
        if version is None:
            return ir.passes.PassResult(model, modified)
        if version > defs.onnx_opset_version():
            raise GraphError(
                f"the graph uses opset {version}; expected at most {defs.onnx_opset_version()}, the newest that the "
                "installed onnx knows: upgrade onnx, or export with a lower opset_version"
            )
        if version < OLDEST:
            raise GraphError(
                f"the graph uses opset {version}; expected {OLDEST} or newer: convert it with onnx.version_converter"
            )
        for graph in graphs_of(model):
            graph.opset_imports.setdefault("", version)  # body graphs are read without it
        modified |= infer_missing_types(model)
        if version < RULES_OPSET:
            raise_opset(model, RULES_OPSET)
            infer_missing_types(model)  # of what an operator has become
            modified = True
        return ir.passes.PassResult(model, modified)


def raise_opset(model: ir.Model, version: int) -> None:
    """Raise a model to an operator set version in place; a model at that version or above stays as it is.

    Nodes and values stay the same objects wherever one node becomes one node, so that who holds them may go on. Where
    an operator cannot be raised, nothing is changed.

    Args:
        model: its functions must be inlined.
        version: the version wanted for the standard domain.

    Raises:
        GraphError: an operator cannot be converted; the message names the node.
    """
    current = model.opset_imports.get("", version)
    if current >= version:
        return
    for node, translation in _plan(model, current, version):
        put_in_place(node, translation, version)
    for graph in graphs_of(model):
        graph.opset_imports[""] = version
    model.opset_imports[""] = version


def _plan(model: ir.Model, old: int, new: int) -> list[tuple[ir.Node, ir.Graph]]:
    """Translate every node whose form changes, without changing the model."""
    planned: dict[ir.Node, ir.Graph | None] = {}
    for node in nodes_of(model):
        if not is_standard(node):
            continue
        _require_kernel(node, old, new)
        translation = own_translation(node, old, new)
        # control flow changed in the types it carries, never in its form
        if translation is not None or (changed_form(node.op_type, old, new) and not bodies_of(node)):
            planned[node] = translation
    others = [node for node, translation in planned.items() if translation is None]
    converted = {**planned, **dict(zip(others, converted_by_onnx(others, old, new), strict=True))}
    return [(node, graph) for node, graph in converted.items() if graph is not None]


def _require_kernel(node: ir.Node, old: int, new: int) -> None:
    since = WITHOUT_KERNEL.get(node.op_type)
    if since is not None and old < since <= new:
        raise GraphError(
            f"{describe(node)} cannot be raised from opset {old} to {new}: onnxruntime has no kernel for its "
            f"definition of opset {since}; expected {since - 1} or older"
        )
    values = (*node.inputs, *node.outputs) if bodies_of(node) else ()
    if old < _NEW_BODIES <= new and any(v is not None and isinstance(v.type, ir.OptionalType) for v in values):
        raise GraphError(
            f"{describe(node)} cannot be raised from opset {old} to {new}: onnxruntime has no kernel of opset "
            f"{_NEW_BODIES} or newer for optional values; expected {_NEW_BODIES - 1} or older"
        )


def changed_form(op_type: str, old: int, new: int) -> bool:
    """Tell whether an operator is written differently in two versions (attributes, defaults, operands, or its name).

    Raises:
        GraphError: the operator does not exist in the older version.
    """
    if not defs.has(op_type, old, ""):
        raise GraphError(f"operator {op_type} is not part of opset {old}, which the graph says it uses")
    before = defs.get_schema(op_type, old, "")
    if not defs.has(op_type, new, ""):
        return True
    after = defs.get_schema(op_type, new, "")
    if before.since_version == after.since_version:
        return False
    return after.deprecated or _form(before) != _form(after)


def _form(schema: defs.OpSchema) -> tuple[object, ...]:
    attributes = {
        name: (attribute.type, attribute.required, attribute.default_value.SerializeToString())
        for name, attribute in schema.attributes.items()
    }
    return attributes, [(item.name, item.option) for item in schema.inputs], [item.option for item in schema.outputs]
