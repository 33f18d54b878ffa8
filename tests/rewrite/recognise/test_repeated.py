"""A norm of normalized values: one normalization with an epsilon of both, two rows of the ledger."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

from normdeploy.conformance import by_hand
from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import RewriteResult, rewrite


class ChannelsLast(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ByHand(nn.Module):
    """No affine of its own; epsilon inside the root."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 0.01)


class TwoRoots(nn.Module):
    """One norm that takes a root twice: sqrt(std^2 + e)."""

    def forward(self, x: Tensor) -> Tensor:
        std = x.std(-1, keepdim=True, correction=0)
        return (x - x.mean(-1, keepdim=True)) / torch.sqrt(std * std + 0.01)


def rewritten(model: nn.Module, x: Tensor) -> tuple[RewriteResult, ir.Model]:
    program = trace(model.eval(), (x,))
    before = program.model.clone()
    return rewrite(program.model), before


def rows(result: RewriteResult) -> Counter[tuple[str, str]]:
    return Counter((row.kind, row.action) for row in result.ledger)


@pytest.mark.parametrize("norm", [lambda: by_hand.L4(8), ByHand], ids=["outside", "inside"])
def test_two_norms_in_a_row_are_one_operator_and_two_rows(norm):
    result, before = rewritten(nn.Sequential(norm(), norm()), torch.randn(3, 5, 8))
    kinds = Counter(node.op_type for node in result.model.graph)
    assert kinds["LayerNormalization"] == 1
    assert not {"ReduceMean", "Sqrt", "Pow"} & set(kinds)
    assert rows(result) == {("LayerNormalization", "fused"): 1, ("LayerNormalization", "merged"): 1}
    x = torch.randn(4, 5, 8, dtype=torch.float64) * torch.logspace(-6, 3, 20, dtype=torch.float64).reshape(4, 5, 1)
    (expected,), (got,) = (Evaluator(model).run({"input": x}).values() for model in (before, result.model))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)


def test_a_norm_behind_one_that_was_replaced_already_is_found_on_its_own():
    """Behind a convolution the first norm is replaced alone; the largest region of the second reaches over both."""
    model = nn.Sequential(
        nn.ConvTranspose2d(6, 4, 2, stride=2), ChannelsLast(by_hand.L4(4)), ChannelsLast(by_hand.L4(4)), nn.ReLU()
    )
    result, _ = rewritten(model, torch.randn(2, 6, 5, 5))
    assert {row.action for row in result.ledger} <= {"fused", "merged"}
    assert sum(rows(result).values()) == 2
    assert not {"ReduceMean", "Sqrt", "Pow"} & {node.op_type for node in result.model.graph}


def test_a_norm_that_takes_two_roots_has_one_row():
    result, _ = rewritten(TwoRoots(), torch.randn(3, 5, 8))
    assert rows(result) == {("LayerNormalization", "fused"): 1}
