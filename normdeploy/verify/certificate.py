"""The certificate: a verdict kept beside its file, and the file's own word for which verdict is meant.

The certificate ``<name>.certificate.json`` holds the verdict and the SHA-256 of the ONNX file *as it was verified*,
that is without the one metadata entry that certifying adds. That entry, ``normdeploy.certificate``, holds the SHA-256
of the certificate. So neither of the two can change without the other noticing.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from normdeploy.errors import GraphError, UsageError
from normdeploy.files import sha256_file, write_text, written_whole
from normdeploy.verify.verdict import SCHEMA_VERSION, Verdict

KEY = "normdeploy.certificate"
"""Metadata key of the certificate's digest in the ONNX file."""


def certificate_path(path: str | os.PathLike[str]) -> Path:
    """Return where the certificate of an ONNX file lies: ``<name>.certificate.json`` beside it."""
    file = Path(path)
    return file.with_name(f"{file.stem}.certificate.json")


def content_digests(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the SHA-256 of the ONNX content (the certificate's entry left out) and of each external data file.

    Raises:
        GraphError: the file is missing or not ONNX.
    """
    file = Path(path)
    proto = _read(file)
    external = sorted({e.value for t in proto.graph.initializer for e in t.external_data if e.key == "location"})
    kept = [entry for entry in proto.metadata_props if entry.key != KEY]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    digests = {"content": hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()}
    for name in external:
        data = file.parent / name
        digests[name] = sha256_file(data) if data.is_file() else "missing"
    return digests


def _read(file: Path) -> onnx.ModelProto:
    if not file.is_file():
        raise GraphError(f"{file} does not exist; expected an ONNX file: check the path")
    try:
        return onnx.load(str(file), load_external_data=False)
    except Exception as error:  # protobuf raises its own classes
        raise GraphError(f"{file} cannot be read as ONNX ({error}); expected a valid .onnx file") from error


def certify(path: str | os.PathLike[str], verdict: Verdict, *, overwrite: bool = True) -> Path:
    """Write the certificate beside an ONNX file and its digest into the file's metadata.

    Args:
        path: the verified file; its graph and weights stay as they are, one metadata entry is set.
        verdict: of exactly this file.
        overwrite: replace a certificate that exists.

    Returns:
        The certificate's path.

    Raises:
        UsageError: the verdict is of another content of the file.
        GraphError: the file is missing or not ONNX.
    """
    file = Path(path)
    digests = content_digests(file)
    known = verdict.environment.get("content")
    if known is not None and known != digests:
        raise UsageError(f"{file} changed since it was verified; expected the verified content: verify it again")
    text = json.dumps(
        {"certificate": SCHEMA_VERSION, "file": file.name, "digests": digests, **verdict.to_dict()}, indent=1
    )
    target = certificate_path(file)
    write_text(target, text + "\n", overwrite=overwrite)
    proto = _read(file)
    kept = [entry for entry in proto.metadata_props if entry.key != KEY]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    onnx.helper.set_model_props(proto, {e.key: e.value for e in proto.metadata_props} | {KEY: sha256_file(target)})
    with written_whole(file, overwrite=True) as temporary:
        temporary.write_bytes(proto.SerializeToString())
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
    file = Path(path)
    proto = _read(file)
    target = certificate_path(file)
    report = CertificateReport(file, target, False)
    if not target.is_file():
        report.problems.append(
            f"{target.name} does not exist; expected it beside the file: verify with a reference to make one"
        )
        return report
    recorded = next((entry.value for entry in proto.metadata_props if entry.key == KEY), None)
    if recorded is None:
        report.problems.append(f"the file names no certificate (metadata {KEY!r}); it was changed or never certified")
    elif recorded != sha256_file(target):
        report.problems.append("the certificate is not the one the file names: one of the two was changed")
    try:
        data = json.loads(target.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        report.problems.append(f"the certificate is not JSON ({error})")
        return report
    now = content_digests(file)
    for name, digest in data.get("digests", {}).items():
        if now.get(name) != digest:
            what = "the graph or its weights" if name == "content" else f"{name!r}"
            report.problems.append(f"{what} changed after the verification (SHA-256 differs)")
    report.matches = not report.problems
    report.status = str(data.get("status", ""))
    report.covered, report.not_covered = _coverage(data)
    return report


def _coverage(data: dict[str, Any]) -> tuple[list[str], list[str]]:
    facts = data.get("environment", {})
    covered = [f"{c['name']}: {c['status']}, {c['detail']}" for c in data.get("checks", []) if c["status"] != "note"]
    covered.append("runtime settings: " + "; ".join(facts.get("settings", [])))
    versions = facts.get("versions", {})
    covered.append("made with " + ", ".join(f"{k} {versions[k]}" for k in ("onnxruntime", "torch") if k in versions))
    processor = facts.get("processor", {})
    covered.append(f"processor: {processor.get('name', 'unknown')} ({', '.join(processor.get('features', []))})")
    missing = [*data.get("not_checked", []), "other processors, providers, thread counts and onnxruntime versions"]
    return covered, missing
