"""The state of an unfinished run: whole parts, and a journal of which of them count.

A part is written beside its place, forced to disk and renamed; only then one line about it is appended to the journal
and forced to disk too. Whatever moment the process dies at, the journal names only whole parts, and a part without a
line is simply made again: no row is lost and none comes twice.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from normdeploy.errors import UsageError

_HEADER, _JOURNAL = "header.json", "journal.jsonl"
_OWN = re.compile(r"\.?header\.json|journal\.jsonl|part-\d{8,}\.npz|\.\d{8,}\.\d+\.npz")


@dataclass(frozen=True)
class PartReport:
    """What became of one part: its place, its rows, and how many of them were bad."""

    index: int
    first: int
    rows: int
    bad: int


def part_path(folder: Path, index: int) -> Path:
    """Return where a part's results lie."""
    return folder / f"part-{index:08d}.npz"


def _foreign(folder: Path, what: str) -> UsageError:
    return UsageError(
        f"{folder} holds {what}, which no run of predict wrote; expected a free place for unfinished results: move "
        "that folder, or choose another OUT"
    )


def _require_own(folder: Path) -> None:
    """Check that a folder holds nothing but what a run writes: only that may be discarded.

    Raises:
        UsageError: it is no folder, or holds other files.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise UsageError(f"{folder} is no folder of an unfinished run; expected a free place: choose another OUT")
    for entry in sorted(folder.iterdir()):
        if not _OWN.fullmatch(entry.name) or entry.is_symlink() or not entry.is_file():
            raise _foreign(folder, entry.name)


def _header(folder: Path, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what an unfinished run depends on; None where it died before saying so.

    Raises:
        UsageError: the file is none that a run wrote.
    """
    file = folder / _HEADER
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _foreign(folder, _HEADER) from error
    if not isinstance(found, dict) or set(found) != set(wanted):
        raise _foreign(folder, _HEADER)
    return found


def _discard(folder: Path) -> None:
    """Delete a run's files, and the folder if that leaves it empty."""
    for entry in list(folder.iterdir()):
        if _OWN.fullmatch(entry.name):
            entry.unlink()
    with suppress(OSError):  # not empty: what else is there is not ours
        folder.rmdir()


class Journal:
    """The folder of an unfinished run, locked for this process.

    Args:
        folder: where it lies; made if missing.
        header: what the run depends on; an existing folder is continued only if it was made for the same.
        restart: discard an existing folder made for something else, instead of refusing.

    Raises:
        UsageError: another process is at work there, or an unfinished run for something else, or files of others.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any], *, restart: bool = False) -> None:
        self.folder = folder
        wanted = json.loads(json.dumps(header))
        if os.path.lexists(folder):
            _require_own(folder)
            found = _header(folder, wanted)
            if found is None:
                _discard(folder)  # died before the header: nothing in it counts
            elif found != wanted:
                differing = ", ".join(key for key in wanted if found.get(key) != wanted[key])
                if not restart:
                    raise UsageError(
                        f"{folder} holds an unfinished run that differs in: {differing}; expected the same to "
                        "continue: repeat it as it was begun, or pass overwrite (--overwrite) to begin anew"
                    )
                _discard(folder)
        folder.mkdir(exist_ok=True)
        self._stream = (folder / _JOURNAL).open("a+b")
        try:
            self._lock()
        except OSError as error:
            self._stream.close()
            raise UsageError(f"another process is writing {folder}; expected one at a time: wait for it") from error
        if not (folder / _HEADER).is_file():
            temporary = folder / f".{_HEADER}"
            temporary.write_text(json.dumps(wanted), encoding="utf-8")
            temporary.replace(folder / _HEADER)
        self.done = self._read()
        self.resumed = sum(report.rows for report in self.done.values())

    def _lock(self) -> None:
        if sys.platform != "win32":  # a lock that the system releases when the process dies, however it dies
            import fcntl

            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _read(self) -> dict[int, PartReport]:
        """Return the parts that count; a last line cut short by a kill is removed."""
        self._stream.seek(0)
        text = self._stream.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._stream.truncate(len(whole))
        try:
            reports = [PartReport(**json.loads(line)) for line in whole.splitlines()]
        except (ValueError, TypeError) as error:
            self._stream.close()
            raise _foreign(self.folder, _JOURNAL) from error
        return {report.index: report for report in reports if part_path(self.folder, report.index).is_file()}

    def record(self, report: PartReport) -> None:
        """Add a finished part."""
        self._stream.write(json.dumps(asdict(report)).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.done[report.index] = report

    def remove(self) -> None:
        """Delete the run's files, and the folder if nothing else is in it: the results have been joined."""
        self.__exit__(None, None, None)
        _discard(self.folder)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.close()
