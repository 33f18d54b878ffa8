"""Is a normalization of normdeploy.nn as fast to train with as torch's own?

Times forward and backward of ours in several conventions against torch's stock module on the same input, interleaved,
one thread, and prints the ratio of the medians within rounds with its 95 % interval. Where the convention is torch's,
or differs by a change of units, ours calls the same kernel.

    python benchmarks/norm_training.py [--rounds 100]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from normdeploy.nn import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from normdeploy.runtime.latency import measure_latency

CASES: list[tuple[tuple[int, ...], nn.Module, dict[str, nn.Module]]] = [
    (
        (64, 256),
        nn.BatchNorm1d(256),
        {
            "BatchNorm": BatchNorm(256),
            "BatchNorm, correction 1": BatchNorm(256, correction=1),
            "BatchNorm, keeps the biased variance": BatchNorm(256, running_correction=0),
            "BatchNorm, epsilon on the deviation": BatchNorm(256, eps_on="deviation"),
        },
    ),
    (
        (16, 64, 28, 28),
        nn.BatchNorm2d(64),
        {
            "BatchNorm": BatchNorm(64),
            "BatchNorm, correction 1": BatchNorm(64, correction=1),
            "BatchNorm, keeps the biased variance": BatchNorm(64, running_correction=0),
            "BatchNorm, epsilon on the deviation": BatchNorm(64, eps_on="deviation"),
        },
    ),
    (
        (16, 64, 256),
        nn.LayerNorm(256),
        {
            "LayerNorm": LayerNorm(256),
            "LayerNorm, correction 1": LayerNorm(256, correction=1),
            "LayerNorm, epsilon on the deviation": LayerNorm(256, correction=1, eps_on="deviation"),
        },
    ),
    ((16, 64, 256), nn.RMSNorm(256, 1e-6), {"RMSNorm": RMSNorm(256), "RMSNorm, 1 + g": RMSNorm(256, unit_offset=True)}),
    (
        (16, 64, 28, 28),
        nn.GroupNorm(8, 64),
        {"GroupNorm": GroupNorm(8, 64), "GroupNorm, correction 1": GroupNorm(8, 64, correction=1)},
    ),
]


def step(module: nn.Module, x: torch.Tensor, weight: torch.Tensor) -> Callable[[], None]:
    """Return one forward and backward of ``module``."""

    def call() -> None:
        x.grad = None
        module.zero_grad()
        (module(x) * weight).sum().backward()

    return call


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    table = Table("input", "module", "forward + backward", "ours / torch's")
    for shape, stock, ours in CASES:
        torch.manual_seed(0)
        x, weight = torch.randn(shape, requires_grad=True), torch.randn(shape)
        calls = {name: step(module, x, weight) for name, module in {"torch": stock, **ours}.items()}
        measured = measure_latency(calls, rounds=rounds, warmup=5)
        for name, latency in measured.items():
            ratio = latency.ratio(measured["torch"])
            compared = "" if name == "torch" else f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            kind = type(stock).__name__ if name == "torch" else name
            table.add_row("x".join(map(str, shape)), kind, f"{latency.median * 1e6:.0f} µs", compared)
        table.add_section()
    Console().print(table)


if __name__ == "__main__":
    main()
