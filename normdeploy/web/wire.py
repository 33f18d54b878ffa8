"""Named tensors as bytes: what Python and the page hand to each other.

Layout: the header's length as a little-endian uint32, the header (JSON in UTF-8), zeros up to a multiple of 8, then
each tensor's bytes in C order, little-endian, each followed by zeros up to a multiple of 8. The header is a list of
``{"name", "type", "shape", "offset", "bytes"}``, offsets counted from the end of the header's padding; types are those
of onnxruntime-web. A page reads every tensor where it lies, because typed arrays start at multiples of their element.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from normdeploy.array_types import Array
from normdeploy.errors import GraphError

TYPES = (
    *("float32", "float64", "float16", "bool"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
)
"""Of tensors that can be handed over: names of NumPy and of onnxruntime-web alike."""

VIEWS = Path(__file__).with_name("views.mjs")
"""The same types as a page's typed arrays: a script that every page imports from beside itself."""

_STEP = 8


def pack(arrays: Mapping[str, Array]) -> bytes:
    """Return named arrays as bytes.

    Raises:
        GraphError: one is of a type that onnxruntime-web takes no tensor of.
    """
    entries: list[dict[str, Any]] = []
    parts: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        given = np.asarray(array)
        if given.dtype.name not in TYPES:
            raise GraphError(
                f"{name!r} is {given.dtype.name}; expected one of {', '.join(TYPES)}: onnxruntime-web takes no others"
            )
        data = np.asarray(given, given.dtype.newbyteorder("<"), order="C").tobytes()
        entries.append(
            {"name": name, "type": given.dtype.name, "shape": list(given.shape), "offset": offset, "bytes": len(data)}
        )
        parts += [data, bytes(-len(data) % _STEP)]
        offset += len(data) + -len(data) % _STEP
    header = json.dumps(entries).encode()
    head = struct.pack("<I", len(header)) + header
    return b"".join([head, bytes(-len(head) % _STEP), *parts])


def unpack(content: bytes) -> dict[str, Array]:
    """Return named arrays from bytes; each may be written to.

    Raises:
        GraphError: the bytes are not of that layout, or end early.
    """
    try:
        (length,) = struct.unpack_from("<I", content)
        entries = json.loads(content[4 : 4 + length])
        start = 4 + length + -(4 + length) % _STEP
        arrays = {}
        for entry in entries:
            if entry["type"] not in TYPES:
                raise ValueError(f"a tensor of type {entry['type']!r}")
            dtype = np.dtype(entry["type"]).newbyteorder("<")
            first = start + entry["offset"]
            flat = np.frombuffer(content[first : first + entry["bytes"]], dtype)
            arrays[str(entry["name"])] = flat.reshape(entry["shape"]).astype(entry["type"])
    except (struct.error, ValueError, TypeError, KeyError) as error:
        raise GraphError(f"the page returned what is no list of tensors ({error}); expected numbers") from error
    return arrays
