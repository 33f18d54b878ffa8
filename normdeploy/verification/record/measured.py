"""The numbers behind the answers of checks, by question; in JSON each is an object of the numbers that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from normdeploy.intervals import Interval


@dataclass(frozen=True)
class Ratios:
    """Of logic, rounding and sites fed directly.

    Args:
        worst_ratio: the largest error over bound; 1 is the limit.
        runs: how many were judged. settings: under which it is wrong. sites: that were fed.
    """

    worst_ratio: float
    runs: int | None = None
    settings: tuple[str, ...] | None = None
    sites: tuple[str, ...] | None = None


@dataclass(frozen=True)
class OpenOperator:
    """An operator that only samples cover. Args: node: its name. operator: its kind. reason: why."""

    node: str
    operator: str
    reason: str


@dataclass(frozen=True)
class Confirmed:
    """Of the derivation.

    Args:
        operators: of the file, that outputs depend on. confirmed: how many by which identity.
        by_samples_only: the others. hints: where the hints came from.
    """

    operators: int
    confirmed: Mapping[str, int]
    by_samples_only: Sequence[OpenOperator]
    hints: str


@dataclass(frozen=True)
class Flipped:
    """Of quantized grids.

    Args:
        ratio: the largest error over what simulated flips make. optimizers: of the runtime, that turned them.
        flips: elements that are off. size: elements there are.
    """

    ratio: float
    optimizers: tuple[str, ...] | None = None
    flips: int | None = None
    size: int | None = None


@dataclass(frozen=True)
class QuantizersCost(Interval):
    """Of what the quantizers cost: value, low and high. Args: rows: of how many. user: they are the user's own."""

    rows: int
    user: bool


@dataclass(frozen=True)
class Sizes:
    """Of dynamic dimensions. Args: sizes: that were tried, by dimension."""

    sizes: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Killed:
    """Of mutants. Args: killed, total: how many. harmless: of the others, those proven so."""

    killed: int
    total: int
    harmless: int


@dataclass(frozen=True)
class Loss:
    """Of a conversion. Args: loss: it. limit: the budget."""

    loss: float
    limit: float


Measured = Ratios | Confirmed | Flipped | QuantizersCost | Sizes | Killed | Loss


def in_plain_data(measured: Measured | None) -> dict[str, Any]:
    """Return the numbers that there are, by name."""
    return {} if measured is None else {key: value for key, value in asdict(measured).items() if value is not None}
