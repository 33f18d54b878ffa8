"""Scores that an input of floats removes: rows of minus infinity, of which attention makes nothing."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify


class Attention(nn.Module):
    """Attention with scores to be added, given as an input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.heads = nn.RMSNorm(8), nn.Linear(8, 24)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = self.heads(self.norm(x)).chunk(3, -1)
        return x + F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], attn_mask=bias)[:, 0]


@pytest.mark.parametrize("level", ["quick", "default"])
def test_a_file_without_the_guard_of_rows_masked_whole_is_no_pass(level: str, tmp_path: Path) -> None:
    net = Attention().eval()
    args = (torch.randn(2, 5, 8), torch.randn(2, 1, 5, 5))
    traced = trace(net, args)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), tmp_path / "net.onnx")
    known = {"args": args, "traced": traced, "rewritten": rewritten}
    verdict = verify(net, path, level=level, **known)
    assert verdict.status == "pass", verdict.summary()
    assert "'bias' of minus infinity, in rows and alone" in verdict.environment["families"]
    proto = onnx.load(path)
    guard = next(node for node in proto.graph.node if node.op_type == "Where")
    for node in proto.graph.node:
        node.input[:] = [guard.input[2] if read == guard.output[0] else read for read in node.input]
    proto.graph.node.remove(guard)
    onnx.save(proto, path)
    assert verify(net, path, level="quick", **known).status == "fail"
