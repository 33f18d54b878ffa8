"""Join the parts of a finished run into one file, holding one part in memory at a time."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.lib import format as npy

from normdeploy.array_types import Array
from normdeploy.errors import InputError, UsageError
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.bulk.predict_part import ROW, Results, read_part


def _require_alike(part: Results, known: Results) -> None:
    """Require that the columns of two parts are of the same types and shapes.

    Raises:
        InputError: they are not.
    """
    for new, old in zip(part.table.schema, known.table.schema, strict=True):
        shapes = part.shapes.get(new.name), known.shapes.get(new.name)
        if new != old or shapes[0] != shapes[1]:
            raise InputError(
                f"{new.name!r} is {new.type} {shapes[0]} in some rows and {old.type} {shapes[1]} in others; "
                "expected one shape for all rows: predict samples of one size at a time"
            )


@dataclass(frozen=True)
class Parts:
    """The parts of a finished run: where they lie, and how many rows each has, bad ones included."""

    folder: Path
    rows: Sequence[int]

    def each(self) -> Iterator[tuple[int, Results]]:
        """Yield each part with the index of its first row.

        Raises:
            InputError: a part that is gone, or parts whose columns are not of the same types.
        """
        first, known = 0, None
        for index, count in enumerate(self.rows):
            part = read_part(self.folder, index)
            if part is None or part.rows != count:
                raise InputError(f"part {index} in {self.folder} is gone or changed; expected it whole: predict again")
            if part.table.num_rows:
                known = known or part
                _require_alike(part, known)
            yield first, part
            first += count

    def good(self) -> Iterator[Results]:
        """Yield what has good rows, numbered through."""
        for first, part in self.each():
            if part.table.num_rows:
                yield replace(part, table=part.table.set_column(0, ROW, pc.add(part.table.column(ROW), first)))

    def write_bad(self, stream: IO[bytes]) -> str:
        """Write the bad rows as CSV (row, key, reason) and return the first reason, "" if there is none."""
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        writer, found = csv.writer(text), ""
        writer.writerow([ROW, "key", "reason"])
        for first, part in self.each():
            writer.writerows((first + at, key, reason) for at, key, reason in part.bad)
            found = found or next((reason for _, _, reason in part.bad), "")
        text.detach()  # flushes; the stream belongs to the caller
        return found

    def write(self, stream: IO[bytes], suffix: str) -> None:
        """Write the results in the format that a file name's ending says."""
        _WRITERS[suffix](self, stream)


def check_format(out: Path, outputs: Sequence[TensorSpec], keep: Sequence[str]) -> None:
    """Refuse before the work starts an output path that the results cannot be written to.

    Raises:
        UsageError: an unknown ending, or .npy for several columns or for whole numbers (bad rows are marked as NaN).
    """
    if out.suffix not in _WRITERS:
        raise UsageError(f"{out} ends in {out.suffix!r}; expected one of {', '.join(_WRITERS)}")
    if out.suffix == ".npy" and (len(outputs) > 1 or keep):
        raise UsageError(
            f"{out} holds one array and there are {len(outputs)} outputs and {len(keep)} columns to keep; "
            "expected .npz, .csv or .parquet"
        )
    if out.suffix == ".npy" and not outputs[0].dtype.startswith("float"):
        raise UsageError(
            f"output {outputs[0]} cannot mark bad rows as NaN in {out.name}; expected .npz, .csv or .parquet"
        )


def _array_header(stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(stream, header)


def _write_npy(parts: Parts, stream: IO[bytes]) -> None:
    """One row per row of the data; bad rows are NaN."""
    part = next(parts.good())
    name = part.table.column_names[-1]
    like = part.array(name)[:0]
    _array_header(stream, (sum(parts.rows), *like.shape[1:]), like.dtype)
    for _, part in parts.each():
        block = part.array(name) if part.table.num_rows else like
        if len(block) < part.rows:
            values, block = block, np.full((part.rows, *like.shape[1:]), np.nan, like.dtype)
            block[part.array(ROW)] = values
        stream.write(block.tobytes())


def _write_npz(parts: Parts, stream: IO[bytes]) -> None:
    """The good rows of every column; texts as numpy's fixed-width ones."""
    count, layout = 0, dict[str, tuple[tuple[int, ...], np.dtype[Any]]]()
    for part in parts.good():
        count += part.table.num_rows
        for name in part.table.column_names:
            array = _plain(part, name)
            known = layout.get(name, (array.shape[1:], array.dtype))[1]
            layout[name] = array.shape[1:], np.promote_types(known, array.dtype)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, (shape, dtype) in layout.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                _array_header(entry, (count, *shape), dtype)
                for part in parts.good():
                    entry.write(_plain(part, name).astype(dtype, copy=False).tobytes())


def _plain(part: Results, name: str) -> Array:
    array = part.array(name)
    if array.dtype.kind in "biufmM":
        return array
    texts: list[str] = ["" if value is None else str(value) for value in array.ravel()]
    return np.array(texts, np.str_).reshape(array.shape)


def _write_csv(parts: Parts, stream: IO[bytes]) -> None:
    """One column per value; numbers read back to the same value."""
    options = pacsv.WriteOptions(include_header=False, quoting_style="needed")
    text, started = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True), False
    for part in parts.good():
        columns: dict[str, Any] = {}
        for name in part.table.column_names:
            column = part.table.column(name)
            if pa.types.is_fixed_size_list(column.type):
                flat = part.array(name).reshape(part.table.num_rows, -1)
                columns |= {f"{name}.{at}": pa.array(np.ascontiguousarray(values)) for at, values in enumerate(flat.T)}
            else:
                columns[name] = column
        if not started:
            csv.writer(text, lineterminator="\n").writerow(columns)
            started = True
        pacsv.write_csv(pa.table(columns), stream, options)
    text.detach()  # the stream belongs to the caller


def _write_parquet(parts: Parts, stream: IO[bytes]) -> None:
    """One column per output: numbers, or flat lists of a fixed size."""
    with pq.ParquetWriter(stream, next(parts.good()).table.schema) as writer:
        for part in parts.good():
            writer.write_table(part.table)


_WRITERS: dict[str, Callable[[Parts, IO[bytes]], None]] = {
    ".npy": _write_npy,
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
