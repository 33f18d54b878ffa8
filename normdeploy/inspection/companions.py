"""Does one sample's output depend on its companions in the batch? A demonstration with numbers.

The same sample is evaluated beside two different sets of companions. A function that maps samples one by one gives it
the same output twice; batch statistics do not. Where a graph is at hand the first value that differs names the place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Arrays
from normdeploy.graph import Evaluator

Run = Callable[[Arrays], Mapping[str, torch.Tensor]]

# a sample and two companions: the smallest batch whose variance is no function of one difference
_BATCH = 3
_SHOWN = 3


@dataclass(frozen=True)
class Dependence:
    """One sample's output beside two sets of companions.

    Args:
        output: name of the output that differs most.
        first: its first differing values beside the first companions.
        second: the same values beside the second.
        largest: largest difference over the output's size (RMS).
        where: the place where the difference arises; "" where no graph was at hand.
        node: that node; None likewise.
    """

    output: str
    first: list[float]
    second: list[float]
    largest: float
    where: str = ""
    node: ir.Node | None = None

    def __str__(self) -> str:
        left, right = (", ".join(f"{value:.4g}" for value in values) for values in (self.first, self.second))
        return (
            f"the same sample gives {self.output} = [{left}] beside some companions and [{right}] beside others "
            f"(largest difference {self.largest:.2g} of the output's size)"
        )


def batched_inputs(inputs: Sequence[tuple[str, Sequence[Any]]]) -> tuple[list[str], int | None]:
    """Return which inputs carry the batch on axis 0, and its size if it is static.

    Args:
        inputs: (name, dims) of each graph input, dims being ints or symbolic names.
    """
    first = next((dims[0] for _, dims in inputs if dims), None)
    names = [name for name, dims in inputs if dims and dims[0] == first]
    return names, first if isinstance(first, int) else None


def companions(feeds: Arrays, batched: Sequence[str], size: int, seed: int) -> Arrays:
    """Return feeds whose sample 0 is that of ``feeds`` and whose other samples are drawn anew.

    Args:
        feeds: at least one sample per batched input.
        batched: inputs that carry the batch on axis 0.
        size: samples wanted.
        seed: of the draws. Floats are drawn around the given values' mean with their spread (times 1 to 3), integers
            between their extremes, so that ids stay in their vocabulary.
    """
    rng = np.random.default_rng(seed)
    result = dict(feeds)
    for name in batched:
        given = feeds[name]
        others = np.zeros((size - 1, *given.shape[1:]), dtype=given.dtype)
        if not given.size:
            pass  # nothing to be alike
        elif given.dtype.kind in "iu":
            others[...] = rng.integers(int(given.min()), int(given.max()) + 1, others.shape)
        elif given.dtype.kind == "b":
            others[...] = given[:1]
        else:
            values = given.astype(np.float64)
            spread = (values.std() or 1.0) * rng.uniform(1.0, 3.0)
            others[...] = (values.mean() + spread * rng.standard_normal(others.shape)).astype(given.dtype)
        result[name] = np.concatenate([given[:1], others])
    return result


def dependence(
    run: Run, feeds: Arrays, batched: Sequence[str], static: int | None, *, tolerance: float
) -> Dependence | None:
    """Return the dependence of sample 0 on its companions; None if there is none, or no batch to show it in.

    Args:
        run: the function: feeds to outputs by name.
        feeds: example inputs.
        batched: inputs that carry the batch on axis 0.
        static: the batch's size if it is fixed.
        tolerance: differences up to this part of the output's RMS are rounding.
    """
    size = static or _BATCH
    if size < 2 or not batched:
        return None
    first, second = (dict(run(companions(feeds, batched, size, seed))) for seed in (1, 2))
    worst: Dependence | None = None
    for name, left in first.items():
        if left.ndim == 0 or left.shape[0] != size or not left.is_floating_point():
            continue
        a, b = left[0].double().reshape(-1), second[name][0].double().reshape(-1)
        rms = float(torch.sqrt(torch.mean(a**2 + b**2) / 2)) or 1.0
        apart = torch.abs(a - b)
        apart[torch.isnan(a) != torch.isnan(b)] = float("inf")
        largest = float(torch.nan_to_num(apart, nan=0.0, posinf=float("inf")).max()) / rms if apart.numel() else 0.0
        if largest > tolerance and (worst is None or largest > worst.largest):
            shown = torch.topk(torch.nan_to_num(apart), min(_SHOWN, apart.numel())).indices.sort().values
            worst = Dependence(name, a[shown].tolist(), b[shown].tolist(), largest)
    return worst


def arises_at(model: ir.Model, feeds: Arrays, batched: Sequence[str], static: int | None) -> ir.Node | None:
    """Return the first node that takes sample 0 together with its companions; None if none is found.

    Args:
        model: the graph.
        feeds: example inputs.
        batched: inputs that carry the batch on axis 0.
        static: the batch's size if it is fixed.
    """
    size = static or _BATCH
    evaluator = Evaluator(model)
    symbol = None if static else next(v.shape[0] for v in evaluator.graph.inputs if v.name in batched and v.shape)
    nodes = [node for node in evaluator.graph if node.op_type != "Constant"]
    names = [str(value.name) for node in nodes for value in node.outputs if value.name]
    first, second = (evaluator.run(companions(feeds, batched, size, seed), fetch=names) for seed in (1, 2))
    for node in nodes:
        for value in node.outputs:
            if not value.name or not first[value.name].is_floating_point():
                continue
            a, b = (_of_sample(results[value.name], value, size, symbol) for results in (first, second))
            if a is None or b is None or a.shape != b.shape:
                continue
            scale = float(torch.sqrt(torch.mean(a**2))) or 1.0
            if float(torch.abs(a - b).max() if a.numel() else 0.0) > 1e-9 * scale:
                return node
    return None


def _of_sample(result: torch.Tensor, value: ir.Value, size: int, symbol: Any) -> torch.Tensor | None:
    """Return sample 0's part of a value: its slice where the batch is an axis, all of it where it has none."""
    if value.shape is None:  # nothing is declared: the leading axis is the batch if it is as long
        return result[0] if result.ndim and result.shape[0] == size else result
    dims = list(value.shape)
    if symbol is not None:
        axes = [axis for axis, dim in enumerate(dims) if dim == symbol]
        mixed = [dim for dim in dims if not isinstance(dim, int) and dim != symbol]
        if mixed and not axes:  # the batch is merged with something: its samples are consecutive, or cannot be told
            if result.ndim and result.shape[0] % size == 0 and not isinstance(dims[0], int):
                return result[: result.shape[0] // size]
            return None
    else:
        axes = [axis for axis, length in enumerate(result.shape) if length == size][:1]
    return result.select(axes[0], 0) if axes else result
