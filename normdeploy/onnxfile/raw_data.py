"""Where a model's own bytes hold the numbers of its initializers: read there, they need no copy.

protobuf hands out a copy of a field of bytes each time it is asked.
"""

from __future__ import annotations

from normdeploy.onnxfile.light import GRAPH, fields
from normdeploy.onnxfile.named_bytes import Content

_INITIALIZER, _NAME, _RAW_DATA = 5, 8, 9  # numbers of fields in GraphProto and TensorProto


def raw_places(content: Content) -> dict[str, tuple[int, int]]:
    """Return first byte and length of the raw data of the main graph's initializers, by name.

    Left out are those that hold none, or share a name.

    Args:
        content: a model's bytes, which protobuf has read.
    """
    found: dict[str, tuple[int, int]] = {}
    shared: set[str] = set()
    for graph, _, opened, closed in fields(content, 0, len(content)):
        if graph != GRAPH:
            continue
        for number, _, body, end in fields(content, opened, closed):
            if number != _INITIALIZER:
                continue
            # of a field that is there twice, the last one counts
            parts = {which: (start, stop) for which, _, start, stop in fields(content, body, end)}
            start, stop = parts.get(_NAME, (0, 0))
            name = str(content[start:stop], "utf-8")
            if name in found:
                shared.add(name)
            start, stop = parts.get(_RAW_DATA, (0, 0))
            found[name] = start, stop - start
    return {name: place for name, place in found.items() if place[1] and name not in shared}
