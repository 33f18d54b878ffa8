"""A build that is killed between its file and its report is gone on from by the same command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

NET = """
import torch
from torch import nn
from normdeploy.train import Split, Splits

def make():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))

def data():
    x = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
    split = Split(x, (x[:, 0] > 0).long())
    return Splits(split, split, split)
"""
RECIPE = """
model = { source = "net.py:make", weights = "net.safetensors" }
data = { source = "net.py:data" }
train = { epochs = 1, batch_size = 32 }
export = { inputs = ["x=float32:batchx4"] }
verify = { level = "quick" }
bench = { repeats = 3, threads = 1 }
"""
_FORKS = """
import os, signal, sys
import normdeploy.building.recipe_build
import normdeploy.building, normdeploy.train, normdeploy.api, normdeploy.exporting.trace, onnxscript
from normdeploy.cli import main
for line in sys.stdin:  # where to log, and a word
    log, word = line.split()
    child = os.fork()
    if not child:
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(stream, 1), os.dup2(stream, 2)
        if word == "die":
            normdeploy.building.recipe_build.write_report = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        sys.argv[1:] = ["build", "net.toml"]
        try:
            code = main() or 0
        except SystemExit as end:
            code = end.code or 0
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Return what runs a build in the folder, each a fork of one process that has imported everything."""
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    log = tmp_path_factory.mktemp("log") / "log"
    words, pipe = [sys.executable, "-c", _FORKS], subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(words, cwd=tmp_path, env=environment, text=True, stdin=pipe, stdout=pipe) as process:
        assert process.stdin
        assert process.stdout

        def call(word: str) -> tuple[int, str]:
            print(log, word, file=process.stdin, flush=True)
            return int(process.stdout.readline()), log.read_text()

        yield call
        process.stdin.close()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_killed_before_the_report(run: Callable[[str], tuple[int, str]], tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "net.toml").write_text(RECIPE)
    (tmp_path / "net.onnx").write_bytes(b"of the user")
    code, said = run("die")
    assert code == 2, said
    assert "no report of a build accounts for it" in " ".join(said.split())
    (tmp_path / "net.onnx").unlink()

    code, said = run("die")
    assert code == -signal.SIGKILL, said
    assert (tmp_path / "net.onnx").is_file()
    assert not (tmp_path / "net.report.json").exists()
    dead = tmp_path / ".net.report.html.0123abcd"  # what dying inside the page leaves
    dead.mkdir(mode=0o1700)

    code, said = run("live")
    assert code == 0, said
    assert not dead.exists()
    assert files(tmp_path) == [
        "net.certificate.json", "net.derivation.json", "net.onnx", "net.py", "net.report.html", "net.report.json",
        "net.safetensors", "net.toml",
    ]  # fmt: skip
