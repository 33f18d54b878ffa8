"""onnxruntime sessions under named settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_inference_collection import Session

from normdeploy.errors import GraphError, UsageError
from normdeploy.graph.walk import nodes_of
from normdeploy.onnxfile.named_bytes import Content, NamedBytes
from normdeploy.onnxfile.outline import session_source
from normdeploy.ort.byte_products import product_entries
from normdeploy.ort.levels import available_levels, graph_level
from normdeploy.ort.ort_format import ORT_FORMAT, converted
from normdeploy.ort.providers import float32_options, prepare_gpu, provider_chain
from normdeploy.ort.required_operands import require_operands
from normdeploy.ort.settings import CPU, CUDA, GPU_PROVIDERS, TENSORRT, WEB, Settings
from normdeploy.ort.stop_runs import EVERY_RUN
from normdeploy.verification.sides.flat_values import Feeds

RUNTIMES = {"cpu": CPU, "cuda": CUDA, "tensorrt": TENSORRT, "web": WEB, "mobile": ORT_FORMAT}
"""What a file can be judged under, by the name that users give."""


@dataclass(frozen=True)
class Setting:
    """One way to run a file.

    Args:
        level: graph optimization level, one of :func:`normdeploy.ort.levels.available_levels`.
        provider: execution provider; "onnxruntime-web" for its WebAssembly in a browser, "ORT format" for the file
            converted to that and run by the CPU provider.
        threads: intra-operator threads; 0 leaves the choice to the runtime.
        disabled: names of graph optimizers switched off.
        config: session configuration entries, as sorted pairs.
    """

    level: str = "all"
    provider: str = "CPUExecutionProvider"
    threads: int = 1
    disabled: tuple[str, ...] = ()
    config: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        text = f"{self.provider.removesuffix('ExecutionProvider')} level={self.level} threads={self.threads or 'auto'}"
        if self.disabled:
            text += " without " + ",".join(self.disabled)
        if self.config:
            text += " " + ",".join(f"{key}={value}" for key, value in self.config)
        return text


def require_run(model: ir.Model) -> None:
    """Refuse a graph whose run would end the process.

    Raises:
        GraphError: it has an operator without an operand that onnxruntime's kernel reads all the same.
    """
    for node in nodes_of(model):
        names = [None if value is None else value.name for value in node.inputs]
        require_operands(node.domain, node.op_type, names, str(node.name or node.outputs[0].name))


def open_session(
    model: str | os.PathLike[str] | bytes | NamedBytes, setting: Setting, *, dequantizes: bool | None = None
) -> Any:
    """Open a session and make certain that the provider asked for is the one that runs, in float32.

    A provider whose default is less (CUDA: TF32) is told to multiply in float32, as `normdeploy.load` tells it.

    Args:
        model: the file, or its bytes. setting: how it is run.
        dequantizes: whether it may hold a DequantizeLinear, where its caller has looked; looked for otherwise.

    Raises:
        UsageError: unknown level, or the provider is not available here.
        GraphError: onnxruntime refuses the file, or silently left the provider out.
    """
    content = model.content if isinstance(model, NamedBytes) else model
    levels = available_levels()
    if setting.level not in levels:
        raise UsageError(f"optimization level {setting.level!r} is unknown; expected one of {', '.join(levels)}")
    if setting.provider == WEB:
        return _open_in_browser(_outside(content), setting)
    available = ort.get_available_providers()
    provider = CPU if setting.provider == ORT_FORMAT else setting.provider
    if provider not in available:
        raise UsageError(
            f"execution provider {provider!r} is not available; expected one of {available}: install its package"
        )
    options = ort.SessionOptions()
    options.graph_optimization_level = graph_level(setting.level)
    options.intra_op_num_threads = setting.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what fails raises; its text would stand on the console a second time
    # Spinning threads burn a core between runs and change no result
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if provider in GPU_PROVIDERS:
        prepare_gpu()
    providers = provider_chain(Settings(provider, options=float32_options(provider)))
    source: str | bytes
    entries: Mapping[str, str] = {}
    if setting.provider == ORT_FORMAT:
        source = converted(_outside(content)).content
    elif isinstance(content, Content):
        source = (model.path if isinstance(model, NamedBytes) else None) or bytes(content)
    else:
        source, entries = session_source(content)
    exact = {} if setting.provider == ORT_FORMAT else product_entries(content, stored=dequantizes)
    for key, value in {**exact, **dict(setting.config), **entries}.items():
        options.add_session_config_entry(key, value)
    try:
        session = ort.InferenceSession(
            source,
            options,
            providers=providers,
            disabled_optimizers=list(setting.disabled) or None,
            enable_fallback=0,  # a provider that fails shall fail, not hand over to another and print
        )
    except Exception as error:  # onnxruntime raises its own classes and RuntimeError
        said = str(error)
        if isinstance(content, Content) and isinstance(source, str):
            said = said.replace(f"Load model from {source} failed:", "")  # no name that means anything to a user
        raise GraphError(f"onnxruntime cannot load the file ({setting}): {said}") from error
    if provider not in session.get_providers():
        raise GraphError(
            f"onnxruntime left out {provider} without an error; expected it to run: check its installation"
        )
    return session


def _outside(model: str | os.PathLike[str] | Content) -> str | os.PathLike[str] | bytes:
    """Return a model as what is no memory of this process alone."""
    return bytes(model) if isinstance(model, memoryview) else model


def _open_in_browser(model: str | os.PathLike[str] | bytes, setting: Setting) -> Any:
    """Open a session of onnxruntime-web under the same settings.

    Raises:
        UsageError: no browser is at hand.
        GraphError: the runtime refuses the file.
        BrowserError: the browser ended, or does not answer.
    """
    from normdeploy.web.host import current_host

    host = current_host()
    config: dict[str, Any] = dict(setting.config)
    if setting.disabled:
        config["optimization.disable_specified_optimizers"] = ";".join(setting.disabled)
    options = {
        "executionProviders": ["wasm"],
        "graphOptimizationLevel": "disabled" if setting.level == "disable" else setting.level,
        "logSeverityLevel": 4,
        "extra": config,
    }
    try:
        return host.open(model, options, setting.threads)
    except GraphError as error:
        raise GraphError(f"{WEB} {host.runtime.version} cannot load the file ({setting}): {error}") from error


def run_session(session: Any, feeds: Feeds, outputs: Sequence[str]) -> list[Any]:
    """Run a session on named arrays.

    Raises:
        GraphError: onnxruntime failed, or an output is no tensor.
    """
    wanted: Mapping[str, Any] = {item.name: item for item in session.get_inputs()}
    # Not ascontiguousarray: it makes a scalar a vector of one
    ready = {name: np.asarray(feeds[name], order="C") for name in wanted if name in feeds}
    try:
        # a session in a browser has none: closing the browser ends its runs
        asked = (EVERY_RUN,) if isinstance(session, Session) else ()
        found = list(session.run(list(outputs), ready, *asked))
    except Exception as error:  # as above
        shapes = {name: array.shape for name, array in ready.items()}
        raise GraphError(f"onnxruntime failed on inputs of shapes {shapes}: {error}") from error
    for name, value in zip(outputs, found, strict=True):
        if not isinstance(value, np.ndarray):
            raise GraphError(
                f"output {name!r} is a sequence, a map or nothing; expected a tensor: keep it inside the graph"
            )
    return found
