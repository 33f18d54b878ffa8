"""What all sources of rows have in common: the files, their parts, and rows as Arrow tables.

A part is what is read, predicted, written and, after a kill, kept as a whole. Parts depend on the data and the sizes
asked for alone, never on who works on them, so that every engine forms the same batches. A part's table holds all its
rows in order, bad ones included: a column ``in/NAME`` per input, ``keep/NAME`` per column that is passed through, and
``reason``, which says why a row is bad and is null for good ones.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from normdeploy.errors import InputError
from normdeploy.ort.specs import Array

IN, OUT, KEEP, REASON = "in/", "out/", "keep/", "reason"
IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_KINDS = {".npy": "npy", ".npz": "npz", ".csv": "csv", ".parquet": "parquet", **dict.fromkeys(IMAGES, "images")}
_EXPECTED = ".npy, .npz, .csv, .parquet, images, or a folder of one of these kinds"


@dataclass(frozen=True)
class Part:
    """A range of one file.

    Args:
        index: position among all parts.
        unit: parts of one unit lie behind each other in a stream and are read in one go.
        file: position among the files.
        first, size: where it starts and how much it is, in rows (in bytes for CSV).
    """

    index: int
    unit: int
    file: int
    first: int
    size: int


class Source(Protocol):
    """Rows on disk; picklable, so that workers read their own parts."""

    total: int | None
    kept: tuple[str, ...]
    row_bytes: int

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield the parts, of about ``rows`` rows at most, in order."""
        ...

    def read(self, parts: Sequence[Part]) -> Iterator[pa.Table]:
        """Yield the table of each of these parts of one unit, given in order."""
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
        path = Path(item)
        if path.is_dir():
            below = [(file, file.relative_to(path)) for file in path.rglob("*") if file.suffix.lower() in _KINDS]
            files = [(f, r.as_posix()) for f, r in below if f.is_file() and not any(p[0] in "._" for p in r.parts)]
            if not files:
                raise InputError(f"{path} holds no data; expected {_EXPECTED}: check the path")
            found += sorted(files, key=lambda pair: pair[1])
        elif path.is_file():
            found.append((path, path.name))
        else:
            matches = glob(os.fspath(item), recursive=True)  # noqa: PTH207 - the pattern may be absolute
            names = sorted(name for name in matches if Path(name).is_file())
            if not names:
                raise InputError(f"{path} does not exist; expected {_EXPECTED}: check the path")
            found += [(Path(name), name) for name in names]
    kinds = sorted({_KINDS.get(file.suffix.lower(), file.suffix) for file, _ in found})
    if len(kinds) != 1:
        raise InputError(
            f"the data holds files of the kinds {', '.join(kinds)}; expected one: name it, as FOLDER/*.csv"
        )
    if kinds[0] not in _KINDS.values():
        raise InputError(f"{found[0][0]} ends in {kinds[0]!r}; expected {_EXPECTED}")
    return kinds[0], found


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


def ranges(counts: Sequence[int], rows: int, *, streams: bool = False) -> Iterator[Part]:
    """Yield parts of files whose numbers of rows are known; ``streams``: each file is one unit."""
    index = 0
    for file, count in enumerate(counts):
        for first in range(0, count, rows):
            yield Part(index, file if streams else index, file, first, min(rows, count - first))
            index += 1


def to_column(array: Array) -> pa.Array:
    """Return rows of an array as a column; the shape of a row becomes nested lists of fixed sizes."""
    if 0 in array.shape[1:]:
        raise InputError(f"rows of shape {list(array.shape[1:])} hold nothing; expected at least one value in a row")
    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def to_array(column: pa.ChunkedArray) -> Array:
    """Return what :func:`to_column` was given."""
    values = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    shape = [len(values)]
    while pa.types.is_fixed_size_list(values.type):
        shape.append(values.type.list_size)
        values = values.flatten()
    result: Array = values.to_numpy(zero_copy_only=False).reshape(shape)
    return result


def rows_table(feeds: Mapping[str, Array], kept: Mapping[str, pa.Array], reasons: dict[int, str]) -> pa.Table:
    """Return a part's table.

    Args:
        feeds: input name to rows; anything in bad ones.
        kept: the columns that are passed through.
        reasons: position of each bad row to why; rows with NaN join them, because a prediction on them means nothing.
    """
    count = len(next(iter(feeds.values())))
    for name, array in feeds.items():
        if array.dtype.kind == "f" and array.size and np.isnan(array.min()):  # NaN wins every minimum
            for position in np.flatnonzero(np.isnan(array).reshape(count, -1).any(axis=1)).tolist():
                reasons.setdefault(position, f"input {name!r} holds NaN; expected numbers: fill or remove the row")
    columns = {IN + name: to_column(array) for name, array in feeds.items()}
    columns |= {KEEP + name: column for name, column in kept.items()}
    why = [reasons.get(at) for at in range(count)] if reasons else None
    columns[REASON] = pa.array(why, pa.string()) if why else pa.nulls(count, pa.string())
    return pa.table(columns)
