"""What is written into places of a value, beside a file that joins the same parts; and files that join others."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.verification.derivation.checker import check_derivation

HEAD = '<ir_version: 10, opset_import: ["": 20]> g (double[n,4,3] x, double[n,2,3] u) => (double[n,4,3] y) '
FIRST = "a = Transpose<perm=[1,0,2]>(x) b = Transpose<perm=[1,0,2]>(u) s = ScatterND(a, {}, b) "
FIRST += "r = Transpose<perm=[1,0,2]>(s)"
ALONG = "h = Shape(u) e = Expand(row, h) r = ScatterElements<axis=1>(x, e, u)"
ZEROS = "k = Shape(x) z = ConstantOfShape<value=double[1] {0}>(k) a = Transpose<perm=[1,0,2]>(z) "
INTO = ZEROS + "b = Transpose<perm=[1,0,2]>(u) s = ScatterND(a, first, b) r = Transpose<perm=[1,0,2]>(s)"
ALL = "k = Shape(x) c = Gather(k, zero) t = Range(zero, c, step) at = Unsqueeze(t, behind) v = Neg(x) w = Exp(x) "
OVER = ALL + "p = ScatterND(w, at, v) d = Transpose<perm=[1,0,2]>(p) b = Transpose<perm=[1,0,2]>(u) "
OVER += "s = ScatterND(d, first, b) r = Transpose<perm=[1,0,2]>(s)"
CONSTANTS = {
    "first": np.array([[0], [1]]),
    "twice": np.array([[1], [1]]),
    "row": np.array([[[2], [3]]]),
    "none": np.array([0]),
    "two": np.array([2]),
    "four": np.array([4]),
    "behind": np.array([1]),
    "zero": np.int64(0),
    "step": np.int64(1),
    "ends": np.array([0, 0, 0, 0, 2, 0]),
    "front": np.array([0, 2, 0, 0, 0, 0]),
    "off": np.array(1e-9),
    "more": np.array(1.0),
    "scale": np.array([[2.0], [0.5], [3.0], [4.0]]),
    "part": np.array([[2.0], [0.5]]),
}
BEHIND = "Slice(x, two, four, behind)"
BEFORE = "Slice(x, none, two, behind)"


def confirmed(source: str, file: str, *gauge: np.ndarray) -> bool:
    """Tell whether the file is confirmed; its q stands for the source's r by a gauge."""
    graphs = []
    for body in (source, file):
        proto = onnx.parser.parse_model(HEAD + "{ " + body + " }")
        proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in CONSTANTS.items())
        graphs.append(ir.from_proto(proto))
    hints = Derivation((Hint("q", "r", "", *(gauge or (np.ones(()), np.zeros(())))), Hint("y", "y")))
    sizes = [{"x": (n, 4, 3), "u": (n, 2, 3)} for n in (2, 5)]
    return bool(check_derivation(*graphs, hints, sizes).confirmed)


@pytest.mark.parametrize(
    ("source", "file", "holds"),
    [
        (FIRST.format("first"), f"l = {BEHIND} q = Concat<axis=1>(u, l)", True),
        (FIRST.format("first"), f"l = {BEHIND} q = Concat<axis=1>(l, u)", False),
        (FIRST.format("first"), f"l = {BEFORE} q = Concat<axis=1>(u, l)", False),
        (FIRST.format("twice"), f"l = {BEHIND} q = Concat<axis=1>(u, l)", False),
        (ALONG, f"l = {BEFORE} q = Concat<axis=1>(l, u)", True),
        (ALONG, f"l = {BEHIND} q = Concat<axis=1>(l, u)", False),
        (INTO, "q = Pad(u, ends)", True),
        (INTO, "q = Pad(u, front)", False),
        (INTO, "q = Pad(u, ends, off)", False),
        # what is written over is nobody's, and what is not has to be known
        (OVER, "v = Neg(x) l = Slice(v, two, four, behind) q = Concat<axis=1>(u, l)", True),
        (OVER, "w = Exp(x) l = Slice(w, two, four, behind) q = Concat<axis=1>(u, l)", False),
    ],
)
def test_what_is_joined_is_what_was_written(source: str, file: str, holds: bool):
    assert confirmed(f"{source} y = Sin(r)", f"{file} y = Sin(q)") is holds


@pytest.mark.parametrize(
    ("file", "shift", "holds"),
    [
        # zeros are of any scale, of no shift but where they are another number
        ("q = Pad(u, ends) m = Mul(q, scale) y = Sin(m)", 0.0, True),
        ("q = Pad(u, ends) a = Mul(q, scale) m = Add(a, more) y = Sin(m)", 1.0, False),
        ("q = Pad(u, ends, off) m = Mul(q, scale) y = Sin(m)", 0.0, False),
    ],
)
def test_zeros_beside_what_is_scaled(file: str, shift: float, holds: bool):
    source = ZEROS + "p = Mul(u, part) b = Transpose<perm=[1,0,2]>(p) s = ScatterND(a, first, b) "
    source += "r = Transpose<perm=[1,0,2]>(s) y = Sin(r)"
    assert confirmed(source, file, CONSTANTS["scale"][None], np.full((1, 1, 1), shift)) is holds
