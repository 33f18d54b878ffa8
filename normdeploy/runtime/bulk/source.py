"""What sources, engines and sinks hand on: data is cut into numbered parts, and the rows of a part are a block.

A part is what is read, predicted, written and, after a kill, kept as a whole. Parts depend on the data and the sizes
asked for alone, never on who works on them, so that every engine forms the same batches.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from normdeploy.array_types import Array
from normdeploy.errors import InputError
from normdeploy.files import PathLike, storage
from normdeploy.images import SUFFIXES
from normdeploy.runtime.casting import cast, expectation

_KINDS = {".npy": "npy", ".npz": "npz", ".csv": "csv", ".parquet": "parquet", **dict.fromkeys(SUFFIXES, "images")}
_EXPECTED = ".npy, .npz, .csv, .parquet, images, or a folder of one of these kinds"


@dataclass(frozen=True)
class Part:
    """A range of one file: ``size`` rows from ``first`` on (bytes for CSV).

    ``index`` numbers all parts; those of one ``unit`` lie behind each other in a stream and are read in one go.
    """

    index: int
    unit: tuple[int, int]
    file: int
    first: int
    size: int


@dataclass(frozen=True)
class Block:
    """All rows of a part: of each input (anything in bad ones), of the columns passed through, and why some are bad."""

    feeds: dict[str, Array]
    kept: dict[str, pa.Array]
    bad: dict[int, str]


class Source(Protocol):
    """Rows on disk; picklable, so that workers read their own parts. ``total``: how many, None where not known."""

    total: int | None
    row_bytes: int

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield the parts, of about ``rows`` rows at most, in order."""
        ...

    def read(self, parts: Sequence[Part]) -> Iterator[Block]:
        """Yield the rows of each of these parts of one unit, given in order."""
        ...


def find_files(data: Any) -> tuple[str, list[tuple[Path, str]]]:
    """Return the kind of the data and its files, each with the name that its rows may go by.

    Args:
        data: a file, a folder (searched with its subfolders; names that begin with "." or "_" are passed over), a
            pattern as ``*.csv`` or ``**/*.png``, or a list of these.

    Raises:
        InputError: nothing there, an unknown kind, or several kinds at once.
    """
    found: list[tuple[Path, str]] = []
    for item in [data] if isinstance(data, (str, os.PathLike)) else list(data):
        with storage(item, "read"):
            found += _found(item)
    kinds = sorted({_KINDS.get(file.suffix.lower(), file.suffix) for file, _ in found})
    if len(kinds) != 1:
        raise InputError(
            f"the data holds files of the kinds {', '.join(kinds)}; expected one: name it, as FOLDER/*.csv"
        )
    if kinds[0] not in _KINDS.values():
        raise InputError(f"{found[0][0]} ends in {kinds[0]!r}; expected {_EXPECTED}")
    return kinds[0], found


def _found(item: PathLike) -> list[tuple[Path, str]]:
    path = Path(item)
    if path.is_dir():
        below = [(file, file.relative_to(path)) for file in path.rglob("*") if file.suffix.lower() in _KINDS]
        files = [(f, r.as_posix()) for f, r in below if f.is_file() and not any(p[0] in "._" for p in r.parts)]
        if not files:
            raise InputError(f"{path} holds no data; expected {_EXPECTED}: check the path")
        return sorted(files, key=lambda pair: pair[1])
    if path.is_file():
        return [(path, path.name)]
    matches = glob(os.fspath(item), recursive=True)  # noqa: PTH207 - the pattern may be absolute
    names = sorted(name for name in matches if Path(name).is_file())
    if not names:
        raise InputError(f"{path} does not exist; expected {_EXPECTED}: check the path")
    return [(Path(name), name) for name in names]


def identity(files: Sequence[tuple[Path, str]]) -> dict[str, Any]:
    """Return what tells that the files are untouched: a digest of path, size, inode and both times of change.

    The inode's own time of change cannot be set back, as the content's can.
    """
    digest = hashlib.sha256()
    for file, _ in files:
        status = file.stat()
        marks = (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        digest.update(f"{file.absolute()}\0{marks}\n".encode())
    return {"files": len(files), "digest": digest.hexdigest()}


def ranges(
    counts: Sequence[int], rows: int, unit: Callable[[int, int], int] = lambda _, first: first
) -> Iterator[Part]:
    """Yield parts of files of ``counts`` rows; ``unit`` numbers the streams of a file, by a part's first row."""
    index = 0
    for file, count in enumerate(counts):
        for first in range(0, count, rows):
            yield Part(index, (file, unit(file, first)), file, first, min(rows, count - first))
            index += 1


def fitted(values: Array, dtype: str, what: str, bad: dict[int, str], where: Array | None = None) -> Array:
    """Return values as ``dtype``; a row with one that it cannot hold is bad.

    Args:
        values: rows along the first axis.
        dtype: the input's type.
        what: holds them, for the reason.
        bad: position of each bad row to why; more are added.
        where: positions of the rows; by default they are all.
    """
    result, wrong = cast(values, dtype)
    if wrong is not None:
        for at in np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1)).tolist():
            value = values[at][wrong[at]].ravel()[0]
            reason = f"{what} is {value}; expected {expectation(dtype)}: correct or remove the row"
            bad.setdefault(at if where is None else int(where[at]), reason)
    return result
