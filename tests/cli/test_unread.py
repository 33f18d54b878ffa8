"""Standard output and error that nobody reads, or that are full."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser

COMMAND = [sys.executable, "-c", "from normdeploy.cli import main; main()"]
NETWORK = '<ir_version: 10, opset_import: ["" : 20]> g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }'
WORDS = ["--help", "run net.onnx", "run net.onnx --json"]  # click, rich and typer print them


def run(words: str, folder: Path, stdout: int, stderr: int) -> subprocess.CompletedProcess[str]:
    onnx.save(parser.parse_model(NETWORK), folder / "net.onnx")
    command = [*COMMAND, *words.split()]
    return subprocess.run(command, cwd=folder, stdout=stdout, stderr=stderr, text=True, timeout=100, check=False)


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.skipif(sys.platform == "win32", reason="a pipe without a reader says something else there")
def test_output_that_nobody_reads_ends_a_command_quietly(words: str, tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = run(words, tmp_path, writes, subprocess.PIPE)
    finally:
        os.close(writes)
    assert done.returncode == 141
    assert not any(word in done.stderr for word in ("error", "Error", "Traceback", "ignored", "sys.exit")), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
@pytest.mark.parametrize("words", WORDS)
def test_output_that_cannot_be_written_is_an_error_of_ours(words: str, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(words, tmp_path, full.fileno(), subprocess.PIPE)
    assert done.returncode == 4
    assert "No space left on device; expected" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
def test_an_error_that_cannot_be_said_keeps_its_exit_code(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        assert run("inspect absent.onnx", tmp_path, subprocess.PIPE, full.fileno()).returncode == 4
        assert run("run net.onnx --batch 0", tmp_path, subprocess.PIPE, full.fileno()).returncode != 1  # no verdict
