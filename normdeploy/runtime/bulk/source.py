"""What all sources of rows have in common: parts, rows, and the files they come from.

A part is a fixed range of rows: the unit that is read, predicted, written and journalled as a whole. Parts depend on
the data and the sizes asked for alone, never on who works on them, so that every engine forms the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from normdeploy.runtime.backend import Array


@dataclass(frozen=True)
class Part:
    """A range of rows.

    Args:
        index: position among the parts.
        first: index of its first row.
        rows: how many rows.
        offset: where it starts in the file, for sources that need it.
        length: how many bytes it has there.
    """

    index: int
    first: int
    rows: int
    offset: int = 0
    length: int = 0


@dataclass(frozen=True)
class BadRow:
    """A row that could not be read or predicted: its index, its name where rows have names, and why."""

    row: int
    key: str
    reason: str


@dataclass
class Rows:
    """Some consecutive rows of a source.

    Args:
        feeds: input name to array, of the readable rows.
        index: the index of each readable row, int64.
        keys: the name of each readable row (a file's path); empty for sources without names.
        bad: the unreadable ones.
    """

    feeds: dict[str, Array]
    index: np.ndarray[Any, np.dtype[np.int64]]
    keys: list[str] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)

    def without_nan(self) -> Rows:
        """Return the rows free of NaN; the others join the bad ones, because a prediction on them means nothing."""
        ok = np.ones(len(self.index), dtype=bool)
        reasons: dict[int, str] = {}
        for name, array in self.feeds.items():
            if array.dtype.kind != "f" or not len(array):
                continue
            nan = np.isnan(array).reshape(len(array), -1).any(axis=1)
            for position in np.flatnonzero(nan):
                reasons.setdefault(int(position), f"input {name!r} holds NaN")
            ok &= ~nan
        if ok.all():
            return self
        bad = [
            BadRow(int(self.index[position]), self.keys[position] if self.keys else "", reason)
            for position, reason in sorted(reasons.items())
        ]
        keys = [key for key, good in zip(self.keys, ok, strict=True) if good] if self.keys else []
        return Rows({name: array[ok] for name, array in self.feeds.items()}, self.index[ok], keys, self.bad + bad)


class Source(Protocol):
    """Rows on disk; picklable, so that workers read their own parts."""

    named: bool
    total: int | None

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield the parts of at most ``rows`` rows, in order."""
        ...

    def read(self, part: Part, batch: int) -> Iterator[Rows]:
        """Yield a part's rows, at most ``batch`` at a time."""
        ...

    def identity(self) -> Mapping[str, Any]:
        """Return what must be the same for a run to be resumed."""
        ...


def file_identity(path: Path) -> dict[str, Any]:
    """Return a file's absolute path, size and time of change."""
    status = path.stat()
    return {"path": str(path.absolute()), "bytes": status.st_size, "changed_ns": status.st_mtime_ns}


def ranges(total: int, rows: int) -> Iterator[Part]:
    """Yield the parts of a source that knows its length."""
    for index, first in enumerate(range(0, total, rows)):
        yield Part(index, first, min(rows, total - first))
