"""On a GPU: a file is loaded, timed, judged and tuned there. CUDA ran on an H100, TensorRT never (docs/gpu.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from random_graphs import random_graph, shapes_of
from torch import nn

import normdeploy as nd
from normdeploy.graph import Evaluator
from normdeploy.ort.providers import default_settings, float32_options, gpu_provider, provider_chain
from normdeploy.ort.settings import CUDA, TENSORRT
from normdeploy.rewrite import rewrite
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


def _rewritten_runs(drawn: onnx.ModelProto, provider: str, seed: int) -> None:
    """Check that a graph's rewriting runs with a provider, near what the graph means in float64."""
    rng = np.random.default_rng(seed)
    feeds = {name: rng.normal(size=shape) for name, shape in shapes_of(drawn, 3).items()}
    truth = Evaluator(ir.from_proto(drawn)).run({name: torch.from_numpy(array) for name, array in feeds.items()})
    proto = ir.to_proto(rewrite(ir.from_proto(drawn)).model)
    chain = provider_chain(Settings(provider, options=float32_options(provider)))
    session = ort.InferenceSession(proto.SerializeToString(), providers=chain)
    names = [value.name for value in session.get_outputs()]
    found = session.run(names, {name: array.astype(np.float32) for name, array in feeds.items()})
    for name, array in zip(names, found, strict=True):
        top = float(truth[name].abs().max())
        np.testing.assert_allclose(array, truth[name].numpy(), rtol=0, atol=1e-3 * max(top, 1e-3), err_msg=str(seed))


@pytest.mark.parametrize(("runtime", "provider"), _PROVIDERS[:1])
def test_what_the_rewriting_leaves_runs_there(runtime: str, provider: str) -> None:
    for seed in range(40):
        _rewritten_runs(random_graph(seed), provider, seed)


@pytest.mark.parametrize(("runtime", "provider"), _PROVIDERS[:1])
def test_a_map_of_six_dimensions_runs_there(runtime: str, provider: str) -> None:
    """RT-DETR's offsets, of six dimensions, were a BatchNormalization, which CUDA's provider does not read."""
    drawn = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float[N, 3, 2, 2, 2, 2] x) => (float[N, 3, 2, 2, 2, 2] y) <float two = {2}, float one = {1}>
        { r = Relu(x) d = Mul(r, two) a = Sub(d, one) b = Mul(a, two) c = Add(b, one) y = Sigmoid(c) }""")
    _rewritten_runs(drawn, provider, 0)


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
