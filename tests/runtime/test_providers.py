"""Which provider is chosen, and what is tried, on machines that this one is not."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from normdeploy.errors import UsageError
from normdeploy.ort import machine as machines
from normdeploy.ort import providers as room
from normdeploy.ort.machine import reduced_precision
from normdeploy.ort.providers import Provider, default_settings, provider_chain
from normdeploy.ort.settings import CPU, CUDA, OPENVINO_PLUGIN, OPENVINO_RUNTIME, TENSORRT
from normdeploy.runtime import Settings, this_machine
from normdeploy.runtime import backend as sessions
from normdeploy.runtime.backend import OrtBackend, open_backend
from normdeploy.runtime.plan import Trial
from normdeploy.runtime.tuning import candidates


class GpuBuild:
    """An onnxruntime of the GPU build, whose providers start or fall back as told; remembers what it was asked."""

    def __init__(self, real, *starts: str, fails: str = "") -> None:
        self._real, self.starts, self.fails = real, starts, fails
        self.asked: list[tuple[list, dict]] = []
        self.preloaded = 0

    def __getattr__(self, name):
        return getattr(self._real, name)

    def get_available_providers(self):
        return [TENSORRT, CUDA, CPU]

    def preload_dlls(self):
        self.preloaded += 1
        print("Failed to load libcudnn.so.9")

    def InferenceSession(self, model, options=None, providers=(), **more):
        self.asked.append((list(providers), more))
        if self.fails:
            raise RuntimeError(self.fails)
        names = [entry[0] if isinstance(entry, tuple) else entry for entry in providers]
        session = self._real.InferenceSession(model, options, providers=[CPU])
        used = [name for name in names if name in (*self.starts, CPU)]
        return SimpleNamespace(
            get_providers=lambda: used, get_inputs=session.get_inputs, get_outputs=session.get_outputs, run=session.run
        )


@pytest.fixture
def gpu_build(monkeypatch, tmp_path):
    """Pretend that the installed onnxruntime is the GPU build; returns what makes it."""
    real = room.ort

    def clear():
        for function in (room.prepare_gpu, room.failure_of, room.find_providers):
            function.cache_clear()

    def make(*starts, fails=""):
        build = GpuBuild(real, *starts, fails=fails)
        monkeypatch.setattr(room, "ort", build)
        monkeypatch.setattr(sessions, "ort", build)
        clear()
        return build

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield make
    clear()


def test_what_a_provider_is_asked_is_a_valid_model():
    model = onnx.load_from_string(room.PROBE)
    onnx.checker.check_model(model)
    session = room.ort.InferenceSession(room.PROBE, providers=[CPU])
    assert session.run(None, {"x": np.float32([3])})[0] == 6


def test_a_usable_gpu_is_the_default_and_multiplies_in_float32(gpu_build):
    build = gpu_build(CUDA)
    assert default_settings() == Settings(provider=CUDA, options=(("use_tf32", "0"),))
    assert default_settings(2).options == (("use_tf32", "0"), ("device_id", "2"))
    assert build.preloaded == 1
    assert room.device_number(default_settings(2)) == 2
    assert room.device_number(default_settings()) == 0


def test_onnxruntime_is_asked_and_not_torch(gpu_build, monkeypatch):
    """A CPU build of torch says nothing about a GPU build of onnxruntime, nor the other way round."""
    import torch

    gpu_build(CUDA)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert default_settings().provider == CUDA
    gpu_build()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert default_settings() == Settings(provider=CPU)


def test_without_a_gpu_the_gpu_build_runs_on_the_cpu_and_says_what_is_missing(gpu_build, capsys):
    gpu_build()
    assert default_settings() == Settings(provider=CPU)
    found = {provider.name: provider for provider in room.find_providers()}
    assert not found[CUDA].usable
    assert "cuDNN (pip install" in found[CUDA].reason
    assert "Failed to load libcudnn.so.9" in found[CUDA].reason
    assert "TensorRT" in found[TENSORRT].reason
    assert capsys.readouterr().out == ""  # what onnxruntime prints about its libraries stands in the reason


def test_a_provider_that_raises_is_not_usable(gpu_build):
    gpu_build(fails="CUDA failure 35: driver too old\nstack")
    found = {provider.name: provider for provider in room.find_providers()}
    assert found[CUDA].reason.endswith("CUDA failure 35: driver too old")
    assert "or no TensorRT: CUDA failure 35" in found[TENSORRT].reason  # where its libraries lack it raises


def test_two_builds_over_each_other_are_the_reason(monkeypatch):
    monkeypatch.setattr(room.ort, "get_available_providers", lambda: [CPU])
    monkeypatch.setattr(room, "conflict", lambda: "two builds")
    room.find_providers.cache_clear()
    assert Provider(CUDA, False, "two builds") in room.find_providers()
    monkeypatch.undo()
    room.find_providers.cache_clear()


def test_tensorrt_falls_back_to_cuda_on_its_device_and_keeps_engines_by_file(gpu_build, linear, write_model):
    gpu_build(TENSORRT, CUDA)
    model = linear[0]
    first, second, third = provider_chain(Settings(TENSORRT, options=(("device_id", "1"),)), model)
    assert second == (CUDA, {"use_tf32": "0", "device_id": "1"})
    assert third == CPU
    assert first[0] == TENSORRT
    assert first[1]["trt_engine_cache_enable"] == "1"
    assert first[1]["device_id"] == "1"
    folder = first[1]["trt_engine_cache_path"]
    same = provider_chain(Settings(TENSORRT), model)[0][1]["trt_engine_cache_path"]
    content = model.read_bytes()
    model.write_bytes(content.replace(b"weight", b"wEight") if b"weight" in content else content + b"\x5a\x00")
    other = provider_chain(Settings(TENSORRT), model)[0][1]["trt_engine_cache_path"]
    assert folder == same != other
    own = provider_chain(Settings(TENSORRT, options=(("trt_engine_cache_enable", "0"),)), model)
    assert own[0][1]["trt_engine_cache_enable"] == "0"


def test_sessions_prepare_the_gpu_and_do_not_hand_over_without_a_word(gpu_build, linear):
    build = gpu_build(CUDA)
    backend = open_backend(linear[0], Settings(CUDA, options=(("use_tf32", "0"),)))
    assert backend.provider == CUDA
    assert build.preloaded == 1
    providers, more = build.asked[-1]
    assert providers == [(CUDA, {"use_tf32": "0"}), CPU]
    assert more["enable_fallback"] == 0
    gpu_build()
    with pytest.raises(UsageError, match="fell back from CUDA"):
        open_backend(linear[0], Settings(CUDA))


def test_a_bound_call_gives_what_a_run_gives(linear):
    backend = OrtBackend(linear[0], Settings())
    x = np.random.default_rng(0).standard_normal((4, 3), dtype=np.float32)
    call = backend.bound({backend.inputs[0].name: x}, "cpu")
    call()
    call()
    np.testing.assert_array_equal(call.outputs()[0], backend.run({backend.inputs[0].name: x})[0])


def test_with_a_gpu_the_cpu_is_tried_too_and_the_device_is_kept():
    found = [Provider(CPU, True), Provider(CUDA, True), Provider(TENSORRT, True)]
    best = Settings(CUDA, options=(("use_tf32", "0"), ("device_id", "1")))
    tried = [entry for entry in candidates.other_providers(best, 4, found) if isinstance(entry, Settings)]
    assert [entry.threads for entry in tried if entry.provider == CPU] == [1, 2, 4]
    assert all(("device_id", "1") in entry.options for entry in tried if entry.provider != CPU)


GROUPS = {
    "no limit, version 2": ("0::/a/b\n", {"a/b/cpu.max": "max 100000"}, None),
    "a quota, version 2": ("0::/a/b\n", {"a/b/cpu.max": "150000 100000"}, 1.5),
    "a parent's quota": ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2.0),
    "the smallest counts": ("0::/a/b\n", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "50000 100000"}, 0.5),
    "inside a container": ("0::/docker/123\n", {"cpu.max": "300000 100000"}, 3.0),
    "version 1": (
        "4:memory:/x\n3:cpu,cpuacct:/x\n",
        {"cpu,cpuacct/x/cpu.cfs_quota_us": "250000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
        2.5,
    ),
    "version 1 without a limit": (
        "3:cpu,cpuacct:/\n",
        {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
        None,
    ),
    "version 1, under its short name": (
        "3:cpuacct,cpu:/docker/9\n",
        {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"},
        2.0,
    ),
    "no groups": ("", {}, None),
}


@pytest.mark.parametrize("case", GROUPS)
def test_a_containers_quota_limits_the_usable_cores(case, tmp_path, monkeypatch):
    membership, files, expected = GROUPS[case]
    (tmp_path / "cgroup").write_text(membership)
    root = tmp_path / "root"
    root.mkdir()
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    assert machines.quota_of(tmp_path / "cgroup", root) == expected
    monkeypatch.setattr(machines, "quota_of", lambda *_: expected)
    monkeypatch.setattr(machines.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert machines.usable_cores() == (8 if expected is None else max(1, int(np.ceil(expected))))


@pytest.fixture
def machine_read_again():
    """What is known of the machine is read anew, here and by the tests behind."""
    machines.this_machine.cache_clear()
    yield machines.this_machine.cache_clear
    machines.this_machine.cache_clear()


def test_the_gpus_name_comes_without_torch(tmp_path, monkeypatch, machine_read_again):
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   1\n")
    monkeypatch.setattr(machines, "_PROC_GPUS", tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert machines.this_machine().gpu == "NVIDIA H200"
    monkeypatch.setattr(machines, "_PROC_GPUS", tmp_path / "none")
    monkeypatch.setattr(machines, "_GPU_DEVICES", ())
    machine_read_again()
    if sys.platform == "linux":
        assert machines.this_machine().gpu == ""


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
    levels = [(one.threads, one.optimization) for one in candidates.levels(Settings(), 8)]
    lower = [(one.threads, one.optimization) for one in candidates.lower_levels(Settings(), 8)]
    assert sorted(levels) == [(threads, "all") for threads in (1, 4, 8)]
    assert sorted(lower) == [(threads, level) for threads in (1, 4, 8) for level in ("basic", "extended")]
    waiting = list(candidates.threading(Settings(threads=8), 8))
    assert [(entry.spinning, entry.parallel) for entry in waiting] == [
        ("off", False),
        ("always", False),
        ("run", True),
    ]
    assert list(candidates.threading(Settings(threads=1), 1)) == []
    for none in (candidates.levels, candidates.lower_levels, candidates.threading):
        assert list(none(Settings(provider=CUDA), 8)) == []
