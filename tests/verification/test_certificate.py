from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime_outputs import run_onnxruntime

from normdeploy.errors import GraphError, UsageError
from normdeploy.unfinished import one_at_a_time
from normdeploy.verification import Verdict
from normdeploy.verification.record.certificate import KEY, certificate_path, certify, check_certificate
from normdeploy.verification.record.verdict import SCHEMA_VERSION

SCHEMA = Path(__file__).parents[2] / "docs" / "verdict.schema.json"


@pytest.fixture(scope="module")
def proven(small, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Verdict]:
    path = tmp_path_factory.mktemp("certified") / "net.onnx"
    shutil.copy(small.folded, path)
    verdict = small.verdict(path)
    certify(path, verdict)
    return path, verdict


@pytest.fixture
def certified(proven: tuple[Path, Verdict], tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    shutil.copy(proven[0], path)
    shutil.copy(certificate_path(proven[0]), certificate_path(path))
    return path


def test_a_certified_file_matches_and_says_what_was_covered(certified: Path):
    report = check_certificate(certified)
    assert report.matches, report.problems
    assert report.status == "pass"
    text = report.summary()
    assert "rounding: pass" in text
    assert "onnxruntime" in text
    assert "your own data" in " ".join(report.not_covered)
    assert "other processors" in " ".join(report.not_covered)


def test_certifying_changes_the_metadata_alone(certified: Path, small):
    a, b = onnx.load(str(small.folded)), onnx.load(str(certified))
    assert a.graph == b.graph
    assert KEY in {entry.key for entry in b.metadata_props}
    x = np.zeros((2, 3, 8, 8), np.float32)
    name = b.graph.input[0].name
    run_onnxruntime(certified, {name: x})


def test_a_file_changed_in_one_bit_no_longer_matches(certified: Path):
    proto = onnx.load(str(certified))
    tensor = next(t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)
    value = numpy_helper.to_array(tensor).copy()
    value.reshape(-1)[0] = np.nextafter(value.reshape(-1)[0], np.float32(np.inf))
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    onnx.save(proto, str(certified))
    report = check_certificate(certified)
    assert not report.matches
    assert "changed after the verification" in report.summary()


def test_an_edited_certificate_no_longer_matches(certified: Path):
    target = certificate_path(certified)
    target.write_text(target.read_text().replace('"status": "pass"', '"status": "fail"', 1))
    assert "one of the two was changed" in check_certificate(certified).summary()


def test_no_certificate_and_no_mention(certified: Path, small):
    certificate_path(certified).unlink()
    assert "does not exist" in check_certificate(certified).summary()
    shutil.copy(small.folded, certified)
    certificate_path(certified).write_text("{}")
    assert "names no certificate" in check_certificate(certified).summary()
    with pytest.raises(GraphError):
        check_certificate(certified.parent / "other.onnx")


def test_a_verdict_of_another_content_is_refused(proven: tuple[Path, Verdict], small, tmp_path: Path):
    path = tmp_path / "net.onnx"
    shutil.copy(small.plain, path)
    with pytest.raises(UsageError, match="changed since it was verified"):
        certify(path, proven[1])
    assert not certificate_path(path).exists()


def test_of_two_that_certify_in_turns_the_file_names_the_later_certificate(certified: Path, proven, monkeypatch):
    verdict, others = proven[1], []

    @contextmanager
    def then_another(folder: Path) -> Iterator[None]:
        with one_at_a_time(folder):
            yield
        if not others:  # another process comes as soon as the folder is let go
            others.append(dataclasses.replace(verdict, not_checked=["more"]))
            certify(certified, others[0])

    monkeypatch.setattr("normdeploy.files.one_at_a_time", then_another)
    certify(certified, verdict)
    assert others
    report = check_certificate(certified)
    assert report.matches, report.problems


def test_the_published_schema_describes_verdict_and_certificate(certified: Path, proven: tuple[Path, Verdict]):
    schema = json.loads(SCHEMA.read_text())
    assert schema["properties"]["schema"]["const"] == SCHEMA_VERSION
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(json.loads(proven[1].to_json()))
    validator.validate(json.loads(certificate_path(certified).read_text()))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(json.loads(proven[1].to_json()) | {"status": "maybe"})


def test_a_failed_verdict_is_described_too(small, tmp_path: Path):
    import graph_damage

    broken = next(graph_damage.damages(onnx.load(str(small.folded)), kinds=("bias dropped",), first_only=True))
    path = tmp_path / "broken.onnx"
    onnx.save(broken.model, str(path))
    verdict = small.verdict(path, level="quick")
    jsonschema.validate(json.loads(verdict.to_json()), json.loads(SCHEMA.read_text()))
    page = verdict.to_html()
    assert "Where it starts" in page
