"""Files appear whole or not at all, nothing is overwritten without being asked to, and what is no file is left alone.

A path may name a device, a pipe or a socket; reading one may wait for ever, and replacing one breaks the machine. Such
paths are refused before anything is opened or written.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from normdeploy.errors import GraphError, OutputExistsError, StorageError, UsageError
from normdeploy.unfinished import one_at_a_time, private_folder

PathLike = str | os.PathLike[str]

_CHUNK, _PLACE = 1 << 20, b"location"
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode), "a device"),
)
_REMEDIES = {
    errno.ENOSPC: "make room on the disk, or choose another folder",
    errno.EDQUOT: "make room within your quota, or choose another folder",
    errno.EROFS: "choose a folder that can be written",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "choose a file or folder you have the permission for"),
}


def irregular(path: PathLike) -> str:
    """Say what lies at ``path``, links followed, if it is no regular file; "" for a regular file or nothing."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - Path.stat is this call
    except OSError:
        return ""
    if stat.S_ISREG(mode):
        return ""
    return next((words for test, words in _KINDS if test(mode)), "no regular file")


def not_a_file(path: PathLike) -> str:
    """Say what is at ``path``, where no regular file lies: "does not exist", "is a folder", "is a named pipe"."""
    found = irregular(path)
    return f"is {found}" if found else "does not exist"


@contextmanager
def storage(path: PathLike, doing: str = "written") -> Iterator[None]:
    """Turn what the system says of a disk (full, read-only, no permission) into an error of ours.

    Args:
        path: what the block works on, for the message.
        doing: what is being done to it: "written", "read".

    Raises:
        StorageError: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename and str(error.filename) != os.fspath(path) else ""
        remedy = _REMEDIES.get(error.errno or 0, "check the disk and the path")
        raise StorageError(
            f"{os.fspath(path)} cannot be {doing}: {error.strerror or error}{where}; "
            f"expected a disk that can be {doing}: {remedy}"
        ) from error


def open_regular(path: PathLike) -> io.BufferedReader:
    """Open a regular file for reading; never waits for a pipe or a device.

    Raises:
        FileNotFoundError: nothing lies there.
        OSError: it cannot be read, or is no regular file (EINVAL; ``strerror`` says what it is).
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, f"it is {irregular(path) or 'no regular file'}", os.fspath(path))
        return io.BufferedReader(io.FileIO(handle))
    except BaseException:
        os.close(handle)
        raise


def require_writable(path: PathLike, *, overwrite: bool = False) -> Path:
    """Check before the work starts that ``path`` may be written; return it as a Path.

    Raises:
        OutputExistsError: it exists and ``overwrite`` is false.
        UsageError: its folder does not exist, or it is a folder, a device, a pipe or a socket.
        StorageError: its folder cannot be written.
    """
    target = Path(path)
    if found := irregular(target):
        raise UsageError(f"{target} is {found}; expected a file path: name the file to write")
    if not target.name:
        raise UsageError(f"{os.fspath(path)!r} names no file; expected a file path: name the file to write")
    with storage(target):
        there = target.parent.is_dir()
    if not there:
        raise UsageError(f"{target.parent} does not exist; expected a folder to write {target.name} into: create it")
    if os.path.lexists(target) and not overwrite:
        raise OutputExistsError(f"{target} exists; expected a free path: choose another or pass --overwrite")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise StorageError(
            f"{target.parent} cannot be written; expected a folder to write {target.name} into: choose a folder you "
            "have the permission for"
        )
    return target


def require_onnx_name(path: PathLike) -> None:
    """Require that a file to write is named as the ONNX file that it will be.

    Raises:
        UsageError: it has another suffix.
    """
    target = Path(path)
    if target.suffix.lower() != ".onnx":
        free = target.with_suffix(".onnx") if target.name else target / "model.onnx"  # "." and "/" have no name
        raise UsageError(f"output is {target}; expected a name that ends in .onnx: write {free}")


def force_to_disk(path: PathLike) -> None:
    """Return when a file's bytes, or a folder's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def put_in_place(made: Path, target: Path) -> None:
    """Rename ``made`` to ``target``, which it replaces in one step, after its bytes are on the disk."""
    force_to_disk(made)
    os.replace(made, target)  # noqa: PTH105 - os.replace is the atomic call, by name
    with suppress(OSError):  # some file systems know no such thing for folders
        force_to_disk(target.parent)


@contextmanager
def written_whole(path: PathLike, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a path in a private folder beside ``path``: what is written there replaces it on success.

    Args:
        path: where the file shall appear.
        overwrite: allow replacing an existing file.

    Raises:
        OutputExistsError: ``path`` exists and ``overwrite`` is false (checked before and after the writing).
        StorageError: the disk is full, read-only or not ours to write.
    """
    target = require_writable(path, overwrite=overwrite)
    with storage(target), written_together(target, overwrite=overwrite) as folder:
        yield folder / target.name


@contextmanager
def written_together(
    path: PathLike,
    *,
    overwrite: bool = False,
    behind: Sequence[str] = (),
    last: Sequence[tuple[Path, Path]] = (),
) -> Iterator[Path]:
    """Yield a private folder beside ``path``; all files made in it appear beside ``path`` on success.

    What a file needs (weights) is renamed before it. What speaks of it comes behind it: killed in between, there is no
    word of a file that is not there.

    Args:
        path: the file that shall appear, with others of one's choice.
        overwrite: allow replacing existing files.
        behind: names of those that speak of the file, in the order in which they are renamed.
        last: files made elsewhere, each with the one that it replaces in any case: renamed last, at the same turn.

    Raises:
        OutputExistsError: one of them exists and ``overwrite`` is false: looked for before anything is renamed.
        StorageError: the disk is full, read-only or not ours to write.
    """
    target = require_writable(path, overwrite=overwrite)
    with ExitStack() as stack:
        with storage(target):
            folder = stack.enter_context(private_folder(target))
        yield folder
        turns = [target.name, *behind]
        parts = sorted(folder.iterdir(), key=lambda p: (turns.index(p.name) if p.name in turns else -1, p.name))
        with storage(target):
            os.umask(mask := os.umask(0))
            for made in (*parts, *(made for made, _ in last)):
                made.chmod(0o666 & ~mask)
                force_to_disk(made)  # before others wait for the folder
            stack.enter_context(one_at_a_time(target.parent))
            for part in parts:
                require_writable(target.parent / part.name, overwrite=overwrite)
            for made, place in (*((part, target.parent / part.name) for part in parts), *last):
                put_in_place(made, place)


def write_text(path: PathLike, text: str, *, overwrite: bool = False) -> None:
    """Write ``text`` (UTF-8) whole or not at all."""
    with written_whole(path, overwrite=overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_file(path: PathLike) -> str:
    """Return the SHA-256 of a regular file's bytes as lowercase hex."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _chunks(source: PathLike) -> Iterator[bytes]:
    with storage(source, "read"), open_regular(source) as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk  # what the caller raises over it is not raised in here: only reading is called reading


def copy_file(source: PathLike, target: Path) -> None:
    """Copy a regular file's bytes.

    Raises:
        StorageError: ``source`` cannot be read.
        OSError: ``target`` cannot be written; it names no other file, as shutil's does.
    """
    with target.open("wb") as copy:
        for chunk in _chunks(source):
            copy.write(chunk)


def copy_with_digest(source: PathLike, target: Path) -> str:
    """Copy as `copy_file` does; return the SHA-256 of just these bytes as lowercase hex."""
    digest = hashlib.sha256()
    with target.open("xb") as copy:
        for chunk in _chunks(source):
            digest.update(chunk)
            copy.write(chunk)
    return digest.hexdigest()


def words_in(source: PathLike | bytes | memoryview, words: Collection[bytes]) -> set[bytes]:
    """Return which of some words a file's bytes hold anywhere; read without what reads the file.

    Args:
        source: the file, or its bytes. words: to look for.
    """
    chunks: Iterator[bytes | memoryview]
    if isinstance(source, (bytes, memoryview)):
        chunks = (source[at : at + _CHUNK] for at in range(0, len(source), _CHUNK))
    else:
        chunks = _chunks(source)
    found, kept, longest = set[bytes](), b"", max(map(len, words))
    for chunk in chunks:
        text = kept + chunk
        found |= {word for word in words if word in text}
        if len(found) == len(words):
            break
        kept = text[1 - longest :]
    return found


def names_data(path: PathLike) -> bool:
    """Tell whether an ONNX file may keep data in other files; read without what reads ONNX.

    Every place of such data is written under the key "location". A file without that word keeps all its data itself;
    one that holds it otherwise (as a tensor's name) is found not to when it is read.
    """
    return bool(words_in(path, [_PLACE]))


def lies_at(path: PathLike) -> bool:
    """Tell whether a regular file lies at ``path``.

    Raises:
        StorageError: a folder above it may not be searched.
    """
    with storage(path, "read"):
        return Path(path).is_file()


def require_model_file(path: PathLike) -> Path:
    """Check that a regular file lies at ``path``; return it as a Path.

    Raises:
        GraphError: nothing lies there, or a folder, a device or a pipe.
        StorageError: a folder above it may not be searched.
    """
    file = Path(path)
    if not lies_at(file):
        raise GraphError(f"{file} {not_a_file(file)}; expected an ONNX file: check the path")
    return file
