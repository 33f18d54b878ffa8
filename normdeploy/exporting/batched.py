"""``torch.onnx.export`` as it is called here, with as much of the batch dynamic as the model allows."""

from __future__ import annotations

import inspect
import re
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from normdeploy.errors import TraceError
from normdeploy.exporting.known_messages import known_messages_silenced
from normdeploy.exporting.shapes import Spec, batch_shapes, widened
from normdeploy.exporting.trace_errors import essential_line, explain, module_in_traceback, root_cause
from normdeploy.exporting.translations import translations


def export_program(model: nn.Module, tensors: list[torch.Tensor], specs: list[Spec], opset: int | None) -> Any:
    """Call torch's exporter, without its optimizer and with our translations, on flat tensors of these dimensions."""
    with known_messages_silenced():
        return torch.onnx.export(
            _by_its_forward(model),
            tuple(tensors),
            dynamo=True,
            optimize=False,
            verbose=False,
            dynamic_shapes=tuple(specs) if any(specs) else None,
            opset_version=opset,
            custom_translation_table=translations(opset),
        )


def _by_its_forward(model: nn.Module) -> nn.Module:
    """Return a module that is run by its forward: of an fx.GraphModule torch.export runs the graph instead."""
    if not isinstance(model, torch.fx.GraphModule):
        return model
    shell = nn.Module()
    for name in ("_parameters", "_buffers", "_modules"):  # the very registries: the trace exchanges what they hold
        vars(shell)[name] = vars(model)[name]
    shell.training = model.training
    shell.forward = model.forward
    return shell


def export_batched(model: nn.Module, tensors: list[torch.Tensor], opset: int | None, notes: list[str]) -> Any:
    """Export with a dynamic batch; where the model fixes it, with as much of it dynamic as it allows.

    Args:
        model: the model, its forward taking flat tensors.
        tensors: the example arguments as given.
        opset: ONNX operator set.
        notes: appended to where the batch, or part of it, is static.
    """
    specs = batch_shapes(tensors)
    example = widened(tensors, specs)
    reason = _runs(model, example)
    if reason is None:
        try:
            return export_program(model, example, specs, opset)
        except Exception as error:
            reason = error
    first = root_cause(reason)
    named = set(re.findall(r"inputs\['(\w+)'\]\.shape\[0\]", str(first)))
    names = list(inspect.signature(model.forward).parameters)
    partial: list[Spec] = [None if name in named else spec for name, spec in zip(names, specs, strict=True)]
    mixed = [wide if spec else given for wide, given, spec in zip(example, tensors, partial, strict=True)]
    program = None
    if named and any(partial):
        with suppress(Exception):  # it may fail for more than these dimensions: then every one is fixed below
            program = export_program(model, mixed, partial, opset)
    if program is None:
        partial = [None] * len(specs)
        try:
            program = export_program(model, tensors, partial, opset)
        except Exception as error:
            # not the batch's fault: tell what stops the trace with fixed shapes too
            raise TraceError(explain(model, error)) from error
    fixed = [name for name, before, after in zip(names, specs, partial, strict=True) if before and not after]
    notes.append(
        f"the batch dimension of {', '.join(map(repr, fixed))} is fixed at the example's size, because "
        f"{module_in_traceback(model, reason)} fixes it ({type(first).__name__}: {essential_line(first)}): "
        "take it from x.shape there, or pass dynamic_shapes"
    )
    return program


def _runs(model: nn.Module, tensors: list[torch.Tensor]) -> Exception | None:
    """Return what the model raises on tensors that it was not given, or None."""
    try:
        model(*tensors)
    except Exception as error:  # whatever it is, it means the same: this model wants the batch it was given
        return error
    return None
