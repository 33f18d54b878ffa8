"""Which provider is chosen, and what is tried, on machines that this one is not."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from normdeploy.runtime import Settings, this_machine
from normdeploy.runtime import providers as room
from normdeploy.runtime.machine import reduced_precision
from normdeploy.runtime.plan import Trial
from normdeploy.runtime.providers import Provider, default_settings
from normdeploy.runtime.settings import CPU, CUDA, OPENVINO_PLUGIN, OPENVINO_RUNTIME, TENSORRT
from normdeploy.runtime.tuning import candidates


@pytest.fixture
def gpu_build(monkeypatch):
    """Pretend that the installed onnxruntime is the GPU build; returns what says whether there is a GPU."""
    monkeypatch.setattr(room.ort, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
    return lambda there: monkeypatch.setattr(torch.cuda, "is_available", lambda: there)


def test_a_usable_gpu_is_the_default_and_multiplies_in_float32(gpu_build):
    gpu_build(True)
    assert default_settings() == Settings(provider=CUDA, options=(("use_tf32", "0"),))


def test_without_a_gpu_the_gpu_build_runs_on_the_cpu(gpu_build):
    gpu_build(False)
    assert default_settings() == Settings(provider=CPU)
    assert "no CUDA device was found" in room._onnxruntime_provider(CUDA).reason


def test_every_provider_is_tried_in_float32_or_has_a_reason():
    found = [Provider(CPU, True), Provider(OPENVINO_PLUGIN, True), Provider(OPENVINO_RUNTIME, False, "not installed")]
    found += [Provider(CUDA, True), Provider(TENSORRT, True)]
    tried = list(candidates.other_providers(Settings(threads=1), 4, found))
    assert [entry for entry in tried if isinstance(entry, Trial)] == [
        Trial(OPENVINO_RUNTIME, "float32", "skipped", "not installed")
    ]
    settings = [entry for entry in tried if isinstance(entry, Settings)]
    hint = ("load_config", '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}')
    assert [(entry.provider, entry.options, entry.threads) for entry in settings] == [
        (OPENVINO_PLUGIN, (hint,), 1),
        (OPENVINO_PLUGIN, (hint,), 4),
        (CUDA, (("use_tf32", "0"),), 0),
        (CUDA, (("use_tf32", "0"), ("prefer_nhwc", "1")), 0),
        (TENSORRT, (), 0),
    ]


@pytest.mark.parametrize(
    ("instructions", "computes_in"),
    [
        (("avx2",), ()),
        (("avx2", "avx512_vnni"), ()),
        (("avx512_bf16",), ("bfloat16",)),
        (("amx_bf16", "avx512_fp16"), ("bfloat16", "float16")),
        (("asimdhp", "bf16"), ("bfloat16", "float16")),
    ],
)
def test_lower_precision_is_tried_where_the_processor_computes_in_it(instructions, computes_in):
    machine = dataclasses.replace(this_machine(), instructions=instructions)
    assert reduced_precision(machine) == computes_in
    tried = list(candidates.reduced_openvino(Settings(threads=1), 2, {OPENVINO_RUNTIME}, machine))
    assert [entry[0] for entry in tried if not isinstance(entry, Trial)] == [p for p in computes_in for _ in (1, 2)]
    skipped = {entry.precision: entry.reason for entry in tried if isinstance(entry, Trial)}
    assert set(skipped) == {"bfloat16", "float16"} - set(computes_in)
    assert all("this processor has no" in reason for reason in skipped.values())


def test_levels_threads_spinning_and_branches():
    assert len(list(candidates.levels(Settings(), 8))) == 9
    assert {entry.threads for entry in candidates.levels(Settings(), 8)} == {1, 4, 8}
    waiting = list(candidates.threading(Settings(threads=8), 8))
    assert [(entry.spinning, entry.parallel) for entry in waiting] == [
        ("off", False),
        ("always", False),
        ("run", True),
    ]
    assert list(candidates.threading(Settings(threads=1), 1)) == []
    assert list(candidates.levels(Settings(provider=CUDA), 8)) == []
