"""The derivation that is kept beside a file: where it lies, and its bytes where they are those that were certified.

``<name>.derivation.json`` says what the rewriting did (:mod:`normdeploy.graph.derivation`). It is written with the
certificate, which holds its SHA-256. Size and digest are looked at before anything is parsed.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from normdeploy.files import irregular, open_regular, storage

MOST_BYTES = 1 << 26
"""A longer certificate or derivation is not looked into."""


def derivation_path(path: str | os.PathLike[str]) -> Path:
    """Return where the derivation of an ONNX file lies: ``<name>.derivation.json`` beside it."""
    file = Path(path)
    return file.with_name(f"{file.stem}.derivation.json")


def read_bytes(path: Path, most: int, digest: str) -> tuple[bytes | None, str]:
    """Return the bytes of a small file that has a digest, or why they are not to be had.

    Args:
        path: the file. most: a longer one is not read. digest: the SHA-256 that it shall have, as lowercase hex.

    Returns:
        (the bytes, ""), or (None, what is wrong, to be put behind the file's name).

    Raises:
        StorageError: it cannot be read.
    """
    if not path.is_file():
        return None, f"is {irregular(path) or 'missing'}"
    with storage(path, "read"), open_regular(path) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        return None, f"is larger than {most} bytes"
    if hashlib.sha256(content).hexdigest() != digest:
        return None, "was changed: its SHA-256 differs"
    return content, ""
