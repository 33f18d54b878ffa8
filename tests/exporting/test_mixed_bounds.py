"""``clamp`` between bounds of two kinds: exported as eager torch computes it, one operator where both are numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from onnxruntime_outputs import run_onnxruntime
from torch import Tensor, nn
from torch.export import Dim

from normdeploy.exporting.trace import trace


class Call(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("held", torch.tensor([0.1, 0.7, 1.5, -2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) * self.held.clamp(-1, 1.25)


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "a fraction and a whole number": lambda x: x.clamp(-0.25, 1),
    "a whole number and a fraction": lambda x: x.clamp(0, 0.75),
    "by name": lambda x: torch.clip(x, max=1, min=0.125),
    "in place": lambda x: (x + 1).clamp_(-1, 0.5),
    "the upper below the lower": lambda x: x.clamp(1, 0.5),
    "whole numbers clamped": lambda x: (x * 4).long().clamp(0, 1.5),
    "whole numbers clamped at a fraction below": lambda x: (x * 4).long().clamp(0.5, 2),
    "a fraction and a size": lambda x: (x * 4).clamp(0.5, x.shape[0]),
    "a size and a fraction": lambda x: (x * 4).clamp(x.shape[0] - 3, 2.5),
    "half a size": lambda x: (x * 4).clamp(1, x.shape[0] / 2),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_both_bounds_hold(between: str) -> None:
    model = Call(BETWEEN[between]).eval()
    graph = trace(model, (torch.zeros(3, 4),), dynamic_shapes={"x": {0: Dim("n")}}).model
    for rows in (3, 5):
        x = torch.linspace(-2, 2, 4 * rows).reshape(rows, 4)
        x[0, 0] = float("nan") if "whole numbers" not in between else 0
        (output,) = run_onnxruntime(graph, {"x": x.numpy()})
        np.testing.assert_array_equal(output, model(x).numpy())
    if "size" not in between:
        bounding = [node.op_type for node in graph.graph if node.op_type in ("Clip", "Max", "Min")]
        assert bounding == ["Clip", "Clip"], "one of the input's, one of the buffer's"
