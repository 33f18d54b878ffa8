"""Calls of the module where a time in front of a sine makes its values others than the trace's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.record.answers import Killer, Status

WIDTH = 16


class Timed(nn.Module):
    """A norm behind sines of a large time, whose epsilon moves no output beyond rounding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, eps=1e-6)
        self.inside, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        half = WIDTH // 2
        speeds = torch.exp(torch.arange(half, dtype=torch.float32, device=time.device) * (-9.21034037 / (half - 1)))
        angles = time.to(x.dtype)[:, None] * 10_000 * speeds.to(x.dtype)
        x = self.first(x + torch.cat([angles.sin(), angles.cos()], 1)[:, None])
        return self.last(functional.silu(self.inside(self.norm(x))))


@pytest.mark.parametrize("time", [torch.tensor([61.3]), torch.tensor([613])], ids=["float", "integer"])
def test_norms_behind_a_large_time_are_held_against_calls_at_a_time_of_0(tmp_path: Path, time: Tensor) -> None:
    net, x = Timed().eval(), torch.randn(1, 5, WIDTH, generator=torch.Generator().manual_seed(1))
    traced = trace(net, (x, time))
    rewritten = rewrite(traced.model)
    save_graph(rewritten.model.clone(), tmp_path / "net.onnx")
    verdict = verify(net, tmp_path / "net.onnx", args=(x, time), traced=traced, rewritten=rewritten)
    assert verdict.status is Status.PASS, verdict.reasons
    found = [m for site in verdict.sites for m in site.mutants if m.name.startswith("epsilon")]
    assert {(m.killed, m.by, m.family) for m in found} == {(True, Killer.MODULE, "the example with 'time' at 0")}
    assert [m.name for m in found] == ["epsilon x10", "epsilon /10", "epsilon 0"]
