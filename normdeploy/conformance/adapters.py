"""What is run through the cases: functions of ten lines, told apart by their parameters' names.

====================================  ======================================================================
``exporter(model, args, path)``       writes the ONNX file ``path`` of a torch module and its example
``optimizer(source, target)``         writes the ONNX file ``target``, better than ``source``
``runtime(path, inputs)``             returns the outputs of an ONNX file on arrays by name, in order
``verifier(reference, candidate)``    returns whether ``candidate`` computes what ``reference`` does
====================================  ======================================================================

Paths are strings. What an adapter raises is a refusal: nobody deploys a wrong file by it. What an exporter or optimizer
returns, if anything, is a warning in words.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from normdeploy.errors import UsageError
from normdeploy.ort.levels import graph_level
from normdeploy.parsing.sources import is_source, load_source

Role = Literal["exporter", "optimizer", "runtime", "verifier"]

PARAMETERS: dict[tuple[str, ...], Role] = {
    ("model", "args", "path"): "exporter",
    ("source", "target"): "optimizer",
    ("path", "inputs"): "runtime",
    ("reference", "candidate"): "verifier",
}


@dataclass(frozen=True)
class Adapter:
    """A function with its name. Args: role: what it does. own: normdeploy's, or the user's. needs: modules."""

    name: str
    role: Role
    call: Callable[..., Any]
    own: bool = False
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """The modules that it needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def torch_onnx(model: Any, args: Any, path: str) -> None:
    """Export by torch, its defaults."""
    import torch

    torch.onnx.export(model, args, path, dynamo=True, external_data=False, verbose=False)


def normdeploy_export(model: Any, args: Any, path: str) -> str:
    """Export by normdeploy, without its proof: what is asked here is whether the rewriting is right by itself."""
    import normdeploy as nd

    nd.export(model, args, path, verify=False)
    return "; ".join(finding.what for finding in nd.inspect(model) if finding.severity == "error")


def normdeploy_fold(source: str, target: str) -> None:
    """Fold by normdeploy, without its proof."""
    import normdeploy as nd

    nd.fold(source, target, verify=False)


def _onnxruntime(level: str) -> Callable[[str, str], None]:
    def optimize(source: str, target: str) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = graph_level(level)
        options.optimized_model_filepath = target
        options.log_severity_level = 3
        ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    return optimize


def onnxslim(source: str, target: str) -> None:
    """Optimize by onnxslim."""
    import onnxslim as tool

    tool.slim(source, target)


def onnxsim(source: str, target: str) -> None:
    """Optimize by onnxsim, its own comparison switched on."""
    import onnx
    import onnxsim as tool

    model, same = tool.simplify(onnx.load(source), check_n=1)
    if not same:
        raise RuntimeError("onnxsim's own check refuses the result")
    onnx.save(model, target)


def onnxoptimizer(source: str, target: str) -> None:
    """Optimize by onnxoptimizer, its default passes."""
    import onnx
    import onnxoptimizer as tool

    onnx.save(tool.optimize(onnx.load(source)), target)


def onnxscript(source: str, target: str) -> None:
    """Optimize by onnxscript: its optimizer, then its default rewrite rules."""
    import onnx_ir
    from onnxscript import optimizer, rewriter

    model = onnx_ir.load(source)
    optimizer.optimize(model)
    onnx_ir.save(rewriter.rewrite(model), target)


def openvino(path: str, inputs: dict[str, Any]) -> list[Any]:
    """Run by OpenVINO on the CPU, in float32."""
    from normdeploy.runtime.openvino_core import openvino_core

    compiled = openvino_core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = compiled(inputs)
    return [found[output] for output in compiled.outputs]


def normdeploy_verify(reference: str, candidate: str) -> bool:
    """Verify by normdeploy: anything but a pass is no acceptance."""
    import normdeploy as nd

    return nd.verify(reference, candidate).status == "pass"


def _outputs(path: str, inputs: dict[str, Any]) -> list[Any]:
    import onnxruntime as ort

    return list(ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs))


def _inputs(path: str, draw: Callable[[list[int]], Any]) -> dict[str, Any]:
    """One random input, every dynamic size 2."""
    import numpy as np
    import onnxruntime as ort

    found = {}
    for item in ort.InferenceSession(path, providers=["CPUExecutionProvider"]).get_inputs():
        shape = [size if isinstance(size, int) else 2 for size in item.shape]
        found[item.name] = draw(shape).astype(np.float32) if "float" in item.type else np.ones(shape, np.int64)
    return found


def allclose(reference: str, candidate: str) -> bool:
    """Compare as test suites do: one random input, numpy.allclose with its defaults."""
    import numpy as np

    inputs = _inputs(reference, np.random.default_rng(0).standard_normal)
    return all(
        np.allclose(a, b) for a, b in zip(_outputs(reference, inputs), _outputs(candidate, inputs), strict=False)
    )


def largest_difference(reference: str, candidate: str) -> bool:
    """Compare as polygraphy run does: inputs in [0, 1), by name; no element off by 1e-5, absolutely and relatively."""
    import numpy as np
    import onnxruntime as ort

    inputs = _inputs(reference, np.random.default_rng(0).random)
    outputs = []
    for path in (reference, candidate):
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        outputs.append(dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True)))
    shared = [name for name in outputs[0] if name in outputs[1]]
    for a, b in ((outputs[0][name], outputs[1][name]) for name in shared):
        off = np.abs(a - b)
        if ((off > 1e-5) & (off > 1e-5 * np.abs(a))).any():
            return False
    return True


def onnxsim_check(reference: str, candidate: str) -> bool:
    """Compare by onnxsim's own check, three random inputs."""
    from onnxsim import model_checking

    return bool(model_checking.compare(candidate, reference, 3, input_shapes=None))


BUILT_IN = {
    adapter.name: adapter
    for adapter in [
        Adapter("normdeploy export", "exporter", normdeploy_export, own=True, needs=("onnxruntime",)),
        Adapter("torch.onnx", "exporter", torch_onnx),
        Adapter("normdeploy fold", "optimizer", normdeploy_fold, own=True, needs=("onnxruntime",)),
        *(
            Adapter(f"onnxruntime {level}", "optimizer", _onnxruntime(level), needs=("onnxruntime",))
            for level in ("basic", "extended", "all")
        ),
        Adapter("onnxslim", "optimizer", onnxslim, needs=("onnxslim",)),
        Adapter("onnxsim", "optimizer", onnxsim, needs=("onnxsim",)),
        Adapter("onnxoptimizer", "optimizer", onnxoptimizer, needs=("onnxoptimizer",)),
        Adapter("onnxscript", "optimizer", onnxscript),
        Adapter("openvino", "runtime", openvino, needs=("openvino",)),
        Adapter("normdeploy verify", "verifier", normdeploy_verify, own=True, needs=("onnxruntime",)),
        Adapter("allclose", "verifier", allclose, needs=("onnxruntime",)),
        Adapter("largest difference", "verifier", largest_difference, needs=("onnxruntime",)),
        Adapter("onnxsim check", "verifier", onnxsim_check, needs=("onnxsim", "onnxruntime")),
    ]
}


def adapter_named(name: str) -> Adapter:
    """Return an adapter: one of `BUILT_IN`, or a function of the user's, ``file.py:function``.

    Raises:
        UsageError: there is none of that name, or its parameters say of no role.
        SourceError: the user's file cannot be imported, or has no such function.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    if not is_source(name):
        raise UsageError(f"adapter is {name!r}; expected file.py:function or one of: {', '.join(BUILT_IN)}")
    call = load_source(name)
    if not callable(call):
        raise UsageError(f"adapter {name} is a {type(call).__name__}; expected a function")
    parameters = tuple(inspect.signature(call).parameters)
    if parameters not in PARAMETERS:
        known = "; ".join(f"{role}({', '.join(names)})" for names, role in PARAMETERS.items())
        raise UsageError(
            f"adapter {name} takes ({', '.join(parameters)}); expected the parameters of one role: {known}"
        )
    return Adapter(name, PARAMETERS[parameters], call, own=True)
