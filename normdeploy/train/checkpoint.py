"""What is kept between epochs, so that a killed training goes on where its last whole epoch ended."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from normdeploy.errors import UsageError
from normdeploy.files import written_whole

_SCHEMA = 1


@dataclass
class Checkpoint:
    """Everything an epoch starts from.

    Args:
        fingerprint: what is trained and how; another fingerprint must not be continued.
        epochs_done: whole epochs behind us.
        state: all tensors of the model, hidden ones included.
        best_state: those of the best epoch so far.
        optimizer: ``state_dict()`` of the optimizer.
        scaler: ``state_dict()`` of the loss scaler (empty without one).
        history: JSON of the epochs so far.
    """

    fingerprint: str
    epochs_done: int
    state: dict[str, Tensor]
    best_state: dict[str, Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    history: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Replace the checkpoint at ``path``: a reader sees the old one or the new one, never a part of one."""
        with written_whole(path, overwrite=True) as temporary:
            torch.save({"schema": _SCHEMA, **vars(self)}, temporary)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, fingerprint: str) -> Checkpoint | None:
        """Read the checkpoint at ``path``; None where there is none or it belongs to another training.

        Raises:
            UsageError: the file is no checkpoint of ours.
        """
        if not Path(path).exists():
            return None
        try:
            held = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, ValueError, OSError, UnpicklingError) as error:
            raise UsageError(
                f"{path} cannot be read ({error}); expected a training checkpoint: delete it to start afresh"
            ) from error
        if not isinstance(held, dict) or held.pop("schema", None) != _SCHEMA or held.get("fingerprint") != fingerprint:
            return None
        return cls(**held)
