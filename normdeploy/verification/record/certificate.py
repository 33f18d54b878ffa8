"""The certificate: a verdict kept beside its file, and the file's own word for which verdict is meant.

The certificate ``<name>.certificate.json`` holds the verdict and the SHA-256 of the ONNX file *as it was verified*,
that is without the one metadata entry that certifying adds. That entry, ``normdeploy.certificate``, holds the SHA-256
of the certificate. So neither of the two can change without the other noticing. The derivation by which the verdict
was reached is written with them (:mod:`.kept_derivation`); the certificate holds its SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normdeploy.errors import UsageError
from normdeploy.files import (
    names_data,
    require_model_file,
    require_writable,
    sha256_file,
    storage,
    written_together,
)
from normdeploy.onnxfile.light import CONTENT, KEY, all_digests, own_digest, with_entry
from normdeploy.onnxfile.outline import read_outline
from normdeploy.ort.settings import WEB
from normdeploy.unfinished import private_folder
from normdeploy.verification.record.answers import Question, Status
from normdeploy.verification.record.kept_derivation import MOST_BYTES, derivation_path, read_bytes
from normdeploy.verification.record.verdict import SCHEMA_VERSION, STATUSES, Verdict


def certificate_path(path: str | os.PathLike[str]) -> Path:
    """Return where the certificate of an ONNX file lies: ``<name>.certificate.json`` beside it."""
    file = Path(path)
    return file.with_name(f"{file.stem}.certificate.json")


def certify(path: str | os.PathLike[str], verdict: Verdict, *, overwrite: bool = True) -> Path:
    """Write certificate and derivation beside an ONNX file and a digest into its metadata; all appear together.

    Args:
        path: the verified file; its graph and weights stay as they are, one metadata entry is set.
        verdict: of exactly this file.
        overwrite: replace a certificate or derivation that exists.

    Returns:
        The certificate's path.

    Raises:
        UsageError: the verdict is of another content of the file.
        GraphError: the file is missing or not ONNX.
    """
    from normdeploy.graph.derivation import Derivation
    from normdeploy.onnxfile.model import read_model

    file = Path(path)
    target, hints = certificate_path(file), derivation_path(file)
    for beside in (target, hints):
        require_writable(beside, overwrite=overwrite)
    model = read_model(file)
    digests = model.digests()
    known = verdict.environment.get("content")
    if known is not None and known != digests:
        raise UsageError(f"{file} changed since it was verified; expected the verified content: verify it again")
    kept_hints = (verdict.derivation or Derivation().to_json()).encode()
    head = {
        "certificate": SCHEMA_VERSION,
        "file": file.name,
        "digests": digests,
        "derivation": hashlib.sha256(kept_hints).hexdigest(),
    }
    # how long it took says nothing about the file, and would be the only thing that differs from run to run
    judged = {key: value for key, value in verdict.to_dict().items() if key != "seconds"}
    text = json.dumps(head | judged, indent=1)
    written = (text + "\n").encode()
    # through a link: the data of a linked file lies beside the file, not beside the link
    real = file.resolve()
    require_writable(real, overwrite=True)
    with storage(real), private_folder(real) as apart:
        (certified := apart / real.name).write_bytes(with_entry(model.content, hashlib.sha256(written).hexdigest()))
        # one turn for all three: of two that certify at once, the file and the certificate are one's
        with written_together(target, overwrite=overwrite, last=[(certified, real)]) as folder:
            (folder / target.name).write_bytes(written)
            (folder / hints.name).write_bytes(kept_hints)
    return target


@dataclass
class CertificateReport:
    """What a certificate says of a file.

    Args:
        path: the file. certificate: where its certificate lies.
        matches: file and certificate belong together, unchanged.
        problems: why they do not. status: the verdict certified. covered, not_covered: what it says something about.
    """

    path: Path
    certificate: Path
    matches: bool
    problems: list[str] = field(default_factory=list)
    status: str = ""
    covered: list[str] = field(default_factory=list)
    not_covered: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "path": str(self.path),
            "certificate": str(self.certificate),
            "matches": self.matches,
            "problems": self.problems,
            "status": self.status,
            "covered": self.covered,
            "not_covered": self.not_covered,
        }

    def summary(self) -> str:
        """Return a few lines for a console."""
        if not self.matches:
            return "\n".join([f"{self.path.name} has no valid certificate", *(f"  - {p}" for p in self.problems)])
        lines = [f"{self.path.name} matches its certificate; verdict: {self.status.upper()}"]
        lines += [f"  covered: {text}" for text in self.covered]
        lines += [f"  not covered: {text}" for text in self.not_covered]
        return "\n".join(lines)


def check_certificate(path: str | os.PathLike[str]) -> CertificateReport:
    """Check an ONNX file against the certificate beside it, and say what the certificate covered.

    Raises:
        GraphError: the file is missing or not ONNX.
    """
    file = require_model_file(path)
    target = certificate_path(file)
    report = CertificateReport(file, target, False)
    if not target.is_file():
        report.problems.append(
            f"{target.name} does not exist; expected it beside the file: verify with a reference to make one"
        )
        return report
    with storage(target, "read"):
        written = target.read_bytes()
    recorded, now = _own(file, written)
    if recorded is None:
        report.problems.append(f"the file names no certificate (metadata {KEY!r}); it was changed or never certified")
    elif recorded != hashlib.sha256(written).hexdigest():
        report.problems.append("the certificate is not the one the file names: one of the two was changed")
    try:
        data = _parsed(written)
        report.covered, report.not_covered = _coverage(data)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        report.problems.append(
            f"the certificate is not one that normdeploy wrote ({type(error).__name__}: {error}); expected a verdict "
            "with digests: verify with a reference to make one"
        )
        return report
    report.status = data["status"]
    _tell_of_derivation(report, data)
    for name in sorted({*now, *data["digests"]}):
        what = "the graph or its weights" if name == CONTENT else f"{name!r}"
        if name not in data["digests"]:
            report.problems.append(f"{what} is not covered: the certificate holds no digest of it")
        elif now.get(name) != data["digests"][name]:
            report.problems.append(f"{what} changed after the verification (SHA-256 differs)")
    report.matches = not report.problems
    return report


def certified_derivation(written: bytes) -> str | None:
    """Return the SHA-256 of the derivation that a certificate names; None where it names none."""
    try:
        digest = _parsed(written).get("derivation")
    except (ValueError, RecursionError):
        return None
    return digest if isinstance(digest, str) else None


def _tell_of_derivation(report: CertificateReport, data: dict[str, Any]) -> None:
    """Say whether what holds for every input can be confirmed again from hints that are kept.

    A derivation that is missing or was changed takes nothing from the verdict: hints are made anew.
    """
    digest = data.get("derivation")
    if not isinstance(digest, str):
        return
    beside = derivation_path(report.path)
    content, problem = read_bytes(beside, MOST_BYTES, digest)
    if content is None:
        report.not_covered.append(f"{beside.name} {problem}; hints are made anew")
    else:
        report.covered.append(f"{beside.name}: what holds for every input can be confirmed from it")


def _own(file: Path, written: bytes) -> tuple[str | None, dict[str, str]]:
    """Return the certificate's digest that a file names, and the digests of its content and data.

    A file that is as it was certified is not read by onnx, which takes longer to import than all of this takes.
    """
    light = own_digest(file)
    if light is not None and light[0] == hashlib.sha256(written).hexdigest():
        try:
            expected = _parsed(written)["digests"]
        except (ValueError, RecursionError):
            expected = {}
        if expected.get(CONTENT) == light[1]:
            data = read_outline(file).data if names_data(file) else {}
            with storage(file, "read"):
                return light[0], all_digests(light[1], {name: sha256_file(place) for name, place in data.items()})
    from normdeploy.onnxfile.model import read_model

    model = read_model(file)
    named = next((entry.value for entry in model.proto.metadata_props if entry.key == KEY), None)
    return named, model.digests_as_written_again()


def _parsed(written: bytes) -> dict[str, Any]:
    """Return a certificate's data.

    Raises:
        ValueError: it is not of a certificate's shape.
    """
    data = json.loads(written)
    if not isinstance(data, dict):
        raise ValueError(f"it holds a {type(data).__name__}; expected an object")
    if data.get("status") not in STATUSES:
        raise ValueError(f"status is {data.get('status')!r}; expected one of {', '.join(STATUSES)}")
    digests = data.get("digests")
    if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
        raise ValueError("it holds no digests")
    return data


_BY_SAMPLES = (Question.DERIVATION, Status.NOTE)
"""The check, and its answer, that names the operators of which nothing is confirmed for every input."""


def _coverage(data: dict[str, Any]) -> tuple[list[str], list[str]]:
    facts = data["environment"]
    covered = [f"{c['name']}: {c['status']}, {c['detail']}" for c in data["checks"] if c["status"] != Status.NOTE]
    covered.append("runtime settings: " + "; ".join(facts.get("settings", [])))
    versions = facts.get("versions", {})
    covered.append(
        "made with "
        + ", ".join(f"{k} {versions[k]}" for k in ("onnxruntime", WEB, "browser", "torch") if k in versions)
    )
    processor = facts.get("processor", {})
    covered.append(f"processor: {processor.get('name', 'unknown')} ({', '.join(processor.get('features', []))})")
    # a note decides nothing, and what only samples cover is nothing that is covered for every input
    by_samples = [f"{c['name']}: {c['detail']}" for c in data["checks"] if (c["name"], c["status"]) == _BY_SAMPLES]
    missing = [
        *by_samples,
        *data.get("not_checked", []),
        "other processors, providers, thread counts and onnxruntime versions",
    ]
    return covered, [str(text) for text in missing]
