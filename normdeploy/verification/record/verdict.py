"""The verdict: what was checked, how much room each check left, and what could not have failed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Status = Literal["pass", "weak", "not-exercised", "fail", "error"]
STATUSES: tuple[Status, ...] = get_args(Status)
CheckStatus = Literal["pass", "fail", "not-exercised", "weak", "error", "note"]

SCHEMA_VERSION = "1.1"
"""Version of the JSON layout published in ``docs/verdict.schema.json``; raised when a field changes meaning."""


@dataclass(frozen=True)
class Check:
    """One question put to the file, with its answer.

    Args:
        name: "structure", "logic", "rounding", "sensitivity", "companions", "dynamic", "determinism", ...
        status: the answer; "note" informs and decides nothing.
        detail: a sentence a user can act on.
        measured: the numbers behind the answer; ratios are error over bound, so 1 is the limit.
    """

    name: str
    status: CheckStatus
    detail: str
    measured: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MutantReport:
    """One deliberate error at one site and what became of it.

    Args:
        name: "epsilon x10", "shift dropped", ...
        killed: the outputs moved at least twice the bound in some input family.
        ratio: largest (difference / bound) over the families; 2 kills.
        family: the input family of that ratio.
        note: why it survived, or how it was proven harmless.
        by: what kills it: "rounding"; "float64" where only the float64 chain is sharp enough; "site" where no input of
            the model reaches the site as it needs, and the site was fed directly.
        harmless: it cannot be told from rounding on any input (proven), so its survival says nothing against the site.
    """

    name: str
    killed: bool
    ratio: float
    family: str
    note: str = ""
    harmless: bool = False
    by: str = "rounding"


@dataclass(frozen=True)
class SiteReport:
    """One normalization site and its mutants.

    Args:
        where: the module path in the user's model, or the node's name.
        kind: the operator, in ONNX words.
        mutants: one report per mutant.
    """

    where: str
    kind: str
    mutants: tuple[MutantReport, ...]

    @property
    def exercised(self) -> bool:
        """True when every mutant that could matter was killed."""
        return all(mutant.killed or mutant.harmless for mutant in self.mutants)

    @property
    def survivors(self) -> tuple[MutantReport, ...]:
        """The mutants that neither died nor were proven harmless."""
        return tuple(mutant for mutant in self.mutants if not (mutant.killed or mutant.harmless))


@dataclass(frozen=True)
class Measurement:
    """Error of one output under one runtime setting in one input family.

    Args:
        output: output name. family: input family. setting: "cpu level=all threads=1" and the like.
        ratio: worst error over bound; at most 1 passes.
        rms_error, rms_eager, rms_spread, rms_truth: root mean squares of |runtime - y64|, |eager - y64|, S and y64; S
            is 0 where eager's error alone explained what was seen, and no run with noise was needed.
        max_error, max_eager, max_truth: the maxima of the same.
        worst: index of the worst element in the output.
        histogram: counts of log10(|error| / (u RMS(y64))) in :data:`HISTOGRAM_EDGES`, runtime and eager.
    """

    output: str
    family: str
    setting: str
    ratio: float
    rms_error: float
    rms_eager: float
    rms_spread: float
    rms_truth: float
    max_error: float
    max_eager: float
    max_truth: float
    worst: tuple[int, ...] = ()
    histogram: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


HISTOGRAM_EDGES: tuple[float, ...] = tuple(-4.0 + 0.25 * i for i in range(41))
"""Edges of the error histograms: log10 of the error in units of u RMS(y64)."""


@dataclass(repr=False)
class Verdict:
    """The result of a verification.

    Args:
        status: "pass", "weak", "not-exercised", "fail" or "error".
        reasons: for anything but a pass, one sentence each; for a pass, empty.
        checks: every check made.
        sites: every normalization site with its mutants.
        measurements: the rounding measurements, for the HTML page and the calibration.
        environment: versions, processor, threads, digests, seeds, shapes.
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
    localization: dict[str, Any] | None = None
    depth: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    level: str = "default"
    derivation: str = field(default="", compare=False)

    def __repr__(self) -> str:
        where = f", {len(self.reasons)} reasons" if self.reasons else ""
        return f"Verdict({self.status!r}, {len(self.checks)} checks, {len(self.sites)} sites{where})"

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status is {self.status!r}; expected one of {STATUSES}")

    @property
    def passed(self) -> bool:
        """True for "pass" alone: weak and not-exercised are not passes."""
        return self.status == "pass"

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
            lines.append(f"  localized: {self.localization.get('summary', '')}")
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    """Turn tuples, NumPy scalars and non-finite floats into JSON values."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        return value
    number = float(value)
    return number if math.isfinite(number) else str(number)
