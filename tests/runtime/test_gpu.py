"""On a GPU: a file is loaded, timed, judged and tuned there. CUDA ran on an H100, TensorRT never (docs/gpu.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.ort.providers import default_settings, float32_options, gpu_provider
from normdeploy.ort.settings import CUDA, TENSORRT
from normdeploy.runtime import Settings, bench, tune
from normdeploy.runtime.backend import open_backend

_PROVIDERS = [
    pytest.param(
        runtime,
        provider,
        marks=pytest.mark.skipif(
            not gpu_provider(provider).usable, reason=f"{provider}: {gpu_provider(provider).reason}"
        ),
    )
    for runtime, provider in (("cuda", CUDA), ("tensorrt", TENSORRT))
]
pytestmark = pytest.mark.cuda


class Block(nn.Module):
    """A sum in front of a LayerNorm, which onnxruntime makes SkipLayerNormalization; a BatchNorm that folds."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.batch = nn.Linear(32, 32), nn.BatchNorm1d(32)
        self.up, self.norm, self.head = nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.batch(self.stem(x))
        return self.head(self.norm(h + torch.relu(self.up(h))))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    model = Block()
    for _ in range(5):
        model(torch.randn(64, 32) * 2 + 1)
    path = tmp_path_factory.mktemp("gpu") / "net.onnx"
    nd.export(model.eval(), torch.randn(2, 32), path)
    return model, path


@pytest.mark.parametrize(("runtime", "provider"), _PROVIDERS)
def test_a_file_is_judged_there(exported: tuple[nn.Module, Path], runtime: str, provider: str) -> None:
    verdict = nd.verify(*exported, level="quick", runtime=runtime)
    assert verdict.passed, verdict.summary()


@pytest.mark.parametrize(("runtime", "provider"), _PROVIDERS)
def test_what_is_computed_there_is_what_the_module_computes(
    exported: tuple[nn.Module, Path], runtime: str, provider: str
) -> None:
    model, path = exported
    x = torch.randn(7, 32)
    with torch.no_grad():
        truth = model.double()(x.double()).numpy()
    model.float()
    backend = open_backend(path, Settings(provider, options=float32_options(provider)))
    np.testing.assert_allclose(backend.run({"x": x.numpy()})[0], truth, rtol=1e-4, atol=1e-5)
    if provider == default_settings().provider:
        np.testing.assert_allclose(nd.load(path)(x.numpy()), truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("runtime", "provider"), _PROVIDERS[:1])
def test_it_is_timed_and_tuned_there(
    exported: tuple[nn.Module, Path], runtime: str, provider: str, tmp_path: Path
) -> None:
    _, path = exported
    result = bench(path, batch_sizes=(2,), threads=(1,), seconds=1, peers=[], memory=False)
    assert result.rows
    assert nd.load(path).settings.provider == provider
    copy = tmp_path / "net.onnx"
    copy.write_bytes(path.read_bytes())
    plan = tune(copy, seconds=5)
    assert any(trial.settings and trial.settings.provider == provider for trial in plan.trials)
