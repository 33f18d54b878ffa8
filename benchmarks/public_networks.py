"""The networks that the verifier is measured on: the reference models, transformers' and timm's, all by name.

``digits_cnn`` is a recipe in export/; ``zoo:BERT`` one of the tests' published architectures (extra ``zoo``),
configured small; ``timm:resnet18`` any of timm's at its own input size; ``listed:AlbertModel`` a line of zoo_timm.txt
or zoo_transformers.txt. All but the first have random weights; BatchNorms have the statistics of random data, as
training leaves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from of_tests import ZOO, load_timm, shake
from torch import nn
from zoo_lines import Line, read_list
from zoo_run import LISTS

from normdeploy.building.recipe_model import load_trained, recipe_example
from normdeploy.parsing.recipe import load_recipe

ROOT = Path(__file__).parents[1]
BATCHES, BATCH = 2, 8


@dataclass
class Plain:
    """Example arguments without names."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    input_names: None = None
    dynamic_shapes: None = None


def reference_names() -> list[str]:
    """Return the names of the reference models."""
    return [path.stem for path in sorted((ROOT / "export").glob("*.toml"))]


def zoo_names() -> list[str]:
    """Return the names of transformers' architectures."""
    return [f"zoo:{name}" for name in ZOO]


def network(name: str) -> tuple[nn.Module, Any]:
    """Return a network in evaluation mode and its example."""
    library, _, own = name.rpartition(":")
    if library == "zoo":
        make, inputs = ZOO[own]
        torch.manual_seed(0)
        return settled(shake(make()), _batches(inputs)), Plain((), inputs)
    if library == "timm":
        torch.manual_seed(0)
        model = load_timm().create_model(own, pretrained=False)
        example = torch.randn(1, *model.default_cfg["input_size"])
        return settled(awake(model), _batches({"x": example})), Plain((example,))
    if library == "listed":
        line = next(line for path in LISTS for line in read_list(path) if line.name == own)
        model, example = made(line)
        return model, Plain(example.args, dict(example.kwargs))
    recipe = load_recipe(ROOT / "export" / f"{own}.toml")
    trained = load_trained(recipe)
    return trained, recipe_example(recipe, trained)


def networks(names: Iterable[str]) -> Iterator[tuple[str, nn.Module, Any]]:
    """Yield (name, model, example)."""
    for name in names:
        yield name.rpartition(":")[2], *network(name)


def made(line: Line) -> tuple[nn.Module, Any]:
    """Return a network of a list with drawn scales and settled statistics, and its example."""
    model = awake(line.model())
    drawn = (line.example(model, seed=1 + number, rows=BATCH) for number in range(BATCHES))
    settled(model, (Plain(batch.args, batch.kwargs) for batch in drawn))
    return model, line.example(model)


def awake(model: nn.Module) -> nn.Module:
    """Draw what starts as zeros or ones at random, as training does: else whole branches are multiplied by zero."""
    frozen = [norm for norm in _norms(model) if not isinstance(norm, nn.modules.batchnorm._BatchNorm)]
    constants = [buffer for norm in frozen for name, buffer in norm.named_buffers() if name in ("weight", "bias")]
    with torch.no_grad():
        for tensor in [*model.parameters(), *constants]:
            if not tensor.numel() or not tensor.is_floating_point() or bool((tensor != tensor.flatten()[0]).any()):
                continue
            start = float(tensor.flatten()[0])
            if start == 1.0:
                tensor.uniform_(0.5, 1.5)
            else:  # a shift, or a residual branch's last scale
                tensor.normal_(0.0, 0.2)
    return model


def settled(model: nn.Module, batches: Iterable[Plain]) -> nn.Module:
    """Give BatchNorms the statistics of random data, as training does: else signals die, and nothing is exercised.

    Args:
        model: its BatchNorms run in training mode, frozen ones (transformers', torchvision's) are told what they see.
        batches: what it is run on; nothing is run where it has no BatchNorm.
    """
    norms = _norms(model)
    hooks = []
    for norm in norms:
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            norm.momentum = None
            norm.reset_running_stats()
            norm.train()
        else:
            hooks.append(norm.register_forward_pre_hook(_told))
    with torch.no_grad():
        for batch in batches if norms else ():
            model(*batch.args, **batch.kwargs)
    for hook in hooks:
        hook.remove()
    return model.eval()


def _norms(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(getattr(m, "running_var", None), torch.Tensor)]


def _told(norm: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
    channels = arguments[0].transpose(0, 1).flatten(1)
    norm.running_mean.copy_(channels.mean(1))
    norm.running_var.copy_(channels.var(1))


def _batches(inputs: dict[str, torch.Tensor]) -> Iterator[Plain]:
    known = {k: v for k, v in inputs.items() if v.is_floating_point()}
    for _ in range(2):
        yield Plain((), {k: torch.randn(8, *v.shape[1:]) for k, v in known.items()})
