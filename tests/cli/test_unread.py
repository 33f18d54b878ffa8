"""Standard output and error that nobody reads, or that are full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from forked_python import ForkedPython
from onnx import parser

NETWORK = '<ir_version: 10, opset_import: ["" : 20]> g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }'
WORDS = ["--help", "run net.onnx", "run net.onnx --json"]  # click, rich and typer print them
STARTED = """
import os
stream = {stream}
os.dup2(stream, {number})
os.close(stream)
from normdeploy.cli import main
main()
"""
UNREAD = "(lambda reads, writes: os.close(reads) or writes)(*os.pipe())"
FULL = "os.open('/dev/full', os.O_WRONLY)"


def run(forked: ForkedPython, words: str, folder: Path, stream: str, number: int) -> subprocess.CompletedProcess[str]:
    """Run a command whose stream of this number is such a one."""
    onnx.save(parser.parse_model(NETWORK), folder / "net.onnx")
    return forked.run(STARTED.format(stream=stream, number=number), *words.split(), folder=folder)


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.skipif(sys.platform == "win32", reason="a pipe without a reader says something else there")
def test_output_that_nobody_reads_ends_a_command_quietly(words: str, tmp_path: Path, forked: ForkedPython) -> None:
    done = run(forked, words, tmp_path, UNREAD, 1)
    assert done.returncode == 141
    assert not any(word in done.stderr for word in ("error", "Error", "Traceback", "ignored", "sys.exit")), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
@pytest.mark.parametrize("words", WORDS)
def test_output_that_cannot_be_written_is_an_error_of_ours(words: str, tmp_path: Path, forked: ForkedPython) -> None:
    done = run(forked, words, tmp_path, FULL, 1)
    assert done.returncode == 4
    assert "No space left on device; expected" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
def test_an_error_that_cannot_be_said_keeps_its_exit_code(tmp_path: Path, forked: ForkedPython) -> None:
    assert run(forked, "inspect absent.onnx", tmp_path, FULL, 2).returncode == 4
    assert run(forked, "run net.onnx --batch 0", tmp_path, FULL, 2).returncode != 1  # no verdict
