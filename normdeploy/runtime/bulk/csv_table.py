"""Rows from CSV files.

The file is cut at record ends (a line end outside quotes), so that a part is a range of bytes which any worker can
read without what lies before it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from normdeploy.errors import InputError
from normdeploy.runtime.backend import Array, TensorSpec
from normdeploy.runtime.bulk.columns import InputColumns, match_columns
from normdeploy.runtime.bulk.source import BadRow, Part, Rows, file_identity


def _records(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield records: lines, joined while a quoted field is open; blank lines too, for the offsets' sake."""
    record = b""
    for line in stream:
        record += line
        if record.count(b'"') % 2 == 0:
            yield record
            record = b""
    if record:
        yield record


def _cells(record: bytes) -> list[str]:
    return next(csv.reader([record.decode("utf-8-sig").rstrip("\r\n")]), [])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class CsvSource:
    """Rows of numbers in UTF-8 text; the first record is a header unless all its cells are numbers.

    Args:
        path: the file.
        specs: the model's inputs.
        columns: names of the columns to use, for a model of one input.

    Raises:
        InputError: the file is empty, or its columns do not fit the inputs.
    """

    named = False
    total: int | None = None

    def __init__(self, path: Path, specs: Sequence[TensorSpec], columns: Sequence[str] | None = None) -> None:
        self.path = path
        with path.open("rb") as stream:
            first = next(_records(stream), b"")
        try:
            cells = _cells(first)
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not UTF-8 ({error}); expected text: save it as UTF-8") from error
        if not cells:
            raise InputError(f"{path} is empty; expected a header or rows of numbers")
        headless = all(_is_number(cell) for cell in cells)
        header = [str(position) for position in range(len(cells))] if headless else [cell.strip() for cell in cells]
        self._start = 0 if headless else len(first)
        self._width = len(cells)
        self._header = header
        self._columns = columns
        self.inputs = match_columns(specs, header, columns, str(path))

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield parts found by one scan for record ends."""
        with self.path.open("rb") as stream:
            stream.seek(self._start)
            index, first, count, offset, length = 0, 0, 0, self._start, 0
            for record in _records(stream):
                length += len(record)
                count += bool(record.strip())
                if count == rows:
                    yield Part(index, first, count, offset, length)
                    index, first, offset, count, length = index + 1, first + count, offset + length, 0, 0
            if count:
                yield Part(index, first, count, offset, length)

    def read(self, part: Part, batch: int) -> Iterator[Rows]:
        """Yield the part's rows; a record that cannot be read is a bad row."""
        with self.path.open("rb") as stream:
            stream.seek(part.offset)
            held: list[tuple[int, list[list[float | int]]]] = []
            bad: list[BadRow] = []
            row, taken = part.first, 0
            for record in _records(stream):
                taken += len(record)
                if record.strip():
                    try:
                        held.append((row, self._values(record)))
                    except (ValueError, UnicodeDecodeError, csv.Error) as error:
                        bad.append(BadRow(row, "", str(error)))
                    row += 1
                    if len(held) + len(bad) == batch:
                        yield self._rows(held, bad)
                        held, bad = [], []
                if taken >= part.length:
                    break
            if held or bad:
                yield self._rows(held, bad)

    def _values(self, record: bytes) -> list[list[float | int]]:
        cells = _cells(record)
        if len(cells) != self._width:
            raise ValueError(f"has {len(cells)} cells; expected {self._width}")
        return [[self._number(cells[at], at, item) for at in item.positions] for item in self.inputs]

    def _number(self, text: str, position: int, item: InputColumns) -> float | int:
        kind = np.dtype(item.spec.dtype).kind
        try:
            return float(text) if kind == "f" else int(text)
        except ValueError:
            what = "a number" if kind == "f" else "an integer"
            raise ValueError(f"column {self._header[position]!r} is {text!r}; expected {what}") from None

    def _rows(self, held: list[tuple[int, list[list[float | int]]]], bad: list[BadRow]) -> Rows:
        feeds: dict[str, Array] = {}
        for position, item in enumerate(self.inputs):
            values = [numbers[position] for _, numbers in held]
            feeds[item.spec.name] = np.array(values, dtype=np.float64 if item.spec.dtype[0] == "f" else None)
            feeds[item.spec.name] = feeds[item.spec.name].astype(item.spec.dtype).reshape(len(held), *item.shape)
        return Rows(feeds, np.array([row for row, _ in held], dtype=np.int64), [], bad).without_nan()

    def identity(self) -> Mapping[str, Any]:
        """Return the file's identity and the chosen columns."""
        return {**file_identity(self.path), "columns": None if self._columns is None else list(self._columns)}
