"""Which module an operator of a traced program belongs to."""

from __future__ import annotations

import torch


def module_of_node(node: torch.fx.Node) -> tuple[str, str]:
    """Return the path and the class of the innermost module that ran an operator; "" and "model" for the whole."""
    where, module = "", "model"
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        where, module = path, kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    return where, module.rpartition(".")[2]
