"""Weights in several files: the index that says which of them holds which tensor."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from normdeploy.errors import WeightsError
from normdeploy.files import lies_at, open_regular, sha256_file, storage

_ENDING = ".index.json"
_PART = re.compile(r"-0*(\d+)-of-0*(\d+)\.[A-Za-z]+$")
_MAP = "weight_map"


def is_index(path: str | os.PathLike[str]) -> bool:
    """Tell whether a name is that of an index, as ``model.safetensors.index.json``."""
    return os.fspath(path).endswith(_ENDING)


def shards(index: Path) -> dict[Path, list[str]]:
    """Return the names of the tensors that each file holds.

    Args:
        index: a JSON object whose ``weight_map`` gives a file beside it for each tensor, as transformers writes it.

    Raises:
        WeightsError: it is damaged, or names something else than files beside it.
    """
    with storage(index, "read"), open_regular(index) as stream:
        content = stream.read()
    try:
        held = json.loads(content)[_MAP]
        found: dict[Path, list[str]] = {}
        for name, file in held.items():
            if not isinstance(file, str) or file != Path(file).name:
                raise WeightsError(
                    f"{index} says that {name!r} lies in {file!r}; expected the name of a file beside it: put all "
                    "files of the weights into one folder"
                )
            found.setdefault(index.parent / file, []).append(name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(
            f"{index} cannot be read ({type(error).__name__}); expected a JSON object whose {_MAP!r} gives a file for "
            "each tensor: fetch or write it again"
        ) from error
    if absent := [file.name for file in found if not lies_at(file)]:
        raise WeightsError(
            f"{index} names {', '.join(absent)}, which is not beside it; expected all its files there: fetch the rest"
        )
    return found


def weights_sha256(path: Path) -> list[str]:
    """Return the digests of a file of weights and, of an index, of all the files that it names."""
    return [sha256_file(file) for file in (path, *(shards(path) if is_index(path) else ()))]


def one_of_several(path: str | os.PathLike[str]) -> str:
    """Return what to say of a file that by its name holds a part of the weights only; "" of another."""
    part = _PART.search(os.fspath(path))
    if part is None:
        return ""
    return f"; it is part {part[1]} of {part[2]}: give the file that ends in {_ENDING}, which names them all"
