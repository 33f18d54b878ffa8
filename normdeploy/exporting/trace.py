"""From an eager model to a graph: ``torch.onnx.export`` without its optimizer, in certain evaluation mode.

The exporter's own optimizer folds some normalizations in the weights' dtype; the graph here keeps every operator the
model ran, so that the rewriting rooms see what its author wrote.
"""

from __future__ import annotations

import inspect
import random
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx import defs
from torch import nn

from normdeploy.errors import InputError, ModeError, TraceError
from normdeploy.exporting.eager import eager_module, uncompiled, unscripted
from normdeploy.exporting.module.asks_if_traced import traced_otherwise
from normdeploy.exporting.module.forward import (
    Arguments,
    Outputs,
    flat_forward,
    flatten_arguments,
    flatten_outputs,
    split_arguments,
)
from normdeploy.exporting.module.mode import ModeReport, evaluation_mode, fast_paths
from normdeploy.exporting.module.plain_tensors import module_tensors, plain_tensors_registered
from normdeploy.exporting.module.state_updates import Updated, updates_seen, updates_traced
from normdeploy.exporting.module.training_operators import statistics_unchanged, training_operators
from normdeploy.exporting.quantized.quantized_trace import QuantizersSeen, quantizers_traceable
from normdeploy.exporting.torch_exporter.batched import export_batched, export_program, traces_fixed
from normdeploy.exporting.torch_exporter.causal_hints import causal_hints_given
from normdeploy.exporting.torch_exporter.computed_weights import kept_values
from normdeploy.exporting.torch_exporter.dynamic_shapes import fixed_after_all, user_shapes, widened
from normdeploy.exporting.torch_exporter.naming import name_plain_tensors, rename_values, separate_outputs
from normdeploy.exporting.torch_exporter.packed_sequences import packed_sequences_padded
from normdeploy.exporting.torch_exporter.trace_errors import (
    causes_from_here,
    essential_line,
    explain,
    module_in_traceback,
    too_deep,
)
from normdeploy.exporting.torch_exporter.unchecked_distributions import distributions_unchecked
from normdeploy.exporting.torch_exporter.written_zero_bias import drop_written_zero_bias
from normdeploy.graph.integer_weights import quantize_constants
from normdeploy.nn.as_numpy import to_numpy
from normdeploy.nn.contents import Before
from normdeploy.nn.object_walk import is_foreign

_OLDEST_OPSET = 18


@dataclass
class Traced:
    """A traced model.

    Args:
        model: the graph; its initializers alias the eager model's weights until it is saved.
        seconds: time the trace took, s.
        input_names: graph inputs in order.
        output_names: graph outputs in order.
        feeds: the example arguments by graph input name, as given.
        notes: sentences for the user: what was switched, what could not be made dynamic.
        mode: what was found in training mode.
        updated: state that the model updates in evaluation mode, and the graph does not.
    """

    model: ir.Model
    seconds: float
    input_names: list[str]
    output_names: list[str]
    feeds: dict[str, np.ndarray[Any, Any]]
    notes: list[str] = field(default_factory=list)
    mode: ModeReport | None = None
    updated: tuple[Updated, ...] = ()


@contextmanager
def _random_state_kept(device: torch.device | None) -> Iterator[None]:
    cuda = [device] if device is not None and device.type == "cuda" else []
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the user's forward may draw from it
    with torch.random.fork_rng(devices=cuda):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002 - likewise


def _run_once(model: nn.Module, arguments: Arguments, tensors: list[torch.Tensor]) -> Outputs:
    """Run the eager model on the example: a wrong argument is told from a model that cannot be traced."""
    args, kwargs = arguments.build(tensors)
    try:
        with uncompiled():
            result = model(*args, **kwargs)
    except RecursionError as error:
        raise InputError(
            f"the model does not run: {module_in_traceback(model, error)}: RecursionError: {too_deep()}"
        ) from error
    except Exception as error:
        given = ", ".join(
            f"{name}={str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
            for name, tensor in zip(arguments.names, tensors, strict=True)
        )
        raise InputError(
            f"the model does not run on the example arguments {given}: {module_in_traceback(model, error)}: "
            f"{type(error).__name__}: {essential_line(error)}; expected args and kwargs that model(*args, **kwargs) "
            "accepts: correct their shapes, dtypes and values (on the command line --input, --example)"
        ) from error
    return flatten_outputs(result)


def _asks_whether_traced(model: nn.Module) -> list[str]:
    return [
        f"{asked}: the trace is what it computes then"
        + ("" if asked.installed else ", which may be another function than the one that was trained")
        for asked in traced_otherwise(model)
    ]


def _fast_path_differs(model: nn.Module, arguments: Arguments, outputs: Outputs) -> Iterator[str]:
    """Say where torch's fast path of attention gives other outputs on the example than its layers do."""
    with_path = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
    if not any(isinstance(module, with_path) for module in model.modules()):
        return
    with fast_paths(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a run that the user did not ask for
        fast = _run_once(model, arguments, arguments.tensors)
    for name, slow, other in zip(outputs.names, outputs.tensors, fast.tensors, strict=True):
        if slow.shape != other.shape or not torch.allclose(slow, other, rtol=1e-2, atol=1e-3, equal_nan=True):
            yield (
                f"output {name!r}: the layers' own code is exported; torch's fast path of attention gives something "
                "else on the example (NaN where a mask leaves no key, 0 behind the end of padded sequences): compare "
                "with torch.backends.mha.set_fastpath_enabled(False)"
            )


def _torchs_own(model: nn.Module, name: str) -> bool:
    """Tell whether an attribute is bookkeeping of one of torch's own modules (nn.LSTM's list of its weights)."""
    with suppress(AttributeError):
        return is_foreign(model.get_submodule(name.rpartition(".")[0]))
    return False


def trace(
    model: nn.Module,
    args: Any,
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_shapes: Any = None,
    opset_version: int | None = None,
) -> Traced:
    """Trace an eager model in evaluation mode to an ONNX graph that holds every operator it ran.

    The batch dimension is dynamic by default: dimension 0 of every tensor argument whose size there is that of the
    first tensor argument. An example batch of 1 is traced as 2, because 1 would be specialised. Where the model
    itself fixes the batch (``x.view(4, -1)``), the shapes are static and a note says so.

    Args:
        model: the model, on any device, in any mode; given back as it was (training flags, attributes, gradient
            mode, random state).
        args: a tensor or a tuple of positional arguments: nested dicts, lists, tuples and plain objects (a decoder's
            cache) whose tensors are inputs; other Python values become constants. As in ``torch.onnx.export``, keyword
            arguments may come as a dict at the end of the tuple, where its keys are names of parameters.
        kwargs: keyword arguments.
        input_names: names of the graph's inputs, in order; by default the arguments' names.
        output_names: names of the graph's outputs, in order; by default the keys, fields or attributes of what comes
            back, "output" for a single tensor, "output_0", "output_1", ... for a sequence.
        dynamic_shapes: as in ``torch.onnx.export``; replaces the default. ``{}`` makes every dimension static.
        opset_version: the ONNX operator set, 18 or newer; by default torch's own default.

    Returns:
        A ``Traced``.

    Raises:
        ModelError: ``model`` is not an eager ``torch.nn.Module``, or returns something else than tensors.
        ModeError: evaluation mode cannot be made certain; the message names what stays in training.
        InputError: the model does not run on the arguments; names or shapes that do not fit.
        TraceError: the model cannot be traced; the message names the module.
    """
    model = eager_module(model)
    check_opset(opset_version)
    started = time.perf_counter()
    device = _device(model)
    positional, named = split_arguments(model, args, kwargs)
    with causes_from_here(), _random_state_kept(device), evaluation_mode(model) as mode:
        notes = [*mode.notes, *_asks_whether_traced(model)]
        arguments = flatten_arguments(model, positional, named)
        if arguments.constants:
            notes.append(f"constants in the graph, not inputs: {', '.join(arguments.constants)}")
        parameters = list(inspect.signature(model.forward).parameters)
        tensors = arguments.tensors
        held, before = module_tensors(model), Before(model, mode.reached)
        with statistics_unchanged(model), updates_seen(model) as seen, QuantizersSeen() as quantizers:
            outputs = _run_once(model, arguments, tensors)
        notes += _fast_path_differs(model, arguments, outputs) if mode.fast_paths else []
        kept = [plain for plain in held if plain.unchanged()]
        before.restore()  # what that run assigned is no constant of the graph, nor what it wrote
        if outputs.dropped:
            notes.append(f"returned by forward but not by the graph (not tensors): {', '.join(outputs.dropped)}")
        if isinstance(dynamic_shapes, torch.export.ShapesCollection):
            # torch leaves this method unannotated
            dynamic_shapes = dynamic_shapes.dynamic_shapes(model, positional, named)  # type: ignore[no-untyped-call]
        traceable = quantizers_traceable(model) if quantizers.seen else nullcontext()
        hints = causal_hints_given(model)
        with (
            plain_tensors_registered(kept),
            traceable,
            hints,
            unscripted(),
            distributions_unchecked() as unchecked,
            packed_sequences_padded(),
            flat_forward(model, arguments) as assigned,
        ):
            if dynamic_shapes is None:
                program = export_batched(model, tensors, opset_version, notes)
            else:
                specs = user_shapes(dynamic_shapes, arguments.paths, parameters)
                try:
                    program = export_program(model, widened(tensors, specs), specs, opset_version)
                except Exception as error:
                    fixed = partial(traces_fixed, model, tensors)
                    raise TraceError(explain(model, error, tensors, fixed)) from error
                notes += fixed_after_all(arguments.names, specs, program.model.graph)
        if unchecked:
            notes.append(
                f"the file does not check what {', '.join(unchecked)} of torch.distributions takes, as eager torch does"
            )
        found = training_operators(program.exported_program)
        if found:
            raise ModeError(
                f"in training whatever the mode: {'; '.join(map(str, found))}; expected every layer to follow eval(): "
                "pass training=self.training",
                tuple(row.where for row in found),
            )
        notes += kept_values(program.exported_program)
        updated = tuple(dict.fromkeys([*seen, *updates_traced(model, program.exported_program)]))
        graph = program.model.graph
        drop_written_zero_bias(graph)
        quantize_constants(graph, reciprocal=True)
        name_plain_tensors(graph, program.exported_program.constants, model)
    notes += [f"{row}: the file does not, every call finds what is there now" for row in updated]
    told = {f"{row.where}.{row.name}".lstrip(".") for row in updated}
    if assigned := [name for name in assigned if name not in told and not _torchs_own(model, name)]:
        notes.append(f"forward assigns {', '.join(assigned[:4])}: the graph returns its outputs only")
    _name_ends(graph, arguments.names, outputs.names, input_names, output_names)
    return Traced(
        model=program.model,
        seconds=time.perf_counter() - started,
        input_names=[str(value.name) for value in graph.inputs],
        output_names=[str(value.name) for value in graph.outputs],
        feeds={str(value.name): to_numpy(leaf) for value, leaf in zip(graph.inputs, tensors, strict=True)},
        notes=notes,
        mode=mode,
        updated=updated,
    )


def check_opset(version: int | None) -> None:
    """Require an operator set that torch's exporter writes and the installed onnx knows; None is the default.

    Raises:
        InputError: it is too old or too new.
    """
    newest = defs.onnx_opset_version()
    if version is not None and not _OLDEST_OPSET <= version <= newest:
        raise InputError(
            f"opset_version is {version}; expected {_OLDEST_OPSET} (the oldest torch's exporter writes) to {newest} "
            "(the newest the installed onnx knows): choose one of these, or leave it out"
        )


def _device(model: nn.Module) -> torch.device | None:
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    return devices.pop() if len(devices) == 1 else None


def _name_ends(
    graph: ir.Graph,
    inputs: Sequence[str],
    outputs: Sequence[str],
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> None:
    separate_outputs(graph)
    rename_values(graph, graph.inputs, input_names or inputs, what="input", given=input_names is not None)
    rename_values(graph, graph.outputs, output_names or outputs, what="output", given=output_names is not None)
