"""Trained weights in one safetensors file, with how they came to be as metadata."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from normdeploy.errors import WeightsError
from normdeploy.files import written_whole
from normdeploy.nn.hidden import full_state, load_full_state


def save_weights(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write every tensor of ``model``, those its ``state_dict()`` does not see included, whole or not at all.

    Args:
        model: the trained network.
        path: where to write; ``.safetensors``.
        metadata: strings kept in the file's header.
        overwrite: allow replacing a file.

    Raises:
        OutputExistsError: ``path`` exists and ``overwrite`` is false.
    """
    # clone: tensors that share memory may not be written as views, and the file wants them on the CPU
    state = {key: value.cpu().contiguous().clone() for key, value in full_state(model).items()}
    with written_whole(path, overwrite=overwrite) as temporary:
        save_file(state, str(temporary), metadata=dict(metadata or {}))


def load_weights(model: nn.Module, path: str | os.PathLike[str]) -> dict[str, str]:
    """Load what :func:`save_weights` wrote into ``model`` and return the metadata.

    Raises:
        WeightsError: the file is missing or not safetensors, or its tensors do not fit (names the keys).
    """
    with _opened(path) as opened:
        metadata: dict[str, str] = opened.metadata() or {}
        state = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 - safe_open is no mapping
    load_full_state(model, state)
    return metadata


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a weights file without reading its tensors.

    Raises:
        WeightsError: the file is missing or not safetensors.
    """
    with _opened(path) as opened:
        return dict(opened.metadata() or {})


def _opened(path: str | os.PathLike[str]) -> safe_open:
    if not Path(path).is_file():
        raise WeightsError(
            f"{path} does not exist; expected trained weights: train the model first (normdeploy train RECIPE)"
        )
    try:
        return safe_open(str(path), framework="pt")
    except SafetensorError as error:
        raise WeightsError(
            f"{path} cannot be read ({error}); expected a safetensors file: train again or give another file"
        ) from error
