"""torchrun: two processes train to the weights that one process with the whole batch trains to, on CPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import training_scripts
from forked_python import ForkedPython
from safetensors.torch import load_file
from torch import nn

from normdeploy.errors import UsageError
from normdeploy.train import Split, Splits, read_metadata, train_settings
from normdeploy.train.loop import run_epochs
from normdeploy.train.training_run import Run
from normdeploy.train.world import World, joined_world


def _as_torchrun_starts(rank: int, folder: str) -> None:
    """Be one of two processes in the environment that torchrun gives each."""
    place = Path(folder)
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({name: str(value) for name, value in own.items()})
    os.environ["MASTER_PORT"] = (place / "port").read_text()
    torch.set_num_threads(1)
    training_scripts.shared(str(place / "2.safetensors"))


def _by_torchrun(folder: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, training_scripts.__file__, "shared", str(folder / "2.safetensors")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("torchrun", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_train_as_one(torchrun: bool, tmp_path: Path, forked: ForkedPython) -> None:
    """torchrun itself starts three interpreters, which import torch for 15 s; else forks have its environment."""
    one, two = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    training_scripts.shared(str(one))
    if torchrun:
        _by_torchrun(tmp_path)
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            (tmp_path / "port").write_text(str(free.getsockname()[1]))
        forked.ranks(Path(__file__), "_as_torchrun_starts", tmp_path)
    mine, yours = load_file(one), load_file(two)
    assert mine.keys() == yours.keys()
    for key in mine:
        # the recalibrating pass, too, normalizes with the joined batch of all processes
        torch.testing.assert_close(yours[key], mine[key], rtol=1e-7, atol=1e-8, msg=lambda m, k=key: f"{k}: {m}")
    assert read_metadata(two)["processes"] == "2"
    assert not list(tmp_path.glob("*.checkpoint"))


def test_dropout_that_each_process_draws_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    split = Split(torch.randn(8, 3), torch.arange(8) % 2)
    splits, settings = Splits(split, split, split), train_settings(epochs=1, batch_size=4)
    two = World(0, 2, torch.device("cpu"))
    for network, said in (
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.3)), "1: each of the 2 processes draws its own dropout"),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.0)), ""),
    ):
        run = Run(network, splits, settings, two, {})
        run.epochs_done = 1  # nothing is left to do but to say what is to be said
        run_epochs(run, None, show=True)
        err = " ".join(capsys.readouterr().err.split())
        assert said in err
        assert bool(said) == ("dropout" in err)


def test_an_incomplete_environment_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError, match="start with torchrun"), joined_world("cpu"):
        pass
