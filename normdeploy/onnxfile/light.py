"""What a certificate asks of a file, read without what reads ONNX: a worker that runs it does not wait for that."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from normdeploy.files import open_regular, storage
from normdeploy.onnxfile.named_bytes import Content

KEY = "normdeploy.certificate"
"""Metadata key of a certificate's digest, the one entry that the content's digest leaves out."""

CONTENT = "content"
"""What the digest of a file's own content is called among the digests of its data."""

GRAPH, _METADATA, FUNCTIONS = 7, 14, 25
"""Numbers of fields in ModelProto."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf


def all_digests(content: str, data: dict[str, str]) -> dict[str, str]:
    """Return one table of the content's digest and the data files'."""
    return {CONTENT: content} | {f"./{name}" if name == CONTENT else name: digest for name, digest in data.items()}


def own_digest(model: str | os.PathLike[str] | Content) -> tuple[str | None, str] | None:
    """Return the certificate's digest that a file names, and the SHA-256 of its other bytes.

    The fields of the outermost message are walked; what is inside them is not looked at. This is the digest of a file's
    content. A file that was written again since may have its fields in another order: where the digest is not the
    expected one, that of what the file says decides (`normdeploy.onnxfile.model.digest_as_written_again`).

    Args:
        model: the file, or its bytes.

    Returns:
        (what the entry says or None, SHA-256); None where the bytes are no message.

    Raises:
        StorageError: the file cannot be read.
    """
    if isinstance(model, Content):
        return _digested(model)
    with mapped(model) as content:
        return None if content is None else _digested(content)


def _digested(content: mmap.mmap | Content) -> tuple[str | None, str] | None:
    if not len(content):
        return None
    named: str | None = None
    digest, kept = hashlib.sha256(), 0
    try:
        for number, start, body, end in fields(content, 0, len(content)):
            entry = _entry(content, body, end) if number == _METADATA else ("", "")
            if entry[0] == KEY:
                named = entry[1] if named is None else named
                _add(digest, content, kept, start)
                kept = end
        _add(digest, content, kept, len(content))
    except (ValueError, IndexError):
        return None
    return named, digest.hexdigest()


def with_entry(content: Content, value: str) -> bytes:
    """Return a model's bytes with the certificate's digest as its last entry, and no other; the rest stays as it is.

    Args:
        content: the model's bytes. value: the certificate's digest.

    Raises:
        ValueError: the bytes are no message.
    """
    kept, place = list[memoryview | bytes](), 0
    with memoryview(content) as whole:
        for number, start, body, end in fields(content, 0, len(content)):
            if number == _METADATA and _entry(content, body, end)[0] == KEY:
                kept.append(whole[place:start])
                place = end
        return b"".join([*kept, whole[place:], _field(_METADATA, _field(1, KEY.encode()) + _field(2, value.encode()))])


def _field(number: int, body: bytes) -> bytes:
    if len(body) >= 1 << 14:
        raise ValueError(f"a field of {len(body)} bytes; expected fewer than {1 << 14}")
    low = len(body) & 0x7F
    length = [low] if len(body) < 1 << 7 else [low | 0x80, len(body) >> 7]
    return bytes([number << 3 | _BYTES, *length]) + body


def holds_functions(path: str | os.PathLike[str]) -> bool:
    """Tell whether an ONNX file holds functions of its own; False where its bytes are no message.

    Raises:
        StorageError: the file cannot be read.
    """
    with mapped(path) as content, suppress(ValueError, IndexError):
        return content is not None and any(number == FUNCTIONS for number, *_ in fields(content, 0, len(content)))
    return False


@contextmanager
def mapped(path: str | os.PathLike[str]) -> Iterator[mmap.mmap | None]:
    """Open a file's bytes without reading them; None of an empty one.

    Raises:
        StorageError: the file cannot be read.
    """
    with storage(path, "read"), open_regular(path) as stream:
        if not os.fstat(stream.fileno()).st_size:
            yield None
            return
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def _add(digest: hashlib._Hash, content: mmap.mmap | Content, start: int, end: int) -> None:
    with memoryview(content) as view, view[start:end] as part:
        digest.update(part)


def _entry(content: mmap.mmap | Content, start: int, end: int) -> tuple[str, str]:
    """Return key and value of a metadata entry."""
    parts = {number: str(content[body:stop], "utf-8") for number, _, body, stop in fields(content, start, end)}
    return parts.get(1, ""), parts.get(2, "")


def fields(content: mmap.mmap | Content, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, start, start of its body, end) of each field of a message.

    Raises:
        ValueError: the bytes are no message.
    """
    place = start
    while place < end:
        tag, body = _varint(content, place)
        number, kind = tag >> 3, tag & 7
        if kind == _BYTES:
            length, body = _varint(content, body)
            stop = body + length
        elif kind == _VARINT:
            _, stop = _varint(content, body)
        elif kind in (_FIXED64, _FIXED32):
            stop = body + (8 if kind == _FIXED64 else 4)
        else:
            raise ValueError(f"wire type {kind}")
        if not number or stop > end:
            raise ValueError("a field beyond the end")
        yield number, place, body, stop
        place = stop


def _varint(content: mmap.mmap | Content, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError("a number of more than ten bytes")
