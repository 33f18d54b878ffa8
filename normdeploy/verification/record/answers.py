"""What checks answer: typed results, each made once and read by whoever renders or decides."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from normdeploy.verification.record.measured import Measured


class Status(StrEnum):
    """The answer of a check, and of a verdict; a note informs and decides nothing, so that no verdict is one."""

    PASS = "pass"
    WEAK = "weak"
    NOT_EXERCISED = "not-exercised"
    FAIL = "fail"
    ERROR = "error"
    NOTE = "note"


DECISIVE: tuple[Status, ...] = (Status.FAIL, Status.ERROR, Status.WEAK, Status.NOT_EXERCISED)
"""Answers that keep a verdict from passing; the first that any check gave is the verdict's."""


class Question(StrEnum):
    """What is asked of a file (docs/verification.md, "The questions, in order")."""

    STRUCTURE = "structure"
    NAMES = "names"
    DETERMINISM = "determinism"
    REFERENCE = "reference"
    DERIVATION = "derivation"
    LOGIC = "logic"
    TRACED = "traced"
    ROUNDING = "rounding"
    COMPANIONS = "companions"
    DYNAMIC = "dynamic"
    GRID = "grid"
    QUANTIZATION = "quantization"
    DECISIONS = "decisions"
    FINITE = "finite"
    IDLE = "idle"
    SENSITIVITY = "sensitivity"
    SITE = "site"
    CONVERSION = "conversion"


@dataclass(frozen=True)
class Check:
    """One question put to the file, with its answer.

    Args:
        name: the question.
        status: the answer.
        detail: a sentence a user can act on.
        measured: the numbers behind the answer, where there are any; ratios are error over bound, so 1 is the limit.
    """

    name: Question
    status: Status
    detail: str
    measured: Measured | None = None


class Killer(StrEnum):
    """What shows a mutant.

    ``FLOAT64`` where only the float64 chain is sharp enough; ``SITE`` where no input of the model reaches the site as
    it needs, and the site was fed directly; ``MODULE`` where the site's own value was held against the module's;
    ``DERIVATION`` where the reference is a graph, the file is confirmed to be it for every input, and the mutant
    changes the site's own value.
    """

    ROUNDING = "rounding"
    FLOAT64 = "float64"
    SITE = "site"
    MODULE = "module"
    DERIVATION = "derivation"


@dataclass(frozen=True)
class MutantReport:
    """One deliberate error at one site and what became of it.

    Args:
        name: "epsilon x10", "shift dropped", ...
        killed: the outputs moved at least twice the bound in some input family.
        ratio: largest (difference / bound) over the families; 2 kills.
        family: the input family of that ratio.
        note: why it survived, or how it was proven harmless.
        by: what kills it.
        harmless: it cannot be told from rounding on any input (proven), so its survival says nothing against the site.
    """

    name: str
    killed: bool
    ratio: float
    family: str
    note: str = ""
    harmless: bool = False
    by: Killer = Killer.ROUNDING


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
        ratio: worst error over bound; at most 1 passes. in_parts: where it is more and the run was held part by part
            (:mod:`normdeploy.verification.judging.parts`), the same of the worst part; None elsewhere.
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
    in_parts: float | None = None

    @property
    def holds(self) -> bool:
        """True where rounding explains the error: of the whole, or of each part where the network amplifies it."""
        return self.ratio <= 1 or self.in_parts is not None


HISTOGRAM_EDGES: tuple[float, ...] = tuple(-4.0 + 0.25 * i for i in range(41))
"""Edges of the error histograms: log10 of the error in units of u RMS(y64)."""


class Side(StrEnum):
    """What is to blame for a failure: the file, the runtime that computes a right file wrongly, or torch's trace."""

    EXPORT = "export"
    RUNTIME = "runtime"
    TRACE = "trace"


@dataclass(frozen=True)
class Localization:
    """Where a failure starts; what is not known is empty.

    Args:
        family: the inputs that show it. side: what is to blame. setting: how the file was run.
        where, op, value: the first bad site: module path, operator, name of its result.
        stored: what is wrong there, in words.
        likely: the known mistake that it looks like, in words. unexplained: the share of the error that it leaves.
        optimizers: of the runtime, without which there is no failure. bundle, rerun: where it is kept, and the command.
    """

    family: str
    side: Side
    setting: str = ""
    where: str = ""
    op: str = ""
    value: str = ""
    stored: str = ""
    likely: str = ""
    unexplained: float | None = None
    optimizers: tuple[str, ...] = ()
    bundle: str = ""
    rerun: str = ""

    @property
    def session_option(self) -> str:
        """How to open a session without the optimizers; "" where none is guilty."""
        return f"InferenceSession(..., disabled_optimizers={list(self.optimizers)})" if self.optimizers else ""

    @property
    def side_in_words(self) -> str:
        """What is wrong: the file, the runtime or the trace."""
        return {
            Side.EXPORT: "the file itself is wrong, whatever runs it",
            Side.RUNTIME: "the file is right in float64; the runtime computes it wrongly",
            Side.TRACE: "the file is what torch traced, and that is not what the module computes",
        }[self.side]

    @property
    def summary(self) -> str:
        """All of it in one sentence."""
        parts = [self.side_in_words]
        parts += [f"first bad site: {self.where} ({self.op})"] if self.where else []
        parts += [text for text in (self.stored, self.likely) if text]
        if self.optimizers:
            names = ", ".join(self.optimizers)
            parts.append(f"guilty optimizer: {names}; disabled_optimizers={list(self.optimizers)} avoids it")
        parts += [f"rerun: {self.rerun}"] if self.rerun else []
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: what is known, with the summary."""
        known = {key: value for key, value in asdict(self).items() if value not in ("", None, ())}
        known |= {"session_option": self.session_option} if self.optimizers else {}
        return known | {"summary": self.summary}


@dataclass(frozen=True)
class Depth:
    """How far one operator's result in the runtime is from float64.

    Args:
        where: module path. op: operator. value: its result's name.
        relative_error: RMS of the error over RMS of the value.
    """

    where: str
    op: str
    value: str
    relative_error: float
