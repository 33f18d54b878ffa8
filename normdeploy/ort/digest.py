"""What a model is known by: a digest of its own bytes and of the data it names."""

from __future__ import annotations

import hashlib
import os

from normdeploy.files import names_data, sha256_file, storage
from normdeploy.onnxfile.outline import read_outline


def model_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 that a model is known by: of the file's bytes and of those of all data files it names.

    With data outside, it is the SHA-256 of lines: the file's own, then name and SHA-256 of each data file, by name.

    Raises:
        GraphError: data that may not be read, is missing or too short.
        StorageError: the file cannot be read.
    """
    if names_data(path):
        model = read_outline(path)
        if model.data:
            lines = [hashlib.sha256(model.content).hexdigest()]
            with storage(path, "read"):
                lines += [f"{name} {sha256_file(file)}" for name, file in model.data.items()]
            return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    with storage(path, "read"):
        return sha256_file(path)
