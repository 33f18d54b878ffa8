"""Recurrent networks: their operators hold functions that are accurate only absolutely."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify


class Recurrent(nn.Module):
    """A normalized sequence through two recurrent layers; offsets of 1e3 saturate their gates."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        nn.init.normal_(self.norm.running_mean)
        self.net = kind(6, 12, batch_first=True, num_layers=2)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.net(self.norm(x.transpose(1, 2)).transpose(1, 2))
        out: Tensor = self.head(y[:, -1])
        return out


class Stateful(nn.Module):
    """A recurrent layer whose state is an input: an offset of 1e3 reaches the cell, where it multiplies gates."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.net, self.head = nn.LayerNorm(8), nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.net(self.norm(x), (h, c))
        return self.head(y), h, c


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_state_as_input_is_no_failure(seed: int, tmp_path: Path):
    torch.manual_seed(seed)
    args = torch.randn(2, 5, 8), torch.randn(1, 2, 16), torch.randn(1, 2, 16)
    rows = {"x": {0: "rows"}, "h": {1: "rows"}, "c": {1: "rows"}}
    result = nd.export(Stateful().eval(), args, tmp_path / "net.onnx", dynamic_shapes=rows)
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()


@pytest.mark.parametrize(
    ("size", "opset", "dynamo", "directions", "seed"),
    [(size, opset, dynamo, 1, seed) for size, opset, dynamo in ((0.3, 11, False), (1.0, 13, False), (1.0, 18, True))
     for seed in range(3)] + [(1.0, 18, False, 2, 2)],
)  # fmt: skip
def test_a_gate_of_no_correct_digit_multiplies_a_state_as_input(
    size: float, opset: int, dynamo: bool, directions: int, seed: int, tmp_path: Path
):
    """A reset gate of 1e-20 is one of -2e-7 in the runtime, which a state of 100 shows, at this step and the next."""
    torch.manual_seed(seed)
    model = nn.GRU(8, 16, batch_first=True, bidirectional=directions > 1).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=size)
    args = torch.randn(3, 5, 8), torch.randn(directions, 3, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of the older exporter
        torch.onnx.export(model, args, tmp_path / "net.onnx", opset_version=opset, dynamo=dynamo, verbose=False)
    verdict = verify(model, tmp_path / "net.onnx", args=args)
    assert verdict.status == "pass", verdict.summary()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU], ids=lambda kind: kind.__name__)
def test_saturated_gates_are_no_failure(kind: type[nn.RNNBase], tmp_path: Path):
    torch.manual_seed(0)
    model, args = Recurrent(kind).eval(), (torch.randn(2, 5, 6),)
    traced = trace(model, args)
    rewritten = rewrite(traced.model)
    path = tmp_path / "net.onnx"
    save_graph(rewritten.model.clone(), path)
    assert [row.action for row in rewritten.ledger] == ["folded"]
    verdict = verify(model, path, args=args, traced=traced, rewritten=rewritten)
    assert verdict.status == "pass", verdict.summary()


RECURRENT = """<ir_version: 10, opset_import: ["": 21]> g (float[5, n, 3] x) => (float[5, 1, n, 4] y) {{
    y = {} (x, w, r, b) }}"""


@pytest.mark.parametrize(("kind", "gates", "apart"), [("LSTM", 4, 0), ("GRU", 3, 0), ("GRU", 3, 4), ("RNN", 1, 0)])
def test_the_sum_of_two_biases_is_what_counts(kind: str, gates: int, apart: int, tmp_path: Path):
    """But for the gate of a GRU that multiplies one of them: there they are told apart."""
    rng = np.random.default_rng(0)
    w, r = (rng.normal(size=(1, 4 * gates, k)).astype(np.float32) for k in (3, 4))
    first, second = rng.normal(size=(2, 1, 4 * gates)).astype(np.float32)
    operator = f"{kind}<hidden_size = 4{', linear_before_reset = 1' if apart else ''}>"

    def written(name: str, *biases: np.ndarray) -> Path:
        model = onnx.parser.parse_model(RECURRENT.format(operator))
        constants = {"w": w, "r": r, "b": np.concatenate(biases, axis=1)}
        model.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in constants.items())
        onnx.save(model, tmp_path / f"{name}.onnx")
        return tmp_path / f"{name}.onnx"

    reference = written("reference", first, second)
    exchanged = verify(reference, written("exchanged", second, first), level="quick")
    assert exchanged.status == ("fail" if apart else "pass"), exchanged.summary()
    shared = np.arange(4 * gates) < 4 * gates - apart
    summed = written("summed", np.where(shared, first + second, first), np.where(shared, 0 * second, second))
    verdict = verify(reference, summed, level="quick")
    assert verdict.status == "pass", verdict.summary()
    assert any(check.name == "derivation" and check.status == "pass" for check in verdict.checks)
    moved = second.copy()
    moved[0, 0] += np.float32(1e-5)
    wrong = verify(reference, written("wrong", first, moved), level="quick")
    assert wrong.status == "fail", wrong.summary()


def test_a_cell_that_is_called_in_a_loop_of_fixed_sizes_is_judged_by_the_graph_too(tmp_path: Path):
    """Parts of its first step, which starts at zeros, had names that other values bear in the traced graph."""

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.norm = nn.GRUCell(3, 4), nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            h = x.new_zeros(x.shape[0], 4)
            for at in range(x.shape[1]):
                h = self.cell(x[:, at], h)
            return self.norm(h)

    torch.manual_seed(0)
    model = Steps()
    model(torch.randn(50, 2, 3))
    example = torch.randn(2, 2, 3)
    result = nd.export(model.eval(), example, tmp_path / "steps.onnx", dynamic_shapes={}, verify="quick")
    assert result.verdict is not None
    assert not [check for check in result.verdict.checks if check.status == "weak"]
    assert not [left for left in result.verdict.not_checked if "cannot be evaluated" in left]
