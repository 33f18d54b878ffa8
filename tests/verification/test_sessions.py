"""How verification opens sessions."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import normdeploy as nd
from normdeploy.errors import GraphError, MissingDependencyError
from normdeploy.ort import providers
from normdeploy.ort.providers import PROBE
from normdeploy.ort.settings import CPU, CUDA, TENSORRT
from normdeploy.verification.diagnosis.bundle import write_bundle
from normdeploy.verification.runtimes import judged_under
from normdeploy.verification.sides.sessions import RUNTIMES, Setting, open_session


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_threads_do_not_spin_between_runs(small, monkeypatch: pytest.MonkeyPatch, threads: int):
    opened: list[Any] = []
    session = ort.InferenceSession

    def remember(source: Any, options: Any, **others: Any) -> Any:
        opened.append(options)
        return session(source, options, **others)

    monkeypatch.setattr(ort, "InferenceSession", remember)
    open_session(small.plain, Setting(threads=threads))
    [options] = opened
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.fixture
def gpu_build(monkeypatch: pytest.MonkeyPatch):
    """Pretend that onnxruntime is the GPU build and that a GPU is there; returns what sessions were asked for."""
    asked: list[tuple[list[Any], dict[str, Any]]] = []
    real = ort.InferenceSession
    starts = [TENSORRT, CUDA, CPU]

    def made(source: Any, options: Any, providers: Any, disabled_optimizers: Any = None, **more: Any) -> Any:
        names = [entry[0] if isinstance(entry, tuple) else entry for entry in providers]
        if source != PROBE:  # whether the provider starts at all
            asked.append((list(providers), more))
        session = real(source, options, providers=[CPU], disabled_optimizers=disabled_optimizers)
        used = [name for name in names if name in starts]
        return SimpleNamespace(get_providers=lambda: used, get_inputs=session.get_inputs, run=session.run)

    def clear() -> None:
        for function in (providers.prepare_gpu, providers.failure_of, providers.find_providers):
            function.cache_clear()

    monkeypatch.setattr(ort, "InferenceSession", made)
    monkeypatch.setattr(ort, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
    monkeypatch.setattr(ort, "preload_dlls", lambda: None, raising=False)
    clear()
    yield SimpleNamespace(asked=asked, starts=starts)
    clear()


def _options(entries: list[Any], name: str) -> dict[str, str]:
    return next(entry[1] for entry in entries if isinstance(entry, tuple) and entry[0] == name)


@pytest.mark.parametrize("provider", [CUDA, TENSORRT])
def test_cuda_multiplies_in_float32_also_behind_tensorrt(small, gpu_build, provider: str):
    """TF32, CUDA's default, has 10 bits of mantissa: a correct file would fail, or a bound would have to allow it."""
    open_session(small.plain, Setting(provider=provider))
    [(entries, more)] = gpu_build.asked
    names = [entry if isinstance(entry, str) else entry[0] for entry in entries]
    assert names == [TENSORRT, CUDA, CPU][names[0] == CUDA :]
    assert names[0] == provider
    assert _options(entries, CUDA)["use_tf32"] == "0"
    assert more["enable_fallback"] == 0


def test_no_engine_of_a_judged_file_is_kept(small, gpu_build):
    """TensorRT's engines hold weights; mutants of a file must not be run by the engine of another."""
    open_session(small.plain, Setting(provider=TENSORRT))
    [(entries, _)] = gpu_build.asked
    assert "trt_engine_cache_enable" not in _options(entries, TENSORRT)


def test_a_gpu_that_was_left_out_is_no_verdict(small, gpu_build):
    gpu_build.starts.remove(CUDA)
    with pytest.raises(GraphError, match="left out CUDAExecutionProvider"):
        open_session(small.plain, Setting(provider=CUDA))


@pytest.mark.parametrize("runtime", ["cuda", "tensorrt"])
def test_a_whole_verification_runs_under_the_gpus_provider_alone(small, gpu_build, runtime: str):
    verdict = nd.verify(small.model, small.plain, level="quick", runtime=runtime)
    assert verdict.status == "pass", verdict.summary()
    assert RUNTIMES[runtime] in verdict.summary() or RUNTIMES[runtime] in verdict.to_json()
    judged = [entries for entries, _ in gpu_build.asked]
    on_gpu = [entries for entries in judged if entries != [(CPU, {})]]
    assert on_gpu
    assert all(_options(entries, CUDA)["use_tf32"] == "0" for entries in on_gpu)


@pytest.mark.parametrize("runtime", ["cuda", "tensorrt"])
def test_without_a_gpu_the_reason_is_said_before_anything_is_built(runtime: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CPU])
    expected = rf"runtime {runtime} is not usable here.*normdeploy sys"
    with pytest.raises(MissingDependencyError, match=expected), judged_under(runtime):
        raise AssertionError("the block was entered")


def test_a_failure_on_a_gpu_is_rerun_there(small, tmp_path):
    graph = '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    model = ir.from_proto(onnx.parser.parse_model(graph))
    x = np.float32([-1, 2])
    write_bundle(tmp_path / "b", model, {"x": x}, {"y": np.maximum(x, 0)}, {"y": 0.0}, Setting(provider=CUDA))
    assert json.loads((tmp_path / "b/settings.json").read_text())["runtime"] == "cuda"
    assert "judged_under" in (tmp_path / "b/run.py").read_text()
