"""What this machine can run a model with, and why it cannot with the rest.

Two traps are handled here. A provider that is installed need not be usable (a GPU build without a GPU, the OpenVINO
plugin on a processor it does not accept), so installed and usable are asked separately. And a provider may compute in
less than float32 without a word: CUDA multiplies in TF32 by default, OpenVINO in bfloat16 where the processor has it
and in float16 on a GPU. ``float32_options`` names the options that forbid it.
"""

from __future__ import annotations

import importlib.util
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnxruntime as ort

from normdeploy.errors import MissingDependencyError
from normdeploy.runtime.settings import CPU, CUDA, OPENVINO_PLUGIN, OPENVINO_RUNTIME, TENSORRT, Settings

_REGISTRATION = "normdeploy.openvino"
_registered = threading.Lock()


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


def _onnxruntime_provider(name: str) -> Provider:
    if name not in ort.get_available_providers():
        return Provider(name, False, "not in the installed onnxruntime build")
    import torch

    if not torch.cuda.is_available():
        return Provider(name, False, "onnxruntime has it, but no CUDA device was found")
    return Provider(name, True)


@cache
def find_providers() -> tuple[Provider, ...]:
    """Return every provider this package knows, each with whether it is usable here and why not."""
    runtime = importlib.util.find_spec("openvino") is not None
    return (
        Provider(CPU, True),
        _openvino_plugin(),
        Provider(OPENVINO_RUNTIME, runtime, "" if runtime else "openvino is not installed"),
        _onnxruntime_provider(CUDA),
        _onnxruntime_provider(TENSORRT),
    )


def default_settings() -> Settings:
    """Return float32 settings for the device that is there: CUDA where it is usable, else the CPU."""
    if CUDA in ort.get_available_providers() and _onnxruntime_provider(CUDA).usable:
        return Settings(provider=CUDA, options=float32_options(CUDA))
    return Settings()
