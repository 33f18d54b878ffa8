"""What the doctor says: findings, each with where, what it does to deployed outputs, and the remedy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

# a kind found at more places than this is told once, with the places named together
_TOLD_APART = 3
_NAMED_TOGETHER = 4


@dataclass(frozen=True)
class Finding:
    """One thing wrong or risky.

    Args:
        severity: "error" (deployed outputs are wrong or undefined), "warning" (they may be, or work may be lost), or
            "note" (nothing is wrong; worth knowing).
        kind: a stable word for programs: "batch-statistics", "never-updated", ... (docs/doctor.md lists them).
        where: module path in the user's model, or node name; "" is the model itself.
        what: what is the case, and what it does to deployed outputs, with numbers.
        remedy: what to do.
        places: all places, where several were told together.
        detail: the numbers, for programs.
    """

    severity: Severity
    kind: str
    where: str
    what: str
    remedy: str
    places: tuple[str, ...] = ()
    detail: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity is {self.severity!r}; expected one of {SEVERITIES}")
        if not self.places:
            object.__setattr__(self, "places", (self.where,))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {
            "severity": self.severity,
            "kind": self.kind,
            "where": self.where,
            "what": self.what,
            "remedy": self.remedy,
            "places": list(self.places),
            "detail": self.detail,
        }


@dataclass(frozen=True)
class Findings:
    """All findings, the worst first.

    Args:
        rows: the findings.
    """

    rows: tuple[Finding, ...] = ()

    @classmethod
    def of(cls, found: Iterable[Finding]) -> Findings:
        """Sort findings by severity, tell each kind and place once, and one kind at many places together."""
        groups: dict[tuple[str, str], list[Finding]] = {}
        for finding in found:
            group = groups.setdefault((finding.kind, finding.severity), [])
            if all((finding.where, finding.what) != (other.where, other.what) for other in group):
                group.append(finding)
        rows: list[Finding] = []
        for group in groups.values():
            rows += group if len(group) <= _TOLD_APART else [_together(group)]
        return cls(tuple(sorted(rows, key=lambda row: SEVERITIES.index(row.severity))))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Finding:
        return self.rows[index]

    @property
    def errors(self) -> list[Finding]:
        """The findings that make deployed outputs wrong or undefined."""
        return [row for row in self.rows if row.severity == "error"]

    def of_kind(self, kind: str) -> list[Finding]:
        """Return the findings of one kind."""
        return [row for row in self.rows if row.kind == kind]

    def counts(self) -> dict[str, int]:
        """Return the number of findings per severity, every severity present."""
        return {severity: sum(row.severity == severity for row in self.rows) for severity in SEVERITIES}

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return ``{"findings": [...], "counts": {...}}`` as JSON."""
        rows = [row.to_dict() for row in self.rows]
        return json.dumps({"findings": rows, "counts": self.counts()}, indent=indent, allow_nan=False)

    def __str__(self) -> str:
        """Return the text for a console."""
        if not self.rows:
            return "nothing wrong or risky found"
        blocks = [
            f"{row.severity:<8} {row.where or 'the model'}\n         {row.what}\n         remedy: {row.remedy}"
            for row in self.rows
        ]
        return "\n".join(blocks)


def _together(group: list[Finding]) -> Finding:
    places = tuple(place for finding in group for place in finding.places)
    named = ", ".join(places[:_NAMED_TOGETHER])
    left = len(places) - _NAMED_TOGETHER
    first = group[0]
    return replace(
        first,
        where=f"{named} and {left} more" if left > 0 else named,
        what=f"{first.places[0] or 'the model'}: {first.what} (likewise at the {len(places) - 1} other places)",
        places=places,
    )
