"""A copy of a model: held in memory where that is all of it, a file where something has to read one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from normdeploy.onnxfile import model
from normdeploy.onnxfile.light import KEY, own_digest
from normdeploy.onnxfile.model import read_model, set_metadata
from normdeploy.onnxfile.named_bytes import NamedBytes
from normdeploy.verification import verify

HEAD = '<ir_version: 10, opset_import: ["": 20]> g (float[N,2] x) => (float[N,2] y) '
PLAIN = "<float[2] w = {0.5, 2.0}> { y = Mul(x, w) }"
TURNS = """<int64 turns = {2}, bool yes = {1}> {
    y = Loop (turns, yes, x) <body = b (int64 i, bool c, float[N,2] v) => (bool d, float[N,2] w) {
        d = Identity(c) w = Add(v, v) }> }"""


def written(folder: Path, text: str) -> Path:
    path = folder / "net.onnx"
    ir.save(ir.from_onnx_text(HEAD + text), path)
    return path


def test_a_file_that_holds_all_its_data_is_written_again_where_its_path_is_asked_for(tmp_path: Path):
    path = written(tmp_path, PLAIN)
    folder = tmp_path / "copy"
    folder.mkdir()
    copied = read_model(path).copy_to(folder)
    content = path.read_bytes()
    path.write_bytes(b"replaced")
    assert isinstance(copied.runs, NamedBytes)
    assert (bytes(copied.runs.content), list(folder.iterdir())) == (content, [])
    assert copied.files == {"net.onnx": hashlib.sha256(content).hexdigest()}
    assert copied.path == folder / "net.onnx"
    assert copied.path.read_bytes() == content


@pytest.mark.parametrize(("text", "most"), [(TURNS, model.HELD), (PLAIN, 0)])
def test_what_may_not_end_or_is_large_is_copied_as_a_file(
    text: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(model, "HELD", most)
    path = written(tmp_path, text)
    folder = tmp_path / "copy"
    folder.mkdir()
    copied = read_model(path).copy_to(folder)
    assert copied.runs == folder / "net.onnx"
    assert copied.path.read_bytes() == path.read_bytes()


def test_a_verdict_writes_no_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = written(tmp_path, PLAIN)
    made: list[Path] = []
    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: made.append(self) or write(self, data))
    assert verify(ir.load(path), path, level="quick").status == "pass"
    assert path.name not in [file.name for file in made]


def test_bytes_name_the_certificate_that_their_file_names(tmp_path: Path):
    path = written(tmp_path, PLAIN)
    plain = own_digest(path)
    proto = onnx.load(path)
    set_metadata(proto, [(KEY, "0" * 64)])
    path.write_bytes(proto.SerializeToString(deterministic=True))
    assert own_digest(path.read_bytes()) == own_digest(path) == ("0" * 64, plain[1] if plain else "")
    (tmp_path / "none").touch()
    assert own_digest(b"") is own_digest(tmp_path / "none") is None
