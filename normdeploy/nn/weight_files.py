"""Files of weights: tensors by name, and the strings that stand beside them."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from normdeploy.damaged_files import TORCH_FILE_ERRORS
from normdeploy.errors import UsageError, WeightsError
from normdeploy.files import lies_at, storage, written_whole

SUFFIXES = (".safetensors", ".pt", ".pth")
"""What weights can be written as: safetensors, or what ``torch.save`` makes of a dictionary."""

_METADATA = "metadata"
_NESTED_UNDER = (
    "state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params",
    "model_ema", "ema", "ema_state_dict", "state_dict_ema", "teacher", "student",
)  # fmt: skip


def read_weights(
    path: str | os.PathLike[str],
    *,
    unsafe_pickle: bool = False,
    key: str | None = None,
    notes: list[str] | None = None,
) -> dict[str, torch.Tensor]:
    """Read tensors by name from ``.safetensors``, or from what ``torch.save`` wrote.

    Args:
        path: the file. Checkpoints that hold the state dict under a usual name ("state_dict", "model", "model_ema",
            "ema") are looked into.
        unsafe_pickle: allow a pickle that runs code when it is read; otherwise only tensors and containers are.
        key: the name under which to look; by default the first of the usual ones that is there.
        notes: appended to where something was chosen.

    Raises:
        WeightsError: the file is missing, damaged or holds something else than tensors by name.
    """
    file = Path(path)
    if file.suffix == ".safetensors":
        if key is not None:
            raise WeightsError(
                f"{file} is safetensors and holds one set of tensors; expected no key, and {key!r} was asked for: "
                "leave it out"
            )
        with _opened(file) as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
    content = _unpickled(file, unsafe_pickle=unsafe_pickle)
    content = _nested(content, file, key, [] if notes is None else notes)
    if not isinstance(content, Mapping) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise WeightsError(
            f"{file} holds a {type(content).__name__}, not tensors by name; expected a state dict: "
            "save model.state_dict()"
        )
    return {str(key): value for key, value in content.items()}


def _nested(content: Any, file: Path, key: str | None, notes: list[str]) -> Any:
    """Return the state dict in a checkpoint: under ``key``, or under the first usual name that is there."""
    found = _NESTED_UNDER if key is None else (key,)
    while isinstance(content, Mapping):
        held = [name for name, value in content.items() if isinstance(value, Mapping) and value]
        names = [name for name in found if name in held]
        if key is not None and not names:
            raise WeightsError(
                f"{file} holds nothing under {key!r}; expected a key that holds tensors by name: choose one of "
                f"{', '.join(map(str, held)) or 'none (leave the key out)'}"
            )
        if not names:
            break
        others = [name for name in held if name in _NESTED_UNDER and name != names[0]]
        if others and key is None:
            notes.append(
                f"it holds {', '.join(map(repr, [names[0], *others]))}: {names[0]!r} is loaded; another one is chosen "
                "by --weights-key (key=)"
            )
        content, key, found = content[names[0]], None, _NESTED_UNDER
    return content


def read_metadata(path: str | os.PathLike[str], *, unsafe_pickle: bool = False) -> dict[str, str]:
    """Return the strings that :func:`write_weights` was given; none where somebody else wrote the file.

    Args:
        path: the file; of safetensors the header alone is read.
        unsafe_pickle: see :func:`read_weights`.

    Raises:
        WeightsError: the file is missing or damaged, or holds Python objects.

    >>> from safetensors.torch import save_file
    >>> save_file({"weight": torch.zeros(2)}, "net.safetensors", {"epoch": "3"})
    >>> read_metadata("net.safetensors")
    {'epoch': '3'}
    """
    file = Path(path)
    if file.suffix == ".safetensors":
        with _opened(file) as opened:
            return dict(opened.metadata() or {})
    content = _unpickled(file, unsafe_pickle=unsafe_pickle)
    held = content.get(_METADATA) if isinstance(content, Mapping) else None
    if not isinstance(held, Mapping):
        return {}
    return {key: value for key, value in held.items() if isinstance(key, str) and isinstance(value, str)}


def write_weights(
    tensors: Mapping[str, torch.Tensor],
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write tensors by name, whole or not at all: safetensors, or ``torch.save`` of ``{"state_dict", "metadata"}``.

    Args:
        tensors: what to write.
        path: where to write; its suffix is one of `SUFFIXES` and decides the format.
        metadata: strings kept beside them.
        overwrite: allow replacing a file.

    Raises:
        UsageError: ``path`` has another suffix.
        OutputExistsError: ``path`` exists and ``overwrite`` is false.
        StorageError: the disk is full, or refuses for another reason.
    """
    require_writable_suffix(path)
    # clone: tensors that share memory may not be written as views, and the file wants them on the CPU
    state = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    # plain strings: torch's own version is a subclass, which reading without unpickling refuses
    strings = {str(key): str(value) for key, value in (metadata or {}).items()}
    with written_whole(path, overwrite=overwrite) as temporary:
        if Path(path).suffix == ".safetensors":
            try:
                save_file(state, str(temporary), metadata=strings)
            except SafetensorError as error:  # the tensors are in order: it is the disk, and carries no errno
                raise OSError(str(error)) from error
        else:
            save_torch({"state_dict": state, _METADATA: strings}, temporary)


class _Stream:
    """A file for ``torch.save``."""

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw

    def write(self, data: bytes) -> int:
        rest = memoryview(data).cast("B")
        while rest:  # a disk that is nearly full takes a part without a word
            rest = rest[self._raw.write(rest) :]
        return len(data)

    def flush(self) -> None:
        """Do nothing: nothing is kept back."""


def save_torch(content: Any, path: Path) -> None:
    """Write what ``torch.save`` makes of ``content``.

    Raises:
        OSError: the disk is full, or refuses for another reason.
    """
    with io.FileIO(path, "w") as raw:
        try:
            torch.save(content, _Stream(raw))  # type: ignore[arg-type] # it writes and flushes, nothing else
        except RuntimeError as error:  # of the archive, which was not ended: what ended it is the disk, or Ctrl-C
            stop = error.__context__
            if stop is None or (isinstance(stop, Exception) and not isinstance(stop, OSError)):
                raise
            raise stop from error


def require_writable_suffix(path: str | os.PathLike[str]) -> None:
    """Require a name that weights can be written under.

    Raises:
        UsageError: it ends in something else than `SUFFIXES`.
    """
    if Path(path).suffix not in SUFFIXES:
        raise UsageError(f"weights would be written to {path}; expected a name that ends in {', '.join(SUFFIXES)}")


def _opened(file: Path) -> safe_open:
    _require_file(file)
    try:
        return safe_open(str(file), framework="pt")
    except SafetensorError as error:
        raise WeightsError(
            f"{file} cannot be read: {error}; expected a safetensors file: train again, or save model.state_dict() "
            "again"
        ) from error


def _unpickled(file: Path, *, unsafe_pickle: bool) -> Any:
    _require_file(file)
    try:
        # mapped: what is looked at is read, and the strings beside gigabytes of tensors cost nothing
        with storage(file, "read"):
            mapped = zipfile.is_zipfile(file)
            return torch.load(file, map_location="cpu", weights_only=not unsafe_pickle, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{file} holds Python objects or is not from torch.save; expected tensors by name: save model.state_dict() "
            "as safetensors, or pass --unsafe-pickle (in a recipe: unsafe_pickle = true under [model]) if you trust "
            "whoever wrote the file (reading it can run any code)"
        ) from error
    except TORCH_FILE_ERRORS as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise WeightsError(
            f"{file} cannot be read: {lines[0]}; expected safetensors, or torch.save of a state_dict (tensors only): "
            "save model.state_dict() again"
        ) from error


def _require_file(file: Path) -> None:
    if not lies_at(file):
        raise WeightsError(f"{file} does not exist; expected trained weights: correct the path, or train the model")
