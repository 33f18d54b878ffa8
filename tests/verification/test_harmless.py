"""What a surviving mutant's proof of harmlessness rests on."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify


class Masked(nn.Module):
    """Attention whose mask may leave a sample without any key: its rows are NaN in torch and in onnxruntime."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)  # as initialized: a scale of ones and a shift of zeros change nothing
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = (x @ x.transpose(1, 2)).masked_fill(mask.unsqueeze(1), float("-inf"))
        y: Tensor = self.head(self.norm(x + torch.softmax(scores, -1) @ x))
        return y


def test_rows_that_are_nan_on_both_sides_do_not_hide_that_a_mutant_is_the_same_function(tmp_path: Path):
    torch.manual_seed(0)
    model = Masked().eval()
    args = (torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool))
    traced = trace(model, args)
    rewritten = rewrite(traced.model)
    path = tmp_path / "net.onnx"
    save_graph(rewritten.model.clone(), path)
    verdict = verify(model, path, args=args, traced=traced, rewritten=rewritten)
    assert [s.where for s in verdict.sites] == ["norm"], verdict.summary()
    (site,) = verdict.sites
    same = {m.name for m in site.mutants if "same function" in m.note}
    assert {"scale dropped", "shift dropped"} <= same
    assert verdict.status == "pass", verdict.summary()
