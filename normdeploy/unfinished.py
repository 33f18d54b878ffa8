"""Private folders in which files are made, beside the place where they shall appear; what killed writers left goes.

A folder ``.NAME.xxxxxxxx`` is ours by a mark that is made with it (the sticky bit, which means nothing in a folder of
one user) or by the words in its lock file, and dead where nobody holds the lock: that falls when its process dies,
however it dies. The next writer of the same file removes the dead ones, and nothing else.
"""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

LOCK, _MADE = "lock", "made"
_OURS = "normdeploy writes here; what a dead process left is removed by the next one\n"
_TRIES, PAUSE = 100, 0.02  # a writer holds a folder for a few renames


@contextmanager
def private_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``target`` that vanishes at the end, or with the next writer of ``target``.

    Raises:
        OSError: the folder beside it cannot be written.
    """
    clear_dead(target)
    outer, lock = _locked(target)
    with lock:
        try:
            made = outer / _MADE
            made.mkdir()
            yield made
        finally:
            # what cannot be removed now is marked, and goes with the next writer
            shutil.rmtree(outer / _MADE, ignore_errors=True)
            with suppress(OSError):
                (outer / LOCK).unlink()
                outer.rmdir()


def _locked(target: Path) -> tuple[Path, IO[str]]:
    """Make a folder and lock it; another, where somebody took the new one for a dead one before it was locked."""
    refused: OSError | None = None
    for _ in range(_TRIES):
        outer = target.parent / f".{target.name}.{secrets.token_hex(4)}"
        try:
            if not outer.exists() and (lock := claimed(outer, _OURS, mode=0o700)) is not None:
                return outer, lock
        except FileNotFoundError as error:  # it was taken for dead, or this file system (/proc) makes no folders at all
            refused = error
        if not target.parent.is_dir():
            raise FileNotFoundError(f"{target.parent} does not exist")
    raise refused or OSError(f"{target.parent} keeps no folder that is made in it")


def claimed(folder: Path, words: str, *, mode: int = 0o777) -> IO[str] | None:
    """Make a folder of ours where there is none, lock it and say so in its lock; None where another process has it.

    Args:
        folder: new, or known to be ours, or empty.
        words: what its lock is to say.
        mode: who may use a new one, less the umask.

    Raises:
        OSError: the disk refuses; a new folder is gone again.
    """
    new = not folder.exists()
    folder.mkdir(mode=mode | stat.S_ISVTX, exist_ok=True)
    lock = (folder / LOCK).open("a+")
    if not hold(lock):
        lock.close()
        return None
    try:
        lock.truncate(0)
        os.write(lock.fileno(), words.encode())
    except OSError:  # a full disk
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        lock.close()
        raise
    return lock


def is_ours(folder: Path, words: str) -> bool:
    """Tell whether a folder was claimed: by what its lock begins with, or by its mark where nothing was written yet."""
    with suppress(OSError, UnicodeDecodeError):
        mode, begun, entries = folder.lstat().st_mode, "", {entry.name for entry in folder.iterdir()}
        regular = LOCK in entries and stat.S_ISREG((folder / LOCK).lstat().st_mode)
        if regular:
            with (folder / LOCK).open(encoding="utf-8") as lock:
                begun = lock.read(len(words))
        unsaid = begun == "" and bool(mode & stat.S_ISVTX) and (regular or entries <= {_MADE})
        return stat.S_ISDIR(mode) and (begun == words or unsaid)
    return False


def hold(lock: IO[str]) -> bool:
    """Lock an open file for as long as this process holds it open; False where another one has it, or it is gone.

    The lock falls when its process dies, however it dies: who gets it knows that the one before is dead.
    """
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        here = os.stat(lock.name)  # noqa: PTH116 - Path.stat is this call
    except OSError:  # locked, or deleted by the one that ends just now
        return False
    return os.path.samestat(os.fstat(lock.fileno()), here)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process of ours at a time look what lies in a folder and rename what it made into it.

    The lock is the folder's own: it leaves nothing, and falls when its process dies. Whoever else holds it (a caller's
    ``flock FOLDER normdeploy ...``) is waited for a moment and no longer, and a file system without such locks not at
    all: only what two do in the same instant is at stake.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(_TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(PAUSE)
            except OSError:
                break
            else:
                break
        yield
    finally:
        os.close(handle)


def clear_dead(target: Path) -> None:
    """Remove the folders that killed writers of ``target`` left: those of ours that nobody holds."""
    if sys.platform == "win32":  # no lock tells the living from the dead there
        return
    for folder in target.parent.glob(f".{glob.escape(target.name)}.*"):
        with suppress(OSError):
            if is_ours(folder, _OURS) and {entry.name for entry in folder.iterdir()} <= {LOCK, _MADE}:
                with (folder / LOCK).open("a+") as lock:
                    if hold(lock):
                        shutil.rmtree(folder)
