"""A quantizer that is no function of integer sums stays, and its row of the ledger says why."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from normdeploy.rewrite import rewrite

X = "uint8[2, 2, 4, 4] x"
REAL = "r = DequantizeLinear (x, half, zero)"
CONV = f"{REAL} k = DequantizeLinear (w, half) c = Conv (r, k)"
ENDS = "y = QuantizeLinear (c, half, zero)"
ROWS = "uint8[2, 3] x"
CONSTANTS = {
    "half": np.float32(0.5),
    "one": np.float32(1),
    "eight": np.float32(8),
    "zero": np.uint8(0),
    "minus": np.float32(-0.5),
    "short": np.int16(0),
    "w": np.ones((4, 2, 1, 1), np.int8),
    "four": np.full(4, 0.5, np.float32),
    "two": np.full(2, 0.5, np.float32),
    "blocks": np.full((2, 4, 4, 4), 0.5, np.float32),
    "points": np.arange(4, dtype=np.uint8),
    "low": np.float32(0.3),
    "high": np.float32(0.7),
    "columns": np.arange(1, 5, dtype=np.float32),
    "stack": np.ones((2, 3, 4), np.int8),
    "matrix": np.ones((3, 4), np.int8),
    "tall": np.ones((2, 4), np.int8),
    "long": np.full((70_000, 2), 127, np.int8),
    "wide": np.full((64, 4), 127, np.int8),
    "addend": np.ones((2, 4), np.float32),
    "per_row": np.full((2, 4, 4, 4), 0.5, np.float32),
}

CASES = {
    "its step is computed at run time": (f"{X}, float t", f"{CONV} y = QuantizeLinear (c, t, zero)"),
    "it has a step that is not above 0": (X, f"{CONV} y = QuantizeLinear (c, minus, zero)"),
    "it makes int16, and layers on integers read int8 or uint8": (X, f"{CONV} y = QuantizeLinear (c, half, short)"),
    "it has steps per block, or reads data of unknown rank": (
        X,
        f"{CONV} y = QuantizeLinear <axis = 1, block_size = 1, output_dtype = 2> (c, blocks)",
    ),
    "it has several zero points": (X, f"{CONV} y = QuantizeLinear <axis = 1> (c, four, points)"),
    "it has a step per channel, and a layer behind it sums over channels": (
        X,
        f"{CONV} y = QuantizeLinear <axis = 1, output_dtype = 2> (c, four)",
    ),
    "its two values 0.3 and 0.7 are no integers times a step": (
        X,
        f"{CONV} more = GreaterOrEqual (c, half) y = Where (more, high, low)",
    ),
    r"it has \d+ levels": (
        "uint8[2, 64] x",
        f"{REAL} k = DequantizeLinear (wide, one) c = MatMul (r, k) y = Round (c)",
    ),
    "its integers from .* to .* need more than a byte": (X, f"{CONV} d = Mul (c, eight) y = Round (d)"),
    "multiplies by stacks of matrices or by a vector": (
        "uint8[2, 5, 3] x",
        f"{REAL} k = DequantizeLinear (stack, half) c = MatMul (r, k) {ENDS}",
    ),
    "has steps along another axis than output channels": (
        X,
        f"{REAL} k = DequantizeLinear <axis = 1> (w, two) c = Conv (r, k) {ENDS}",
    ),
    "has sums that no int32 holds": (
        "uint8[1, 70000] x",
        f"{REAL} k = DequantizeLinear (long, half) c = MatMul (r, k) {ENDS}",
    ),
    "is no layer that there is on integers": (
        "uint8[2, 4, 4, 4] x",
        f"{REAL} k = DequantizeLinear (w, half) c = ConvTranspose (r, k) {ENDS}",
    ),
    "reads its data transposed": (
        "uint8[3, 2] x",
        f"{REAL} k = DequantizeLinear (matrix, half) c = Gemm <transA = 1> (r, k) {ENDS}",
    ),
    "reads integers that no byte holds": (
        "int16[2, 2, 4, 4] x",
        f"r = DequantizeLinear (x, half, short) k = DequantizeLinear (w, half) c = Conv (r, k) {ENDS}",
    ),
    "reads data of unknown rank": (
        "uint8 x",
        f"{REAL} k = DequantizeLinear (matrix, half) c = MatMul (r, k) {ENDS}",
    ),
    "adds a matrix": (
        ROWS,
        f"{REAL} k = DequantizeLinear (matrix, half) c = Gemm (r, k, addend) {ENDS}",
    ),
    "has a bias that is computed at run time": (
        f"{X}, float[4] b",
        f"{REAL} k = DequantizeLinear (w, half) c = Conv (r, k, b) {ENDS}",
    ),
    "has a weight that is computed at run time": (
        f"{X}, int8[4, 2, 1, 1] v",
        f"{REAL} k = DequantizeLinear (v, half) c = Conv (r, k) {ENDS}",
    ),
    "in front of it has a step that is computed at run time": (
        f"{X}, float t",
        f"c = DequantizeLinear (x, t, zero) {ENDS}",
    ),
    "in front of it has steps per block": (
        "uint8[2, 4, 4, 4] x",
        f"c = DequantizeLinear <axis = 1, block_size = 1> (x, per_row) {ENDS}",
    ),
    "in front of it reads integers of unknown range": ("int32[2, 3] x", f"c = DequantizeLinear (x, half) {ENDS}"),
    "a map in front of it varies along another axis than the channels": (
        X,
        f"{CONV} d = Mul (c, columns) y = QuantizeLinear (d, half, zero)",
    ),
}


@pytest.mark.parametrize("reason", CASES)
def test_what_stays_says_why(reason: str) -> None:
    inputs, body = CASES[reason]
    last = body.partition("y = ")[2]
    kind = "int16" if "short" in last else "uint8" if "QuantizeLinear" in last else "float"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => ({kind} y) {{ {body} }}')
    read = set(re.findall(r"\w+", body))
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in CONSTANTS.items() if name in read
    )
    rows = [row for row in rewrite(ir.from_proto(model), integer=True).ledger if row.kind == "quantizer"]
    assert [row.action for row in rows] == ["kept"]
    assert re.search(f"{reason}$", rows[0].reason), rows[0].reason
