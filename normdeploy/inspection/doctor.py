"""The doctor: look at an eager model or a graph, and say what is wrong or risky in its normalizations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch import nn

from normdeploy.errors import InputError, ModeError, ModelError, TraceError
from normdeploy.exporting.eager import eager_module, uncompiled
from normdeploy.exporting.module.asks_if_traced import traced_otherwise
from normdeploy.exporting.module.forward import (
    Arguments,
    flat_forward,
    flatten_arguments,
    flatten_outputs,
    split_arguments,
)
from normdeploy.exporting.module.mode import evaluation_mode
from normdeploy.graph import load_graph
from normdeploy.inspection.companions import Dependence, batched_inputs, dependence
from normdeploy.inspection.findings import Finding, Findings
from normdeploy.inspection.graph_checks import check_graph
from normdeploy.inspection.holders import check_holders, module_norms, untracked
from normdeploy.inspection.stored_statistics import check_statistics
from normdeploy.inspection.training_variance import training_conventions
from normdeploy.nn.as_numpy import to_numpy
from normdeploy.rewrite.infer import require_consistent

if TYPE_CHECKING:
    from normdeploy.exporting.trace import Traced

# eager float32 runs of one sample in two batches: beyond this it is not rounding
_MIXED_EAGER = 1e-3
# with and without gradients a model may take another path of the same function; beyond this it is another function
_OTHER_FUNCTION = 1e-3


def inspect(
    model_or_path: nn.Module | ir.Model | str | os.PathLike[str],
    args: Any = None,
    *,
    traces: Callable[[], Traced] | None = None,
) -> Findings:
    """Say what is wrong or risky in a model's normalizations, before or after export.

    Args:
        model_or_path: an eager model, in any mode (given back as it was); an ONNX file; or a graph.
        args: example arguments of an eager model, as in ``torch.onnx.export``. Without them only what the model holds
            is looked at; with them also what it computes.
        traces: called to trace the model on the arguments; by default it is traced with a dynamic batch.

    Returns:
        Findings, the worst first.

    Raises:
        InputError: the model does not run on the arguments.
        GraphError: the file is missing or no valid ONNX, or contradicts itself.
        ModelError: ``model_or_path`` is something else.
    """
    if isinstance(model_or_path, nn.Module):
        model = eager_module(model_or_path)
        found = _without_running(model)
        if args is not None:
            found = _with_arguments(model, args, traces or partial(_traced, model, args))
    elif isinstance(model_or_path, (ir.Model, str, os.PathLike)):
        graph = model_or_path if isinstance(model_or_path, ir.Model) else load_graph(model_or_path)
        require_consistent(graph)
        found = check_graph(graph)
    else:
        raise ModelError(
            f"inspect was given a {type(model_or_path).__name__}; expected a torch.nn.Module, a graph or the path of "
            "an ONNX file"
        )
    return Findings.of(found)


def _traced(model: nn.Module, args: Any) -> Traced:
    from normdeploy.exporting.trace import trace  # torch's exporter, seconds: a file needs none of it

    return trace(model, args)


def _without_running(model: nn.Module) -> Iterator[Finding]:
    yield from check_holders(model)
    yield from _traced_otherwise(model)
    yield from untracked(model)
    for site in module_norms(model):
        yield from check_statistics(site)


def _with_arguments(model: nn.Module, args: Any, traces: Callable[[], Traced]) -> Iterator[Finding]:
    try:
        traced = traces()
    except ModeError as error:
        yield from _always_training(model, args, error)
        yield from _without_running(model)
        return
    except TraceError as error:
        yield Finding(
            "error",
            "not-traceable",
            "",
            str(error),
            "correct the named module; until then nothing can be deployed",
        )
        yield from _without_running(model)
        return
    except InputError:
        held = list(_without_running(model))
        if not any(finding.kind == "running-layernorm" for finding in held):
            raise
        # statistics of one batch's shape are why it runs on no other
        yield from held
        return
    used = _names_read(traced)
    held = list(check_holders(model, used))
    told = {(finding.kind, finding.where) for finding in held}
    yield from held
    for finding in check_graph(traced.model, traced.feeds):
        if (finding.kind, finding.where) not in told:
            yield finding
            if finding.kind == "batch-statistics":
                told.add((finding.kind, finding.where))
    yield from (finding for finding in untracked(model) if (finding.kind, finding.where) not in told)
    yield from _traced_otherwise(model)
    yield from _updated(traced)
    yield from _unread(model, traced)
    yield from _gradient_selected(model, args)
    yield from training_conventions(model, args)


def _traced_otherwise(model: nn.Module) -> Iterator[Finding]:
    for asked in traced_otherwise(model):
        path, kind = asked.modules[0]
        others = f", and {len(asked.modules) - 1} other kinds of modules," if len(asked.modules) > 1 else ""
        by = f", in {asked.function}" if asked.installed else ""
        yield Finding(
            "note" if asked.installed else "warning",
            "traced-otherwise",
            path,
            f"this {kind}{others} asks {asked.question}{by}: what is exported is what it computes while traced, which "
            "may be another function than the one that was trained",
            "verify the exported file on inputs of yours (--data)"
            if asked.installed
            else "compute the same in both cases, and compare the exported file on inputs of yours",
            tuple(path for path, _ in asked.modules),
        )


def _updated(traced: Traced) -> Iterator[Finding]:
    for row in traced.updated:
        yield Finding(
            "warning",
            "updated-in-evaluation",
            f"{row.where}.{row.name}".lstrip("."),
            f"{row}: each eager call finds what the call before left, each run of the deployed file what was there at "
            "the export",
            "update it in training only (if self.training), or take it as an input and return it as an output",
        )


def _names_read(traced: Traced) -> set[str]:
    graph = traced.model.graph
    read = {str(value.name) for value in graph.initializers.values() if value.uses() or value.is_graph_output()}
    # a name that was taken has a number appended; the path it stands for is read all the same
    return read | {name.rpartition("_")[0] for name in read if name.rpartition("_")[2].isdigit()}


def _always_training(model: nn.Module, args: Any, error: ModeError) -> Iterator[Finding]:
    try:
        shown = _eager_dependence(model, args)
    except ModeError:  # flags cannot be switched: running it would show (and change) its training
        shown = None
    seen = f". {str(shown)[0].upper()}{str(shown)[1:]}" if shown is not None else ""
    for where in error.places or ("",):
        yield Finding(
            "error",
            "stuck-in-training",
            where,
            f"{error}{seen}",
            "let the named layers follow eval(): a plain `training` attribute, and training=self.training in "
            "functional forms",
            detail={} if shown is None else {"largest": shown.largest},
        )


def _arguments(model: nn.Module, args: Any) -> Arguments:
    positional, named = split_arguments(model, args, None)
    return flatten_arguments(model, positional, named)


def _eager_dependence(model: nn.Module, args: Any) -> Dependence | None:
    """Show on the eager model whether samples of a batch affect each other."""
    arguments = _arguments(model, args)
    feeds = {name: to_numpy(tensor) for name, tensor in zip(arguments.names, arguments.tensors, strict=True)}
    batched, _ = batched_inputs([(name, array.shape) for name, array in feeds.items()])
    devices = {name: tensor.device for name, tensor in zip(arguments.names, arguments.tensors, strict=True)}
    names: list[str] = []

    def run(given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)  # a dropout that stays in training draws the same mask: only companions differ
        result = model(*(torch.from_numpy(given[name]).to(devices[name]) for name in arguments.names))
        return dict(zip(names, result, strict=True))

    with torch.random.fork_rng(), uncompiled(), evaluation_mode(model):
        args_again, kwargs_again = arguments.build(arguments.tensors)
        names += flatten_outputs(model(*args_again, **kwargs_again)).names
        with flat_forward(model, arguments):
            shown: Dependence | None = dependence(run, feeds, batched, None, tolerance=_MIXED_EAGER)
    return shown


def _unread(model: nn.Module, traced: Traced) -> Iterator[Finding]:
    """Modules of which no weight is read: heads and branches for training only."""
    read = _names_read(traced)
    # tied weights are read under one of their names
    named = list(model.named_parameters(remove_duplicate=False))
    read_tensors = {id(tensor) for name, tensor in named if name in read}
    owned = {path: [id(tensor) for tensor in module.parameters()] for path, module in model.named_modules()}
    unread = {path for path, own in owned.items() if own and read_tensors.isdisjoint(own)}
    for path, own in owned.items():
        if path in unread and path and path.rpartition(".")[0] not in unread:
            yield Finding(
                "note",
                "training-only",
                path,
                f"deployed outputs do not read its {len(own)} parameters: it serves training only",
                "nothing; the export leaves it out",
            )


def _gradient_selected(model: nn.Module, args: Any) -> Iterator[Finding]:
    """Whether the model is another function when gradients are on, in evaluation mode too."""
    positional, named = split_arguments(model, args, None)
    results: list[dict[str, torch.Tensor]] = []
    for gradients in (False, True, False):
        # each run on its own: with gradients the model may update its statistics
        with torch.random.fork_rng(), uncompiled(), evaluation_mode(model), torch.set_grad_enabled(gradients):
            torch.manual_seed(0)
            results.append(_outputs_by_module(model, positional, named))
    without, with_gradients, again = results
    for path, expected in without.items():
        scale = float(expected.double().square().mean().sqrt()) or 1.0
        if _apart(expected, again.get(path)) > _OTHER_FUNCTION * scale:
            return  # it differs from run to run: told as random
        if _apart(expected, with_gradients.get(path)) > _OTHER_FUNCTION * scale:
            yield Finding(
                "warning",
                "gradient-selected-mode",
                path,
                "it computes something else when gradients are enabled, also after eval(): evaluated without "
                f"torch.no_grad() its output differs by {_apart(expected, with_gradients.get(path)) / scale:.2g} of "
                "its size. Deployed outputs are those without gradients",
                "select the mode by self.training; until then evaluate eagerly under torch.no_grad() only",
            )
            return


def _apart(left: torch.Tensor, right: torch.Tensor | None) -> float:
    if right is None or left.shape != right.shape or left.numel() == 0:
        return 0.0
    return float((left.double() - right.double()).abs().nan_to_num(0.0).max())


def _outputs_by_module(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Run the model; return each module's first float output at its first call, in order of completion."""
    outputs: dict[str, torch.Tensor] = {}
    handles = []
    for path, module in model.named_modules():

        def keep(_: nn.Module, __: Any, result: Any, path: str = path) -> None:
            if torch.compiler.is_compiling():
                return  # inside a branch of torch.cond, which may have no side effects
            if isinstance(result, torch.Tensor) and result.is_floating_point():
                outputs.setdefault(path, result.detach().clone())

        handles.append(module.register_forward_hook(keep))
    try:
        model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return outputs
