"""What a rewriting says it did: which value of the file stands for which value of the source, and by what gauge.

x = s x' + t, where x is a value of the source graph and x' what the file computes in its place. Nothing here is
trusted: :mod:`normdeploy.verification.derivation` confirms each operator from the two graphs alone and takes a hint as
what to try. JSON, one line per hint; numbers are float64 in base64, little-endian; s = 1 and t = 0 are not written.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.errors import GraphError
from normdeploy.graph.exact import constant_tensor
from normdeploy.graph.traits import Trait, has, kind_of

SCHEMA = 1
"""Version of the layout."""

MOST_BYTES = 1 << 24
"""A longer derivation is neither written nor read: what does not fit is left out, the largest first."""

MOST_HINTS = 1 << 20
MOST_RANK = 16
MOST_CELLS = 1 << 22
"""Limits of what one derivation may ask to be looked at: hints, a gauge's axes, and its numbers."""


@dataclass(frozen=True, eq=False)
class Hint:
    """One value of the file.

    Args:
        value: its name in the file. source: name of the source's value x that it stands for.
        key: how it is computed (:func:`dataflow_keys`), for a file in which it has another name.
        scale, shift: s and t, of x's rank or less, of size 1 along axes on which they do not vary.
    """

    value: str
    source: str
    key: str = ""
    scale: Floats = field(default_factory=lambda: np.ones(()))
    shift: Floats = field(default_factory=lambda: np.zeros(()))


@dataclass(frozen=True, eq=False)
class Exact:
    """A constant that an operator of the file reads, before it was rounded.

    Args:
        value: name of the operator's first result. key: how that is computed.
        which: the constant's place among the operator's inputs, or the attribute's name.
        compute: returns the unrounded constant.
    """

    value: str
    key: str
    which: str
    compute: Callable[[], Floats]


@dataclass(frozen=True)
class Derivation:
    """The hints of one rewriting, in the order of the file's operators, and unrounded constants.

    Args:
        hints, constants: what to try. left_out: how many of them were too large to be written, where it was read.
    """

    hints: tuple[Hint, ...] = ()
    constants: tuple[Exact, ...] = ()
    left_out: int = 0

    def pruned(self, used: Mapping[Hint | Exact, Floats | None]) -> Derivation:
        """Return the hints and constants that were needed, for writing.

        Args:
            used: them; with a constant its number, where that is known: to compute it may take longer than all else.
        """
        constants = []
        for one in self.constants:
            if one in used:
                number = used[one]
                constants.append(one if number is None else replace(one, compute=partial(np.asarray, number)))
        return Derivation(tuple(hint for hint in self.hints if hint in used), tuple(constants))

    def followed_by(self, other: Derivation) -> Derivation:
        """Return the hints and constants of both, these first."""
        return Derivation((*self.hints, *other.hints), (*self.constants, *other.constants))

    def by_name(self) -> Mapping[str, list[Hint]]:
        """Return the hints by the name of the file's value."""
        return _grouped(self.hints, lambda hint: hint.value)

    def by_key(self) -> Mapping[str, list[Hint]]:
        """Return the hints by how the file's value is computed."""
        return _grouped(self.hints, lambda hint: hint.key)

    def to_json(self) -> str:
        """Return the text that is kept beside the file, of at most :data:`MOST_BYTES` (ASCII).

        Constants are left out before hints, the largest first; ``left_out`` in it counts them.
        """
        hints = [_written(hint) for hint in self.hints]
        constants = [
            _Row({"value": c.value, "key": c.key, "which": c.which}, {"number": c.compute()}) for c in self.constants
        ]
        excess = _FRAME + sum(row.length + 2 for row in (*hints, *constants)) - MOST_BYTES
        dropped = set[int]()
        for rows in (constants, hints):
            for row in sorted(rows, key=lambda row: -row.length):
                if excess <= 0:
                    break
                excess -= row.length + 2
                dropped.add(id(row))
        left_out = self.left_out + len(dropped)
        parts = [",\n".join(str(row) for row in rows if id(row) not in dropped) for rows in (hints, constants)]
        head = f'{{"schema":{SCHEMA},"left_out":{left_out},'
        return f'{head}"hints":[\n{parts[0]}],\n"constants":[\n{parts[1]}]}}\n'


_WRITER = json.JSONEncoder(separators=(",", ":"))  # one for all rows

_FRAME = 100
"""Characters around the rows, at most."""


@dataclass(frozen=True)
class _Row:
    """A row of the text: words, and arrays behind them."""

    words: Mapping[str, str]
    arrays: Mapping[str, Floats]

    @cached_property
    def length(self) -> int:
        """How many characters the row has, told without writing its numbers."""
        letters = sum(4 * -(-8 * array.size // 3) for array in self.arrays.values() if array.size != 1)
        return len(self._with(whole=False)) + letters

    def __str__(self) -> str:
        return self._with(whole=True)

    def _with(self, *, whole: bool) -> str:
        numbers = "".join(f',"{name}":{_packed(array, whole=whole)}' for name, array in self.arrays.items())
        return f"{_WRITER.encode(self.words)[:-1]}{numbers}}}"


def _written(hint: Hint) -> _Row:
    gauges = {"scale": (hint.scale, 1), "shift": (hint.shift, 0)}
    told = {name: array for name, (array, usual) in gauges.items() if array.size != 1 or array.reshape(()) != usual}
    return _Row({"value": hint.value, "source": hint.source, "key": hint.key}, told)


def _grouped(hints: Iterable[Hint], by: Callable[[Hint], str]) -> Mapping[str, list[Hint]]:
    found: dict[str, list[Hint]] = {}
    for hint in hints:
        found.setdefault(by(hint), []).append(hint)
    return found


def dataflow_keys(graph: ir.Graph) -> dict[ir.Value, str]:
    """Return a digest of how each value is computed: operators and wiring, without names, numbers and copies.

    Values that are computed alike from other constants have one key.
    """
    keys = {value: _digest("input", str(value.name)) for value in graph.inputs}
    for node in graph:
        read = [_key(value, keys) for value in node.inputs if value is not None and value.name]
        if node.op_type == "Identity" and not node.domain and read:
            keys[node.outputs[0]] = read[0]
            continue
        if has(node, Trait.COMMUTES):
            read.sort()
        for index, output in enumerate(node.outputs):
            keys[output] = _digest(*kind_of(node), str(index), *read)
    return keys


_CONSTANT = "constant"


def _key(value: ir.Value, keys: Mapping[ir.Value, str]) -> str:
    return _CONSTANT if constant_tensor(value) is not None else keys.get(value, "outside")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def read_derivation(text: str | bytes) -> Derivation:
    """Read a derivation; its size bounds the work, and is looked at first.

    Raises:
        GraphError: it is not one of this schema, or too large.
    """
    if len(text) > MOST_BYTES:
        raise GraphError(f"the derivation has {len(text)} bytes; expected at most {MOST_BYTES}: write it again")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"the derivation is not JSON ({error}); expected what export wrote: export again") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or not isinstance(content.get("hints"), list):
        raise GraphError(f"the derivation is not of schema {SCHEMA}; expected what this version writes: export again")
    constants = content.get("constants")
    if not isinstance(constants, list):
        raise GraphError("the derivation lists no constants; expected what this version writes: export again")
    if len(content["hints"]) + len(constants) > MOST_HINTS:
        raise GraphError(f"the derivation has more than {MOST_HINTS} hints; expected what export wrote: export again")
    left_out = content.get("left_out")
    if type(left_out) is not int or left_out < 0:
        raise GraphError("the derivation does not count what it leaves out; expected 'left_out': export again")
    return Derivation(tuple(_hints(content["hints"])), tuple(_constants(constants)), left_out)


def _constants(rows: Iterable[Any]) -> Iterable[Exact]:
    for row in rows:
        named = isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("value", "key", "which"))
        if not named:
            raise GraphError("a constant of the derivation names no operator; expected what export wrote: export again")
        number = _unpack(row.get("number"))
        yield Exact(row["value"], row["key"], row["which"], partial(np.asarray, number))


def _hints(rows: Iterable[Any]) -> Iterable[Hint]:
    for row in rows:
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("value", "source", "key")):
            raise GraphError(
                "a hint of the derivation names no values; expected 'value', 'source', 'key': export again"
            )
        scale = _unpack(row["scale"]) if "scale" in row else np.ones(())
        shift = _unpack(row["shift"]) if "shift" in row else np.zeros(())
        yield Hint(row["value"], row["source"], row["key"], scale, shift)


def _packed(array: Floats, *, whole: bool) -> str:
    """Return an array as JSON; without its letters where it is not ``whole``.

    Letters of base64 need no escape; to look for some takes longer than all else.
    """
    if array.size == 1:
        return _WRITER.encode({"shape": list(array.shape), "number": float(array.reshape(())).hex()})
    numbers = base64.b64encode(array.astype("<f8").tobytes()).decode() if whole else ""
    return f'{{"shape":{_WRITER.encode(list(array.shape))},"float64":"{numbers}"}}'


def _unpack(packed: Any) -> Floats:
    shape = packed.get("shape") if isinstance(packed, dict) else None
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size <= MOST_CELLS for size in shape):
        raise GraphError("a gauge of the derivation has no shape; export again")
    if len(shape) > MOST_RANK or math.prod(shape) > MOST_CELLS:
        raise GraphError("a gauge of the derivation is too large; export again")
    try:
        if "number" in packed:
            flat = np.array([float.fromhex(packed["number"])])
        else:
            flat = np.frombuffer(base64.b64decode(packed["float64"], validate=True), "<f8").astype(np.float64)
        return flat.reshape(shape)
    except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
        raise GraphError(f"a gauge of the derivation cannot be read ({error}); export again") from error
