"""torchrun: two processes train to the weights that one process with the whole batch trains to, on CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import training_scripts
from safetensors.torch import load_file

from normdeploy.errors import UsageError
from normdeploy.train import read_metadata
from normdeploy.train.world import joined_world


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    one, two = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    training_scripts.shared(str(one))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, training_scripts.__file__, "shared", str(two)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    mine, yours = load_file(one), load_file(two)
    assert mine.keys() == yours.keys()
    for key in mine:
        # the recalibrating pass normalizes with each process's own batches, so what the second normalization sees
        # depends on how they fell; everything else is the same arithmetic
        deep = key.startswith("4.running")
        torch.testing.assert_close(
            yours[key],
            mine[key],
            rtol=0.2 if deep else 1e-7,
            atol=0.1 if deep else 1e-8,
            msg=lambda m, k=key: f"{k}: {m}",
        )
    assert read_metadata(two)["processes"] == "2"
    assert not list(tmp_path.glob("*.checkpoint"))


def test_an_incomplete_environment_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError, match="start with torchrun"), joined_world("cpu"):
        pass
