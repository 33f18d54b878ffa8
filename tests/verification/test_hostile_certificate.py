"""Certificates that nobody of ours wrote: they match nothing, and end in words."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import external_models
import numpy as np
import onnx
import pytest
from external_models import FEATURES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from normdeploy.cli.app import app
from normdeploy.onnxfile.light import KEY
from normdeploy.onnxfile.model import read_model, set_metadata
from normdeploy.runtime import CertificateWarning, load
from normdeploy.verification.record.answers import Check
from normdeploy.verification.record.certificate import certificate_path, certify, check_certificate
from normdeploy.verification.record.verdict import Verdict

X = np.ones((2, FEATURES), np.float32)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = external_models.write_whole(tmp_path_factory.mktemp("certified") / "net.onnx")
    certify(path, Verdict("pass", [], [Check("logic", "pass", "right")], environment={"versions": {}}))
    assert check_certificate(path).matches
    return path


def rewritten(certified: Path, folder: Path, content: bytes) -> Path:
    """Write another certificate, and a file that names just that one: what only the certificate's words can betray."""
    path = folder / "net.onnx"
    model = read_model(certified)
    set_metadata(model.proto, [(KEY, hashlib.sha256(content).hexdigest())])
    path.write_bytes(model.proto.SerializeToString())
    certificate_path(path).write_bytes(content)
    return path


def refused(path: Path) -> None:
    report = check_certificate(path)
    assert not report.matches
    assert report.problems
    assert "no valid certificate" in report.summary()
    with pytest.warns(CertificateWarning):
        load(path)(X)
    result = CliRunner().invoke(app, ["verify", str(path)])
    assert result.exit_code == 1
    assert "This is a bug" not in result.output


def test_the_rewriting_itself_is_no_reason(certified: Path, tmp_path: Path) -> None:
    path = rewritten(certified, tmp_path, certificate_path(certified).read_bytes())
    assert check_certificate(path).matches


@pytest.mark.parametrize(
    "text", ["", "5", "null", "[]", "{}", '"pass"', "{", "\xff\xfe", "[" * 100_000, "NaN", '{"status": "pass"}']
)
def test_json_of_another_shape_matches_nothing(text: str, certified: Path, tmp_path: Path) -> None:
    refused(rewritten(certified, tmp_path, text.encode("latin-1")))


@pytest.mark.parametrize(
    "changes",
    [
        {"digests": {}}, {"digests": None}, {"digests": []}, {"digests": {"content": 5}}, {"digests": {"content": ""}},
        {"digests": {"other": "0" * 64}}, {"status": None}, {"status": "great"}, {"status": ["pass"]}, {"checks": 5},
        {"checks": [5]}, {"checks": [{}]}, {"environment": 5}, {"environment": {"versions": 5}},
        {"environment": {"settings": 5}}, {"environment": {"processor": []}}, {"not_checked": 5},
    ],
)  # fmt: skip
def test_a_value_of_another_kind_matches_nothing(changes: dict[str, Any], certified: Path, tmp_path: Path) -> None:
    data = json.loads(certificate_path(certified).read_text()) | changes
    refused(rewritten(certified, tmp_path, json.dumps(data).encode()))


def test_a_certificate_without_digests_matches_nothing(certified: Path, tmp_path: Path) -> None:
    data = json.loads(certificate_path(certified).read_text())
    del data["digests"]
    refused(rewritten(certified, tmp_path, json.dumps(data).encode()))


def test_data_that_the_certificate_does_not_know_is_told(certified: Path, tmp_path: Path) -> None:
    """The graph's digest stands; what it now reads from a file is covered by nobody."""
    path = external_models.write("initializers", tmp_path / "net.onnx")
    model = read_model(path)
    data = json.loads(certificate_path(certified).read_text())
    data["digests"] = {"content": model.digests()["content"]}
    content = json.dumps(data).encode()
    set_metadata(model.proto, [(KEY, hashlib.sha256(content).hexdigest())])
    path.write_bytes(model.proto.SerializeToString())
    certificate_path(path).write_bytes(content)
    report = check_certificate(path)
    assert not report.matches
    assert "'weights.bin' is not covered" in report.summary()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_place_is_read_or_told(certified: Path, tmp_path: Path, data: st.DataObject) -> None:
    values = json.loads(certificate_path(certified).read_text())
    place = data.draw(st.sampled_from([values, values["environment"], values["digests"], values["checks"][0]]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(_JSON)
    report = check_certificate(rewritten(certified, tmp_path, json.dumps(values).encode()))
    assert report.summary()
    assert report.to_dict()


def test_file_and_certificate_appear_together(certified: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file cannot be changed, no certificate appears either."""
    import os

    path = tmp_path / "net.onnx"
    path.write_bytes(onnx.load(certified).SerializeToString())
    replace = os.replace

    def refuse(source: object, target: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(Exception, match="Read-only"):
        certify(path, Verdict("pass", [], [], environment={}))
    monkeypatch.setattr(os, "replace", replace)
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]
