"""A training killed at any moment loses at most the epoch in progress, and ends where the undisturbed one ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import training_scripts
from safetensors.torch import load_file

from normdeploy.errors import UsageError
from normdeploy.train.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("whole")
    result = training_scripts.resumable(str(folder))
    assert (result.resumed_at, len(result.history.epochs)) == (0, 6)
    assert sorted(path.name for path in folder.iterdir()) == ["w.safetensors"]
    return load_file(folder / "w.safetensors")


@pytest.mark.parametrize(("die", "resumed_at"), [("writing", 2), ("stepping", 3)])
def test_killed_and_continued(die: str, resumed_at: int, tmp_path: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    command = [sys.executable, training_scripts.__file__, "resumable", str(tmp_path), die]
    killed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "w.safetensors").exists()
    result = training_scripts.resumable(str(tmp_path))
    assert (result.resumed_at, len(result.history.epochs)) == (resumed_at, 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.safetensors"]
    torch.testing.assert_close(load_file(tmp_path / "w.safetensors"), undisturbed, rtol=0, atol=0)


def test_a_checkpoint_of_another_training_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "c.checkpoint"
    held = Checkpoint("mine", 2, {"a": torch.ones(2)}, {}, {}, {}, "{}")
    held.save(path)
    again = Checkpoint.load(path, fingerprint="mine")
    assert again is not None
    assert again.epochs_done == 2
    torch.testing.assert_close(again.state, held.state)
    assert Checkpoint.load(path, fingerprint="yours") is None
    assert Checkpoint.load(tmp_path / "none", fingerprint="mine") is None


@pytest.mark.parametrize("content", [b"", b"not a checkpoint at all", b"PK\x03\x04 torn"])
def test_a_broken_checkpoint_is_said(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.checkpoint"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="delete it"):
        Checkpoint.load(path, fingerprint="mine")
