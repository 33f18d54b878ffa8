"""A build that is killed between its file and its report is gone on from by the same command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

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
_KILLED = """
import os, signal, sys
import normdeploy.build
if sys.argv[1] == "die":
    normdeploy.build.write_report = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from normdeploy.cli import main
sys.argv[1:] = ["build", "net.toml"]
main()
"""


def run(folder: Path, word: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", _KILLED, word]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_killed_before_the_report(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "net.toml").write_text(RECIPE)
    (tmp_path / "net.onnx").write_bytes(b"of the user")
    refused = run(tmp_path, "die")
    assert refused.returncode == 2, refused.stderr
    assert "no report of a build accounts for it" in " ".join(refused.stderr.split())
    (tmp_path / "net.onnx").unlink()

    killed = run(tmp_path, "die")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "net.onnx").is_file()
    assert not (tmp_path / "net.report.json").exists()
    dead = tmp_path / ".net.report.html.0123abcd"  # what dying inside the page leaves
    dead.mkdir(mode=0o1700)

    again = run(tmp_path, "live")
    assert again.returncode == 0, again.stderr
    assert not dead.exists()
    assert files(tmp_path) == [
        "net.certificate.json", "net.derivation.json", "net.onnx", "net.py", "net.report.html", "net.report.json",
        "net.safetensors", "net.toml",
    ]  # fmt: skip
