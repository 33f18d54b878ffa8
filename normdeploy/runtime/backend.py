"""Sessions of the two runtimes behind one small protocol: names, types and shapes in and out, and ``run``.

A session is made for any shapes, or for the fixed ones of its settings; :func:`open_backend` puts the two together.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidProtobuf

from normdeploy.array_types import Array
from normdeploy.errors import GraphError, UsageError
from normdeploy.files import require_model_file
from normdeploy.onnxfile.outline import session_source
from normdeploy.ort.byte_products import exact_session
from normdeploy.ort.installed import conflict
from normdeploy.ort.levels import graph_level
from normdeploy.ort.providers import openvino_device, prepare_gpu, provider_chain
from normdeploy.ort.required_operands import check_operands
from normdeploy.ort.settings import CPU, GPU_PROVIDERS, OPENVINO_PLUGIN, OPENVINO_RUNTIME, Settings
from normdeploy.ort.slice_steps import check_slice_steps
from normdeploy.ort.specs import TensorSpec, file_specs, session_spec
from normdeploy.ort.stop_runs import EVERY_RUN
from normdeploy.runtime.fixed_shapes import FixedShapesBackend
from normdeploy.runtime.openvino_core import openvino_core


class Backend(Protocol):
    """A loaded model; ``run`` may be called from several threads at once."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    provider: str

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Return the outputs, in order, for feeds that fit ``inputs``."""
        ...


def session_options(settings: Settings) -> ort.SessionOptions:
    """Return onnxruntime's session options for ``settings`` (all but the provider)."""
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors only; what matters is raised
    options.intra_op_num_threads = settings.threads
    options.graph_optimization_level = graph_level(settings.optimization)
    spin = "0" if settings.spinning == "off" else "1"
    options.add_session_config_entry("session.intra_op.allow_spinning", spin)
    options.add_session_config_entry("session.inter_op.allow_spinning", spin)
    options.add_session_config_entry("session.force_spinning_stop", "1" if settings.spinning == "run" else "0")
    if settings.parallel:
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    return options


def plugin_options(settings: Settings) -> dict[str, str]:
    """Return the OpenVINO plugin's options: it takes its number of threads from there, never from the session."""
    options = dict(settings.options)
    if settings.threads:
        config = json.loads(options.get("load_config", "{}"))
        config.setdefault("CPU", {}).setdefault("INFERENCE_NUM_THREADS", str(settings.threads))
        options["load_config"] = json.dumps(config)
    return options


class OrtBackend:
    """An onnxruntime session.

    Args:
        path: the ONNX file.
        settings: how to run it.
        declared: the file's inputs; needed where the settings fix shapes.

    Raises:
        GraphError: the file is missing, or onnxruntime cannot load it; its message is kept.
        UsageError: the provider is not usable here, or onnxruntime silently fell back from it.
    """

    def __init__(self, path: Path, settings: Settings, declared: Sequence[TensorSpec] = ()) -> None:
        options = session_options(settings)
        for word, size in _fixed_words(declared, settings).items():
            options.add_free_dimension_override_by_name(word, size)
        chosen: dict[str, Any] = {}
        if settings.provider == OPENVINO_PLUGIN:
            device = openvino_device()
            if device is None:
                raise UsageError(
                    f"provider {settings.provider!r} offers no device on this processor; "
                    f"expected a usable provider: load without a plan, or with provider {CPU!r}"
                )
            options.add_provider_for_devices([device], plugin_options(settings))
        else:
            if settings.provider not in ort.get_available_providers():
                remedy = conflict() or "install the build that has it"
                raise UsageError(
                    f"provider {settings.provider!r} is not in this onnxruntime; expected one of "
                    f"{', '.join(ort.get_available_providers())}: {remedy}, or load without a plan"
                )
            if settings.provider in GPU_PROVIDERS:
                prepare_gpu()
            chosen["providers"] = provider_chain(settings, path)
            chosen["enable_fallback"] = 0  # a provider that fails shall fail, not hand over to another and print
        if settings.disabled_optimizers:
            chosen["disabled_optimizers"] = list(settings.disabled_optimizers)
        source, entries = exact_session(path)
        for key, value in entries.items():
            options.add_session_config_entry(key, value)
        try:
            self._session = ort.InferenceSession(source, options, **chosen)
        except Exception as error:
            if not (isinstance(error, RuntimeError) or type(error).__module__.startswith("onnxruntime")):
                raise
            if isinstance(error, InvalidProtobuf):
                raise GraphError(
                    f"{path} cannot be read as ONNX; expected a valid .onnx file: it may be another kind of file or "
                    "cut short, fetch or export it again"
                ) from error
            raise GraphError(
                f"onnxruntime {ort.__version__} cannot load {path}: {error}; expected a model it supports: "
                "export again with a lower opset_version or upgrade onnxruntime"
            ) from error
        self.provider: str = self._session.get_providers()[0]
        if self.provider != settings.provider:
            raise UsageError(
                f"onnxruntime fell back from {settings.provider} to {self.provider} for {path.name}; expected the "
                "provider that was asked for: check its drivers, or load without a plan"
            )
        self.inputs = tuple(session_spec(argument) for argument in self._session.get_inputs())
        self.outputs = tuple(session_spec(argument) for argument in self._session.get_outputs())
        if not self.outputs:
            raise GraphError(
                f"{path} holds no graph outputs; expected an ONNX model with at least one: export it again"
            )
        self._names = [spec.name for spec in self.outputs]

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Return the outputs in order; onnxruntime's run is thread-safe."""
        return list(self._session.run(self._names, dict(feeds), EVERY_RUN))

    def bound(self, feeds: Mapping[str, Array], device: str, number: int = 0) -> Bound:
        """Return a call whose inputs and outputs lie on the device: what is timed is the network, not the bus.

        Args:
            feeds: copied to the device now.
            device: ``"cuda"`` or ``"cpu"``.
            number: of the GPU.
        """
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, device, number))
        for name in self._names:
            binding.bind_output(name, device, number)
        return Bound(self._session, binding)


class Bound:
    """One call of a session with inputs and outputs on its device.

    Args:
        session: of onnxruntime.
        binding: its IO binding, inputs and outputs bound.
    """

    def __init__(self, session: Any, binding: Any) -> None:
        self._session, self._binding = session, binding

    def __call__(self) -> None:
        """Run, and wait until the device is done."""
        self._session.run_with_iobinding(self._binding, EVERY_RUN)
        self._binding.synchronize_outputs()

    def outputs(self) -> list[Array]:
        """Return the last run's outputs, copied from the device."""
        return list(self._binding.copy_outputs_to_cpu())


def _fixed_words(declared: Sequence[TensorSpec], settings: Settings) -> dict[str, int]:
    """Return the sizes of named dimensions that the settings fix; one without a name stays dynamic."""
    words = {spec.name: spec.shape for spec in declared}
    return {
        word: size
        for name, shape in settings.fixed_shapes
        for word, size in zip(words.get(name, ()), shape, strict=False)
        if isinstance(word, str)
    }


class OpenVinoBackend:
    """A model compiled by OpenVINO's own runtime, with one inference request per thread.

    Raises:
        MissingDependencyError: openvino is not installed.
        GraphError: OpenVINO cannot read or compile the model.
    """

    provider = OPENVINO_RUNTIME

    def __init__(self, path: Path, settings: Settings) -> None:
        session_source(path)  # for its checks: whether it ends, where the data lies that OpenVINO will read
        core = openvino_core()
        import openvino

        config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", **dict(settings.options)}
        if settings.threads:
            config["INFERENCE_NUM_THREADS"] = settings.threads
        try:
            if settings.fixed_shapes:
                model = core.read_model(str(path))
                model.reshape({name: list(shape) for name, shape in settings.fixed_shapes})
                self._model = core.compile_model(model, "CPU", config)
            else:
                self._model = core.compile_model(str(path), "CPU", config)
        except RuntimeError as error:
            raise GraphError(
                f"OpenVINO cannot compile {path}: {error}; expected a model it supports: use provider {CPU!r}"
            ) from error
        self.inputs = tuple(self._port(port) for port in self._model.inputs)
        self.outputs = tuple(self._port(port) for port in self._model.outputs)
        self._dtypes = {spec.name: spec.dtype for spec in self.inputs}
        self._tensor = openvino.Tensor
        self._local = threading.local()

    @staticmethod
    def _port(port: Any) -> TensorSpec:
        shape = tuple(None if size.is_dynamic else size.get_length() for size in port.get_partial_shape())
        return TensorSpec(port.get_any_name(), np.dtype(port.get_element_type().to_dtype()).name, shape)

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Return the outputs in order; each thread has its own inference request.

        Inputs are read where they lie; OpenVINO copies by default, which took a tenth of a small network's time.
        """
        request = getattr(self._local, "request", None)
        if request is None:
            request = self._local.request = self._model.create_infer_request()
        if feeds.keys() == self._dtypes.keys() and all(
            _readable_in_place(array, self._dtypes[name]) for name, array in feeds.items()
        ):
            for name, array in feeds.items():
                request.set_tensor(name, self._tensor(array, shared_memory=True))
            results = request.infer(share_outputs=True)
        else:  # its own checks and conversions, whose words are better than those of a tensor that does not fit
            results = request.infer(dict(feeds), share_inputs=True, share_outputs=True)
        return [np.array(results[index]) for index in range(len(self.outputs))]


def _readable_in_place(array: Array, dtype: str) -> bool:
    """Whether OpenVINO can read an array without a copy; a scalar's shape it takes from the copy alone."""
    flags = array.flags
    return flags.c_contiguous and flags.writeable and array.ndim > 0 and array.size > 0 and array.dtype.name == dtype


def open_backend(path: str | Path, settings: Settings) -> Backend:
    """Load the model at ``path`` as ``settings`` say.

    Raises:
        GraphError: no such file, or the runtime cannot load it.
        UsageError: the provider is not usable on this machine.
        MissingDependencyError: the provider's package is not installed.
    """
    file = require_model_file(path)
    if not settings.fixed_shapes:
        return backend_for(file, settings)
    inputs, outputs = file_specs(file)
    return FixedShapesBackend(
        inputs,
        outputs,
        settings.provider,
        dict(settings.fixed_shapes),
        fixed=lambda: backend_for(file, settings, inputs),
        free=lambda: backend_for(file, replace(settings, fixed_shapes=())),
    )


def backend_for(file: Path, settings: Settings, declared: Sequence[TensorSpec] = ()) -> Backend:
    """Open a file with the runtime that the settings name.

    Raises:
        GraphError: the runtime cannot load it, or would end the process.
    """
    if settings.provider in (OPENVINO_PLUGIN, OPENVINO_RUNTIME):
        check_slice_steps(file)
    if settings.provider == OPENVINO_RUNTIME:
        return OpenVinoBackend(file, settings)
    check_operands(file)
    return OrtBackend(file, settings, declared)
