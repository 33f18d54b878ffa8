"""Trainings that tests start as processes of their own, to kill them or to run several together."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normdeploy.nn import BatchNorm
from normdeploy.train import Split, Splits, TrainResult, checkpoint, fit, train_settings


def resumable(folder: str, die: str = "never") -> TrainResult:
    """Train six epochs of three steps; die of SIGKILL while the third checkpoint is written, or in the fourth epoch."""
    x = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
    split = Split(x, (x[:, 0] > 0).long())

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))

    if die == "writing":
        _die_at_call(checkpoint, "save_torch", 3, half_written=True)
    if die == "stepping":
        _die_at_call(torch.optim.AdamW, "step", 10)
    return fit(
        build,
        Splits(split, split, split),
        train_settings(epochs=6, batch_size=32, lr=0.01),
        weights=Path(folder) / "w.safetensors",
        checkpoint=Path(folder) / "c.checkpoint",
        show=False,
    )


def _die_at_call(owner: Any, name: str, number: int, *, half_written: bool = False) -> None:
    original, calls = getattr(owner, name), []

    def dying(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            if half_written:
                original(*args, **kwargs)
                os.truncate(args[1], args[1].stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, name, dying)


def shared(weights: str, device: str = "cpu") -> TrainResult:
    """Train in as many processes as torchrun started, in float64, with every kind of BatchNorm that is synchronized."""
    x = torch.randn(212, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x * torch.tensor([1.0, 5, 0.2, 1]) + 3
    split = Split(x, (x[:, 0] + x[:, 2] > 6).long())

    def build() -> nn.Module:
        own = BatchNorm(8, correction=1, running_correction=0)
        layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), own, nn.Tanh(), nn.Linear(8, 2)]
        return nn.Sequential(*layers).double()

    def noise(inputs: Tensor, generator: torch.Generator) -> Tensor:
        return inputs + 0.05 * torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype).to(inputs.device)

    result = fit(
        build,
        Splits(split, split, split, augment=noise),
        # batches of 25 are shared as 13 and 12 by two processes; the last one of 12 as 6 and 6
        train_settings(epochs=4, batch_size=25, lr=0.02, recalibrate=True),
        device=device,
        weights=weights,
        checkpoint=weights + ".checkpoint",
        show=False,
    )
    kinds = [type(module) for module in result.model.children()]
    if kinds[1] is not nn.BatchNorm1d or kinds[4] is not BatchNorm:
        raise AssertionError(f"not plain again: {kinds}")
    if left := [name for name in _threads() if "gloo" in name]:
        raise AssertionError(f"the processes' group outlives the training: {left}")  # it would abort some exits
    return result


def _threads() -> list[str]:
    return [(task / "comm").read_text().strip() for task in Path("/proc/self/task").glob("*")]  # none off Linux


if __name__ == "__main__":
    {"resumable": resumable, "shared": shared}[sys.argv[1]](*sys.argv[2:])
