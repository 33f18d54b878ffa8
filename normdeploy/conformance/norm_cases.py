"""Twelve normalizations as people write them: between two layers, in evaluation, with statistics that matter.

Tensors of plain Python classes, modes that an attribute or the gradient mode selects: what ``eval()`` does not reach is
left as training leaves it, because that is how such models are handed to an exporter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normdeploy.array_types import Array
from normdeploy.conformance import by_hand
from normdeploy.conformance.case import Case, Problem
from normdeploy.conformance.formulas import batch_norm, convolution, layer_norm

_WIDTH, _ROWS = 6, 4

Formula = Callable[[Array, Any], Array]
"""(what goes into the norm, the norm) -> what comes out, in float64."""


class Rows(nn.Module):
    """Linear, the norm (a module or not), tanh, Linear."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, _WIDTH), norm, nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the network."""
        result: Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return result


class Images(nn.Module):
    """Conv, the norm, tanh."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, _WIDTH, 3), norm

    def forward(self, x: Tensor) -> Tensor:
        """Compute the network."""
        return torch.tanh(self.norm(self.first(x)))


def _array(value: Any) -> Array:
    return np.asarray(value.detach().double().numpy() if isinstance(value, Tensor) else value)


def _fill(norm: Any, names: dict[str, str]) -> None:
    """Give a norm's tensors values as training does: scale and shift, mean and variance, in the shapes they have."""
    generator = torch.Generator().manual_seed(1)
    for role, name in names.items():
        old = getattr(norm, name)
        shape = old.shape if isinstance(old, Tensor) else (_WIDTH,)
        drawn = torch.rand(shape, generator=generator)
        value = drawn + 0.5 if role in ("scale", "variance") else 2 * drawn - 1
        if isinstance(old, (nn.Parameter, Tensor)) and name in {**dict(_own(norm))}:
            with torch.no_grad():
                getattr(norm, name).copy_(value)
        else:
            setattr(norm, name, value.requires_grad_(isinstance(old, Tensor) and old.requires_grad))


def _own(norm: Any) -> list[tuple[str, Tensor]]:
    return [*norm.named_parameters(), *norm.named_buffers()] if isinstance(norm, nn.Module) else []


def _batch(names: dict[str, str], epsilon: float) -> Formula:
    def formula(x: Array, norm: Any) -> Array:
        held = {role: _array(getattr(norm, name)).reshape(-1) for role, name in names.items()}
        return batch_norm(x, held["scale"], held["shift"], held["mean"], held["variance"], epsilon=epsilon)

    return formula


def _layer(names: dict[str, str], *, correction: int, epsilon: float, on_deviation: bool = False) -> Formula:
    def formula(x: Array, norm: Any) -> Array:
        y = layer_norm(x, correction=correction, epsilon=epsilon, on_deviation=on_deviation)
        return y * _array(getattr(norm, names["scale"])) + _array(getattr(norm, names["shift"])) if names else y

    return formula


def _over_rows(x: Array, norm: Any) -> Array:
    return np.asarray((x - x.mean(0)) / np.sqrt(x.var(0) + norm.eps))


def _mistaken() -> by_hand.L2:
    norm = by_hand.L2(_WIDTH)
    norm(torch.randn(_ROWS, _WIDTH))
    return norm


def _case(
    name: str,
    about: str,
    make: Callable[[], Any],
    names: dict[str, str],
    formula: Formula | None,
    *,
    images: bool = False,
    gone: frozenset[str],
) -> Case:
    def build() -> Problem:
        torch.manual_seed(0)
        norm = make()
        _fill(norm, names)
        model = (Images(norm) if images else Rows(norm)).eval()
        x = torch.randn(2, 2, 5, 5) if images else torch.randn(_ROWS, 5) * torch.tensor([[1.0], [1e-2], [1e-3], [3.0]])
        if not images:
            nn.init.zeros_(model.get_parameter("first.bias"))  # rows of small spread stay so: where an epsilon shows
        if formula is None:
            return Problem({"x": x.numpy()}, (), module=model, args=(x,), refusal=True)
        first = {key: _array(value) for key, value in model.first.named_parameters()}
        if images:
            expected = np.tanh(formula(convolution(_array(x), first["weight"], first["bias"]), norm))
        else:
            last = {key: _array(value) for key, value in model.get_submodule("last").named_parameters()}
            inner = np.tanh(formula(_array(x) @ first["weight"].T + first["bias"], norm))
            expected = inner @ last["weight"].T + last["bias"]
        return Problem({"x": x.numpy()}, (expected,), module=model, args=(x,), gone=gone)

    return Case(f"conventions/{name}", about, build)


_ARITHMETIC = frozenset({"BatchNormalization", "ReduceMean", "ReduceSum", "Sub", "Div", "Sqrt", "Reciprocal", "Pow"})
_STOCK = {"scale": "weight", "shift": "bias", "mean": "running_mean", "variance": "running_var"}
_B1 = {"scale": "gain", "shift": "shift", "mean": "seen_mean", "variance": "seen_var"}
_B2 = {"scale": "scale", "shift": "offset", "mean": "mean_so_far", "variance": "var_so_far"}
_B4 = {"scale": "gamma", "shift": "beta", "mean": "moving_mean", "variance": "moving_var"}
_L1, _L4 = {"scale": "gain", "shift": "shift"}, {"scale": "a", "shift": "b"}
_L5 = {"scale": "weight", "shift": "bias"}

CONVENTIONS = [
    _case("B1", "batch norm of a plain class: its mode is an attribute that eval() does not reach",
          lambda: by_hand.B1(_WIDTH), _B1, _batch(_B1, 1e-5), gone=_ARITHMETIC),
    _case("B2", "batch norm whose statistics are parameters, its mode a constructor argument",
          lambda: by_hand.B2(_WIDTH), _B2, _batch(_B2, 1e-6), gone=_ARITHMETIC),
    _case("B3", "batch norm as arithmetic on the batch at hand: nothing to fold, nothing to change",
          lambda: by_hand.B3(1e-5), {}, _over_rows, gone=frozenset()),
    _case("B4 rows", "batch norm whose mode is whether gradients are on, its statistics plain tensors",
          lambda: by_hand.B4(_WIDTH, 2), _B4, _batch(_B4, 1e-5), gone=_ARITHMETIC),
    _case("B4 images", "the same on images",
          lambda: by_hand.B4(_WIDTH, 4), _B4, _batch(_B4, 1e-5), images=True, gone=_ARITHMETIC),
    _case("B5", "batch norm through a view to (N, C, -1) and back",
          lambda: by_hand.B5(_WIDTH), _STOCK, _batch(_STOCK, 1e-5), images=True, gone=_ARITHMETIC),
    _case("B6", "torch's own batch norm",
          lambda: nn.BatchNorm2d(_WIDTH), _STOCK, _batch(_STOCK, 1e-5), images=True, gone=_ARITHMETIC),
    _case("L1", "layer norm of a plain class: unbiased variance",
          lambda: by_hand.L1(_WIDTH), _L1, _layer(_L1, correction=1, epsilon=1e-5), gone=_ARITHMETIC),
    _case("L2", "the mistaken layer norm: statistics of the last training batch's rows; no file is right",
          _mistaken, {}, None, gone=frozenset()),
    _case("L3", "layer norm as arithmetic, no scale, no shift",
          lambda: by_hand.L3(1e-5), {}, _layer({}, correction=0, epsilon=1e-5), gone=_ARITHMETIC),
    _case("L4", "layer norm with epsilon beside the unbiased deviation: no LayerNormalization",
          lambda: by_hand.L4(_WIDTH), _L4, _layer(_L4, correction=1, epsilon=1e-6, on_deviation=True),
          gone=frozenset()),
    _case("L5", "torch's own layer norm",
          lambda: nn.LayerNorm(_WIDTH), _L5, _layer(_L5, correction=0, epsilon=1e-5), gone=_ARITHMETIC),
]  # fmt: skip
