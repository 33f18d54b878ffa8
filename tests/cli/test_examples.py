"""Every command's help shows an example, and the example works as it stands."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from typer.testing import Result

from normdeploy.cli.app import COMMANDS
from normdeploy.cli.help_examples import EXAMPLES

Run = Callable[..., Result]

MODEL = """
import torch
from torch import nn
from normdeploy.train import Split, Splits


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


def data():
    x = torch.randn(60, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    y = x.mean((2, 3)).argmax(1)
    return Splits(Split(x[:40], y[:40]), Split(x[40:50], y[40:50]), Split(x[50:], y[50:]))
"""
RECIPE = """
[model]
source = "net.py:Net"
weights = "trained.pt"
[data]
source = "net.py:data"
[train]
epochs = 1
[verify]
level = "quick"
[bench]
repeats = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples speak of: net.py, net.pt, net.onnx, other.onnx, x.npy, and net.toml."""
    import numpy as np

    import normdeploy as nd
    from normdeploy.parsing.sources import build

    made = tmp_path_factory.mktemp("examples")
    (made / "net.py").write_text(MODEL)
    (made / "net.toml").write_text(RECIPE)
    torch.manual_seed(0)
    model = build(f"{made}/net.py:Net").eval()
    torch.save(model.state_dict(), made / "net.pt")
    x = torch.randn(6, 3, 32, 32)
    np.save(made / "x.npy", x.numpy())
    nd.export(model, x, made / "net.onnx", input_names=["x"], verify="quick")
    nd.export(model, x, made / "other.onnx", input_names=["x"], verify=False, fold=False)
    return made


def test_every_command_has_an_example_in_its_help(run: Run) -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()
    for name, lines in EXAMPLES.items():
        shown = run(name, "--help").output
        assert all(f"    {line}\n" in shown for line in lines)
        assert all(f"normdeploy {name}" in line for line in lines)


@pytest.mark.usefixtures("adapters_in_process", "known_footprints")
@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_it_works(line: str, run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = shutil.copytree(folder, tmp_path / "here")
    made = {
        "init": ["net.toml"],
        "build": ["net.onnx", "net.certificate.json", "net.derivation.json"],
    }  # there already, they are refused
    for name in made.get(line.split()[1], []):
        (here / name).unlink()
    monkeypatch.chdir(here)
    words = shlex.split(line.removeprefix('eval "$(').removesuffix(')"'))
    assert words[0] == "normdeploy"
    brief = ["0.2" if option == "--seconds" else word for option, word in pairwise(words)]
    result = run(*brief)
    assert result.exit_code == 0, result.output
