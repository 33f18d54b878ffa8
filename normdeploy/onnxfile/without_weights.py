"""A model's operators, read without its weights: those of a large file are skipped, not parsed."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError

from normdeploy.files import open_regular, require_model_file, storage
from normdeploy.onnxfile.light import fields
from normdeploy.onnxfile.schema import new_model

_GRAPH, _NODE = 7, 1  # numbers of fields in ModelProto and GraphProto
_FUNCTIONS = 25


def read_operators(path: str | os.PathLike[str]) -> Any:
    """Return a model that holds a file's operators and functions, bodies and their weights included, and nothing else.

    Returns:
        The model; None where the file's bytes are no message.

    Raises:
        GraphError: it is missing, or no regular file.
        StorageError: it cannot be read.
    """
    file, proto = require_model_file(path), new_model()
    with storage(file, "read"), open_regular(file) as stream:
        if not os.fstat(stream.fileno()).st_size:
            return None
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                for graph, body in _operators(content):
                    (proto.graph if graph else proto).MergeFromString(body)
            except (ValueError, IndexError, DecodeError):
                return None
    return proto


def _operators(content: mmap.mmap) -> Iterator[tuple[bool, bytes]]:
    """Yield each node of the main graph (and True) and each function (and False), as a field of what holds it."""
    for outer, start, body, end in fields(content, 0, len(content)):
        if outer == _FUNCTIONS:
            yield False, content[start:end]
        elif outer == _GRAPH:
            nodes = (content[at:stop] for number, at, _, stop in fields(content, body, end) if number == _NODE)
            yield True, b"".join(nodes)
