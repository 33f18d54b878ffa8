"""A file that appears only when it is proven: written beside its place, judged and certified there, then moved."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from normdeploy.errors import VerificationError
from normdeploy.files import PathLike, require_onnx_name, require_writable, written_together
from normdeploy.graph.derivation import Derivation
from normdeploy.rewrite.ledger import Ledger

if TYPE_CHECKING:
    import onnx_ir as ir

    from normdeploy.verification import Verdict

Level = Literal["quick", "default", "thorough"]
Progress = Callable[[str, float], None]

_LONGEST = 600
"""Characters of a reason that stand in an error's one line; the verdict has all of it."""


@dataclass(frozen=True)
class ExportResult:
    """What `export` wrote.

    Args:
        path: the ONNX file.
        ledger: what became of every normalization; empty with ``fold=False``.
        verdict: the verifier's; None with ``verify=False``.
        program: the graph as written; of a file in float16, before its conversion.
        plain: the graph as traced, before any rewriting.
        notes: sentences for the user, such as "the model was in training mode", and what the doctor calls an error.
        seconds: time of "trace", "rewrite" and "verify", s.
        derivation: which value of the file stands for which of the traced graph; empty with ``fold=False``.
    """

    path: Path
    ledger: Ledger
    verdict: Verdict | None
    program: ir.Model = field(repr=False)
    plain: ir.Model = field(repr=False)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    derivation: Derivation = field(default_factory=Derivation, repr=False)


@dataclass(frozen=True)
class FoldResult:
    """What `fold` wrote: file, ledger, verdict (None with ``verify=False``), and the derivation it is checked by."""

    path: Path
    ledger: Ledger
    verdict: Verdict | None
    program: ir.Model = field(repr=False)
    derivation: Derivation = field(default_factory=Derivation, repr=False)


def require_outputs(path: PathLike, *, verify: bool, overwrite: bool) -> Path:
    """Check before the work that the file, and its certificate and derivation if there will be any, may be written.

    Raises:
        UsageError: its name does not end in .onnx; see ``require_writable`` too.
    """
    from normdeploy.verification.record.certificate import certificate_path
    from normdeploy.verification.record.kept_derivation import derivation_path

    require_onnx_name(path)
    target = require_writable(path, overwrite=overwrite)
    if verify:
        require_writable(certificate_path(target), overwrite=overwrite)
        require_writable(derivation_path(target), overwrite=overwrite)
    return target


def _not_proven(target: Path, verdict: Verdict) -> str:
    reasons = verdict.reasons or [verdict.status]
    first = reasons[0] if len(reasons[0]) <= _LONGEST else reasons[0][:_LONGEST].rsplit(" ", 1)[0] + " ..."
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return (
        f"{target.name} is not proven equal to its reference and was not written: {first}{more}; the verdict's "
        "summary() has every check"
    )


def write_proven(
    program: ir.Model,
    target: Path,
    prove: Callable[[Path], Verdict] | None,
    *,
    overwrite: bool,
    half: bool = False,
) -> Verdict | None:
    """Write ``program`` beside ``target``, prove and certify it there, and only then let it appear.

    Raises:
        VerificationError: the verdict is "fail" or "error".
    """
    from normdeploy.graph import save_graph
    from normdeploy.verification.record.certificate import certificate_path, certify
    from normdeploy.verification.record.kept_derivation import derivation_path

    behind = [derivation_path(target).name, certificate_path(target).name]
    with written_together(target, overwrite=overwrite, behind=behind) as folder:
        candidate = folder / target.name
        if half:
            from normdeploy.runtime.tuning.half_precision import write_float16

            with tempfile.TemporaryDirectory(prefix="normdeploy-float16-") as other:
                write_float16(save_graph(program, Path(other) / target.name), candidate)
        else:
            save_graph(program, candidate)
        for part in folder.iterdir():  # now, not after hours of proof
            require_writable(target.parent / part.name, overwrite=overwrite)
        verdict = prove(candidate) if prove is not None else None
        if verdict is not None and verdict.status in ("fail", "error"):
            raise VerificationError(_not_proven(target, verdict), verdict)
        if verdict is not None:
            certify(candidate, verdict)
    return verdict
