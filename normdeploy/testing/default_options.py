"""What options an assertion has where its call gives none: pytest's for the run, a marker's for one test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_layers: list[Mapping[str, Any]] = []


def in_force() -> dict[str, Any]:
    """Return the options in force, the innermost winning."""
    return {name: value for layer in _layers for name, value in layer.items()}


@contextmanager
def using(options: Mapping[str, Any]) -> Iterator[None]:
    """Put options in force, over those that are."""
    _layers.append(options)
    try:
        yield
    finally:
        _layers.remove(options)
