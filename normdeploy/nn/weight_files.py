"""Files of weights: tensors by name, and the strings that stand beside them."""

from __future__ import annotations

import io
import os
import pickle
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from normdeploy.damaged_files import TORCH_FILE_ERRORS
from normdeploy.errors import UsageError, WeightsError
from normdeploy.files import lies_at, storage, written_whole
from normdeploy.nn.other_files import folder_of_weights, is_safetensors, what_it_is
from normdeploy.nn.weight_shards import is_index, shards

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
    """Read tensors by name from safetensors, from what ``torch.save`` wrote, or from the index of several such files.

    Args:
        path: the file; an index is one that ends in ".index.json", its files lie beside it. Checkpoints that hold the
            state dict under a usual name ("state_dict", "model", "model_ema", "ema"), or just one, are looked into.
        unsafe_pickle: allow a pickle that runs code when it is read; otherwise only tensors and containers are.
        key: the name under which to look, or what the names of the wanted tensors begin with; by default the first of
            the usual ones that is there.
        notes: appended to where something was chosen.

    Raises:
        WeightsError: the file is missing, damaged or holds something else than tensors by name.
    """
    file = Path(path)
    _require_file(file)
    if is_index(file):
        parts = [_part(held, names, unsafe_pickle=unsafe_pickle) for held, names in shards(file).items()]
        return _under(key, {name: tensor for part in parts for name, tensor in part.items()}, file)
    if is_safetensors(file):
        with _opened(file) as opened:
            names = opened.keys()
            return _under(key, {name: opened.get_tensor(name) for name in names}, file)
    content = _unpickled(file, unsafe_pickle=unsafe_pickle)
    content = _nested(content, file, key, [] if notes is None else notes)
    if not _named_tensors(content):
        raise WeightsError(f"{file} holds {_what_it_holds(content)}")
    return {str(name): value for name, value in content.items()}


def _part(file: Path, names: Sequence[str], *, unsafe_pickle: bool) -> dict[str, torch.Tensor]:
    """Return the tensors of one file of several."""
    held = read_weights(file, unsafe_pickle=unsafe_pickle)
    if absent := [name for name in names if name not in held]:
        raise WeightsError(
            f"{file} does not hold {absent[0]!r}, and the index beside it says so; expected all files of one index: "
            "fetch or write them again"
        )
    return {name: held[name] for name in names}


def _named_tensors(content: Any) -> bool:
    return isinstance(content, Mapping) and all(isinstance(value, torch.Tensor) for value in content.values())


def _what_it_holds(content: Any) -> str:
    """Return what something is that is no state dict, and what to do."""
    remedy = "not tensors by name; expected a state dict: save model.state_dict()"
    if not isinstance(content, Mapping):
        return f"a {type(content).__name__}, {remedy}"
    several = [str(name) for name, value in content.items() if _named_tensors(value) and value]
    if several:
        return f"{', '.join(map(repr, several))}; expected one state dict: choose it by --weights-key (key=)"
    name, value = next((n, v) for n, v in content.items() if not isinstance(v, torch.Tensor))
    return f"a {type(content).__name__} whose {str(name)!r} is a {type(value).__name__}, {remedy}"


def _under(
    key: str | None, tensors: Mapping[str, torch.Tensor], file: Path, others: Sequence[str] = ()
) -> dict[str, torch.Tensor]:
    """Return the tensors whose names begin with ``key`` and a dot, without that; all of them without a key."""
    if key is None:
        return dict(tensors)
    found = {name.removeprefix(f"{key}."): tensor for name, tensor in tensors.items() if name.startswith(f"{key}.")}
    if not found:
        choices = dict.fromkeys([*others, *(name.partition(".")[0] for name in tensors if "." in name)])
        if not choices:
            raise WeightsError(
                f"{file} holds one set of tensors; expected no key, and {key!r} was asked for: leave it out"
            )
        raise WeightsError(
            f"{file} holds nothing under {key!r}; expected a key that holds tensors by name, or what their names begin "
            f"with: choose one of {', '.join(choices)}, or leave the key out"
        )
    return found


def _nested(content: Any, file: Path, key: str | None, notes: list[str]) -> Any:
    """Return the state dict in a checkpoint: under ``key``, or under the first usual name that is there."""
    passed, seen = list[str](), set[int]()
    while isinstance(content, Mapping) and id(content) not in seen:  # a pickle may hold itself
        seen.add(id(content))
        held = [name for name, value in content.items() if isinstance(value, Mapping) and value]
        if key in held:
            content, key = content[key], None
            continue
        passed += map(str, held)
        usual = [name for name in _NESTED_UNDER if name in held]
        named = usual or [name for name in held if _named_tensors(content[name])]
        if not named or (not usual and len(named) > 1):  # of several names of the author's own none can be preferred
            break
        if len(usual) > 1 and key is None:
            notes.append(
                f"it holds {', '.join(map(repr, usual))}: {usual[0]!r} is loaded; another one is chosen "
                "by --weights-key (key=)"
            )
        if not usual:
            notes.append(f"what it holds under {named[0]!r} is loaded")
        content = content[named[0]]
    if key is None:
        return content
    tensors = content.items() if _named_tensors(content) else ()
    return _under(key, {str(name): tensor for name, tensor in tensors}, file, passed)


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
    _require_file(file)
    if is_index(file):
        return {}
    if is_safetensors(file):
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
    try:
        return safe_open(str(file), framework="pt")
    except SafetensorError as error:
        raise WeightsError(
            what_it_is(file)
            or f"{file} cannot be read: {error}; expected a safetensors file: train again, or save model.state_dict() "
            "again"
        ) from error


def _unpickled(file: Path, *, unsafe_pickle: bool) -> Any:
    if other := what_it_is(file):
        raise WeightsError(other)
    try:
        # mapped: what is looked at is read, and the strings beside gigabytes of tensors cost nothing
        with storage(file, "read"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of pickles that it did not write and then refuses
            mapped = zipfile.is_zipfile(file)
            return torch.load(file, map_location="cpu", weights_only=not unsafe_pickle, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{file} holds Python objects or is not from torch.save; expected tensors by name: save model.state_dict() "
            "as safetensors, or pass --unsafe-pickle (in a recipe: unsafe_pickle = true under [model]) if you trust "
            "whoever wrote the file (reading it can run any code)"
        ) from error
    except TORCH_FILE_ERRORS as error:
        lines = str(error).strip().splitlines()
        # a KeyError is of an instruction that no pickle has: its text is a number
        why = lines[0] if lines and not isinstance(error, KeyError) else type(error).__name__
        raise WeightsError(
            f"{file} cannot be read: {why}; expected safetensors, or torch.save of a state_dict (tensors only): "
            "save model.state_dict() again"
        ) from error


def _require_file(file: Path) -> None:
    if lies_at(file):
        return
    if file.is_dir():
        raise WeightsError(folder_of_weights(file))
    raise WeightsError(f"{file} does not exist; expected trained weights: correct the path, or train the model")
