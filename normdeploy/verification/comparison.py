"""What is compared: the reference as a side that has a float64 truth, and the inputs that both sides take."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from torch import nn

from normdeploy.array_types import Arrays
from normdeploy.errors import NormdeployError, TraceError, UsageError
from normdeploy.exporting.eager import eager_module
from normdeploy.exporting.module.asks_if_traced import traced_otherwise
from normdeploy.exporting.module.forward import flatten_arguments
from normdeploy.onnxfile.model import Copied, ModelFile, read_model
from normdeploy.rewrite import RewriteResult, rewrite
from normdeploy.rewrite.integer import sums_integers
from normdeploy.verification.samples.example import example_from_file
from normdeploy.verification.sides.asked_numbers import with_numbers
from normdeploy.verification.sides.exact_agreement import shortened
from normdeploy.verification.sides.flat_values import Signature, as_array, to_torch
from normdeploy.verification.sides.graph_reference import GraphReference
from normdeploy.verification.sides.overridable import take_as_constants, unlike
from normdeploy.verification.sides.subject import Subject
from normdeploy.verification.sides.two_sides import EagerReference, Reference

if TYPE_CHECKING:
    from normdeploy.exporting.trace import Traced


class Incomparable(Exception):
    """The two take other inputs, so that nothing can be fed to both, or not all that is asked for."""


@dataclass
class Comparison:
    """The reference of a comparison.

    Args:
        reference: it. example: the inputs that it was given with. notes: what could not be set up.
    """

    reference: Reference
    example: Arrays
    notes: list[str] = field(default_factory=list)


def copied_file(path: str | os.PathLike[str], folder: Path) -> tuple[Copied, ModelFile | None]:
    """Copy a file and the data beside it, so that what is judged is what is digested; return what was read besides.

    Nothing where the copy has to be read again: places of data are those of the file that was copied.
    """
    folder.mkdir()
    read = read_model(path, named=True)
    copied = read.copy_to(folder)
    return copied, None if read.data else read


def compared_file(
    reference: str | os.PathLike[str] | ir.Model, args: Any, subject: Subject, workspace: Path, *, copied: bool
) -> Comparison:
    """Set up an ONNX file or graph as the reference.

    Args:
        args: a mapping from input name to array; random inputs otherwise.
        subject: the file under verification. workspace: a folder for a copy. copied: the file needs none.

    Raises:
        Incomparable: the two take other inputs.
    """
    source = reference
    if isinstance(reference, ir.Model) and any(value.is_initializer() for value in reference.graph.inputs):
        source = reference.clone()  # the caller's own keeps them among its inputs
    if not copied and not isinstance(reference, ir.Model):
        source = copied_file(reference, workspace / "reference")[0].path
    graph = GraphReference(source, workspace, called=None if isinstance(reference, ir.Model) else reference)
    wanted, have = graph.input_names, list(subject.input_names)
    if sorted(wanted) != sorted(have):
        raise Incomparable(
            f"the file takes {', '.join(have)}; expected {', '.join(wanted)} as in the reference, since files get "
            "their inputs by name: rename the inputs of one of them"
        )
    assert graph.graph is not None
    notes = _constants_alike(graph.graph, subject.model)
    if isinstance(args, Mapping):
        return Comparison(graph, {k: as_array(v, f"args for {k!r}") for k, v in args.items()}, notes)
    return Comparison(graph, example_from_file(graph.graph), notes)


def _constants_alike(source: ir.Model | None, file: ir.Model) -> list[str]:
    """Take initializers that a caller may override as constants, in place, where both sides do not offer the same.

    Returns:
        what is not compared then, in words.
    """
    graphs = [model.graph for model in (source, file) if model is not None]
    names = unlike(graphs[0], graphs[-1]) if source is not None else []
    for graph in graphs if names else ():
        take_as_constants(graph, names)
    words = shortened([repr(name) for name in names])
    return [f"what a caller may give for {words}: initializers that both files do not offer alike"] if names else []


def compared_module(
    module: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    subject: Subject,
    dynamic_shapes: Any,
    traced: Traced | None,
) -> Comparison:
    """Set up a module as the reference, with its trace where it can be traced.

    Args:
        args, kwargs: its example arguments; random inputs of the file where there are none. subject: the file.
        dynamic_shapes: as given at export; those that the file declares otherwise. traced: the trace, if there is one.

    Raises:
        UsageError: the trace has other inputs than the file.
        InputError: the arguments do not fit the file.
        ModelError: it is no eager module.
        Incomparable: the file fixes a size that is to be dynamic.
    """
    module = eager_module(module)
    if args is None:
        args, kwargs = ((), kwargs) if kwargs else _arguments_of_the_file(module, subject)
    args, kwargs = with_numbers(module, args, kwargs, subject.input_names)
    signature = Signature(module, args, kwargs, _names_for(module, args, kwargs, subject))
    notes: list[str] = []
    if traced is None:
        try:
            traced = _trace_like(module, args, kwargs, signature, dynamic_shapes, subject)
        except TraceError as error:
            notes.append(f"the reference cannot be traced ({error}): no noise model and no mutants")
    if traced is not None and traced.input_names != signature.names:
        raise UsageError(f"the trace has inputs {traced.input_names}; expected {signature.names}, those of the file")
    fixed = None if traced is None or dynamic_shapes is None else _first_fixed(traced.model, subject.model)
    if fixed is not None:
        raise Incomparable(fixed)
    notes += [
        f"inputs unlike the samples, where {asked}: the trace is what it computes then"
        for asked in traced_otherwise(module)
    ]
    notes += _constants_alike(None if traced is None else traced.model, subject.model)
    reference = EagerReference(module, signature, None if traced is None else traced.model)
    return Comparison(reference, signature.feeds, notes)


def _arguments_of_the_file(module: nn.Module, subject: Subject) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Draw arguments from a file's inputs: by name where forward has all these names, in their order otherwise."""
    drawn = {name: to_torch(array) for name, array in example_from_file(subject.model).items()}
    parameters = inspect.signature(module.forward).parameters.values()
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return ((), drawn) if drawn.keys() <= named else (tuple(drawn.values()), {})


def _trace_like(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, signature: Signature, shapes: Any, subject: Subject
) -> Traced:
    """Trace the reference with the dynamic dimensions that the file declares, unless others are given."""
    from normdeploy.exporting.trace import trace  # torch's exporter, seconds: two files need none of it

    known: dict[str, Any] = {"kwargs": kwargs, "input_names": signature.names}
    inferred = None if shapes is not None else signature.dynamic_shapes(_dynamic_axes(subject.model))
    if inferred is None:
        return trace(model, args, **known, dynamic_shapes=shapes)
    try:
        return trace(model, args, **known, dynamic_shapes=inferred)
    except TraceError:  # the file may be more dynamic than the module can be traced
        return trace(model, args, **known)


def _dynamic_axes(model: ir.Model) -> dict[str, dict[int, str]]:
    """Return the named dynamic axes of each input."""
    return {
        str(v.name): {i: str(d.value) for i, d in enumerate(v.shape or ()) if not isinstance(d, int) and d.value}
        for v in model.graph.inputs
    }


def _first_fixed(traced: ir.Model, file: ir.Model) -> str | None:
    """Say which size a file fixes that its reference was traced with as dynamic; None where there is none."""
    declared = {str(value.name): value.shape or () for value in file.graph.inputs}
    for value in traced.graph.inputs:
        sizes = zip(value.shape or (), declared.get(str(value.name), ()), strict=False)
        for axis, (own, its) in enumerate(sizes):
            if isinstance(its, int) and not isinstance(own, int):
                return (
                    f"the file takes input {value.name!r} with size {its} along axis {axis} alone; expected any size "
                    "there, as dynamic_shapes says: leave that dimension open where the file is written"
                )
    return None


def _names_for(model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, subject: Subject) -> list[str]:
    """Return the file's input names in the order of the arguments: by name where they agree, by position otherwise."""
    positional = args if isinstance(args, tuple) else (args,)
    own = flatten_arguments(model, positional, dict(kwargs or {})).names
    names = list(subject.input_names)
    return own if sorted(own) == sorted(names) else names


def rewritten_anew(
    reference: Reference, subject: Subject, *, approximate: bool, notes: list[str]
) -> RewriteResult | None:
    """Rewrite the reference's graph as the file was, so that its numbers can be held against it.

    Args:
        approximate: with approximate rewrites. notes: gets the reason where it cannot be rewritten.
    """
    if reference.graph is None:
        return None
    opset = subject.model.opset_imports.get("")  # what the file was limited to, if it was
    try:
        integer = sums_integers(subject.model)
        return rewrite(reference.graph, approximate=approximate, highest_opset=opset, integer=integer)
    except NormdeployError as error:
        notes.append(f"weights recomputed from the reference: its graph cannot be rewritten here ({error})")
        return None
