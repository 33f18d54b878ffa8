"""An export killed between any two renames: what lies there is whole, and nothing speaks of what is not there."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from forked_python import ForkedPython

from normdeploy.verification.record.certificate import check_certificate

WRITES = """
import os, sys
import onnx_ir as ir
import normdeploy.files as files
from normdeploy.proven import write_proven
from normdeploy.verification.record.answers import Status
from normdeploy.verification.record.verdict import Verdict

left, put = [int(sys.argv[2])], files.put_in_place

def counted(made, target):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), 9)
    put(made, target)

files.put_in_place = counted
graph = ir.from_onnx_text(
    '<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) <float[2] w = {1.0, %s}> { y = Mul(x, w) }'
    % sys.argv[1]
)
write_proven(graph, files.Path("net.onnx"), lambda _: Verdict(Status.PASS, [], []), overwrite=True)
"""
MOST = 12
"""Renames that a writing takes at most."""


def seen(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("existing", [False, True])
def test_killed_between_any_two_renames(forked: ForkedPython, tmp_path: Path, existing: bool) -> None:
    def write(folder: Path, number: str, renames: int = MOST) -> int:
        done = forked.run(WRITES, number, str(renames), folder=folder)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode

    whole = tmp_path / "whole"
    whole.mkdir()
    assert write(whole, "2.0") == 0
    new, states = seen(whole), list[set[str]]()
    assert set(new) == {"net.onnx", "net.certificate.json", "net.derivation.json"}
    for renames in range(MOST):
        folder = tmp_path / str(renames)
        folder.mkdir()
        if existing:
            assert write(folder, "3.0") == 0
        old = seen(folder)
        code = write(folder, "2.0", renames)
        found = seen(folder)
        states.append({name for name in found if found[name] != old.get(name)})
        assert all(content in (old.get(name), new[name]) for name, content in found.items())
        if "net.certificate.json" in found:
            assert "net.onnx" in found
            same = (found["net.onnx"] == new["net.onnx"]) == (
                found["net.certificate.json"] == new["net.certificate.json"]
            )
            assert check_certificate(folder / "net.onnx").matches == same
        if code == 0:
            break
    assert states[0] == set()
    assert states[-1] == {"net.onnx", "net.certificate.json", "net.derivation.json"} - (
        {"net.derivation.json"} if existing else set()
    )
    assert {"net.onnx"} in states
