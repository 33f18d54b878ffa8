"""What computes as in training although the model is in evaluation mode.

``F.batch_norm(x, mean, var, training=True)`` and ``F.dropout(x, 0.1)`` (whose ``training`` is true by default) follow
no flag of any module. torch's exporter writes such a batch normalization as if it used its running statistics: the
graph would silently be another function than the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

BATCH_NORM = "batch normalization with training=True"
DROPOUT = "dropout with training=True"

_BATCH_NORMS = ("_native_batch_norm_legit_functional", "_native_batch_norm_legit", "native_batch_norm", "batch_norm")
_DROPOUTS = ("native_dropout", "dropout", "feature_dropout", "alpha_dropout")


@dataclass(frozen=True)
class Stuck:
    """One operator that computes as in training.

    Args:
        where: path of the module that calls it; "" is the model itself.
        module: that module's class.
        what: ``BATCH_NORM`` or ``DROPOUT``.
    """

    where: str
    module: str
    what: str

    def __str__(self) -> str:
        return f"{self.what} in {repr(self.where) if self.where else 'the model itself'} ({self.module})"


def stuck_in_training(program: torch.export.ExportedProgram) -> list[Stuck]:
    """Return the operators of an exported program that compute as in training, in order, each place once.

    Batch normalizations without running statistics are not among them: they are exported as they compute, and the
    doctor tells of them.

    Args:
        program: from ``torch.export``, before or after decomposition.
    """
    found: list[Stuck] = []
    for node in program.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        what = _kind(node, node.target)
        if what is None:
            continue
        where, module = _place(node.meta.get("nn_module_stack") or {})
        row = Stuck(where, module, what)
        if row not in found:
            found.append(row)
    return found


def _kind(node: torch.fx.Node, target: torch._ops.OpOverload) -> str | None:
    name = target._schema.name.rpartition("::")[2]
    if name not in _BATCH_NORMS and name not in _DROPOUTS:
        return None
    arguments = dict(zip((argument.name for argument in target._schema.arguments), node.args, strict=False))
    arguments.update(node.kwargs)
    if name in _DROPOUTS:
        return DROPOUT if arguments.get("train") and arguments.get("p") else None
    return BATCH_NORM if arguments.get("training") and arguments.get("running_mean") is not None else None


def _place(stack: Mapping[str, tuple[str, object]]) -> tuple[str, str]:
    where, module = "", "model"
    for path, kind in stack.values():
        where, module = path, kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    return where, module.rpartition(".")[2]
