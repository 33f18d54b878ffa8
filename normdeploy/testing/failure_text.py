"""What a failed assertion shows: which outputs differ and by how much, where it starts, what it looks like."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normdeploy.verification import Measurement, Verdict
from normdeploy.verification.record.answers import Side, Status

_WIDTH = 12
_MOST = 8
"""Lines of one kind that are shown."""


def difference(verdict: Verdict, reference: Any, path: str | os.PathLike[str]) -> str:
    """Return a verdict that is no pass as lines for a test's report.

    Args:
        verdict: what was found.
        reference: what the file was held against.
        path: the file.
    """
    named = Path(reference).name if isinstance(reference, (str, os.PathLike)) else type(reference).__name__
    lines = [f"{Path(path).name} is not equivalent to {named}: {verdict.status.upper()}"]
    lines += _first(_outputs(verdict), "more outputs")
    lines += _site(verdict)
    lines += _first([_row("not exercised", text) for text in _unexercised(verdict)], "more sites")
    lines += _first([_row("because", reason) for reason in verdict.reasons], "more reasons")
    held = [check.name for check in verdict.checks if check.status in (Status.PASS, Status.NOTE)]
    lines.append(_row("what held", ", ".join(held) or "nothing"))
    if verdict.not_checked:
        lines.append(_row("not checked", "; ".join(" ".join(text.split()) for text in verdict.not_checked)))
    lines.append(_row("level", verdict.level))
    return "\n".join(lines)


def _row(title: str, text: str) -> str:
    return f"  {title:<{_WIDTH}}  {text}"


def _first(lines: list[str], more: str) -> list[str]:
    return lines if len(lines) <= _MOST else [*lines[:_MOST], _row("", f"... and {len(lines) - _MOST} {more}")]


def _outputs(verdict: Verdict) -> list[str]:
    """One line per output: the worst of its runs, held against the bound."""
    worst: dict[str, Measurement] = {}
    for found in verdict.measurements:
        best = worst.get(found.output)
        if best is None or not found.ratio <= best.ratio:  # a ratio that is NaN is the worst
            worst[found.output] = found
    return [_row("output", _in_words(found)) for found in sorted(worst.values(), key=lambda found: -found.ratio)]


def _in_words(found: Measurement) -> str:
    if found.in_parts is not None:
        return f"{found.output!r} is right: {found.ratio:.3g} times the bound, and held part by part"
    if found.holds:
        return f"{found.output!r} is right: error at most {found.ratio:.2g} of the bound"
    return (
        f"{found.output!r} differs: {found.ratio:.3g} times the bound at {list(found.worst)}, error "
        f"{found.max_error:.3g} of values up to {found.max_truth:.3g} (eager's own: {found.max_eager:.1g}), on inputs "
        f"{found.family!r}, {found.setting}"
    )


def _site(verdict: Verdict) -> Iterator[str]:
    """Where a failure starts, who is to blame and which known mistake it looks like."""
    place = verdict.localization
    if place is None:
        return
    wrong = {
        Side.EXPORT: "the file itself, whatever runs it",
        Side.RUNTIME: "the runtime; the file is right",
        Side.TRACE: "torch's trace of the module; the file is what was traced",
    }[place.side]
    yield _row("wrong", wrong)
    if place.where:
        yield _row("site", f"{place.where} ({place.op})")
    if place.likely or place.stored:
        yield _row("looks like", place.likely or place.stored)
    if place.optimizers:
        yield _row(
            "optimizer", f"{', '.join(place.optimizers)}; disabled_optimizers={list(place.optimizers)} avoids it"
        )
    if place.rerun:
        yield _row("rerun", place.rerun)


def _unexercised(verdict: Verdict) -> list[str]:
    """Sites of which some deliberate error would have gone unnoticed."""
    return [
        f"{site.where} ({site.kind}): {', '.join(mutant.name for mutant in site.survivors)} would not be noticed"
        for site in verdict.sites
        if not site.exercised
    ]
