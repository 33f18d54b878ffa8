"""A training killed at any moment loses at most the epoch in progress, and ends where the undisturbed one ends."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch
import training_scripts
from forked_python import ForkedPython
from safetensors.torch import load_file

from normdeploy.errors import UsageError
from normdeploy.parsing.recipe import load_recipe
from normdeploy.train import provenance, read_metadata
from normdeploy.train.checkpoint import Checkpoint
from normdeploy.train.from_recipe import recipe_data


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("whole")
    result = training_scripts.resumable(str(folder))
    assert (result.resumed_at, len(result.history.epochs)) == (0, 6)
    assert sorted(path.name for path in folder.iterdir()) == ["w.safetensors"]
    return load_file(folder / "w.safetensors")


@pytest.mark.parametrize(("die", "resumed_at"), [("writing", 2), ("stepping", 3)])
def test_killed_and_continued(
    die: str, resumed_at: int, tmp_path: Path, undisturbed: dict[str, torch.Tensor], forked: ForkedPython
) -> None:
    code = "import sys, training_scripts; training_scripts.resumable(*sys.argv[1:])"
    killed = forked.run(code, str(tmp_path), die, folder=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "w.safetensors").exists()
    result = training_scripts.resumable(str(tmp_path))
    assert (result.resumed_at, len(result.history.epochs)) == (resumed_at, 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.safetensors"]
    torch.testing.assert_close(load_file(tmp_path / "w.safetensors"), undisturbed, rtol=0, atol=0)


def test_a_checkpoint_of_another_training_is_refused_by_what_changed(tmp_path: Path) -> None:
    path = tmp_path / "c.checkpoint"
    parts = {"train.lr": "0.1", "code of net.py": "0" * 64}
    held = Checkpoint(parts, 2, {"a": torch.ones(2)}, {}, {}, {}, "{}")
    held.save(path)
    again = Checkpoint.load(path, parts)
    assert again is not None
    assert again.epochs_done == 2
    torch.testing.assert_close(again.state, held.state)
    other = {"train.lr": "0.2", "code of net.py": "1" * 64}
    with pytest.raises(UsageError, match=r"code of net.py changed; train.lr is 0.2, was 0.1; expected .*--again"):
        Checkpoint.load(path, other)
    assert Checkpoint.load(path, other, again=True) is None
    assert path.exists()  # replaced by the next epoch's, not deleted by looking
    assert Checkpoint.load(tmp_path / "none", parts) is None


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.checkpoint"
    torch.save({"schema": 1, "fingerprint": "mine"}, path)
    with pytest.raises(UsageError, match="this version"):
        Checkpoint.load(path, {})
    assert Checkpoint.load(path, {}, again=True) is None


@pytest.mark.parametrize("content", [b"", b"not a checkpoint at all", b"PK\x03\x04 torn"])
def test_a_broken_checkpoint_is_said(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.checkpoint"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="delete it"):
        Checkpoint.load(path, {})


RECIPE = """
[model]
source = "net.py:make"
weights = "net.safetensors"
[model.arguments]
width = 8
[data]
source = "rows.py:data"
[train]
epochs = 4
batch_size = 32
"""
NET = """
from torch import nn
import nd_resumed_parts

def make(width):
    return nn.Sequential(nn.Linear(4, width), nd_resumed_parts.act(), nn.Linear(width, 2))
"""
PARTS = "from torch import nn\nact = nn.ReLU\n"
ROWS = """
import torch
from normdeploy.train import Split, Splits

def data():
    x = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    return Splits(Split(x, y), Split(x, y), Split(x, y))
"""
CHANGES = {
    "the model's own file": ("net.py", "nn.Linear(width, 2)", "nn.Linear(width, 2, bias=True)", "code of net.py"),
    "a module it imports": ("nd_resumed_parts.py", "nn.ReLU", "nn.Tanh", "code of nd_resumed_parts"),
    "labels": ("rows.py", "x[:, 0] > 0", "x[:, 1] > 0", "data of train, targets"),
    "inputs": ("rows.py", "manual_seed(0)", "manual_seed(1)", "data of train, inputs"),
    "an argument": ("net.toml", "width = 8", "width = 9", "model.arguments.width is 9, was 8"),
    "a setting": ("net.toml", "epochs = 4", "epochs = 5", "train.epochs is 5, was 4"),
}


def run(forked: ForkedPython, folder: Path, *commands: list[str], die_at: int = 0) -> subprocess.CompletedProcess[str]:
    """Run commands one after the other in a process of their own; its exit code is the first that is not 0."""
    code = "import sys, training_scripts\n"
    if die_at:
        code += f"import torch\ntraining_scripts._die_at_call(torch.optim.AdamW, 'step', {die_at})\n"
    code += "from typer.testing import CliRunner\nfrom normdeploy.cli.app import app\n"
    for words in commands:
        code += f"r = CliRunner().invoke(app, {words!r})\nprint('exit', r.exit_code, r.output)\n"
    return forked.run(code, folder=folder)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, forked: ForkedPython) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    for name, text in {"net.toml": RECIPE, "net.py": NET, "nd_resumed_parts.py": PARTS, "rows.py": ROWS}.items():
        (folder / name).write_text(text)
    assert run(forked, folder, ["train", "net.toml"], die_at=7).returncode == -signal.SIGKILL
    assert (folder / "net.checkpoint").is_file()
    return folder


@pytest.mark.parametrize("what", CHANGES)
def test_a_killed_training_is_not_continued_with_changed(
    what: str, killed: Path, tmp_path: Path, forked: ForkedPython
) -> None:
    """Killed, changed, started again: refused by name; with --again it trains from the start, and says by what."""
    folder = shutil.copytree(killed, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__"))
    name, old, new, said = CHANGES[what]
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
    done = run(forked, folder, ["train", "net.toml"], ["train", "net.toml", "--again"])
    refused, trained = " ".join(done.stdout.split()).split("exit ")[1:]
    assert refused.startswith("2 "), done.stdout
    assert said in refused
    assert "--again" in refused
    assert trained.startswith("0 "), done.stdout
    assert not (folder / "net.checkpoint").exists()
    recipe = load_recipe(folder / "net.toml")
    recorded = provenance.from_header(read_metadata(folder / "net.safetensors"))
    assert recorded is not None
    (folder / name).write_text(text)  # and it is not up to date for what was there before
    splits = recipe_data(recipe)
    before = provenance.changes(recorded, provenance.of_recipe(load_recipe(folder / "net.toml"), splits))
    assert said.partition(" is ")[0].split(" ")[-1] in str(before)
