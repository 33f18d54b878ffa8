"""What this machine can run a model with, and why it cannot with the rest.

Three traps are handled here. A provider that is installed need not be usable (a GPU build without a GPU or without its
libraries, the OpenVINO plugin on a processor it does not accept), so it is asked for a session, which alone tells. A
session silently falls back: TensorRT's must fall back to CUDA before the CPU. And a provider may compute in less than
float32 without a word: CUDA multiplies in TF32 by default, OpenVINO in bfloat16 where the processor has it and in
float16 on a GPU. ``float32_options`` names the options that forbid it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime as ort

from normdeploy.errors import MissingDependencyError
from normdeploy.ort.digest import model_digest
from normdeploy.ort.installed import conflict
from normdeploy.ort.settings import CPU, CUDA, GPU_PROVIDERS, OPENVINO_PLUGIN, OPENVINO_RUNTIME, TENSORRT, Settings

_REGISTRATION = "normdeploy.openvino"
_registered = threading.Lock()
# y = x + x on one float32, opset 13: what a provider is asked to run
PROBE = (
    b'\x08\x08:5\n\x0e\n\x01x\n\x01x\x12\x01y"\x03Add\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)


@dataclass(frozen=True)
class Provider:
    """One way to run a model.

    Args:
        name: the provider's name as in ``Settings.provider``.
        usable: whether a session can be made with it on this machine.
        reason: why not; empty when usable.
    """

    name: str
    usable: bool
    reason: str = ""


def float32_options(provider: str) -> tuple[tuple[str, str], ...]:
    """Return the provider options that keep its arithmetic in float32.

    CUDA's default allows TF32 (10 bits of mantissa) in matrix products; TensorRT's builder likewise, and no provider
    option forbids it there: tuning finds it by the size of the error. OpenVINO's default precision follows the
    processor.
    """
    if provider == CUDA:
        return (("use_tf32", "0"),)
    if provider == OPENVINO_PLUGIN:
        return (("load_config", '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'),)
    if provider == OPENVINO_RUNTIME:
        return (("INFERENCE_PRECISION_HINT", "f32"),)
    return ()


def provider_chain(settings: Settings, model: Path | None = None) -> list[Any]:
    """Return what a session of onnxruntime is given as providers: the one of the settings, and what it falls back to.

    TensorRT leaves to the next provider what it cannot compile: that is CUDA on the same device, in float32, and only
    then the CPU. Its engines, minutes to build, are kept.

    Args:
        settings: provider and options.
        model: the file, by which engines are kept; None keeps none.
    """
    options = dict(settings.options)
    if settings.provider == CPU:
        return [(CPU, options)]
    if settings.provider != TENSORRT:
        return [(settings.provider, options), CPU]
    cuda = dict(float32_options(CUDA))
    if "device_id" in options:
        cuda["device_id"] = options["device_id"]
    return [(TENSORRT, {**(_engine_cache(model) if model else {}), **options}), (CUDA, cuda), CPU]


def _engine_cache(model: Path) -> dict[str, str]:
    """Return TensorRT's cache options; the folder is the model's alone, because engines hold weights.

    TensorRT names an engine by the graph and does not look at the weights: another file needs another folder, and so
    does another build of onnxruntime.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "normdeploy" / "tensorrt" / f"{model_digest(model)[:32]}-{ort.__version__}"
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(folder),
    }


@cache
def prepare_gpu() -> str:
    """Load the CUDA and cuDNN libraries that came as packages, once per process; return what could not be loaded.

    Without it onnxruntime finds them only where the system's loader does, or where torch has been imported before.
    """
    preload = getattr(ort, "preload_dlls", None)  # from onnxruntime 1.21 on
    if preload is None:
        return ""
    said = io.StringIO()  # it prints
    with contextlib.redirect_stdout(said):
        preload()
    return " ".join(said.getvalue().split())


@cache
def openvino_device() -> Any:
    """Register the OpenVINO plugin once per process and return its CPU device.

    Returns:
        an ``OrtEpDevice``, or None where the plugin offers none (releases up to 1.8 accept Intel processors only).

    Raises:
        MissingDependencyError: the plugin is not installed.
    """
    if importlib.util.find_spec("onnxruntime_ep_openvino") is None:
        raise MissingDependencyError(
            "the OpenVINO execution provider needs onnxruntime-ep-openvino, which is not installed; "
            "expected the extra 'openvino': pip install 'normdeploy[openvino]'"
        )
    import onnxruntime_ep_openvino

    with _registered:
        ort.register_execution_provider_library(_REGISTRATION, onnxruntime_ep_openvino.get_library_path())
    for device in ort.get_ep_devices():
        if device.ep_name == OPENVINO_PLUGIN and device.ep_metadata.get("ov_device") == "CPU":
            return device
    return None


def _openvino_plugin() -> Provider:
    try:
        device = openvino_device()
    except MissingDependencyError:
        return Provider(OPENVINO_PLUGIN, False, "onnxruntime-ep-openvino is not installed")
    except RuntimeError as error:  # onnxruntime's Fail for a library it cannot load
        return Provider(OPENVINO_PLUGIN, False, f"the plugin could not be loaded: {error}")
    if device is None:
        vendor = ort.get_ep_devices()[0].device.vendor
        return Provider(OPENVINO_PLUGIN, False, f"the installed plugin offers no device on this processor ({vendor})")
    return Provider(OPENVINO_PLUGIN, True)


def gpu_provider(name: str) -> Provider:
    """Return whether CUDA's or TensorRT's provider is usable here, and why not."""
    if name not in ort.get_available_providers():
        return Provider(name, False, conflict() or "not in the installed onnxruntime build")
    failure = failure_of(name)
    return Provider(name, not failure, failure)


@cache
def failure_of(name: str) -> str:
    """Ask onnxruntime for a session with a GPU provider; return why there is none, empty where there is.

    Whether torch sees a GPU says nothing: torch may be a CPU build, or onnxruntime may lack a library.
    """
    missing = prepare_gpu()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(PROBE, options, providers=provider_chain(Settings(name)), enable_fallback=0)
    except Exception as error:  # it raises classes of its own, none of them public
        missing = (str(error).splitlines() or [type(error).__name__])[0]
    else:
        if session.get_providers()[0] == name:
            return ""
    why = f": {missing}" if missing else ""
    needed = "TensorRT" if name == TENSORRT else "CUDA and cuDNN (pip install 'onnxruntime-gpu[cuda,cudnn]')"
    return f"onnxruntime has it, but it does not start: no NVIDIA GPU and driver, or no {needed}{why}"


@cache
def find_providers() -> tuple[Provider, ...]:
    """Return every provider this package knows, each with whether it is usable here and why not."""
    runtime = importlib.util.find_spec("openvino") is not None
    return (
        Provider(CPU, True),
        _openvino_plugin(),
        Provider(OPENVINO_RUNTIME, runtime, "" if runtime else "openvino is not installed"),
        *(gpu_provider(name) for name in GPU_PROVIDERS),
    )


def default_settings(device: int = 0) -> Settings:
    """Return float32 settings for what is there: CUDA where it is usable, else the CPU.

    Args:
        device: the number of the GPU; 0 is the first that ``CUDA_VISIBLE_DEVICES`` leaves visible.
    """
    if gpu_provider(CUDA).usable:
        return Settings(provider=CUDA, options=float32_options(CUDA) + device_options(device))
    return Settings()


def device_options(device: int) -> tuple[tuple[str, str], ...]:
    """Return the option of CUDA and TensorRT that chooses a GPU; none for the first, which is the default."""
    return (("device_id", str(device)),) if device else ()


def device_number(settings: Settings) -> int:
    """Return the number of the GPU that settings of CUDA or TensorRT choose."""
    return int(dict(settings.options).get("device_id", "0"))
