"""Trained weights in one file, with how they came to be as metadata."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch import nn

from normdeploy.nn.unregistered import full_state, load_full_state
from normdeploy.nn.weight_files import read_metadata, read_weights, write_weights


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
        path: where to write; ``.safetensors``, or ``.pt`` and ``.pth`` for ``torch.save``.
        metadata: strings kept beside them.
        overwrite: allow replacing a file.

    Raises:
        UsageError: ``path`` has another suffix.
        OutputExistsError: ``path`` exists and ``overwrite`` is false.

    >>> net = nn.Linear(3, 4)
    >>> save_weights(net, "net.safetensors", metadata={"epoch": "3"})
    >>> load_weights(net, "net.safetensors")
    {'epoch': '3'}
    """
    write_weights(full_state(model), path, metadata=metadata, overwrite=overwrite)


def load_weights(model: nn.Module, path: str | os.PathLike[str]) -> dict[str, str]:
    """Load what :func:`save_weights` wrote into ``model`` and return the metadata.

    Raises:
        WeightsError: the file is missing, damaged or holds Python objects, or its tensors do not fit (names the keys).

    >>> save_weights(nn.Linear(3, 4), "plain.safetensors")
    >>> load_weights(nn.Linear(3, 4), "plain.safetensors")
    {}
    """
    load_full_state(model, read_weights(path))
    return read_metadata(path)
