"""A build that is killed between its file and its report is gone on from by the same command."""

from __future__ import annotations

import signal
from pathlib import Path

from forked_python import ForkedPython

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
_DIES = "import normdeploy.building.recipe_build as b, os; b.write_report = lambda *_: os.kill(os.getpid(), 9)\n"
_BUILDS = "from normdeploy.cli import main; main()"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_killed_before_the_report(forked: ForkedPython, tmp_path: Path) -> None:
    def run(code: str) -> tuple[int, str]:
        done = forked.run(code, "build", "net.toml", folder=tmp_path)
        return done.returncode, done.stdout + done.stderr

    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "net.toml").write_text(RECIPE)
    (tmp_path / "net.onnx").write_bytes(b"of the user")
    code, said = run(_DIES + _BUILDS)
    assert code == 2, said
    assert "no report of a build accounts for it" in " ".join(said.split())
    (tmp_path / "net.onnx").unlink()

    code, said = run(_DIES + _BUILDS)
    assert code == -signal.SIGKILL, said
    assert (tmp_path / "net.onnx").is_file()
    assert not (tmp_path / "net.report.json").exists()
    dead = tmp_path / ".net.report.html.0123abcd"  # what dying inside the page leaves
    dead.mkdir(mode=0o1700)

    code, said = run(_BUILDS)
    assert code == 0, said
    assert not dead.exists()
    assert files(tmp_path) == [
        "net.certificate.json", "net.derivation.json", "net.onnx", "net.py", "net.report.html", "net.report.json",
        "net.safetensors", "net.toml",
    ]  # fmt: skip
