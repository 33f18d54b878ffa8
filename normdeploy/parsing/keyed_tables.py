"""Tables of typed keys: a dataclass is the one definition of a TOML table, its parser, its messages and its schema.

A field is a key; :func:`key` gives its default, its meaning and its bounds. Types are str, int, float, bool, a choice
of words (Literal), a list of strings (tuple) and a table of the user's own (dict); any may be left out (| None).
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, get_args, get_origin

from normdeploy.errors import RecipeError

_UNBOUNDED = {"above": None, "least": None, "below": None}


def key(default: Any = dataclasses.MISSING, *, doc: str, **bounds: float) -> Any:
    """Declare one key: its default (none: required; dict: an empty table), meaning and bounds (above, least, below)."""
    metadata = {"doc": doc, **_UNBOUNDED, **bounds}
    if default is dict:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def read_table(kind: type[Any], name: str, data: Any, path: str) -> Any:
    """Build one section dataclass from its TOML table."""
    if not isinstance(data, Mapping):
        raise RecipeError(f"{path}: {name} is {data!r}; expected a table: write [{name}]")
    hints = typing.get_type_hints(kind)
    fields = {item.name: item for item in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in fields:
            raise RecipeError(f"{path}: key {name}.{key} is unknown; expected {choices(key, fields)}")
        values[key] = _value(hints[key], fields[key], value, f"{path}: key {name}.{key}")
    for key in required(kind):
        if key not in values:
            raise RecipeError(f"{path}: key {name}.{key} is missing; expected {fields[key].metadata['doc']}")
    either = getattr(kind, "ONE_OF", ())
    if either and sum(key in values for key in either) != 1:
        given = " and ".join(key for key in either if key in values) or "neither"
        raise RecipeError(f"{path}: table [{name}] has {given}; expected one of {', '.join(either)}")
    return kind(**values)


def _value(hint: Any, item: dataclasses.Field[Any], value: Any, where: str) -> Any:
    """Check one value against its field's type and bounds; return it in that type."""
    hint = _without_none(hint)
    wrong = RecipeError(f"{where} is {value!r}; expected {_expected(hint, item)}: {item.metadata['doc']}")
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise wrong
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise wrong
        return tuple(value)
    if get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            raise wrong
        return dict(value)
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:  # not isinstance: a bool is no int here
        raise wrong
    above, least, below = (item.metadata[bound] for bound in _UNBOUNDED)
    inside = (above is None or value > above) and (least is None or value >= least) and (below is None or value < below)
    if not inside:
        raise wrong
    return value


def _expected(hint: Any, item: dataclasses.Field[Any]) -> str:
    """Say in words what a field accepts."""
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return "a list of strings"
    if get_origin(hint) is dict:
        return "a table"
    word = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}[hint]
    if item.metadata["above"] is not None:
        word += f" above {item.metadata['above']}"
    if item.metadata["least"] is not None:
        word += f" of at least {item.metadata['least']}"
    if item.metadata["below"] is not None:
        word += f" below {item.metadata['below']}"
    return word


def choices(given: str, known: Mapping[str, Any]) -> str:
    """Say in words which names there are, and which of them one may have meant."""
    close = difflib.get_close_matches(given, known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"one of {', '.join(known)}{hint}"


def required(kind: type[Any]) -> list[str]:
    """Return the keys that a table has to have."""
    return [
        item.name
        for item in dataclasses.fields(kind)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    ]


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (typing.Union, types.UnionType):
        return next(part for part in get_args(hint) if part is not type(None))
    return hint


def table_schema(kind: type[Any]) -> dict[str, Any]:
    """Return a table's JSON Schema."""
    hints = typing.get_type_hints(kind)
    schema = {
        "type": "object",
        "description": (kind.__doc__ or "").strip(),
        "additionalProperties": False,
        "required": required(kind),
        "properties": {item.name: _schema(hints[item.name], item) for item in dataclasses.fields(kind)},
    }
    if either := getattr(kind, "ONE_OF", ()):
        schema["oneOf"] = [{"required": [name]} for name in either]
    return schema


def _schema(hint: Any, item: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return one key's schema."""
    hint = _without_none(hint)
    schema: dict[str, Any] = {"description": item.metadata["doc"]}
    if get_origin(hint) is Literal:
        schema["enum"] = list(get_args(hint))
    elif get_origin(hint) is tuple:
        schema |= {"type": "array", "items": {"type": "string"}}
    elif get_origin(hint) is dict:
        schema["type"] = "object"
    else:
        schema["type"] = {str: "string", int: "integer", float: "number", bool: "boolean"}[hint]
    if item.metadata["above"] is not None:
        schema["exclusiveMinimum"] = item.metadata["above"]
    if item.metadata["least"] is not None:
        schema["minimum"] = item.metadata["least"]
    if item.metadata["below"] is not None:
        schema["exclusiveMaximum"] = item.metadata["below"]
    if item.default not in (dataclasses.MISSING, None, ()):
        schema["default"] = item.default
    return schema
