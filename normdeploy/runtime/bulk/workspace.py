"""The state of an unfinished run: a folder with its parts, a description of the run, and a lock.

A part is written beside its place, forced to disk and renamed, so that whatever moment the process dies at, a part that
is there is whole. A run that gets the lock knows that what it finds was left by a dead one (``normdeploy.unfinished``).
Nothing else is touched: not a folder that is not ours, nor files in it that are not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from normdeploy.errors import StorageError, UsageError
from normdeploy.files import put_in_place, require_writable, storage
from normdeploy.runtime.bulk.predict_part import UNFINISHED
from normdeploy.unfinished import LOCK, claimed, is_ours

_RUN, _OURS = "run.json", "normdeploy predict, process "
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
        self._made = not os.path.lexists(folder) or is_ours(folder, _OURS)
        if not self._made and (folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(
                f"{folder} is in the way and is no unfinished run; expected a free path for what is unfinished: "
                "move it, or choose another output"
            )
        with storage(folder):
            lock = claimed(folder, f"{_OURS}{os.getpid()}\n")
        if lock is None:
            raise UsageError(f"another process is writing {folder}; expected one at a time: wait for it")
        self._lock, found = lock, self._described()
        if found is not None and found != wanted and not restart:
            self._lock.close()
            differing = ", ".join(key for key in wanted if found.get(key) != wanted[key])
            raise UsageError(
                f"{folder} holds an unfinished run that differs in: {differing}; expected the same to "
                "continue: repeat it as it was begun, or pass overwrite (--overwrite) to begin anew"
            )
        self._clear(f"*{UNFINISHED}", *((_PARTS, _RUN) if found != wanted else ()))
        if found != wanted:
            try:
                with storage(folder):
                    (folder / f"run{UNFINISHED}").write_text(json.dumps(wanted), encoding="utf-8")
                    put_in_place(folder / f"run{UNFINISHED}", folder / _RUN)
            except StorageError:
                self.remove()  # it holds no parts
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
        self._clear(_PARTS, f"*{UNFINISHED}", _RUN, LOCK)
        if self._made:
            with suppress(OSError):  # something of the user's lies in it
                self.folder.rmdir()
        self._lock.close()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()
