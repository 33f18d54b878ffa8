"""Rows from CSV files: pyarrow.csv reads them, part by part; what it cannot read is looked at cell by cell."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from normdeploy.errors import InputError
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.bulk.columns import match_columns
from normdeploy.runtime.bulk.csv_records import LONGEST, cells, first_record, is_plain, split, whole_lines
from normdeploy.runtime.bulk.source import Part
from normdeploy.runtime.casting import expectation

Positions = np.ndarray[tuple[int], np.dtype[np.int64]]
_SAMPLE = 1 << 16
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_DIGITS = 40  # a longer number is out of every range, and too long for int()
_WORD = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


class CsvSource:
    """Rows of numbers in UTF-8 text, cells parted by commas.

    Args:
        files: all with the same columns.
        specs: the model's inputs.
        columns: names of the columns to use, for a model of one input.
        keep: names of the columns to pass through, as text.
        header: whether the first record names the columns. None: it does if none of its cells is a number, or if all
            names that were asked for are among them; otherwise columns are called "0", "1", ...

    Raises:
        InputError: a file is empty or no text, or its columns do not fit the inputs.
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
        self._starts: list[int] = []
        for path in self._files:
            first, end = _first_record(path)
            if not self._starts:
                numbers = any(_NUMBER.fullmatch(cell.strip()) for cell in first)
                named = not numbers or (bool(asked) and asked <= set(first)) if header is None else header
                self._names = [cell.strip() for cell in first] if named else [str(at) for at in range(len(first))]
            found = [cell.strip() for cell in first] if named else [str(at) for at in range(len(first))]
            if found != self._names:
                raise InputError(
                    f"{path} has the columns {', '.join(found)}; expected {', '.join(self._names)} as before"
                )
            self._starts.append(end if named else 0)
        self._columns = match_columns(specs, self._names, columns, keep, str(files[0]))
        self.kept, self.row_bytes = self._columns.keep, self._columns.row_bytes
        self._dtypes = {name: item.spec.dtype for item in self._columns.inputs for name in item.names}
        wide = {"f": pa.float64(), "u": pa.uint64(), "i": pa.int64(), "b": pa.int64()}
        self._types = {name: wide[np.dtype(dtype).kind] for name, dtype in self._dtypes.items()}
        self._read = {self._names.index(name) for name in self._types}

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield stretches of whole records, of about ``rows`` rows; quotes decide where a record ends."""
        index = 0
        for file, (path, offset) in enumerate(zip(self._files, self._starts, strict=True)):
            with path.open("rb") as stream:
                stream.seek(offset)
                sample = stream.read(_SAMPLE)
                lines = max(1, sample.count(b"\n") or sample.count(b"\r"))
                size = max(1, rows * len(sample) // lines)
                while (length := self._cut(stream, offset, size)) > 0:
                    yield Part(index, index, file, offset, length)
                    index, offset = index + 1, offset + length

    def _cut(self, stream: IO[bytes], offset: int, size: int) -> int:
        """Return how many bytes from ``offset`` on hold whole records: about ``size``, at least one record."""
        stream.seek(offset)
        text, at_end, end = b"", False, 0
        while not end and not at_end:
            more = stream.read(size)
            text, at_end = text + more, len(more) < size
            end = whole_lines(text, at_end=at_end)
        if not is_plain(text[:end]):
            text, limit = text + stream.read(2 * LONGEST), end
            for start, stop, _ in split(text, len(self._names), self._read):
                if start >= limit:
                    break
                end = max(limit, stop)
        return end

    def read(self, parts: Sequence[Part]) -> Iterator[pa.Table]:
        """Yield the parts' rows; a record that cannot be read is a bad row."""
        for part in parts:
            with self._files[part.file].open("rb") as stream:
                stream.seek(part.first)
                text = stream.read(part.size)
            yield self._table(text.removeprefix(b"\xef\xbb\xbf") if not part.first else text)

    def _table(self, text: bytes) -> pa.Table:
        faults: dict[int, str] = {}
        if not is_plain(text):
            records = list(split(text, len(self._names), self._read))
            faults = {
                at: f"{fault}: {text[start:end][:60].decode(errors='replace').strip()!r}; expected quotes in pairs "
                "around cells: correct the line"
                for at, (start, end, fault) in enumerate(records)
                if fault
            }
            text = b"".join(text[start:end] for start, end, fault in records if not fault)
        table, wrong = self._cells(text, threads=True)
        if wrong:  # rows are numbered by one thread alone
            table, wrong = self._cells(text, threads=False)
        rest = _rest(table.num_rows + len(wrong), faults)
        for row in wrong:
            found = f"has {row.actual_columns} cells; expected {row.expected_columns}: correct the line"
            faults[int(rest[row.number - 1])] = found
        rest, unread = _rest(table.num_rows, faults), dict(faults)
        columns = {name: self._column(table.column(name), name, rest, faults) for name in self._columns.used}
        return self._columns.rows(_spread(pa.table(columns), unread), faults)

    def _cells(self, text: bytes, *, threads: bool) -> tuple[pa.Table, list[pacsv.InvalidRow]]:
        """Return the columns used as bytes, without the rows that have more or fewer cells, and those."""
        wrong: list[pacsv.InvalidRow] = []

        def skip(row: pacsv.InvalidRow) -> str:
            wrong.append(row)
            return "skip"

        types = dict.fromkeys(self._columns.used, pa.binary())
        if not text.strip(b"\r\n"):
            return pa.table({name: pa.array([], kind) for name, kind in types.items()}), wrong
        size = None if threads else len(text) + 1
        whole = _is_text(text)
        # Arrow cannot tell of a row that is no text: with each byte a character it can
        table = pacsv.read_csv(
            pa.BufferReader(text if whole else text.decode("latin-1").encode()),
            pacsv.ReadOptions(column_names=self._names, use_threads=threads, block_size=size and 2 * size),
            pacsv.ParseOptions(newlines_in_values=b'"' in text, invalid_row_handler=skip),
            pacsv.ConvertOptions(include_columns=self._columns.used, column_types=types),
        )
        if not whole:
            table = pa.table({name: _bytes_again(table.column(name)) for name in table.column_names})
        return table, wrong

    def _column(self, cells: pa.ChunkedArray, name: str, where: Positions, faults: dict[int, str]) -> pa.ChunkedArray:
        """Return a column's values, all at once where Arrow reads them as they are meant, else one by one."""
        kind = self._types.get(name, pa.string())
        with suppress(pa.ArrowInvalid):  # the cell that it is about is found below
            text = cells.cast(pa.string())
            if (values := _at_once(text, kind)) is not None:
                return values
        found = []
        for at, cell in zip(where.tolist(), cells.to_pylist(), strict=True):
            value, expected = _value(cell, kind, self._dtypes.get(name, ""))
            if expected:
                shown = cell.decode(errors="replace")
                reason = f"column {name!r} is {shown!r}; expected {expected}: correct or remove the row"
                faults.setdefault(at, reason)
            found.append(value)
        return pa.chunked_array([pa.array(found, kind)])


def _at_once(text: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    """Return all values, null for empty cells; None where Arrow would read another number than is written.

    Raises:
        pyarrow.ArrowInvalid: a cell that is no number.
    """
    if pa.types.is_string(kind):
        return text
    try:
        values = text.cast(kind)
    except pa.ArrowInvalid:
        text = pc.ascii_trim_whitespace(text)
        values = pc.if_else(pc.equal(text, ""), None, text).cast(kind)
    if pa.types.is_floating(kind):
        return None if pc.any(pc.is_inf(values)).as_py() else values  # of 1e400
    return None if pc.any(pc.match_substring(text, "x", ignore_case=True)).as_py() else values  # of 0x10


def _rest(count: int, taken: dict[int, str]) -> Positions:
    """Return the positions of ``count`` rows among all, where ``taken`` are those of other rows."""
    return np.delete(np.arange(count + len(taken)), list(taken))


def _spread(table: pa.Table, taken: dict[int, str]) -> pa.Table:
    """Put the rows of a table where they belong, nulls at the positions that are taken by rows that were not read."""
    if not taken:
        return table
    source, mask = np.zeros(table.num_rows + len(taken), np.int64), np.ones(table.num_rows + len(taken), bool)
    source[rest := _rest(table.num_rows, taken)] = np.arange(table.num_rows)
    mask[rest] = False
    return table.take(pa.array(source, mask=mask))


def _value(cell: bytes, kind: pa.DataType, dtype: str) -> tuple[Any, str]:
    """Return the value of one cell and "", or any value and what was expected."""
    if pa.types.is_string(kind):
        try:
            return cell.decode(), ""
        except UnicodeDecodeError:
            return "", "UTF-8 text"
    text = cell.decode(errors="replace").strip()
    if pa.types.is_floating(kind):
        if _NUMBER.fullmatch(text):
            value = float(text)
            return (0.0, expectation("float64")) if math.isinf(value) else (value, "")
        if _WORD.fullmatch(text):
            return float(text), ""
        return (0.0, "a number") if text else (None, "")
    if not _WHOLE.fullmatch(text):
        return (0, "an integer") if text else (None, "")
    low, high = (0, 2**64) if kind == pa.uint64() else (-(2**63), 2**63)
    if len(text) > _DIGITS or not low <= int(text) < high:
        return 0, expectation(dtype)
    return int(text), ""


def _first_record(path: Path) -> tuple[list[str], int]:
    """Return the cells of a file's first record, and where it ends."""
    with path.open("rb") as stream:
        text = stream.read(_SAMPLE)
        while (end := first_record(text)[1]) >= len(text) - 1 or not end:  # it may go on behind what was read
            if not (more := stream.read(len(text) + 1)):
                break
            text += more
    start, end = first_record(text)
    try:
        found = cells(text[start:end])
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 ({error}); expected text: save it as UTF-8") from error
    if start == len(text):
        raise InputError(f"{path} is empty; expected a header or rows of numbers")
    if not end:
        shown = text[start : start + 60].decode(errors="replace")
        raise InputError(f"{path} begins with {shown!r}; expected quotes in pairs around cells: correct its first line")
    return found, end


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _bytes_again(column: pa.ChunkedArray) -> pa.ChunkedArray:
    cells = [cell if cell is None else cell.decode().encode("latin-1") for cell in column.to_pylist()]
    return pa.chunked_array([pa.array(cells, pa.binary())])
