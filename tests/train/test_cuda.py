"""On a GPU: training, mixed precision, and weights that a CPU loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from normdeploy.conformance import by_hand
from normdeploy.nn import BatchNorm, recalibrate
from normdeploy.nn.unregistered import full_state
from normdeploy.train import Split, Splits, fit, load_weights, score, train_settings

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none here"),
]


def splits() -> Splits:
    x = torch.randn(400, 6, generator=torch.Generator().manual_seed(0)) * 3 + 2
    y = (x[:, 0] + x[:, 1] > 4).long()
    return Splits(*(Split(x[rows], y[rows]) for rows in (slice(0, 200), slice(200, 300), slice(300, 400))))


def network(norm: Any) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(6, 16), norm, nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.norm(self.first(x))))

    return Net()


@pytest.mark.parametrize("precision", ["float32", "auto", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "norm",
    [
        lambda: nn.BatchNorm1d(16),
        lambda: by_hand.B1(16),
        lambda: by_hand.B4(16, 2),
        lambda: BatchNorm(16, correction=1),
    ],
)
def test_trained_on_the_gpu_and_loaded_on_the_cpu(norm: Any, precision: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    settings = train_settings(epochs=15, batch_size=20, lr=0.02, precision=precision)
    result = fit(lambda: network(norm()), splits(), settings, device="cuda", weights=path, show=False)
    assert result.device != "cpu"
    assert result.test.accuracy > 0.9
    assert {tensor.device.type for tensor in full_state(result.model).values()} == {"cpu"}
    fresh = network(norm())
    load_weights(fresh, path)
    assert score(fresh, splits().test).accuracy == pytest.approx(result.test.accuracy, abs=0.011)


def test_population_statistics_on_the_gpu() -> None:
    on_cpu, on_gpu = network(nn.BatchNorm1d(16)), network(nn.BatchNorm1d(16))
    on_gpu.load_state_dict(on_cpu.state_dict())
    x = splits().train.inputs
    recalibrate(on_cpu, x.split(30))
    recalibrate(on_gpu.cuda(), x.cuda().split(30))
    torch.testing.assert_close(on_gpu.cpu().state_dict(), on_cpu.state_dict(), rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_train_as_one(tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    import training_scripts
    from safetensors.torch import load_file

    one, two = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    training_scripts.shared(str(one), "cuda")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, training_scripts.__file__, "shared", str(two), "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    mine, yours = load_file(one), load_file(two)
    for key in mine:
        if not key.startswith("4.running"):
            torch.testing.assert_close(yours[key], mine[key], rtol=1e-6, atol=1e-7)
