"""Options that are counts or durations: checked where they are parsed, before anything is read or built."""

from __future__ import annotations

from collections.abc import Callable

import typer

from normdeploy.parsing.amounts import require_count, require_seconds


def at_least(least: int) -> Callable[[typer.CallbackParam, int | None], int | None]:
    """Return the callback of an option that is a count of at least ``least``."""

    def check(parameter: typer.CallbackParam, value: int | None) -> int | None:
        return None if value is None else require_count(parameter.opts[-1], value, least=least)

    return check


def duration(parameter: typer.CallbackParam, value: float | None) -> float | None:
    """Check an option that is a number of seconds.

    Raises:
        UsageError: it is not finite, or not above 0.
    """
    return None if value is None else require_seconds(parameter.opts[-1], value)
