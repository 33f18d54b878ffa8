"""Whom ``bench`` compares a file with: what one reference gives, and how it is called in the table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normdeploy.array_types import Array
from normdeploy.errors import in_one_line
from normdeploy.ort.providers import device_number
from normdeploy.ort.settings import GPU_PROVIDERS, Settings
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.contestant import CHANNELS_LAST, COMPILED, EAGER, PLAIN, FileContestant
from normdeploy.runtime.module_peers import ModuleContestant, ModuleSource, device_of, has_convolution, plain_export
from normdeploy.runtime.peers import file_peers

if TYPE_CHECKING:
    from torch import nn

Contestant = FileContestant | ModuleContestant


def labels_of(references: Sequence[Any]) -> list[str]:
    """Return a name for each reference, no two the same: a file's own, its path where two files share it."""
    short = [_label(reference) for reference in references]
    long = [
        str(reference) if isinstance(reference, (str, os.PathLike)) and short.count(name) > 1 else name
        for reference, name in zip(references, short, strict=True)
    ]
    return [f"{name} #{index + 1}" if long.count(name) > 1 else name for index, name in enumerate(long)]


def _label(reference: Any) -> str:
    if isinstance(reference, ModuleSource):
        return reference.source
    return Path(reference).name if isinstance(reference, (str, os.PathLike)) else type(reference).__name__


def contestants_of(
    reference: Any,
    stack: ExitStack,
    folder: Path,
    label: str,
    plain: str,
    wanted: Sequence[str],
    specs: Sequence[TensorSpec],
    feeds: Mapping[str, Array],
    ours: Settings,
) -> Iterator[Contestant | tuple[str, str]]:
    """Yield the contestants that one reference gives, on the device of ours, and (name, reason) for each skipped."""
    from normdeploy.parsing.sources import is_source

    beside = Settings(provider=ours.provider, options=ours.options)
    if isinstance(reference, str) and is_source(reference):
        reference, plain = ModuleSource(reference), PLAIN + label
    origin = reference if isinstance(reference, ModuleSource) else None
    if isinstance(reference, (str, os.PathLike)):
        yield from file_peers(Path(reference), folder, label, wanted, beside, plain)
        return
    from normdeploy.exporting.module.mode import evaluation_mode
    from normdeploy.nn.unregistered import move

    module: nn.Module = reference if origin is None else origin.build()
    stack.enter_context(evaluation_mode(module, fast=True))
    stack.callback(move, module, device_of(module))
    device = f"cuda:{device_number(ours)}" if ours.provider in GPU_PROVIDERS else "cpu"
    for name in (EAGER, CHANNELS_LAST, COMPILED):
        if name not in wanted:
            continue
        if name == CHANNELS_LAST and not has_convolution(module):
            yield name + label, "there is no convolution of images in it: its layout is the same"
            continue
        yield ModuleContestant(name + label, module, name == COMPILED, origin, device, name == CHANNELS_LAST)
    try:
        exported = plain_export(module, feeds, specs, folder)
    except Exception as error:  # the exporter fails in many ways; the peers that need its file are skipped by name
        reason = f"torch.onnx.export failed: {in_one_line(error)}"
        for name in wanted:
            if name not in (EAGER, CHANNELS_LAST, COMPILED):
                yield name + label, reason
        return
    yield from file_peers(exported, folder, label, wanted, beside, plain)
