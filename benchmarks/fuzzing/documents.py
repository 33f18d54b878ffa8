"""Changes that keep the form of a document: JSON, TOML, archives of zip, files of NumPy and safetensors.

Most changes of single bytes end in a parser or at a checksum; these reach what stands behind them.
"""

from __future__ import annotations

import io
import json
import math
import random
import struct
import tomllib
import zipfile
from collections.abc import Callable
from typing import Any

Mutate = Callable[[bytes, int, int], bytes]
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, 1e-320),
    *(math.nan, math.inf, -math.inf, "", "nan", "..", "/etc/passwd", "../x", "a\0b", "\x1b[31m", "ä 中", "\ud800"),
    *([], {}, [[]], [None], {"": 0}, {"schema": 0}, [0] * 300, "x" * 5000),
)
_DEPTHS = (2, 50, 900, 5000)


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return bytes changed in one to four places, sometimes cut."""
    changed = bytearray(content or b"\0")
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.randrange(len(changed)) + 1] if rng.random() < 0.1 else changed)


def json_document(content: bytes, most: int, seed: int) -> bytes:
    """Change a JSON document: values, keys and their order, nesting; sometimes its bytes."""
    return _document(content, most, seed, json.loads, lambda value, _: _json(value))


def toml_document(content: bytes, most: int, seed: int) -> bytes:
    """Change a TOML document likewise."""
    return _document(content, most, seed, tomllib.loads, lambda value, _: _toml(value))


def zipped(inner: Mutate | None = None) -> Mutate:
    """Return what changes one entry of an archive, whose checksums are right again."""

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                entries = [(item.filename, archive.read(item)) for item in archive.infolist()]
            name, data = entries.pop(rng.randrange(len(entries)))
        except Exception:  # no archive any more, in one of zipfile's many ways
            return changed_bytes(content, rng)[:most]
        kind = rng.random()
        if kind < 0.8:
            entries.append((name, inner(data, most, seed) if inner else changed_bytes(data, rng)))
        elif kind < 0.9:
            entries.append((rng.choice(("../x", "/x", "x" * 300, name + name, "")) or name, data))
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            for entry, data in entries:
                archive.writestr(zipfile.ZipInfo(entry), data)
        return target.getvalue()[:most]

    return mutate


def headed(length: int, form: str, start: int) -> Mutate:
    """Return what changes a header behind ``start`` bytes and ``length`` bytes that hold its size.

    Args:
        length: bytes of the header's size (little-endian).
        form: "json" (safetensors), or "text" (a .npy file's, which is Python).
        start: bytes before the size.
    """

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if len(content) < start + length or rng.random() < 0.2:
            return changed_bytes(content, rng)[:most]
        size = int.from_bytes(content[start : start + length], "little")
        header, rest = content[start + length :][:size], content[start + length + size :]
        header = json_document(header, most, seed) if form == "json" else _words(header, rng)
        written = len(header).to_bytes(8, "little")[:length]
        return (content[:start] + written + header + rest)[:most]

    return mutate


def _words(header: bytes, rng: random.Random) -> bytes:
    choices = (b"<f4", b"|O", b"|S0", b"<U9", b">f8", b"<c8", b"|V4", b"<M8[ns]", b"True", b"False", b"-1", b"0")
    sizes = (b"(5, 3)", b"(5,)", b"()", b"(3, 5)", b"(-1, 3)", b"(2147483648, 2147483648)", b"(0, 3)", b"(1,1,1,15)")
    for old, new in ((b"<f4", choices), (b"(5, 3)", sizes), (b"False", choices), (b"descr", (b"shape", b"", b"((("))):
        if rng.random() < 0.4:
            header = header.replace(old, rng.choice(new))
    return header if rng.random() < 0.8 else changed_bytes(header, rng)


def _document(
    content: bytes, most: int, seed: int, read: Callable[[str], Any], write: Callable[[Any, random.Random], str]
) -> bytes:
    rng = random.Random(seed)
    if rng.random() < 0.1:
        return changed_bytes(content, rng)[:most]
    try:
        value = read(content.decode())
        for _ in range(rng.choice((1, 1, 2, 3))):
            value = _changed(value, rng)
        written = write(value, rng).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError, TypeError):
        return changed_bytes(content, rng)[:most]
    return (changed_bytes(written, rng) if rng.random() < 0.05 else written)[:most]


def _changed(value: Any, rng: random.Random) -> Any:
    """Return ``value`` with one place in it changed, the deeper the more probable."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        return _with(dict(value), key, rng)
    if isinstance(value, list) and value and rng.random() < 0.85:
        return _with(list(value), rng.randrange(len(value)), rng)
    if rng.random() < 0.05:
        for _ in range(rng.choice(_DEPTHS)):
            value = [value]
        return value
    if isinstance(value, (int, float)) and rng.random() < 0.4:
        return rng.choice((-value, value + 1, value * 1e9, str(value)))
    return rng.choice(_ODD)


def _with(held: Any, key: Any, rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.75:
        held[key] = _changed(held[key], rng)
    elif kind < 0.85:
        del held[key]
    elif isinstance(held, dict):
        other = rng.choice([*held, "", "new", "__class__"])
        held[other] = held.pop(key) if rng.random() < 0.5 else held[key]
    else:
        held.insert(rng.randrange(len(held)), held[key])
    return held


def _json(value: Any) -> str:
    # deep lists are written by hand: json's own writer recurses
    depth = 0
    while isinstance(value, list) and len(value) == 1 and depth < max(_DEPTHS):
        value, depth = value[0], depth + 1
    return "[" * depth + json.dumps(value, ensure_ascii=False) + "]" * depth


def _toml(value: Any) -> str:
    if not isinstance(value, dict):
        return f"model = {_item(value)}\n"
    tables = {key: item for key, item in value.items() if isinstance(item, dict)}
    lines = [f"{json.dumps(key)} = {_item(item)}" for key, item in value.items() if key not in tables]
    for key, table in tables.items():
        lines += [f"[{json.dumps(key)}]", *(f"{json.dumps(name)} = {_item(item)}" for name, item in table.items())]
    return "\n".join(lines) + "\n"


def _item(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_item(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_item, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value if value is not None else "", ensure_ascii=False)


def idx(count: int, sizes: tuple[int, ...], kind: int) -> bytes:
    """Return a small IDX file (the MNIST family's): magic, sizes, bytes."""
    dims = (count, *sizes)
    return struct.pack(f">HBB{len(dims)}I", 0, kind, len(dims), *dims) + bytes(i % 7 for i in range(math.prod(dims)))
