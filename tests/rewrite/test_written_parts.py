"""What is written over part of an axis is joined with the rest; the numbers stay, at every batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

Forward = Callable[[Any, Tensor], Tensor]


def _channels(m: Any, y: Tensor) -> Tensor:
    y[:, :2] = m.part(y[:, :2])
    return y


def _last(m: Any, y: Tensor) -> Tensor:
    y[:, -2:] = m.part(y[:, -2:])
    return y


def _every_other(m: Any, y: Tensor) -> Tensor:
    y[:, ::2] = m.part(y[:, ::2])
    return y


def _listed(m: Any, y: Tensor) -> Tensor:
    y[:, [3, 1, 0]] = y[:, [0, 1, 2]]
    return m.whole(y)


def _one(m: Any, y: Tensor) -> Tensor:
    y[:, 1] = y[:, 1] * 2 + 1
    return y


def _inside(m: Any, y: Tensor) -> Tensor:
    y = m.whole(y)
    y[..., 1:-1, 2:-2] = 0
    return y


def _canvas(m: Any, y: Tensor) -> Tensor:
    z = y.new_zeros(len(y), 4, 8, 9)
    z[:, :, 1:-1, 1:] = m.whole(y)
    return z


def _shifted(m: Any, y: Tensor) -> Tensor:
    z = torch.zeros_like(y)
    z[:, :1, :-1] = y[:, :1, 1:]
    z[:, 1:2, 1:] = y[:, 1:2, :-1]
    z[:, 2:] = y[:, 2:]
    return m.whole(z)


def _all_of_it(m: Any, y: Tensor) -> Tensor:
    z = torch.empty_like(y)
    for at in range(4):
        z[:, at] = y[:, at] * m.whole.weight[at] + m.whole.bias[at]
    return z


def _windows(m: Any, y: Tensor) -> Tensor:
    z = torch.full_like(y, -1.0)
    for i in range(2):
        for j in range(2):
            z[:, :, 3 * i : 3 * i + 3, 4 * j : 4 * j + 4] = m.whole(y[:, :, 3 * i : 3 * i + 3, 4 * j : 4 * j + 4])
    return z


WRITTEN: dict[str, tuple[Forward, dict[str, int]]] = {
    "the first channels": (_channels, {"Conv": 2}),
    "the last channels": (_last, {"Conv": 2}),
    "every other channel": (_every_other, {"Conv": 2, "Slice": 1, "Concat": 1, "Gather": 1}),
    "listed channels": (_listed, {"Conv": 2, "Concat": 1, "Gather": 2}),
    "one channel": (_one, {"Conv": 2}),
    "zeros inside": (_inside, {"Conv": 2, "Slice": 7, "Concat": 2, "Shape": 1, "Expand": 1}),
    "into zeros": (_canvas, {"Conv": 2}),
    "channels moved along": (_shifted, {"Conv": 2, "Slice": 7, "Pad": 2, "Concat": 2}),
    "one after the other": (_all_of_it, {"Conv": 2}),
    "windows": (_windows, {}),
}


class Written(nn.Module):
    """A convolution, what writes into its result, and a convolution."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1)
        self.part, self.whole = nn.BatchNorm2d(2), nn.BatchNorm2d(4)
        with torch.no_grad():
            for norm in (self.part, self.whole):
                for array in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
                    assert array is not None
                    array.copy_(torch.rand(array.shape) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(WRITTEN[self.name][0](self, self.first(x)))
        return out


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_over_part_of_an_axis_is_joined(name: str):
    torch.manual_seed(0)
    model = Written(name).eval()
    traced = trace(model, (torch.randn(2, 3, 6, 8),)).model
    result = rewrite(traced)
    kinds = Counter(node.op_type for node in result.model.graph)
    assert not {"ScatterND", "ScatterElements", "BatchNormalization", "Mul"} & set(kinds), kinds
    assert kinds == (WRITTEN[name][1] or kinds)
    assert {row.action for row in result.ledger if row.kind in ("BatchNormalization", "affine map")} == {"folded"}
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    for batch in (1, 3):
        x = torch.randn(batch, 3, 6, 8, dtype=torch.float64)
        with torch.no_grad():
            expected = model.double()(x)
        (found,) = Evaluator(result.model).run({str(traced.graph.inputs[0].name): x}).values()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


class _Shift(nn.Module):
    """The temporal shift of TSM (Lin et al., 2019), written into zeros, between norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.Conv1d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)))
        z = torch.zeros_like(y)
        z[:, :2, :-1] = y[:, :2, 1:]
        z[:, 2:4, 1:] = y[:, 2:4, :-1]
        z[:, 4:] = y[:, 4:]
        out: Tensor = self.last(z)
        return out


def test_the_file_is_proven_for_every_input(tmp_path):
    torch.manual_seed(0)
    exported = nd.export(_Shift(), torch.randn(2, 3, 5), tmp_path / "shift.onnx", verify="quick")
    assert exported.verdict.check("derivation").status == "pass", exported.verdict.summary()
    assert not {"ScatterND", "Transpose"} & {node.op_type for node in onnx.load(tmp_path / "shift.onnx").graph.node}


HEAD = '<ir_version: 10, opset_import: ["": 20]> g (float[n,4,6] x, float[n,2,6] u{more}) => (float[a,b,c] y) '
TURNED = "a = Transpose<perm=[1,0,2]>(x) b = Transpose<perm=[1,0,2]>(u) s = ScatterND{how}(a, {at}, b) "
ALONG = "s = ScatterElements<axis=1{how}>(x, {at}, u) y = Relu(s)"
BACK = "y = Transpose<perm=[1,0,2]>(s)"
CONSTANTS = {
    "first": np.array([[0], [1]]),
    "apart": np.array([[-1], [1]]),
    "twice": np.array([[1], [1]]),
    "row": np.array([[[2], [3]]]),
    "uneven": np.array([[[2, 2, 2, 2, 2, 3], [3, 3, 3, 3, 3, 2]]]),
    "from": np.array([0]),
    "to": np.array([3]),
    "last": np.array([2]),
}
EVERYWHERE = "h = Shape(u) e = Expand({}, h) "


def compared(body: str, more: str = "") -> Counter[str]:
    """Compare a graph with what it becomes; return the operators that are left."""
    proto = onnx.parser.parse_model(HEAD.format(more=more) + "{ " + body + " }")
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in CONSTANTS.items())
    model = ir.from_proto(proto)
    result = rewrite(model).model
    rng = np.random.default_rng(0)
    for batch in (1, 3):
        feeds: dict[str, Any] = {"x": rng.normal(size=(batch, 4, 6)), "u": rng.normal(size=(batch, 2, 6))}
        feeds |= {"places": np.array([[2], [0]])} if "places" in more else {}
        given = {name: torch.from_numpy(array) for name, array in feeds.items()}
        expected, found = (Evaluator(graph).run(given)["y"] for graph in (model, result))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    return Counter(node.op_type for node in result.graph)


def test_all_rows_are_what_is_written():
    """The shape of what is read instead, which nobody said, is the value's of which all rows are written."""
    body = "v = Neg(x) s = ScatterND(x, all, v) m = ReduceSum<keepdims=0>(s, last) y = Unsqueeze(m, last)"
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[2,4,6] x) => (float[2,4,1] y) { ' + body + " }"
    proto = onnx.parser.parse_model(text)
    constants = {"all": np.array([[0], [1]]), "last": np.array([2])}
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    model = ir.from_proto(proto)
    result = rewrite(model).model
    assert "ScatterND" not in {node.op_type for node in result.graph}
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    expected, found = (Evaluator(graph).run({"x": x})["y"] for graph in (model, result))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (TURNED.format(how="", at="first") + BACK, {"Slice": 1, "Concat": 1}),
        (TURNED.format(how="", at="apart") + BACK, {"Concat": 1, "Gather": 1}),
        (EVERYWHERE.format("row") + ALONG.format(how="", at="e"), {"Slice": 1, "Concat": 1, "Relu": 1}),
        # read turned and turned back: one Transpose stays
        (TURNED.format(how="", at="first") + BACK.replace("y =", "t =") + " m = ReduceSum<keepdims=0>(s) y = Add(t, m)",
         {"Slice": 1, "Concat": 1, "Transpose": 1, "ReduceSum": 1, "Add": 1}),
    ],
)  # fmt: skip
def test_known_rows_are_joined(body: str, left: dict[str, int]):
    assert compared(body) == left


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (TURNED.format(how="", at="twice") + BACK, ""),
        (TURNED.format(how='<reduction="add">', at="first") + BACK, ""),
        (TURNED.format(how="", at="places") + BACK, ", int64[2,1] places"),
        (EVERYWHERE.format("row") + ALONG.format(how=', reduction="max"', at="e"), ""),
        (EVERYWHERE.format("uneven") + ALONG.format(how="", at="e"), ""),
        # another axis than the whole of it
        ("v = Slice(u, from, to, last) h = Shape(v) e = Expand(row, h) "
         "s = ScatterElements<axis=1>(x, e, v) y = Relu(s)", ""),
    ],
)  # fmt: skip
def test_what_stays_written(body: str, more: str):
    assert {"ScatterND", "ScatterElements"} & set(compared(body, more))
