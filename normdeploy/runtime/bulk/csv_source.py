"""Rows from CSV files: pyarrow.csv cuts parts into cells; those that Arrow cannot read are looked at one by one."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from normdeploy.errors import InputError
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.bulk.columns import match_columns
from normdeploy.runtime.bulk.csv_records import is_plain, records
from normdeploy.runtime.bulk.source import Block, Part
from normdeploy.runtime.casting import expectation

_BYTES, _MARK = "latin-1", b"\xef\xbb\xbf"
_SAMPLE = 1 << 16
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_SURE = {  # what Arrow reads as it is meant, whatever the type's range
    pa.float64(): r"^-?[0-9]{1,18}(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?$",
    pa.int64(): r"^-?[0-9]{1,18}$",
    pa.uint64(): r"^[0-9]{1,18}$",
    pa.string(): r"^[ -~]*$",
}
_WIDE = {"f": pa.float64(), "u": pa.uint64(), "i": pa.int64(), "b": pa.int64()}


class CsvSource:
    """Rows of numbers in UTF-8 text, cells parted by commas; what is kept is kept as text.

    ``header`` says whether the first record names the columns. None: it does if none of its cells is a number, or if
    all names that were asked for are among them; otherwise columns are called "0", "1", ...

    Raises:
        InputError: a file is empty or no text, or its columns do not fit the inputs; ``header`` is None and the first
            record numbers the columns, which may be names or a row.
    """

    total: int | None = None

    def __init__(
        self,
        files: Sequence[Path],
        specs: Sequence[TensorSpec],
        columns: Sequence[str] | None,
        keep: Sequence[str],
        header: bool | None,
    ) -> None:
        self._files = list(files)
        asked = {*(columns or ()), *keep} or ({spec.name for spec in specs} if len(specs) > 1 else set())
        self._starts, self._names = list[int](), list[str]()
        for path in self._files:
            first, end = _first_record(path)
            if not self._starts:
                named = _names_columns(path, first, asked) if header is None else header
            found = [cell.strip() for cell in first] if named else [str(at) for at in range(len(first))]
            self._names = self._names if self._starts else found
            if found != self._names:
                raise InputError(
                    f"{path} has the columns {', '.join(found)}; expected {', '.join(self._names)} as before"
                )
            self._starts.append(end if named else 0)
        self._columns = match_columns(specs, self._names, columns, keep, str(files[0]))
        self.row_bytes = self._columns.row_bytes
        dtypes = self._columns.dtypes
        self._types = dict.fromkeys(self._columns.used, pa.string())
        self._types |= {name: _WIDE[np.dtype(dtype).kind] for name, dtype in dtypes.items()}
        self._read = {self._names.index(name) for name in dtypes}

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield stretches of whole records, of about ``rows`` rows; quotes decide where a record ends."""
        index = 0
        for file, (path, offset) in enumerate(zip(self._files, self._starts, strict=True)):
            with path.open("rb") as stream:
                stream.seek(offset)
                sample = stream.read(_SAMPLE)
                size = max(1, rows * len(sample) // max(1, sample.count(b"\n") or sample.count(b"\r")))
                while length := self._cut(stream, offset, size):
                    yield Part(index, (file, offset), file, offset, length)
                    index, offset = index + 1, offset + length

    def _cut(self, stream: IO[bytes], offset: int, size: int) -> int:
        """Return how many bytes from ``offset`` on hold whole records: about ``size``, or one record; 0 at the end."""
        stream.seek(offset)
        # room is made for what is asked for, whatever there is
        size = min(size, os.fstat(stream.fileno()).st_size - offset + 1)
        text, end = stream.read(size), 0
        while len(text) == size and not end:
            stop = size - text.endswith(b"\r")  # its line feed may be still to come
            end = max(text.rfind(b"\n", 0, stop), text.rfind(b"\r", 0, stop)) + 1
            if not end:
                text, size = text + stream.read(size), 2 * size
        end = end or len(text)
        if is_plain(text[:end]):
            return end
        stream.seek(offset)
        taken, lines = 0, TextIOWrapper(stream, _BYTES, newline="")
        for record, _, _ in records(lines, len(self._names), self._read):
            taken += len(record)
            if taken >= end:
                break
        lines.detach()
        return taken

    def read(self, parts: Sequence[Part]) -> Iterator[Block]:
        """Yield the parts' rows; a record that cannot be read is a bad row."""
        for part in parts:
            with self._files[part.file].open("rb") as stream:
                stream.seek(part.first)
                text, bad = stream.read(part.size), dict[int, str]()
            table, dtypes = self._cells(text if part.first else text.removeprefix(_MARK), bad), self._columns.dtypes
            columns = {
                name: _column(name, table.column(name).combine_chunks(), kind, dtypes.get(name, ""), bad)
                for name, kind in self._types.items()
            }
            yield self._columns.block(pa.table(columns), bad)

    def _cells(self, text: bytes, bad: dict[int, str]) -> pa.Table:
        """Return the cells of the columns used, as bytes; records that are none have empty ones and go to ``bad``."""
        if is_plain(text):
            reading = pacsv.ReadOptions(column_names=self._names, block_size=max(1 << 20, len(text) // 8))
            parsing = pacsv.ParseOptions(newlines_in_values=b'"' in text)
            types = dict.fromkeys(self._types, pa.binary())
            options = pacsv.ConvertOptions(include_columns=list(types), column_types=types)
            with suppress(pa.ArrowInvalid):  # a record has more cells or fewer: which one is found below
                return pacsv.read_csv(BytesIO(text), reading, parsing, options)
        rows, empty = list[list[str]](), [""] * len(self._names)
        for _, cells, fault in records(TextIOWrapper(BytesIO(text), _BYTES, newline=""), len(empty), self._read):
            if fault:
                bad[len(rows)] = fault
            if fault or cells:  # the line is not blank
                rows.append(empty if fault else cells)
        places = {name: self._names.index(name) for name in self._types}
        return pa.table({name: pa.array([row[at].encode(_BYTES) for row in rows]) for name, at in places.items()})


def _column(name: str, cells: pa.Array, kind: pa.DataType, dtype: str, bad: dict[int, str]) -> pa.Array:
    """Return the values of a column's cells, null where they are empty or no number, which is added to ``bad``."""
    with suppress(pa.ArrowInvalid):  # a cell is none that Arrow reads: it is found below
        if pa.types.is_string(kind):
            return cells.cast(kind)
        values = pc.ascii_trim_whitespace(cells.view(pa.string())).cast(kind)
        floating = pa.types.is_floating(kind)  # Arrow reads 1e400 as infinite, and hexadecimal integers
        if not pc.any(pc.is_inf(values) if floating else pc.match_substring_regex(cells, "[xX]")).as_py():
            return values
    sure, odd = pc.match_substring_regex(cells, _SURE[kind]), list[Any]()
    for at in np.flatnonzero(~sure.to_numpy(zero_copy_only=False)).tolist():
        cell = cells[at].as_py()
        value, expected = _value(cell, kind, dtype)
        if expected:
            shown = cell.decode(errors="replace")
            bad.setdefault(at, f"column {name!r} is {shown!r}; expected {expected}: correct or remove the row")
        odd.append(value)
    values = pc.if_else(sure, cells, None).cast(pa.string()).cast(kind)
    return pc.replace_with_mask(values, pc.invert(sure), pa.array(odd, kind))


def _value(cell: bytes, kind: pa.DataType, dtype: str) -> tuple[Any, str]:
    """Return the value of one cell (None for an empty one) and "", or None and what was expected."""
    try:
        text = cell.decode()
    except UnicodeDecodeError:
        return None, "UTF-8 text"
    if pa.types.is_string(kind):
        return text, ""
    floating, text = pa.types.is_floating(kind), text.strip()
    if not text:
        return None, ""
    if "_" in text or not text.isascii():  # Python reads 1_0 and digits of all scripts
        return None, "a number" if floating else "an integer"
    try:
        value = float(text) if floating else int(text)
    except ValueError:
        return None, "a number" if floating else "an integer"
    if floating:
        meant = not math.isinf(value) or text.lstrip("+-")[0] in "iI"
        return (value, "") if meant else (None, expectation("float64"))
    held = np.iinfo(str(kind))  # not to_pandas_dtype: older pyarrow imports pandas for it
    return (value, "") if held.min <= value <= held.max else (None, expectation(dtype))


def _names_columns(path: Path, first: list[str], asked: set[str]) -> bool:
    """Tell whether the first record names the columns: it holds no number, or all names that were asked for."""
    cells = [cell.strip() for cell in first]
    if asked and asked <= set(cells):
        return True
    if cells == [str(at) for at in range(len(cells))]:
        raise InputError(
            f"{path} begins with {', '.join(cells[:4])}{', ...' if len(cells) > 4 else ''}: names, as pandas gives "
            "columns that have none, or the first row; expected to be told which: header=True or False "
            "(--header or --no-header)"
        )
    return not any(_NUMBER.fullmatch(cell) for cell in first)


def _first_record(path: Path) -> tuple[list[str], int]:
    """Return the cells of a file's first record, and where it ends."""
    with path.open(encoding=_BYTES, newline="") as stream:
        end = len(_MARK) if stream.read(len(_MARK)) == _MARK.decode(_BYTES) else 0
        stream.seek(end)
        for text, cells, fault in records(stream):
            end += len(text)
            if fault:
                raise InputError(f"{path} begins with {text[:60]!r}: {fault}")
            if cells:
                break
        else:
            raise InputError(f"{path} is empty; expected a header or rows of numbers")
    try:
        return [cell.encode(_BYTES).decode() for cell in cells], end
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 ({error}); expected text: save it as UTF-8") from error
