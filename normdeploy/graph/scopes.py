"""Where a node stands in the user's model."""

from __future__ import annotations

import ast
from functools import lru_cache

import onnx_ir as ir
import torch

WHERE = "normdeploy.where"
"""Node metadata key that overrides the exporter's module scopes."""

NAME_SCOPES = "pkg.torch.onnx.name_scopes"

NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
"""What torch.export writes as the scope of constants that it made itself."""


@lru_cache(maxsize=4096)
def scopes_of(written: str) -> tuple[str, ...]:
    """Return the names that an exporter wrote down of an operator: the modules around it, outermost first, and its own.

    Operators of one module come one after another, and each pass that makes a row asks for them.
    """
    return tuple(str(name or "") for name in ast.literal_eval(written))


def in_root(node: ir.Node) -> bool:
    """Return whether a node was traced from the forward of the model itself, and from no module inside it."""
    scopes = node.metadata_props.get(NAME_SCOPES)
    if not scopes or node.metadata_props.get(WHERE):
        return False
    return not any(name and name != NO_MODULE for name in scopes_of(scopes)[:-1])


def module_path(node: ir.Node) -> str:
    """Return the dotted path of the innermost module that a node was traced from; the node's name outside torch.

    The root module's own operators have the path ``""`` in the exporter's scopes; they are named by their node.
    """
    override = node.metadata_props.get(WHERE)
    if override:
        return override
    scopes = node.metadata_props.get(NAME_SCOPES)
    if scopes:
        modules = [name for name in scopes_of(scopes)[:-1] if name and name != NO_MODULE]
        if modules:
            return modules[-1]
    if node.name:
        return node.name
    return node.outputs[0].name or node.op_type if node.outputs else node.op_type


def module_of_node(node: torch.fx.Node) -> tuple[str, str]:
    """Return the path and the class of the innermost module that ran an operator; "" and "model" for the whole."""
    where, module = "", "model"
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        where, module = path, kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    return where, module.rpartition(".")[2]
