"""torch.cdist: the distances of all pairs, of every norm, stacked and broadcast, of few rows and of many."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.trace import trace


class Distances(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        found = [torch.cdist(x, y, p) for p in (0.0, 1.0, 1.5, 2.0, float("inf"))]
        return [*found, torch.cdist(x[None], y.expand(2, *y.shape)), torch.cdist(x, x)]


def test_every_norm():
    drawn = np.random.default_rng(0)
    inputs = [torch.from_numpy(drawn.integers(-2, 3, shape).astype(np.float32)) for shape in ((30, 4), (27, 4))]
    graph = trace(Distances(), tuple(inputs), dynamic_shapes={"x": {0: "rows"}, "y": {}})
    session = onnxruntime.InferenceSession(ir.to_proto(graph.model).SerializeToString())
    for rows in (30, 3):
        x, y = (each.numpy() for each in (inputs[0][:rows], inputs[1]))
        found = session.run(None, {"x": x, "y": y})
        apart = np.abs(x[:, None].astype(np.float64) - y[None])
        wanted = [(apart > 0).sum(-1), apart.sum(-1), (apart**1.5).sum(-1) ** (1 / 1.5), (apart**2).sum(-1) ** 0.5]
        own = ((x[:, None].astype(np.float64) - x[None]) ** 2).sum(-1) ** 0.5
        for want, have in zip([*wanted, apart.max(-1), np.stack([wanted[3]] * 2), own], found, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def test_nearest_prototypes_behind_a_norm(tmp_path):
    """A network of prototypes: its norm folds, and the verdict is one for every input."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8))
            self.prototypes = nn.Parameter(torch.randn(5, 8))

        def forward(self, x: Tensor) -> Tensor:
            return -torch.cdist(self.embed(x), self.prototypes)

    torch.manual_seed(0)
    net = Net().eval()
    norm = net.embed[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_var is not None
    norm.running_var.uniform_(0.5, 2)
    result = nd.export(net, torch.randn(4, 6), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()
    assert [row.action for row in result.ledger] == ["folded"]
