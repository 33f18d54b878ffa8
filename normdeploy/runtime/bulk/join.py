"""Join the parts of a finished run into one file, holding one part in memory at a time."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.lib import format as npy

from normdeploy.errors import InputError, UsageError
from normdeploy.ort.specs import Array, TensorSpec
from normdeploy.runtime.bulk.source import KEEP, OUT, REASON, to_array, to_column
from normdeploy.runtime.bulk.workspace import read_part

_ROW = "row"


@dataclass(frozen=True)
class Results:
    """The parts of a finished run.

    Args:
        folder: where they lie.
        rows: how many rows each part has, in order, bad ones included.
    """

    folder: Path
    rows: Sequence[int]

    def parts(self) -> Iterator[tuple[pa.Table, int]]:
        """Yield each part with the index of its first row."""
        first = 0
        for index, count in enumerate(self.rows):
            part = read_part(self.folder, index)
            if part is None or part.num_rows != count:
                raise InputError(f"part {index} in {self.folder} is gone or changed; expected it whole: predict again")
            yield part, first
            first += count

    def good(self) -> Iterator[pa.Table]:
        """Yield the good rows of each part that has some: ``row``, what was kept, the outputs.

        Raises:
            InputError: parts whose columns are not of the same types.
        """
        schema: pa.Schema | None = None
        for part, first in self.parts():
            if not part.column(REASON).null_count:
                continue
            mask = part.column(REASON).is_null()
            columns = {_ROW: pa.chunked_array([pa.array(np.arange(first, first + part.num_rows))])}
            for kind, label in ((KEEP, "kept"), (OUT, "output")):
                for name in [name for name in part.column_names if name.startswith(kind)]:
                    plain = name.removeprefix(kind)
                    columns[f"{label}.{plain}" if plain in columns else plain] = part.column(name)
            table = pa.table(columns)
            schema = schema or table.schema
            if table.schema != schema:
                differs = [(new, old) for new, old in zip(table.schema, schema, strict=False) if new != old]
                raise InputError(
                    f"{str(differs[0][0])!r} in some rows and {str(differs[0][1])!r} in others; expected one shape for "
                    "all rows: predict samples of one size at a time"
                )
            yield table if part.column(REASON).null_count == part.num_rows else table.filter(mask)

    def write_bad(self, stream: IO[bytes]) -> str:
        """Write the bad rows as CSV (row, key, reason) and return the first reason, "" if there is none."""
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        writer, found = csv.writer(text), ""
        writer.writerow([_ROW, "key", "reason"])
        for part, first in self.parts():
            if part.column(REASON).null_count < part.num_rows:
                reasons = part.column(REASON).to_pylist()
                named = KEEP + "key" in part.column_names
                keys = part.column(KEEP + "key").to_pylist() if named else [""] * len(reasons)
                rows = enumerate(zip(keys, reasons, strict=True), first)
                bad = [(row, key, reason) for row, (key, reason) in rows if reason is not None]
                writer.writerows(bad)
                found = found or bad[0][2]
        text.detach()  # flushes; the stream belongs to the caller
        return found


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


def write_results(results: Results, stream: IO[bytes], suffix: str) -> None:
    """Write the results in the format a file name's ending says."""
    _WRITERS[suffix](results, stream)


def _array_header(stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(stream, header)


def _write_npy(results: Results, stream: IO[bytes]) -> None:
    """One row per row of the data; bad rows are NaN."""
    like = to_array(next(results.good()).column(-1).slice(0, 0))
    _array_header(stream, (sum(results.rows), *like.shape[1:]), like.dtype)
    good = results.good()
    for part, _ in results.parts():
        block = np.full((part.num_rows, *like.shape[1:]), np.nan, like.dtype)
        if part.column(REASON).null_count:
            block[part.column(REASON).is_null().to_numpy()] = to_array(next(good).column(-1))
        stream.write(block.tobytes())


def _write_npz(results: Results, stream: IO[bytes]) -> None:
    """The good rows of every column; texts as numpy's fixed-width ones."""
    count, layout = 0, dict[str, tuple[tuple[int, ...], np.dtype[Any]]]()
    for table in results.good():
        count += table.num_rows
        for name in table.column_names:
            array = _plain(table.column(name))
            known = layout.get(name, (array.shape[1:], array.dtype))[1]
            layout[name] = array.shape[1:], np.promote_types(known, array.dtype)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, (shape, dtype) in layout.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                _array_header(entry, (count, *shape), dtype)
                for table in results.good():
                    entry.write(_plain(table.column(name)).astype(dtype, copy=False).tobytes())


def _plain(column: pa.ChunkedArray) -> Array:
    array = to_array(pc.fill_null(column, "") if pa.types.is_string(column.type) else column)
    return array if array.dtype.kind in "biufmM" else array.astype(np.str_)


def _write_csv(results: Results, stream: IO[bytes]) -> None:
    """One column per value; numbers read back to the same value."""
    options = pacsv.WriteOptions(include_header=False, quoting_style="needed")
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    started = False
    for table in results.good():
        columns: dict[str, Any] = {}
        for name in table.column_names:
            if not pa.types.is_fixed_size_list(table.column(name).type):
                columns[name] = table.column(name)
                continue
            flat = to_array(table.column(name)).reshape(table.num_rows, -1)
            columns |= {f"{name}.{at}": pa.array(np.ascontiguousarray(flat[:, at])) for at in range(flat.shape[1])}
        if not started:
            csv.writer(text, lineterminator="\n").writerow(columns)
            started = True
        pacsv.write_csv(pa.table(columns), stream, options)
    text.detach()  # the stream belongs to the caller


def _write_parquet(results: Results, stream: IO[bytes]) -> None:
    """One column per output: numbers, or flat lists of a fixed size."""
    writer: pq.ParquetWriter | None = None
    try:
        for table in results.good():
            columns = {}
            for name in table.column_names:
                column = table.column(name)
                if pa.types.is_fixed_size_list(column.type):
                    column = to_column(to_array(column).reshape(table.num_rows, -1))
                columns[name] = column
            flat = pa.table(columns)
            writer = writer or pq.ParquetWriter(stream, flat.schema)
            writer.write_table(flat)
    finally:
        if writer is not None:
            writer.close()


_WRITERS: dict[str, Callable[[Results, IO[bytes]], None]] = {
    ".npy": _write_npy,
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
