"""Windows and ranges that forward makes of numbers are those of eager torch, in float64 rounded once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from onnxruntime_outputs import run_onnxruntime
from torch import Tensor, nn

from normdeploy.exporting.trace import trace

Made = Callable[[torch.dtype | None], Tensor]

MADE: dict[str, tuple[Made, torch.dtype | None]] = {
    "hamming": (lambda t: torch.hamming_window(7, dtype=t), None),
    "symmetric hamming": (lambda t: torch.hamming_window(7, periodic=False, dtype=t), None),
    "another hamming": (lambda t: torch.hamming_window(7, True, 0.6, 0.4, dtype=t), None),
    "a double hamming": (lambda t: torch.hamming_window(7, dtype=t), torch.float64),
    "a narrow hamming": (lambda t: torch.hamming_window(7, dtype=t), torch.float16),
    "hann": (lambda t: torch.hann_window(7, dtype=t), None),
    "symmetric hann": (lambda t: torch.hann_window(7, False, dtype=t), None),
    "blackman": (lambda t: torch.blackman_window(7, dtype=t), None),
    "symmetric blackman": (lambda t: torch.blackman_window(7, False, dtype=t), None),
    "bartlett": (lambda t: torch.bartlett_window(7, dtype=t), None),
    "symmetric bartlett": (lambda t: torch.bartlett_window(7, False, dtype=t), None),
    "kaiser": (lambda t: torch.kaiser_window(7, dtype=t), None),
    "another kaiser": (lambda t: torch.kaiser_window(7, False, 4.5, dtype=t), None),
    "a range of 6, which is 7 in float32": (lambda t: torch.arange(0, 1.2, 0.2, dtype=t), None),
    "a range downwards": (lambda t: torch.arange(1, 0, -0.17, dtype=t), None),
    "a range to a fraction": (lambda t: torch.arange(5.5, dtype=t), None),
    "a range from a fraction": (lambda t: torch.arange(0.5, 6, dtype=t), None),
    "a double range": (lambda t: torch.arange(0, 1, 0.1, dtype=t), torch.float64),
    "whole numbers from a fraction": (lambda t: torch.arange(0.5, 4, 1.5, dtype=t), torch.int64),
    "whole numbers": (lambda t: torch.arange(6, -3, -2, dtype=t), None),
}


class Holds(nn.Module):
    """All of them: an export takes longer than what is looked at."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [x.sum().to(made(dtype).dtype) * 0 + made(dtype) for made, dtype in MADE.values()]


def test_what_is_made_of_numbers() -> None:
    graph = trace(Holds(), (torch.zeros(2),), dynamic_shapes={"x": {}}).model
    found = run_onnxruntime(graph, {"x": np.zeros(2, np.float32)})
    for (name, (made, dtype)), have in zip(MADE.items(), found, strict=True):
        eager = made(dtype)
        want = made(torch.float64).to(eager.dtype) if eager.is_floating_point() else eager
        assert have.dtype == want.numpy().dtype, name
        np.testing.assert_array_equal(have, want.numpy(), err_msg=name)
