"""Where the records of a CSV text begin and end.

A record is a line; a cell in quotes may hold line breaks, and then the record spans several. A quote that was never
meant as one must not do that: it would swallow the rows behind it. So a record of several lines is believed only if its
quotes stand where quotes belong, it has as many cells as all others, its line breaks lie in cells that the model does
not read, and it is not longer than ``LONGEST``. Otherwise its first line is a bad row and the next one a new record.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

LONGEST = 1 << 17
"""Bytes that a record may go on for behind its first line; also the csv module's longest cell."""

_CELL = rb'(?:"(?:[^"]++|"")*+"(?=[,\r\n]|\Z)|[^",\r\n][^,\r\n]*+|)'  # possessive: never tried twice
_RECORD = re.compile(_CELL + rb"(?:," + _CELL + rb")*+(\r\n|\r|\n|\Z)")
_LINE = re.compile(rb"[^\r\n]*+(?:\r\n|\r|\n|\Z)")


def first_record(text: bytes) -> tuple[int, int]:
    """Return start and end of the first record of a text, of however many lines; end 0 if a quote is out of place."""
    start = len(text) - len(text.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n"))
    record = _RECORD.match(text, start)
    return start, 0 if record is None else record.end()


def cells(record: bytes) -> list[str]:
    """Return a record's cells.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    return next(csv.reader(io.StringIO(record.decode("utf-8-sig").rstrip("\r\n"), newline=""), strict=True), [])


def whole_lines(text: bytes, *, at_end: bool) -> int:
    """Return where the last line of ``text`` ends, 0 if none does."""
    if at_end:
        return len(text)
    stop = len(text) - text.endswith(b"\r")  # its line feed may be still to come
    return max(text.rfind(b"\n", 0, stop), text.rfind(b"\r", 0, stop)) + 1


def is_plain(text: bytes) -> bool:
    """Whether all quotes of some lines stand at the ends of cells and no quoted cell goes beyond its line."""
    if b'"' not in text:
        return True
    codes: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(b"\n" + text + b"\n", np.uint8)
    quotes, breaks = np.flatnonzero(codes == ord('"')), np.flatnonzero((codes == 10) | (codes == 13))
    if len(quotes) % 2:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    before, behind = np.isin(codes[opening - 1], [*b',\r\n"']), np.isin(codes[closing + 1], [*b',\r\n"'])
    one_line = np.searchsorted(breaks, opening) == np.searchsorted(breaks, closing)
    return bool((before & behind & one_line).all())


def split(text: bytes, width: int, read: Collection[int]) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and fault ("" if none) of each record of a text that begins with a record; blank lines are none.

    Args:
        text: the text.
        width: how many cells a record has.
        read: positions of the cells that hold numbers.
    """
    at = 0
    while at < len(text):
        line = _LINE.match(text, at)
        assert line is not None  # it matches the empty text too
        end, fault = line.end(), ""
        if b'"' in line.group():
            record = _RECORD.match(text, at, end + LONGEST)
            if record is None or end + LONGEST == record.end() < len(text):
                fault = "a quote stands where no cell begins or ends"
            elif record.end() > end:
                try:
                    found = cells(text[at : record.end()].decode("utf-8", "replace").encode())
                except csv.Error:
                    found = []
                broken = [position for position, cell in enumerate(found) if "\n" in cell or "\r" in cell]
                if len(found) == width and not set(broken) & set(read):
                    end = record.end()
                else:
                    fault = "a quote is opened and not closed in its line"
        if line.group().strip(b"\r\n") or fault:
            yield at, end, fault
        at = end
