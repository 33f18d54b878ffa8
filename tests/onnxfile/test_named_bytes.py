"""Bytes of a model that runtimes open as a file in memory: what was read, whatever becomes of the file."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from normdeploy.errors import GraphError
from normdeploy.onnxfile.named_bytes import NamedBytes
from normdeploy.verification.sides.sessions import Setting, open_session, run_session

TEXT = """<ir_version: 10, opset_import: ["": 20]> g (float[N,2] x) => (float[N,2] y) <float[2] w = {0.5, 2.0}>
    { y = KIND(x, w) }"""
named = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory are Linux's")


def written(folder: Path, kind: str) -> Path:
    path = folder / "net.onnx"
    ir.save(ir.from_onnx_text(TEXT.replace("KIND", kind)), path)
    return path


def read(path: Path) -> NamedBytes:
    with path.open("rb") as stream:
        return NamedBytes.read(stream)


@named
def test_what_was_read_is_run_though_its_file_was_replaced(tmp_path: Path):
    held = read(written(tmp_path, "Mul"))
    written(tmp_path, "Add")
    x = np.array([[3.0, 5.0]], np.float32)
    [y] = run_session(open_session(held, Setting()), {"x": x}, ["y"])
    np.testing.assert_array_equal(y, [[1.5, 10.0]])


@named
def test_a_name_is_there_for_as_long_as_the_bytes_are(tmp_path: Path):
    path = written(tmp_path, "Mul")
    held = read(path)
    assert held.path is not None
    name, view, whole = Path(held.path), held.content, path.read_bytes()
    assert name.read_bytes() == whole
    inode = name.stat().st_ino
    del held
    gc.collect()
    assert not name.exists() or name.stat().st_ino != inode  # its number may be another file's by now
    assert bytes(view) == whole


@pytest.mark.parametrize("content", [b"", b"1234"])
def test_where_the_system_has_no_names_bytes_are_read_as_they_are(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_bytes(content)
    monkeypatch.delattr(os, "memfd_create", raising=False)
    held = read(tmp_path / "file")
    assert (held.content, held.path) == (content, None)


def test_an_empty_file_has_no_name(tmp_path: Path):
    (tmp_path / "file").touch()
    held = read(tmp_path / "file")
    assert (held.content, held.path) == (b"", None)


@named
def test_a_runtime_that_refuses_them_is_quoted_without_the_name(tmp_path: Path):
    path = written(tmp_path, "Nothing")
    held = read(path)
    with pytest.raises(GraphError) as by_name:
        open_session(held, Setting())
    with pytest.raises(GraphError) as by_bytes:
        open_session(path.read_bytes(), Setting())
    assert str(by_name.value) == str(by_bytes.value)
