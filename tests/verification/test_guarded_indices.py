"""What an index is brought to before it looks something up: ids beyond the table are asked of the file too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import parser
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.trace import trace
from normdeploy.graph import load_graph, save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.samples.guards import guarded

IDS = torch.arange(10).reshape(2, 5) % 9
GUARDS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda ids: ids.clamp(0, 8),
    "clamp from below": lambda ids: ids.clamp(min=0),
    "where": lambda ids: torch.where(ids < 0, 0, ids),
    "remainder": lambda ids: ids % 9,
    "masked_fill": lambda ids: ids.masked_fill(ids == -100, 0),
}


class Guarded(nn.Module):
    """A table behind a guard."""

    def __init__(self, guard: str) -> None:
        super().__init__()
        self.guard, self.table, self.norm = GUARDS[guard], nn.Embedding(9, 6), nn.LayerNorm(6)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.norm(self.table(self.guard(ids)))
        return out


@pytest.mark.parametrize("given", [IDS, torch.tensor([[3]])], ids=["many", "one"])
@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_that_is_left_out_is_no_pass(guard: str, given: Tensor, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Guarded(guard).eval()
    traced = trace(net, given)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), tmp_path / "net.onnx")
    known = {"args": given, "traced": traced, "rewritten": rewritten, "level": "quick"}
    assert verify(net, path, **known).status == "pass"
    proto = onnx.load(path)
    next(node for node in proto.graph.node if node.op_type == "Gather").input[1] = proto.graph.input[0].name
    onnx.save(proto, path)
    assert verify(net, path, **known).status == "fail"


def test_an_example_that_holds_what_means_nothing_says_no_more_of_ids_between(tmp_path: Path) -> None:
    """-100 to 8 is no range: -57 is refused by the module, so that only the example's own ids can be beside it."""
    torch.manual_seed(0)
    given = torch.tensor([[-100, 3, 8]])
    verdict = nd.export(Guarded("masked_fill").eval(), given, tmp_path / "net.onnx", verify="quick").verdict
    assert verdict is not None
    assert verdict.status == "pass", verdict.summary()
    assert "'ids' of -100 to 0" in verdict.environment["families"]


@pytest.mark.parametrize(
    ("body", "near"),
    [
        ("c = Clip (i, low, high) y = Gather (t, c)", {-1, 0, 1, 7, 8, 9}),
        ("y = Gather (t, i)", set()),
        ("c = Min (i, high) y = Mul (c, c)", set()),
        ("c = Clip (i, low, high) r = Range (low, c, one) y = Gather (t, r)", set()),
    ],
    ids=["a guard", "no guard", "no table", "a count"],
)
def test_the_numbers_to_try_are_those_at_the_constants_in_front_of_an_index(
    body: str, near: set[int], tmp_path: Path
) -> None:
    held = "int64 low = {0}, int64 high = {8}, int64 one = {1}, float[9] t = {0, 1, 2, 3, 4, 5, 6, 7, 8}"
    shape = "" if "Range" in body else "[N]"
    kind = "int64" if "Mul" in body else "float"
    text = f'<ir_version: 9, opset_import: ["": 20]> g (int64{shape} i) => ({kind}[M] y) <{held}> {{ {body} }}'
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    (value,) = (v for v in load_graph(tmp_path / "net.onnx").graph.inputs if v.name == "i")
    assert {n for n in guarded(value, np.dtype(np.int64)) if abs(n) < 100} == near
