"""The verdict: what was checked, how much room each check left, and what could not have failed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from normdeploy.verification.record.answers import (
    HISTOGRAM_EDGES,
    Check,
    Depth,
    Localization,
    Measurement,
    SiteReport,
    Status,
)
from normdeploy.verification.record.measured import in_plain_data

STATUSES: tuple[Status, ...] = tuple(status for status in Status if status is not Status.NOTE)
"""What a verdict can be."""

SCHEMA_VERSION = "1.1"
"""Version of the JSON layout published in ``docs/verdict.schema.json``; raised when a field changes meaning."""


@dataclass(repr=False)
class Verdict:
    """The result of a verification.

    Args:
        status: one of :data:`STATUSES`; a status equals its word, "pass".
        reasons: for anything but a pass, one sentence each; for a pass, empty.
        checks: every check made.
        sites: every normalization site with its mutants.
        measurements: the rounding measurements, for the HTML page and the calibration.
        environment: versions, processor, digests, seeds, shapes.
        not_checked: what this verdict says nothing about.
        localization: where a failure starts, or None.
        depth: float64-against-runtime error along the graph, for the HTML page.
        seconds: wall time per stage.
        derivation: the hints that the checker needed, as they are kept beside the file; not part of the layout.
    """

    status: Status
    reasons: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    sites: list[SiteReport] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    not_checked: list[str] = field(default_factory=list)
    localization: Localization | None = None
    depth: list[Depth] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    level: str = "default"
    derivation: str = field(default="", compare=False)

    def __repr__(self) -> str:
        where = f", {len(self.reasons)} reasons" if self.reasons else ""
        return f"Verdict({str(self.status)!r}, {len(self.checks)} checks, {len(self.sites)} sites{where})"

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status is {str(self.status)!r}; expected one of {', '.join(STATUSES)}")
        self.status = Status(self.status)

    @property
    def passed(self) -> bool:
        """True for "pass" alone: weak and not-exercised are not passes."""
        return self.status is Status.PASS

    def check(self, name: str) -> Check:
        """Return the first check called ``name``.

        Raises:
            KeyError: no such check was made.
        """
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"no check {name!r}; made: {[check.name for check in self.checks]}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data in the published layout (docs/verdict.schema.json)."""
        data = asdict(self)
        del data["derivation"]  # a file of its own
        data["localization"] = None if self.localization is None else self.localization.to_dict()
        for check, entry in zip(self.checks, data["checks"], strict=True):
            entry["measured"] = in_plain_data(check.measured)
        for site, entry in zip(self.sites, data["sites"], strict=True):
            entry["exercised"] = site.exercised
        return {"schema": SCHEMA_VERSION, "histogram_edges": list(HISTOGRAM_EDGES), **_plain(data)}

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the verdict as JSON; non-finite numbers become the strings "inf", "-inf" and "nan"."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_html(self) -> str:
        """Return a self-contained HTML page of the verdict."""
        from normdeploy.verification.record.html import (
            render,  # matplotlib and jinja2 load only when a page is asked for
        )

        return render(self)

    def _repr_html_(self) -> str:
        """Return a fragment for notebooks: the status, the reasons, the checks."""
        from normdeploy.report.fragments import verdict

        return verdict(self.to_dict())

    def summary(self) -> str:
        """Return a few lines for a console: the status, the reasons, a line per check, one for what is left out."""
        lines = [f"verdict: {self.status.upper()}"]
        lines += [f"  - {reason}" for reason in self.reasons]
        lines += [f"  {check.name:<14} {check.status:<14} {check.detail}" for check in self.checks]
        if self.not_checked:
            lines.append(f"  {'not checked':<29} {'; '.join(' '.join(text.split()) for text in self.not_checked)}")
        if self.localization:
            lines.append(f"  localized: {self.localization.summary}")
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    """Turn tuples, NumPy scalars and non-finite floats into JSON values."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return str(value)  # of an enumeration its word
    if value is None or isinstance(value, (bool, int)):
        return value
    number = float(value)
    return number if math.isfinite(number) else str(number)
