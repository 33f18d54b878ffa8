"""Rows from .npy and .npz files, read piece by piece (no memory map: its pages count as the process's memory)."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from normdeploy.errors import InputError
from normdeploy.runtime.backend import Array, TensorSpec
from normdeploy.runtime.bulk.source import Part, Rows, file_identity, ranges

_LOCAL_HEADER = struct.Struct("<26xHH")  # a zip entry's local header; name and extra field lengths at its end


@dataclass(frozen=True)
class _Entry:
    """Where one array's values are.

    Args:
        member: name inside the archive; "" in a .npy file.
        start: the first value's offset, in the file where ``seekable``, else in the decompressed member.
        seekable: the values lie in the file as they are.
        shape: of the whole array.
        dtype: of its values.
    """

    member: str
    start: int
    seekable: bool
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def _header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        version = npy.read_magic(stream)
        shape, fortran, dtype = (
            npy.read_array_header_1_0(stream) if version == (1, 0) else npy.read_array_header_2_0(stream)
        )
    except ValueError as error:
        raise InputError(f"{where} is not a numpy array ({error}); expected what numpy.save writes") from error
    if dtype.hasobject:
        raise InputError(f"{where} holds Python objects; expected plain numbers: save it with a numeric dtype")
    if fortran and len(shape) > 1:
        raise InputError(
            f"{where} is stored column by column (Fortran order); expected rows: save numpy.ascontiguousarray of it"
        )
    return shape, dtype


class ArraySource:
    """Rows along the first axis of one array per input.

    Args:
        path: a .npy file (for a model of one input) or a .npz file with one array per input, by name.
        specs: the model's inputs.

    Raises:
        InputError: a missing array, another kind of number, a shape that does not fit, or different lengths. Floats
            are rounded to the input's precision and integers widened or narrowed; other conversions are refused.
    """

    named = False

    def __init__(self, path: Path, specs: Sequence[TensorSpec]) -> None:
        self.path = path
        self._specs = {spec.name: spec for spec in specs}
        self._entries = self._find(path, specs)
        lengths = set()
        for name, entry in self._entries.items():
            _check(path, entry, self._specs[name])
            lengths.add(entry.shape[0])
        if len(lengths) > 1:
            found = {name: entry.shape[0] for name, entry in self._entries.items()}
            raise InputError(f"{path} holds arrays of {found} rows; expected the same number for every input")
        self.total: int | None = lengths.pop()

    @staticmethod
    def _find(path: Path, specs: Sequence[TensorSpec]) -> dict[str, _Entry]:
        if path.suffix == ".npy":
            if len(specs) != 1:
                raise InputError(
                    f"{path} holds one array and the model has the inputs {[spec.name for spec in specs]}; "
                    "expected a .npz with one array per input, by name"
                )
            with path.open("rb") as stream:
                shape, dtype = _header(stream, str(path))
                return {specs[0].name: _Entry("", stream.tell(), True, shape, dtype)}
        entries = {}
        try:
            archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise InputError(f"{path} is not a .npz archive ({error}); expected what numpy.savez writes") from error
        with archive, path.open("rb") as raw:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            only = len(specs) == 1 and len(members) == 1
            for spec in specs:
                info = next(iter(members.values())) if only else members.get(spec.name)
                if info is None:
                    raise InputError(
                        f"{path} holds the arrays {sorted(members)}; expected one named {spec.name!r}: name it in savez"
                    )
                with archive.open(info) as stream:
                    shape, dtype = _header(stream, f"{path}:{info.filename}")
                    start = stream.tell()
                stored = info.compress_type == zipfile.ZIP_STORED
                if stored:
                    raw.seek(info.header_offset)
                    start += info.header_offset + 30 + sum(_LOCAL_HEADER.unpack(raw.read(30)))
                entries[spec.name] = _Entry(info.filename, start, stored, shape, dtype)
        return entries

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield equal ranges of rows."""
        return ranges(self.total or 0, rows)

    def read(self, part: Part, batch: int) -> Iterator[Rows]:
        """Yield the part's rows, converted to the inputs' dtypes."""
        readers = {name: _values(self.path, entry, part, batch) for name, entry in self._entries.items()}
        for first in range(part.first, part.first + part.rows, batch):
            feeds = {name: next(reader).astype(self._specs[name].dtype) for name, reader in readers.items()}
            count = min(batch, part.first + part.rows - first)
            yield Rows(feeds, np.arange(first, first + count, dtype=np.int64)).without_nan()

    def identity(self) -> Mapping[str, Any]:
        """Return the file's identity."""
        return file_identity(self.path)


def _check(path: Path, entry: _Entry, spec: TensorSpec) -> None:
    where = f"{path}{':' if entry.member else ''}{entry.member}"
    row, expected = entry.shape[1:], spec.shape[1:]
    fits = (
        len(entry.shape) >= 1
        and len(row) == len(expected)
        and all(not isinstance(size, int) or size == given for size, given in zip(expected, row, strict=True))
    )
    if not fits:
        raise InputError(f"{where} has shape {list(entry.shape)}; expected rows of {spec}: reshape or resize it")
    wanted = np.dtype(spec.dtype)
    if entry.dtype != wanted and (entry.dtype.kind != wanted.kind or wanted.kind not in "fiu"):
        raise InputError(
            f"{where} holds {entry.dtype}; expected {spec.dtype} for {spec.name!r}: "
            f"convert it where it is made, for example with .astype({spec.dtype!r})"
        )


def _values(path: Path, entry: _Entry, part: Part, batch: int) -> Iterator[Array]:
    row_bytes = entry.dtype.itemsize * int(np.prod(entry.shape[1:], dtype=np.int64))
    skip = entry.start + part.first * row_bytes
    with path.open("rb") as raw:
        if entry.seekable:
            raw.seek(skip)
            yield from _pieces(raw, entry, part, batch, row_bytes)
        else:
            with zipfile.ZipFile(raw) as archive, archive.open(entry.member) as stream:
                stream.seek(skip)  # decompresses what lies before
                yield from _pieces(stream, entry, part, batch, row_bytes)


def _pieces(stream: IO[bytes], entry: _Entry, part: Part, batch: int, row_bytes: int) -> Iterator[Array]:
    left = part.rows
    while left:
        count = min(batch, left)
        data = stream.read(count * row_bytes)
        if len(data) != count * row_bytes:
            row = part.first + part.rows - left + len(data) // row_bytes
            raise InputError(f"the data ends in row {row}; expected a whole file: save it again")
        yield np.frombuffer(data, dtype=entry.dtype).reshape(count, *entry.shape[1:])
        left -= count
