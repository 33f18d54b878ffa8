"""Rows from .npy files, mapped part by part, and from .npz files, read as the streams they are."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from normdeploy.errors import InputError
from normdeploy.files import NUMPY_FILE_ERRORS
from normdeploy.ort.specs import Array, TensorSpec
from normdeploy.runtime.bulk.source import Part, ranges, rows_table
from normdeploy.runtime.casting import cast, expectation

Layout = tuple[tuple[int, ...], np.dtype[Any]]
_SKIP = 1 << 24


class ArraySource:
    """Rows along the first axis of one array per input.

    Args:
        files: .npy files (for a model of one input), or .npz files with one array per input, by name.
        specs: the model's inputs.

    Raises:
        InputError: a missing array, another kind of number, a shape that does not fit, or different lengths. Floats
            are rounded to the input's precision and whole numbers widened or narrowed; what does not fit is a bad row.
    """

    kept: tuple[str, ...] = ()

    def __init__(self, files: Sequence[Path], specs: Sequence[TensorSpec]) -> None:
        self._files, self._specs = list(files), list(specs)
        self._streams = self._files[0].suffix.lower() == ".npz"
        self._counts, self.row_bytes = [], 1
        for path in self._files:
            layouts = self._layouts(path)
            counts = {name: self._rows(path, name, layout) for name, layout in layouts.items()}
            self.row_bytes = max(1, sum(prod(shape[1:]) * dtype.itemsize for shape, dtype in layouts.values()))
            if len(set(counts.values())) > 1:
                raise InputError(f"{path} holds arrays of {counts} rows; expected the same number for every input")
            self._counts.append(next(iter(counts.values())))
        self.total: int | None = sum(self._counts)

    def _layouts(self, path: Path) -> dict[str, Layout]:
        if self._streams:
            with ExitStack() as stack:
                return {name: layout for name, (_, layout) in self._open(path, stack).items()}
        if len(self._specs) != 1:
            raise InputError(
                f"{path} holds one array and the model has the inputs {[spec.name for spec in self._specs]}; "
                "expected a .npz with one array per input, by name"
            )
        array = self._map(path)
        if not array.flags.c_contiguous:
            raise InputError(f"{path} is stored column by column; expected rows: save numpy.ascontiguousarray of it")
        return {self._specs[0].name: (array.shape, array.dtype)}

    def _map(self, path: Path) -> Array:
        try:
            array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        except NUMPY_FILE_ERRORS as error:
            raise InputError(
                f"{path} cannot be read as an array of plain numbers ({error}); expected what numpy.save writes: "
                "save it again"
            ) from error
        return array

    def _open(self, path: Path, stack: ExitStack) -> dict[str, tuple[IO[bytes], Layout]]:
        """Open the stream of each input's values."""
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
        except zipfile.BadZipFile as error:
            raise InputError(f"{path} is not a .npz archive ({error}); expected what numpy.savez writes") from error
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        only = len(self._specs) == 1 and len(members) == 1
        opened = {}
        for spec in self._specs:
            member = next(iter(members.values())) if only else members.get(spec.name)
            if member is None:
                raise InputError(
                    f"{path} holds the arrays {sorted(members)}; expected one named {spec.name!r}: name it in savez"
                )
            stream = stack.enter_context(archive.open(member))
            opened[spec.name] = stream, _header(stream, f"{path}:{member}")
        return opened

    def _rows(self, path: Path, name: str, layout: Layout) -> int:
        shape, dtype = layout
        spec = next(spec for spec in self._specs if spec.name == name)
        fits = len(shape) == len(spec.shape) > 0 and all(
            not isinstance(size, int) or size == given for size, given in zip(spec.shape[1:], shape[1:], strict=True)
        )
        where = f"{path}:{name}" if self._streams else str(path)
        if not fits:
            raise InputError(f"{where} has shape {list(shape)}; expected rows of {spec}: reshape or resize it")
        wanted = np.dtype(spec.dtype)
        kinds = {dtype.kind, wanted.kind}
        if dtype != wanted and not (kinds == {"f"} or kinds <= {"i", "u"}):
            raise InputError(
                f"{where} holds {dtype}; expected {spec.dtype} for {spec.name!r}: "
                f"convert it where it is made, for example with .astype({spec.dtype!r})"
            )
        return shape[0]

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield equal ranges of rows."""
        return ranges(self._counts, rows, streams=self._streams)

    def read(self, parts: Sequence[Part]) -> Iterator[pa.Table]:
        """Yield the parts' rows, converted to the inputs' dtypes."""
        path, row = self._files[parts[0].file], 0
        if not self._streams:
            for part in parts:
                yield self._table({self._specs[0].name: self._map(path)[part.first : part.first + part.size]})
            return
        with ExitStack() as stack:
            streams = self._open(path, stack)
            for part in parts:
                blocks = {}
                for name, (stream, (shape, dtype)) in streams.items():
                    width = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
                    for skipped in range(0, (part.first - row) * width, _SKIP):
                        _take(stream, min(_SKIP, (part.first - row) * width - skipped), path)
                    blocks[name] = np.frombuffer(_take(stream, part.size * width, path), dtype=dtype)
                    blocks[name] = blocks[name].reshape(part.size, *shape[1:])
                row = part.first + part.size
                yield self._table(blocks)

    def _table(self, blocks: dict[str, Array]) -> pa.Table:
        reasons: dict[int, str] = {}
        for spec in self._specs:
            given = blocks[spec.name]
            blocks[spec.name], wrong = cast(given, spec.dtype)
            for at in [] if wrong is None else np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1)).tolist():
                value = given[at][wrong[at]].ravel()[0] if wrong is not None else 0
                reasons.setdefault(
                    at, f"input {spec.name!r} holds {value}; expected {expectation(spec.dtype)}: correct the data"
                )
        return rows_table(blocks, {}, reasons)


def _header(stream: IO[bytes], where: str) -> Layout:
    try:
        read = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except NUMPY_FILE_ERRORS as error:
        raise InputError(f"{where} is not a numpy array ({error}); expected what numpy.save writes") from error
    if dtype.hasobject:
        raise InputError(f"{where} holds Python objects; expected plain numbers: save it with a numeric dtype")
    if fortran and len(shape) > 1:
        raise InputError(f"{where} is stored column by column; expected rows: save numpy.ascontiguousarray of it")
    return shape, dtype


def _take(stream: IO[bytes], count: int, path: Path) -> bytes:
    try:
        data = stream.read(count)
    except (EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} is damaged ({error}); expected a whole archive: save it again") from error
    if len(data) != count:
        raise InputError(f"{path} ends before its arrays do; expected a whole archive: save it again")
    return data
