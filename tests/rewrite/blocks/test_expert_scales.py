"""Linear layers of experts: what scales each of a stack of products is in their weights."""

from __future__ import annotations

import torch
from torch import nn


class Experts(nn.Module):
    """Two layers of three experts, with a scale for each channel of each in front, between and behind."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(3, 5, 8)), nn.Parameter(torch.randn(3, 8, 4))
        self.before, self.between, self.behind = (nn.Parameter(torch.randn(3, 1, n)) for n in (5, 8, 4))
        self.bias = nn.Parameter(torch.randn(3, 1, 8))

    def forward(self, x):
        hidden = torch.relu((x * self.before) @ self.first * self.between + self.bias)
        return hidden @ self.second / self.behind


def test_scales_of_experts_are_in_their_weights(fold):
    folded = fold(Experts(), torch.randn(2, 3, 6, 5))
    assert dict(folded.operators) == {"MatMul": 2, "Add": 1, "Relu": 1}
    assert not folded.ledger.kept


class Weighed(nn.Module):
    """One layer of experts whose every row is scaled, too: no weight is as large."""

    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(3, 5, 8)), nn.Parameter(torch.randn(3, 6, 8))

    def forward(self, x):
        return torch.tanh(x @ self.weight * self.scale)


def test_a_scale_for_each_row_stays_and_is_said(fold):
    folded = fold(Weighed(), torch.randn(2, 3, 6, 5), kept={"node_mul"})
    assert dict(folded.operators) == {"MatMul": 1, "Mul": 1, "Tanh": 1}
    (kept,) = folded.ledger.kept
    assert "its scale cannot leave" in kept.reason
