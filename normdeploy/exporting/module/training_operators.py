"""What computes as in training although the model is in evaluation mode.

A layer whose running statistics move when it is run in evaluation mode keeps its mode where nothing could switch it: an
attribute of a name of its own, a global, an argument's default.

``F.batch_norm(x, mean, var, training=True)`` and ``F.dropout(x, 0.1)`` (whose ``training`` is true by default) follow
no flag of any module. torch's exporter writes such a batch normalization as if it used its running statistics: the
graph would silently be another function than the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from normdeploy.errors import ModeError
from normdeploy.graph.scopes import module_of_node
from normdeploy.nn.sites import statistics_sites

BATCH_NORM = "batch normalization with training=True"
DROPOUT = "dropout with training=True"

_BATCH_NORMS = ("_native_batch_norm_legit_functional", "_native_batch_norm_legit", "native_batch_norm", "batch_norm")
_DROPOUTS = ("native_dropout", "dropout", "feature_dropout", "alpha_dropout")
_ATTENTION = "scaled_dot_product_attention"


@dataclass(frozen=True)
class TrainingOperator:
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


def training_operators(program: torch.export.ExportedProgram) -> list[TrainingOperator]:
    """Return the operators of an exported program that compute as in training, in order, each place once.

    Batch normalizations without running statistics are not among them: they are exported as they compute, and the
    doctor tells of them.

    Args:
        program: from ``torch.export``, before or after decomposition.
    """
    found: list[TrainingOperator] = []
    for node in program.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        what = _kind(node, node.target)
        if what is None:
            continue
        where, module = module_of_node(node)
        row = TrainingOperator(where, module, what)
        if row not in found:
            found.append(row)
    return found


@contextmanager
def statistics_unchanged(model: nn.Module) -> Iterator[None]:
    """Require that a run of the model, which is in evaluation mode, leaves all running statistics as they are.

    Raises:
        ModeError: naming what updated its own. torch's functional forms are told apart: the trace names their place.
    """
    sites = [site for site in statistics_sites(model) if site.correction is None]
    before = [(site.mean.clone(), site.variance.clone()) for site in sites]
    yield
    moved = [
        site
        for site, (mean, variance) in zip(sites, before, strict=True)
        if not (_same(mean, site.mean) and _same(variance, site.variance))
    ]
    if moved:
        named = ", ".join(f"{site.path or 'the model'} ({type(site.owner).__name__})" for site in moved)
        raise ModeError(
            f"run in evaluation mode, it updated its running statistics ({moved[0].mean_name}, "
            f"{moved[0].variance_name}): {named}; expected every normalization to follow eval(): select its mode by a "
            "plain attribute `training`, or set it to evaluation before exporting",
            tuple(site.path for site in moved),
        )


def _same(before: torch.Tensor, now: torch.Tensor) -> bool:
    if before.numel() != now.numel():
        return False
    left, right = before.reshape(-1), now.reshape(-1)
    return bool(((left == right) | (left.isnan() & right.isnan())).all())


def _kind(node: torch.fx.Node, target: torch._ops.OpOverload) -> str | None:
    name = target._schema.name.rpartition("::")[2]
    if name not in _BATCH_NORMS and name not in _DROPOUTS and name != _ATTENTION:
        return None
    arguments = dict(zip((argument.name for argument in target._schema.arguments), node.args, strict=False))
    arguments.update(node.kwargs)
    if name == _ATTENTION:  # torch draws whatever the mode
        return DROPOUT if arguments.get("dropout_p") else None
    if name in _DROPOUTS:
        return DROPOUT if arguments.get("train") and arguments.get("p") else None
    return BATCH_NORM if arguments.get("training") and arguments.get("running_mean") is not None else None
