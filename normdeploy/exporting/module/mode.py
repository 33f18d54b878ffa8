"""Evaluation mode, made certain and given back.

``model.eval()`` reaches registered modules only. Hand-written normalizations also keep their mode in a ``training``
attribute of a plain object, under another name (``is_training``, ``mode = "train"``, see :mod:`.mode_flags`), in
modules kept in plain lists, or read it from ``torch.is_grad_enabled()``. All of these are switched here; what cannot be
switched is an error that names it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from normdeploy.errors import ModeError
from normdeploy.exporting.eager import require_numbers
from normdeploy.exporting.module.mode_flags import is_flag, training_flags
from normdeploy.nn.contents import Contents, state_of
from normdeploy.nn.inference_tensors import leave_inference
from normdeploy.nn.object_walk import Reached, Snapshot, is_foreign, walk

# frozen parameters up to here are taken for statistics; larger ones are frozen weights, which nothing updates
_STATISTICS_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class Switched:
    """One object that was in training mode and was switched.

    Args:
        where: its path from the model; "" is the model itself.
        how: what was switched, in words.
    """

    where: str
    how: str


@dataclass
class ModeReport:
    """What ``evaluation_mode`` found and did.

    Args:
        was_training: whether the model itself was in training mode.
        switched: every object that was in training mode.
        gradients: whether gradients were enabled when the model was handed over.
        fast_paths: whether torch's fast paths of attention were allowed then.
        reached: what is reached from the model in evaluation mode; nothing once that is left.
    """

    was_training: bool
    gradients: bool
    fast_paths: bool = True
    switched: list[Switched] = field(default_factory=list)
    reached: Sequence[Reached] = ()

    @property
    def notes(self) -> list[str]:
        """Sentences for the user; empty when the model already was in evaluation mode."""
        modules = [row for row in self.switched if row.how == "nn.Module"]
        observers = [row for row in self.switched if row.how == _OBSERVES]
        plain = [row for row in self.switched if row.how not in ("nn.Module", _OBSERVES)]
        notes: list[str] = []
        if self.was_training:
            notes.append(
                "the model was handed over in training mode: evaluation mode is used, and training mode is given back"
            )
        elif modules:
            names = ", ".join(repr(row.where) for row in modules[:4]) + (", ..." if len(modules) > 4 else "")
            notes.append(f"in training mode inside a model in evaluation mode, switched: {names}")
        if observers:
            first = f"{observers[0].where!r}" + (f" and {len(observers) - 1} more" if len(observers) > 1 else "")
            notes.append(
                f"{_OBSERVES}, and would at every call: {first}; the file has the steps that were found so far"
            )
        notes += [f"{row.where!r} ({row.how}) does not follow model.eval(): switched by its attribute" for row in plain]
        return notes


_OBSERVES = "quantizers still observe their inputs in evaluation mode"


def _overrides_mode(module: nn.Module) -> bool:
    return type(module).train is not nn.Module.train or type(module).eval is not nn.Module.eval


def _switch_module(found: Reached) -> None:
    """Call ``eval()`` of one module that is the root of its registered tree; set flags one by one where that fails."""
    module: nn.Module = found.value
    try:
        module.eval()
    except (AttributeError, TypeError, NotImplementedError):
        # `training` is a read-only property, eval() wants arguments, or (graphs of torch.export) refuses
        _set_flags(module)


def _set_flags(module: nn.Module) -> None:
    for part in module.modules():
        if part.training:
            with suppress(AttributeError, TypeError):  # a read-only property: _still_training reports it, with its path
                part.training = False


def _switch_plain(found: Reached) -> str | None:
    """Switch one plain object; return how, or None where there was nothing to switch."""
    value = found.value
    flag = getattr(value, "training", None)
    if not is_flag(flag):
        if flag is None and callable(getattr(value, "eval", None)) and callable(getattr(value, "train", None)):
            # the nn.Module protocol without nn.Module: whatever it keeps its mode in, it says how to switch it
            try:
                value.eval()
            except TypeError:
                return None  # `eval` means something else here: it wants arguments
            return f"plain {type(value).__name__} with an eval() of its own"
        return None
    if not flag:
        return None
    try:
        value.training = False
    except AttributeError:
        try:
            object.__setattr__(value, "training", False)  # a frozen dataclass
        except AttributeError:
            return None  # _still_training reports it
    return f"plain {type(value).__name__} with a `training` attribute"


def _switch_observer(module: nn.Module) -> bool:
    """Switch off what a fake quantizer of torch.ao observes, in training and evaluation alike; tell if it was on."""
    switch = module._buffers.get("observer_enabled")
    if switch is None or not bool(switch.any()):
        return False
    switch.zero_()
    return True


def _switch(model: nn.Module, report: ModeReport, everything: list[Reached]) -> list[Reached]:
    """Switch all there is of what is reached from a model; return what is reached from it then."""
    training = [found for found in everything if isinstance(found.value, nn.Module) and found.value.training]
    report.switched += [Switched(found.path, "nn.Module") for found in training]
    if any(found.registered for found in training):
        _switch_module(everything[0])
    for found in training:
        if found.value.training:  # not under the root: kept in a plain container, or a frozen flag
            _switch_module(found)
    for found in everything:
        if isinstance(found.value, nn.Module) and _switch_observer(found.value):
            report.switched.append(Switched(found.path, _OBSERVES))
        how = _switch_plain(found) if _plain(found) else None
        if how is not None:
            report.switched.append(Switched(found.path, how))
        if isinstance(found.value, nn.Module) or _plain(found):
            report.switched += [Switched(found.path, how) for how in _switch_flags(found.value)]
    return list(walk(model)) if report.switched else everything


def _switch_flags(value: Any) -> Iterator[str]:
    """Switch the flags and words of other names than ``training``; yield how each was."""
    for flag in list(training_flags(value)):
        with suppress(AttributeError, TypeError):  # a read-only property: _still_training reports it
            setattr(value, flag.name, flag.evaluation)
            yield f"{type(value).__name__} with {flag.name} = {flag.value!r}, now {flag.evaluation!r}"


def _plain(found: Reached) -> bool:
    return not isinstance(found.value, (nn.Module, torch.Tensor, functools.partial)) and not is_foreign(found.value)


def _still_training(everything: Sequence[Reached]) -> dict[str, str]:
    """Return path -> class of what is in training mode, of all that is reached."""
    left: dict[str, str] = {}
    for found in everything:
        value: Any = found.value
        if isinstance(value, nn.Module) or _plain(found):
            flag = getattr(value, "training", None)
            if is_flag(flag) and bool(flag):
                left[found.path] = type(value).__name__
            for other in training_flags(value):
                left[found.path] = f"{type(value).__name__}, {other.name} = {other.value!r}"
    return left


def _may_change(model: nn.Module, reached: Sequence[Reached]) -> Iterator[torch.Tensor]:
    """Yield the tensors that running or switching a model may change in place.

    Statistics (buffers, parameters without gradient, tensors of plain objects), which a layer that stays in training
    updates, and all weights of modules whose own ``train``/``eval`` fuse or merge something.
    """
    yield from state_of(model, reached)
    for parameter in model.parameters():
        if not parameter.requires_grad and parameter.numel() <= _STATISTICS_ELEMENTS:
            yield parameter
    for module in model.modules():
        if _overrides_mode(module) and module.training:
            yield from module.parameters()


@contextmanager
def _contents_kept(model: nn.Module, reached: Sequence[Reached]) -> Iterator[None]:
    """Undo in-place changes of the tensors that running or switching may change."""
    contents = Contents(_may_change(model, reached))
    try:
        yield
    finally:
        contents.restore()


@contextmanager
def fast_paths(allowed: bool) -> Iterator[None]:
    """Allow or forbid, for the block, torch's inference kernels for nn.MultiheadAttention and nn.TransformerEncoder.

    They are another function than the layers: NaN where a boolean mask leaves no key (the layers give 0), 0 behind the
    end of padded sequences (the layers give numbers). Training never takes them, and no trace does.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(allowed)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def evaluation_mode(model: nn.Module, *, fast: bool = False) -> Iterator[ModeReport]:
    """Hold a model in evaluation mode, without gradients, and give it back as it was.

    Switched: the ``training`` flag of every module (through ``eval()``, so that overridden ``train``/``eval`` methods
    have their say), of modules kept in plain containers, and of plain Python objects reachable from the model through
    attributes, slots, lists, dicts and closures; gradients are off, so that layers which read
    ``torch.is_grad_enabled()`` follow. On leaving, every reachable object holds again what it held before: flags per
    module, attributes that ``forward`` assigned, statistics that a layer stuck in training updated, modules that
    ``eval()`` exchanged, weights that it merged.

    Args:
        model: the model, on any device, in any mode.
        fast: leave torch's fast paths of attention on, as a user who measures its speed has them; see
            :func:`fast_paths`.

    Returns:
        A context manager that yields a ``ModeReport``.

    Raises:
        ModeError: something stays in training mode (a property without setter, a flag that resets itself).
        ModelError: a parameter or buffer holds no numbers, or a part of them.
    """
    report = ModeReport(
        was_training=bool(model.training),
        gradients=torch.is_grad_enabled(),
        fast_paths=torch.backends.mha.get_fastpath_enabled(),
    )
    require_numbers(model)
    reached = list(walk(model))  # once: walking a model takes longer than what is done with it
    snapshot = Snapshot(model, reached=reached)
    try:
        with torch.inference_mode(False):
            if leave_inference(model, reached):  # of what is exchanged, the snapshot gives the model's own back
                reached = list(walk(model))
            with _contents_kept(model, reached), torch.no_grad(), fast_paths(fast and report.fast_paths):
                everything = _switch(model, report, reached)
                for found in everything:
                    if isinstance(found.value, nn.Module) and found.value.training:  # put there by eval() itself
                        _set_flags(found.value)
                left = _still_training(everything)
                if left:
                    named = ", ".join(f"{path or 'the model'} ({kind})" for path, kind in left.items())
                    raise ModeError(
                        f"still in training mode after switching: {named}; expected every normalization to "
                        "follow eval(): make `training` a plain attribute (or give the property a setter), or build "
                        "the model in evaluation mode before exporting it",
                        tuple(left),
                    )
                report.reached = everything
                yield report
    finally:
        report.reached = ()
        snapshot.restore()
