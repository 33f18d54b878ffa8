"""Rows from .npy and .npz files, read as the streams they are."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from normdeploy.damaged_files import NUMPY_FILE_ERRORS
from normdeploy.errors import InputError
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.bulk.source import Block, Part, fitted, ranges

Layout = tuple[tuple[int, ...], np.dtype[Any]]


class ArraySource:
    """Rows along the first axis of one array per input: .npy files for a model of one, .npz with arrays by name.

    Raises:
        InputError: a missing array, another kind of number, a shape that does not fit, or different lengths. Floats
            are rounded to the input's precision and whole numbers widened or narrowed; what does not fit is a bad row.
    """

    def __init__(self, files: Sequence[Path], specs: Sequence[TensorSpec]) -> None:
        self._files, self._specs, self._counts, self.row_bytes = list(files), list(specs), list[int](), 1
        for path in self._files:
            with ExitStack() as stack:
                layouts = [layout for _, layout in self._open(path, stack)]
            for spec, layout in zip(specs, layouts, strict=True):
                _check(f"{path}:{spec.name}" if path.suffix.lower() == ".npz" else str(path), spec, *layout)
            counts = {spec.name: shape[0] for spec, (shape, _) in zip(specs, layouts, strict=True)}
            if len(set(counts.values())) > 1:
                raise InputError(f"{path} holds arrays of {counts} rows; expected the same number for every input")
            self.row_bytes = max(1, sum(prod(shape[1:]) * dtype.itemsize for shape, dtype in layouts))
            self._counts.append(next(iter(counts.values())))
        self.total: int | None = sum(self._counts)

    def _open(self, path: Path, stack: ExitStack) -> list[tuple[IO[bytes], Layout]]:
        """Open the stream of each input's values; it stands at the first."""
        if path.suffix.lower() == ".npy":
            if len(self._specs) != 1:
                raise InputError(
                    f"{path} holds one array and the model has the inputs {[spec.name for spec in self._specs]}; "
                    "expected a .npz with one array per input, by name"
                )
            stream = stack.enter_context(path.open("rb"))
            return [(stream, _header(stream, str(path), path.stat().st_size))]
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
        except zipfile.BadZipFile as error:
            raise InputError(f"{path} is not a .npz archive ({error}); expected what numpy.savez writes") from error
        members, opened = {name.removesuffix(".npy"): name for name in archive.namelist()}, []
        for spec in self._specs:
            only = len(self._specs) == 1 and len(members) == 1
            member = next(iter(members.values())) if only else members.get(spec.name)
            if member is None:
                raise InputError(
                    f"{path} holds the arrays {sorted(members)}; expected one named {spec.name!r}: name it in savez"
                )
            entry = stack.enter_context(archive.open(member))
            opened.append((entry, _header(entry, f"{path}:{member}", archive.getinfo(member).file_size)))
        return opened

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield equal ranges of rows; an archive is one stream, because a compressed one is entered at its start."""
        zipped = self._files[0].suffix.lower() == ".npz"
        return ranges(self._counts, rows, (lambda *_: 0) if zipped else (lambda _, first: first))

    def read(self, parts: Sequence[Part]) -> Iterator[Block]:
        """Yield the parts' rows, converted to the inputs' dtypes."""
        path, row = self._files[parts[0].file], 0
        with ExitStack() as stack:
            streams = self._open(path, stack)
            for part in parts:
                feeds, bad = {}, dict[int, str]()
                for spec, (stream, (shape, dtype)) in zip(self._specs, streams, strict=True):
                    width = dtype.itemsize * prod(shape[1:])
                    try:
                        stream.seek((part.first - row) * width, 1)
                        data = stream.read(part.size * width)
                        if len(data) != part.size * width:
                            raise EOFError("it ends before its arrays do")
                    except (EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
                        raise InputError(
                            f"{path} is damaged ({error}); expected a whole file: save it again"
                        ) from error
                    values = np.frombuffer(data, dtype).reshape(part.size, *shape[1:])
                    feeds[spec.name] = fitted(values, spec.dtype, f"a value of input {spec.name!r}", bad)
                row = part.first + part.size
                yield Block(feeds, {}, bad)


def _header(stream: IO[bytes], where: str, size: int) -> Layout:
    """Read an array's header; ``size`` is that of the whole file or archive member."""
    try:
        read = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except NUMPY_FILE_ERRORS as error:
        raise InputError(
            f"{where} is not a numpy array ({error}); expected what numpy.save writes: save it again"
        ) from error
    if dtype.hasobject:
        raise InputError(f"{where} holds Python objects; expected plain numbers: save it with a numeric dtype")
    if fortran and len(shape) > 1:
        raise InputError(f"{where} is stored column by column; expected rows: save numpy.ascontiguousarray of it")
    if min(shape, default=0) < 0 or size - stream.tell() < prod(shape) * dtype.itemsize:
        raise InputError(f"{where} ends before its {list(shape)} values do; expected a whole file: save it again")
    return shape, dtype


def _check(where: str, spec: TensorSpec, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if not shape or not replace(spec, shape=(None, *spec.shape[1:])).takes(shape):
        raise InputError(f"{where} has shape {list(shape)}; expected rows of {spec}: reshape or resize it")
    kinds = {dtype.kind, np.dtype(spec.dtype).kind}
    if dtype != np.dtype(spec.dtype) and not (kinds == {"f"} or kinds <= {"i", "u"}):
        raise InputError(
            f"{where} holds {dtype}; expected {spec.dtype} for {spec.name!r}: "
            f"convert it where it is made, for example with .astype({spec.dtype!r})"
        )
