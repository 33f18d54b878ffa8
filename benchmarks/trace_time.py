"""What a trace costs with torch's exporter as it is, and without what `exporter_shortcuts.py` leaves out.

    OMP_NUM_THREADS=1 python benchmarks/trace_time.py [--turns 15]

Processor time of a whole trace, both ways in turns in one process; the medians' ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext
from unittest import mock

import torch
from torch import nn

from normdeploy.exporting.trace import trace


class Residual(nn.Module):
    """Two LayerNorms, a linear layer and two more, with two sums."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16))
        self.second = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.first(x)
        return x + self.second(x)


def networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    images, layer = torch.randn(2, 3, 8, 8), nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    small = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Flatten()]
    return {
        "a small convolutional network": (nn.Sequential(*small, nn.Linear(128, 5)), images),
        "a residual block": (Residual(), torch.randn(2, 6, 16)),
        "six transformer layers": (nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), torch.randn(2, 7, 32)),
    }


def seconds(module: nn.Module, example: torch.Tensor, *, shortcuts: bool) -> float:
    as_it_is = mock.patch("normdeploy.exporting.torch_exporter.batched.exporter_shortcuts", nullcontext)
    with nullcontext() if shortcuts else as_it_is:
        start = time.process_time()
        trace(module, example)
        return time.process_time() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    turns = parser.parse_args().turns
    for name, (module, example) in networks().items():
        both = [[seconds(module.eval(), example, shortcuts=way) for way in (False, True)] for _ in range(turns + 1)]
        before, after = (statistics.median(times) for times in zip(*both[1:], strict=True))
        print(f"{name}: {1e3 * before:.0f} ms, {1e3 * after:.0f} ms, ratio {after / before:.2f}")
