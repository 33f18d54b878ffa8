"""A model's operators, read without its weights: those of a large file are skipped, not parsed."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError

from normdeploy.files import require_model_file
from normdeploy.onnxfile.light import FUNCTIONS, GRAPH, fields, mapped
from normdeploy.onnxfile.schema import new_model

_NODE = 1  # number of the field in GraphProto


def read_operators(path: str | os.PathLike[str]) -> Any:
    """Return a model that holds a file's operators and functions, bodies and their weights included, and nothing else.

    Returns:
        The model; None where the file's bytes are no message.

    Raises:
        GraphError: it is missing, or no regular file.
        StorageError: it cannot be read.
    """
    file, proto = require_model_file(path), new_model()
    with mapped(file) as content:
        try:
            for graph, body in _operators(content) if content is not None else ():
                (proto.graph if graph else proto).MergeFromString(body)
        except (ValueError, IndexError, DecodeError):
            return None
    return proto


def _operators(content: mmap.mmap) -> Iterator[tuple[bool, bytes]]:
    """Yield each node of the main graph (and True) and each function (and False), as a field of what holds it."""
    for outer, start, body, end in fields(content, 0, len(content)):
        if outer == FUNCTIONS:
            yield False, content[start:end]
        elif outer == GRAPH:
            nodes = (content[at:stop] for number, at, _, stop in fields(content, body, end) if number == _NODE)
            yield True, b"".join(nodes)
