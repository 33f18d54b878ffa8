"""What is computed of a constant repeated for each sample is a constant; what tells samples apart stays computed."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper

from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

COUNT = "s = Shape(x) t = Gather(s, zero) "
EXPANDED = COUNT + "k = Concat <axis = 0> (t, rest) e = Expand(c, k) "
TILED = COUNT + "k = Concat <axis = 0> (t, ones) e = Tile(c, k) "
CONSTANTS = {
    "c": (1, 4, 6),
    "W": (6, 6),
    "S": (1, 6, 6),
    "v": (6,),
    "two": (2, 4, 6),
    "zero": np.array([0]),
    "rest": np.array([4, 6]),
    "ones": np.array([1, 1]),
    "more": np.array([2, 1]),
    "row": (1, 1, 6),
    "number": (1,),
    "one": np.array([1]),
    "four": np.array([4, 1]),
    "ones_axis": np.array([1]),
}
ONCE = {
    "a linear layer": EXPANDED + "m = MatMul(e, W) b = Add(m, v) y = Add(x, b)",
    "a Softmax": EXPANDED + "m = Softmax <axis = 2> (e) y = Mul(m, x)",
    "a norm of rows": EXPANDED + "m = LayerNormalization <axis = 1> (e, v) y = Sub(x, m)",
    "exchanged axes": EXPANDED
    + "m = Transpose <perm = [0, 2, 1]> (e) w = Transpose <perm = [0, 2, 1]> (m) y = Add(x, w)",
    "one place at a time": EXPANDED + "m = Tanh(e) w = Max(m, row) y = Add(x, w)",
    "a Tile": TILED + "m = MatMul(e, W) y = Add(x, m)",
}
ONCE |= {
    "a number repeated everywhere, times a row": "s = Shape(x) e = Expand(number, s) m = Mul(e, row) y = Mul(x, m)",
    "a row, along all other axes": "s = Shape(x) e = Expand(row, s) m = Sigmoid(e) w = Sub(m, row) y = Sub(x, w)",
    "a row in a Tile": COUNT + "k = Concat <axis = 0> (t, four) e = Tile(row, k) m = Mul(e, number) y = Add(x, m)",
    "from the last axes alone": "s = Shape <start = 1> (x) e = Expand(v, s) m = Exp(e) w = Add(m, row) y = Mul(x, w)",
}
STAYS = {
    "a row and a table that is larger": "r = Slice(x, zero, one, ones_axis) s = Shape(r) e = Expand(number, s) "
    "m = Mul(e, c) y = Mul(r, m)",
    "a row, and samples that are more": "s = Shape(x) e = Expand(row, s) m = Sigmoid(e) r = ReduceMean(x, zero) "
    "y = Mul(r, m)",
    "a Softmax over samples": EXPANDED + "m = Softmax <axis = 0> (e) y = Add(x, m)",
    "samples behind": EXPANDED
    + "m = Transpose <perm = [1, 0, 2]> (e) w = Transpose <perm = [1, 0, 2]> (m) y = Add(x, w)",
    "another reader": EXPANDED + "m = MatMul(e, W) r = Relu(x) w = Concat <axis = 1> (m, r) z = ReduceSum(w) "
    "a = Add(x, m) y = Add(a, z)",
    "another length": COUNT.replace("(x)", "(u)") + "k = Concat <axis = 0> (t, rest) e = Expand(c, k) "
    "m = MatMul(e, W) y = Add(x, m)",
    "numbers of two samples": EXPANDED + "m = Mul(e, two) y = Add(x, m)",
    "other axes too": COUNT
    + "k = Concat <axis = 0> (t, more) e = Tile(c, k) m = MatMul(e, W) h = Concat <axis = 1> (x, x) "
    "y = Add(h, m)",
    "what is repeated multiplies from the right": EXPANDED.replace("rest", "square").replace("(c,", "(S,")
    + "m = MatMul(c, e) y = Add(x, m)",
}


def model(body: str) -> ir.Model:
    """Return a graph of x and u, of several samples each."""
    inputs = "float[n,4,6] x, float[m,4,6] u"
    text = f'<ir_version: 10, opset_import: ["" : 20]> net ({inputs}) => (float[a,b,e] y) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, given in {**CONSTANTS, "square": np.array([6, 6])}.items():
        array = given.astype(np.int64) if isinstance(given, np.ndarray) else rng.normal(size=given).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def compared(body: str, samples: int) -> list[str]:
    """Compare a graph with what it becomes, in float64; return the operators that are left."""
    source = model(body)
    result = rewrite(source)
    rng = np.random.default_rng(samples)
    feeds = {name: torch.from_numpy(rng.normal(size=(samples, 4, 6))) for name in ("x", "u")}
    expected, found = (Evaluator(one).run(feeds)["y"] for one in (source, result.model))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    return [node.op_type for node in result.model.graph]


@pytest.mark.parametrize("name", ONCE)
def test_what_is_computed_of_repeated_constants_is_a_constant(name: str):
    kinds = [compared(ONCE[name], samples) for samples in (1, 3)]
    assert len(kinds[0]) == 1
    assert kinds[0][0] in ("Add", "Sub", "Mul")


def test_a_table_that_two_layers_read_is_computed_of_one_in_both():
    body = EXPANDED + "m = MatMul(e, W) w = Tanh(e) r = Mul(x, m) y = Add(r, w)"
    assert compared(body, 3) == ["Mul", "Add"]


@pytest.mark.parametrize("name", STAYS)
def test_what_tells_samples_apart_stays(name: str):
    kinds = compared(STAYS[name], 2)
    assert {"Expand", "Tile"} & set(kinds), kinds
