"""Modules on which exporters and torch's own fusions have been seen to go wrong without a word."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from normdeploy.array_types import Array
from normdeploy.conformance.case import Case, Problem
from normdeploy.conformance.formulas import batch_norm, convolution, layer_norm, padded, transposed_convolution, windows

_BN = frozenset({"BatchNormalization"})


class OverTokens(nn.Module):
    """Linear on (N, L, C), BatchNorm over L, both of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the network."""
        y: Tensor = self.norm(self.linear(x))
        return y


class Shared(nn.Module):
    """One convolution at two places, a BatchNorm of its own behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.second = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the network."""
        y: Tensor = self.first(self.conv(x)) + torch.relu(self.second(self.conv(x + 1)))
        return y


class ReadTwice(nn.Module):
    """A convolution that a BatchNorm reads, and a Relu."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the network."""
        y = self.conv(x)
        found: Tensor = self.norm(y) + torch.relu(y)
        return found


class Transposed(nn.Module):
    """ConvTranspose2d of as many channels in as out, then BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.ConvTranspose2d(4, 4, 3, groups=2, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the network."""
        y: Tensor = self.norm(self.conv(x))
        return y


class Divided(nn.Module):
    """An average with a divisor of its author's own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 4, 1), nn.AvgPool2d(2, divisor_override=3)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the network."""
        y: Tensor = self.pool(self.conv(x))
        return y


class Running(nn.Module):
    """An InstanceNorm with running statistics: in evaluation a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the network."""
        y: Tensor = self.norm(self.conv(x))
        return y


class LastAxis(nn.Module):
    """A LayerNorm over the channels of (N, C, H, W) by way of two permutations."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6, eps=2.0**-10)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the network."""
        y: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return y


class Masked(nn.Module):
    """Attention whose mask hides all keys of a row: torch's answer is zeros."""

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        """Compute the network."""
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=keep)


def _arrays(model: nn.Module) -> dict[str, Array]:
    return {name: value.double().numpy() for name, value in model.state_dict().items()}


def _normed(x: Array, w: dict[str, Array], name: str) -> Array:
    keys = ("weight", "bias", "running_mean", "running_var")
    return batch_norm(x, *(w[f"{name}.{key}"] for key in keys))


def _attended(x: Array, keep: Array) -> Array:
    scores = x @ x.swapaxes(-1, -2) / np.sqrt(x.shape[-1])
    weights = np.where(keep, np.exp(scores), 0)
    total = weights.sum(-1, keepdims=True)
    return np.asarray(np.divide(weights, total, out=np.zeros_like(weights), where=total > 0) @ x)


def _case(
    name: str,
    about: str,
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    formula: Callable[[Array, dict[str, Array]], Array],
    *,
    gone: frozenset[str] = frozenset(),
    training: bool = False,
) -> Case:
    def build() -> Problem:
        torch.manual_seed(0)
        model = make()
        with torch.no_grad():
            for key, value in model.state_dict().items():
                if key.endswith("running_mean"):
                    value.normal_()
                elif key.endswith("running_var") or "norm.weight" in key:
                    value.uniform_(0.5, 2)
        x = torch.randn(shape)
        expected = formula(x.double().numpy(), _arrays(model))
        model.train(training)
        return Problem({"x": x.numpy()}, (expected,), module=model, args=(x,), gone=gone)

    return Case(f"traps/{name}", about, build)


def _masked() -> Problem:
    torch.manual_seed(0)
    x, keep = torch.randn(2, 2, 4, 8), torch.ones(2, 1, 4, 4, dtype=torch.bool)
    keep[0, 0, 1], keep[1, 0, :, :2] = False, False
    expected = _attended(x.double().numpy(), keep.numpy())
    return Problem({"x": x.numpy(), "keep": keep.numpy()}, (expected,), module=Masked().eval(), args=(x, keep))


MODULE_TRAPS = [
    _case("norm over tokens", "Linear on (N, L, C), BatchNorm over L, L = C", OverTokens, (2, 6, 6),
          lambda x, w: _normed(x @ w["linear.weight"].T + w["linear.bias"], w, "norm")),
    _case("one module, two norms", "a convolution used at two places, two BatchNorms", Shared, (2, 3, 6, 6),
          lambda x, w: _normed(convolution(x, w["conv.weight"], w["conv.bias"]), w, "first")
          + np.maximum(_normed(convolution(x + 1, w["conv.weight"], w["conv.bias"]), w, "second"), 0), gone=_BN),
    _case("module read twice", "a convolution read by its BatchNorm and by a Relu", ReadTwice, (2, 3, 6, 6),
          lambda x, w: _normed(convolution(x, w["conv.weight"], w["conv.bias"]), w, "norm")
          + np.maximum(convolution(x, w["conv.weight"], w["conv.bias"]), 0)),
    _case("grouped transposed module", "ConvTranspose2d in groups, then BatchNorm", Transposed, (2, 4, 5, 5),
          lambda x, w: _normed(transposed_convolution(x, w["conv.weight"], groups=2), w, "norm"), gone=_BN),
    _case("left in training mode", "a model that its author forgot to switch to evaluation",
          lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (2, 3, 6, 6),
          lambda x, w: _normed(convolution(x, w["0.weight"], w["0.bias"]), w, "1"), training=True, gone=_BN),
    _case("divisor of one's own", "AvgPool2d(divisor_override=3) of four elements", Divided, (2, 3, 6, 6),
          lambda x, w: windows(convolution(x, w["conv.weight"], w["conv.bias"]), (2, 2), 2).sum((-1, -2)) / 3),
    _case("instance norm with running statistics", "in evaluation it is an affine map", Running, (2, 3, 6, 6),
          lambda x, w: _normed(convolution(x, w["conv.weight"], w["conv.bias"]), w, "norm"), gone=_BN),
    _case("layer norm between permutations", "over the channels of (N, C, H, W), H = W = C", LastAxis, (2, 6, 6, 6),
          lambda x, w: np.moveaxis(layer_norm(np.moveaxis(x, 1, -1), epsilon=2.0**-10) * w["norm.weight"]
                                   + w["norm.bias"], -1, 1)),
    _case("border of zeros behind a norm", "BatchNorm, then a convolution that pads with zeros",
          lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=1)), (2, 3, 6, 6),
          lambda x, w: convolution(padded(_normed(x, w, "0"), 1), w["1.weight"], w["1.bias"])),
    Case("traps/rows without keys", "attention whose mask hides every key of a row gives zeros there", _masked),
]  # fmt: skip
