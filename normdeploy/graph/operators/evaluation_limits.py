"""How much a graph may ask the evaluator for: counted before it is believed.

A Range, a ConstantOfShape or a Loop takes its size from a number in the graph, and a few bytes may ask for terabytes or
for years.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from normdeploy.errors import GraphError

MOST_ELEMENTS = 1 << 28
"""Elements of one tensor that numbers of the graph ask for: 2 GiB in float64."""

MOST_PROBED = 1 << 24
"""Elements of a region's input that recognition makes up from a declared shape: about 3 GB while it is probed."""

MOST_TURNS = 1 << 16
"""Turns of one Loop; each evaluates its body."""


class TooMuchError(GraphError):
    """A graph asks for more than is evaluated here."""


def require_elements(what: str, shape: Sequence[int], most: int = MOST_ELEMENTS) -> None:
    """Refuse a tensor of more than ``most`` elements.

    Raises:
        TooMuchError: naming ``what`` asks for it.
    """
    if prod(shape) > most:
        raise TooMuchError(
            f"{what} asks for {prod(shape)} elements; expected at most {most}: correct the numbers that its size comes "
            "from"
        )


def require_turns(what: str, done: int) -> None:
    """Refuse a turn behind the last of `MOST_TURNS`.

    Raises:
        TooMuchError: naming ``what`` goes on.
    """
    if done >= MOST_TURNS:
        raise TooMuchError(
            f"{what} goes on after {MOST_TURNS} turns; expected a loop that ends before: correct its trip count or "
            "condition"
        )
