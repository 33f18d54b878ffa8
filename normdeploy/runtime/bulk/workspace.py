"""The state of an unfinished run: a folder with its parts, a description of the run, and a lock.

A part is written beside its place, forced to disk and renamed, so that whatever moment the process dies at, a part that
is there is whole. The folder belongs to a run by its lock file, which begins with words of ours; the lock itself falls
when its process dies, however it dies. So a run that gets the lock knows that what it finds was left by a dead one.
Nothing else is touched: not a folder without such a file, nor files in it that are not ours.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from normdeploy.errors import StorageError, UsageError
from normdeploy.files import put_in_place, require_writable, storage
from normdeploy.runtime.bulk.predict_part import UNFINISHED
from normdeploy.unfinished import hold

_LOCK, _RUN, _OURS = "lock", "run.json", "normdeploy predict, process "

_MARKED = 0o1777  # less the umask; the sticky bit means nothing in a folder of one user, and none gives it by chance
_PARTS = "[0-9]" * 8 + ".part"


class Workspace:
    """The folder of an unfinished run, locked for this process.

    Args:
        folder: where it lies; made if missing.
        run: what the run depends on; an existing one is continued only if it is the same.
        restart: discard an existing one for something else, instead of refusing.

    Raises:
        UsageError: another process is at work there, an unfinished run for something else lies there, or something
            that is not ours.
        StorageError: the disk is full, read-only or not ours to write.
    """

    def __init__(self, folder: Path, run: Mapping[str, Any], *, restart: bool = False) -> None:
        self.folder, wanted = folder, json.loads(json.dumps(run))
        lock = folder / _LOCK
        link = folder.is_symlink()
        self._made = not link and (not folder.exists() or _is_ours(lock) or _is_fresh(folder))
        if not self._made and (link or not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(
                f"{folder} is in the way and is no unfinished run; expected a free path for what is unfinished: "
                "move it, or choose another output"
            )
        with storage(folder):
            folder.mkdir(mode=_MARKED, exist_ok=True)
            self._lock = lock.open("a+")
        if not hold(self._lock):
            self._lock.close()
            raise UsageError(f"another process is writing {folder}; expected one at a time: wait for it")
        found = self._described()
        with self._begun(found is None):
            self._lock.truncate(0)
            os.write(self._lock.fileno(), f"{_OURS}{os.getpid()}\n".encode())
        if found is not None and found != wanted and not restart:
            self._lock.close()
            differing = ", ".join(key for key in wanted if found.get(key) != wanted[key])
            raise UsageError(
                f"{folder} holds an unfinished run that differs in: {differing}; expected the same to "
                "continue: repeat it as it was begun, or pass overwrite (--overwrite) to begin anew"
            )
        self._clear(f"*{UNFINISHED}", *((_PARTS, _RUN) if found != wanted else ()))
        if found != wanted:
            with self._begun(True):
                (folder / f"run{UNFINISHED}").write_text(json.dumps(wanted), encoding="utf-8")
                put_in_place(folder / f"run{UNFINISHED}", folder / _RUN)

    @contextmanager
    def _begun(self, new: bool) -> Iterator[None]:
        """Write what says whose the folder is; a disk that refuses gets back a new one, which holds no parts."""
        try:
            with storage(self.folder):
                yield
        except StorageError:
            if new:
                self.remove()
            else:
                self._lock.close()
            raise

    def _described(self) -> dict[str, Any] | None:
        try:
            found = json.loads((self.folder / _RUN).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _clear(self, *patterns: str) -> None:
        for pattern in patterns:
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)

    @contextmanager
    def written(self, target: Path, overwrite: bool) -> Iterator[IO[bytes]]:
        """Yield a stream into the folder; on success its file is forced to disk and put in the place of ``target``."""
        temporary = self.folder / f"joined{UNFINISHED}"
        with storage(target):
            with temporary.open("wb") as stream:
                yield stream
            put_in_place(temporary, require_writable(target, overwrite=overwrite))

    def remove(self) -> None:
        """Delete what is ours: the results have been joined."""
        self._clear(_PARTS, f"*{UNFINISHED}", _RUN, _LOCK)
        if self._made:
            with suppress(OSError):  # something of the user's lies in it
                self.folder.rmdir()
        self._lock.close()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.close()


def _is_fresh(folder: Path) -> bool:
    """Whether a run of ours made the folder and died before anything lay in it: the mark is made with the folder."""
    return folder.is_dir() and bool(folder.stat().st_mode & stat.S_ISVTX) and not any(folder.iterdir())


def _is_ours(lock: Path) -> bool:
    try:
        with lock.open(encoding="utf-8") as stream:
            return stream.read(len(_OURS)) in (_OURS, "")
    except (OSError, UnicodeDecodeError):
        return False
