"""What is kept between epochs, so that a killed training goes on where its last whole epoch ended."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from normdeploy.damaged_files import TORCH_FILE_ERRORS
from normdeploy.errors import UsageError
from normdeploy.files import written_whole
from normdeploy.nn.weight_files import save_torch
from normdeploy.train.provenance import Parts, are_parts, changes, summarize

_SCHEMA = 2
_DICTS = ("parts", "state", "best_state", "optimizer", "scaler")


def _has_shape(held: dict[str, Any]) -> bool:
    """Tell whether a file's content has the fields of a `Checkpoint`, and nothing else."""
    if set(held) != {field.name for field in fields(Checkpoint)}:
        return False
    dicts = all(isinstance(held[name], dict) for name in _DICTS) and are_parts(held["parts"])
    return dicts and isinstance(held["epochs_done"], int) and isinstance(held["history"], str)


@dataclass
class Checkpoint:
    """Everything an epoch starts from.

    Args:
        parts: what is trained, on what and how (`normdeploy.train.provenance`); with other parts it is not continued.
        epochs_done: whole epochs behind us.
        state: all tensors of the model, hidden ones included.
        best_state: those of the best epoch so far.
        optimizer: ``state_dict()`` of the optimizer.
        scaler: ``state_dict()`` of the loss scaler (empty without one).
        history: JSON of the epochs so far.
    """

    parts: Parts
    epochs_done: int
    state: dict[str, Tensor]
    best_state: dict[str, Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    history: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Replace the checkpoint at ``path``: a reader sees the old one or the new one, never a part of one."""
        with written_whole(path, overwrite=True) as temporary:
            save_torch({"schema": _SCHEMA, **vars(self)}, temporary)

    @classmethod
    def load(cls, path: str | os.PathLike[str], parts: Parts, *, again: bool = False) -> Checkpoint | None:
        """Read the checkpoint at ``path``; None where there is none, or it is of another training and not wanted.

        Args:
            path: where it would lie.
            parts: of the training that wants to go on.
            again: where it belongs to another training, train from the start.

        Raises:
            UsageError: it belongs to another training (and ``again`` is false), or is no checkpoint of this version.
        """
        if not Path(path).exists():
            return None
        remedy = (
            "train from the start (normdeploy train --again, normdeploy build --train, fit(..., again=True)), "
            "which replaces it"
        )
        try:
            held = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, UnpicklingError, *TORCH_FILE_ERRORS) as error:
            if again:
                return None
            raise UsageError(
                f"{path} cannot be read ({error}); expected a training checkpoint: delete it, or {remedy}"
            ) from error
        if not isinstance(held, dict) or held.pop("schema", None) != _SCHEMA or not _has_shape(held):
            if again:
                return None
            raise UsageError(
                f"{path} is no checkpoint of this version of normdeploy; expected one that can be continued: {remedy}"
            )
        if differing := changes(held["parts"], parts):
            if again:
                return None
            raise UsageError(
                f"{path} belongs to another training: {summarize(differing)}; expected the same code, data and "
                f"settings as when it was interrupted: give those back, or {remedy}"
            )
        return cls(**held)
