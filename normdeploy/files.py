"""Files appear whole or not at all, and nothing is overwritten without being asked to."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normdeploy.errors import OutputExistsError, UsageError

_CHUNK = 1 << 20


def require_writable(path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Check before the work starts that ``path`` may be written; return it as a Path.

    Raises:
        OutputExistsError: it exists and ``overwrite`` is false.
        UsageError: its folder does not exist, or it is a folder.
    """
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"{target} is a folder; expected a file path: name the file to write")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} does not exist; expected a folder to write {target.name} into: create it")
    if target.exists() and not overwrite:
        raise OutputExistsError(f"{target} exists; expected a free path: choose another or pass --overwrite")
    return target


@contextmanager
def written_whole(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces it on success and vanishes on failure.

    Args:
        path: where the file shall appear.
        overwrite: allow replacing an existing file.

    Raises:
        OutputExistsError: ``path`` exists and ``overwrite`` is false (checked before and after the writing).
    """
    target = require_writable(path, overwrite=overwrite)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part" + target.suffix, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        require_writable(target, overwrite=overwrite)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, target)  # noqa: PTH105 - os.replace is the atomic call, by name
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str, *, overwrite: bool = False) -> None:
    """Write ``text`` (UTF-8) whole or not at all."""
    with written_whole(path, overwrite=overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes as lowercase hex."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
