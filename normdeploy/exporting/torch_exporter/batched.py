"""``torch.onnx.export`` as it is called here, with as much of the batch dynamic as the model allows."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from normdeploy.errors import TraceError
from normdeploy.exporting.eager import uncompiled
from normdeploy.exporting.torch_exporter.dynamic_shapes import Spec, batch_shapes, widened
from normdeploy.exporting.torch_exporter.exporter_shortcuts import exporter_shortcuts
from normdeploy.exporting.torch_exporter.known_messages import known_messages_silenced
from normdeploy.exporting.torch_exporter.mixed_bounds import bounds_of_one_kind
from normdeploy.exporting.torch_exporter.naming import give_names_once
from normdeploy.exporting.torch_exporter.raising_modules import raising_modules_left
from normdeploy.exporting.torch_exporter.recurrent_shapes import recurrent_layers_by_their_shapes
from normdeploy.exporting.torch_exporter.second_trace import second_trace_where_needed
from normdeploy.exporting.torch_exporter.signature_tables import signature_tables_kept
from normdeploy.exporting.torch_exporter.sizes_held import (
    OneRowError,
    SizeHeldError,
    require_free_sizes,
    sizes_left_out,
)
from normdeploy.exporting.torch_exporter.trace_errors import cause_of, explain, fixed_by
from normdeploy.exporting.torch_exporter.ways_of_tracing import traced_by_running
from normdeploy.exporting.torch_exporter.whole_sizes import Place, is_among, numbers_made_of_sizes, sizes_kept
from normdeploy.exporting.translations.complex_translations import COMPLEX, complex_numbers_translated
from normdeploy.exporting.translations.translation_table import translations
from normdeploy.graph import Evaluator
from normdeploy.graph.garbage import rarely_collected
from normdeploy.nn.as_numpy import to_numpy

_ROUGHLY = 1e-2  # of float32 or less against float64; what is exact is the verdict's to say
_FIXED_TOGETHER = 2  # inputs that are tried as fixed at once: each set of them is a run of the model


def export_program(model: nn.Module, tensors: list[torch.Tensor], specs: list[Spec], opset: int | None) -> Any:
    """Call torch's exporter, without its optimizer and with our translations, on flat tensors of these dimensions.

    Where a dynamic dimension does not stay one, and the model made a number of a size by ``int``, ``float`` or
    ``len``, it is traced once more with that size kept.

    Raises:
        Exception: whatever stops the first trace, a `SizeHeldError` if it is that.
    """

    places, first = list[Place](), None
    while True:
        with sizes_kept(places), numbers_made_of_sizes() as found:
            try:
                program = _called(model, tensors, specs, opset)
                if any(specs):
                    require_free_sizes(program.exported_program)
                return program
            except Exception as error:  # whatever it is: the caller asks for its cause
                first = first or error
        fresh = [place for place in found if not is_among(place, places)]
        if not fresh:
            raise first
        places += fresh


def _called(model: nn.Module, tensors: list[torch.Tensor], specs: list[Spec], opset: int | None) -> Any:
    with (
        rarely_collected(),
        known_messages_silenced(),
        signature_tables_kept(),
        second_trace_where_needed(),
        bounds_of_one_kind(),
        exporter_shortcuts(),
        complex_numbers_translated(),
        recurrent_layers_by_their_shapes(),
        raising_modules_left(),
        traced_by_running(),
    ):
        program = torch.onnx.export(
            _by_its_forward(model),
            tuple(tensors),
            dynamo=True,
            optimize=False,
            verbose=False,
            dynamic_shapes=tuple(specs) if any(specs) else None,
            opset_version=opset,
            custom_translation_table={**COMPLEX, **translations(opset)},
        )
        assert program is not None  # it is where nothing is written to a file
        give_names_once(program.model)
        return program


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
    found = _exported(model, example, specs, opset)
    given = isinstance(found, Exception) and not isinstance(found, OneRowError)
    if given and cause_of(found) is None:  # what it keeps for one size (a grid) is that size's
        another = _exported(model, _with_rows(example, specs, _rows(example, specs) + 1), specs, opset)
        found = found if isinstance(another, Exception) else another
    if not isinstance(found, Exception):
        return found
    reason = found
    program, partial = None, specs
    for candidate in _partly_fixed(model, tensors, specs) if cause_of(reason) is None else ():
        mixed = [wide if spec else given for wide, given, spec in zip(example, tensors, candidate, strict=True)]
        with suppress(Exception):  # it may fail for more than these dimensions: then every one is fixed below
            program, partial = export_program(model, mixed, candidate, opset), candidate
            break
        if not traces_fixed(model, tensors):  # no choice of dimensions helps
            break
    if program is None:
        partial = [None] * len(specs)
        try:
            unmarked = [tensor.detach() for tensor in tensors]  # the failed trace left its wishes on the tensors
            program = export_program(model, unmarked, partial, opset)
        except Exception as error:
            # not the batch's fault: tell what stops the trace with fixed shapes too
            raise TraceError(explain(model, error, tensors, None)) from error
    names = list(inspect.signature(model.forward).parameters)
    fixed = [name for name, before, after in zip(names, specs, partial, strict=True) if before and not after]
    notes.append(
        f"the batch dimension of {', '.join(map(repr, fixed))} is fixed at the example's size, because "
        f"{fixed_by(model, reason)}"
    )
    return program


def _exported(model: nn.Module, tensors: list[torch.Tensor], specs: list[Spec], opset: int | None) -> Any:
    """Return what is exported, or the exception that stops the model or its trace."""
    whole = _outputs(model, tensors)
    if isinstance(whole, Exception):
        return whole
    try:
        program = export_program(model, tensors, specs, opset)
    except Exception as error:  # whatever it is: the caller asks for its cause
        return error
    for size in sizes_left_out(program.exported_program):
        resized = _with_rows(tensors, specs, size)
        eager = _outputs(model, resized)
        if not isinstance(eager, Exception) and not _computes(program.model, resized, eager):
            return SizeHeldError(f"forward computes something else for a size of {size} than for the example's")
    row = _with_rows(tensors, specs, 1)
    eager = _outputs(model, row)
    told = isinstance(eager, Exception) or _begins_with(whole, eager) or _computes(program.model, row, eager)
    return program if told else OneRowError("forward computes something else for a size of 1, as squeeze() does")


def _begins_with(whole: Sequence[torch.Tensor], row: Sequence[torch.Tensor]) -> bool:
    """Whether what the model makes of one row is what it made of that row among others, roughly."""
    return len(whole) == len(row) and all(
        x.shape[1:] == y.shape[1:]
        and x.ndim == y.ndim > 0
        and torch.allclose(x[:1], y, _ROUGHLY, _ROUGHLY, equal_nan=True)
        for x, y in zip(whole, row, strict=True)
    )


def _computes(graph: ir.Model, tensors: list[torch.Tensor], eager: Sequence[torch.Tensor]) -> bool:
    """Whether a graph computes what the model did, roughly: another way of forward need not be another function."""
    feeds = {str(value.name): to_numpy(x) for value, x in zip(graph.graph.inputs, tensors, strict=True)}
    try:
        found = Evaluator(graph).run(feeds).values()
    except Exception:  # whatever it is: the graph is of other sizes
        return False
    pairs = zip(found, (x.detach().cpu().double() for x in eager), strict=True)
    return all(
        x.shape == y.shape and torch.allclose(x.double(), y, _ROUGHLY, _ROUGHLY, equal_nan=True) for x, y in pairs
    )


def _with_rows(tensors: list[torch.Tensor], specs: list[Spec], count: int) -> list[torch.Tensor]:
    """Return the tensors, those that have a dynamic batch with so many rows: the given ones in turn."""
    return [
        x[torch.arange(count, device=x.device) % len(x)] if spec else x for x, spec in zip(tensors, specs, strict=True)
    ]


def _rows(tensors: list[torch.Tensor], specs: list[Spec]) -> int:
    return next((len(x) for x, spec in zip(tensors, specs, strict=True) if spec), 0)  # all have as many


def _partly_fixed(model: nn.Module, tensors: list[torch.Tensor], specs: list[Spec]) -> Iterator[list[Spec]]:
    """Yield the specs with which the model may be traced, some inputs fixed and the others not, the fewest fixed first.

    The model itself is asked: it runs with these inputs as given while all the others are twice as long.
    """
    batched = [at for at, spec in enumerate(specs) if spec]
    for count in range(1, min(len(batched), _FIXED_TOGETHER + 1)):
        for fixed in combinations(batched, count):
            free = set(batched) - set(fixed)
            if _runs(model, [torch.cat([x, x]) if at in free else x for at, x in enumerate(tensors)]) is None:
                yield [spec if at in free else None for at, spec in enumerate(specs)]


def _runs(model: nn.Module, tensors: list[torch.Tensor]) -> Exception | None:
    """Return what the model raises on tensors that it was not given, or None."""
    outputs = _outputs(model, tensors)
    return outputs if isinstance(outputs, Exception) else None


def _outputs(model: nn.Module, tensors: list[torch.Tensor]) -> Any:
    """Return what the model returns, or the exception that it raises."""
    try:
        with uncompiled():
            return model(*tensors)
    except Exception as error:  # whatever it is, it means the same: this model wants the batch it was given
        return error


def traces_fixed(model: nn.Module, tensors: list[torch.Tensor]) -> bool:
    """Whether the model can be traced when every dimension is fixed."""
    unmarked = tuple(tensor.detach() for tensor in tensors)  # the failed trace left its wishes on the tensors
    with known_messages_silenced():
        try:
            torch.export.export(_by_its_forward(model), unmarked, strict=False)
        except Exception:  # whatever stops it stops it with fixed shapes as well
            return False
    return True
