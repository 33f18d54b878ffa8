"""A norm that reads what another computed in channels last, while the source knows it with channels in front alone."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.related.report import Report

HEAD = '<ir_version: 10, opset_import: ["": 20]> g (float[2,3,4,4] x) => (float[2,3,4,4] z, float[2,3,4,4] y) '
NORM = """ {o}m = ReduceMean({i}, axes) {o}c = Sub({i}, {o}m) {o}q = Mul({o}c, {o}c) {o}v = ReduceMean({o}q, axes)
 {o}e = Add({o}v, epsilon) {o}r = Sqrt({o}e) {o}d = Div({o}c, {o}r)
 {o}g = Mul({o}d, gain_{o}) {o} = Add({o}g, bias_{o})"""
GAINS = "gain_{o} = {{2, 3, 4}}, float[{n}] bias_{o} = {{0.5, -1, 0.25}}"
SOURCE = (
    f"{HEAD}<int64[1] axes = {{1}}, float epsilon = {{1e-5}}, "
    + ", ".join("float[3,1,1] " + GAINS.format(o=o, n="3,1,1") for o in "yz")
    + ">{"
    + "".join(NORM.format(i=i, o=o) for i, o in ("xy", "yz"))
    + "}"
)
FILE = (
    HEAD
    + "<"
    + ", ".join("float[3] " + GAINS.format(o=o, n="3") for o in "yz")
    + """>{
 a = Transpose<perm = [0, 2, 3, 1]>(x)
 b = LayerNormalization<axis = -1, epsilon = 1e-5>(a, gain_y, bias_y) y = Transpose<perm = [0, 3, 1, 2]>(b)
 c = LayerNormalization<axis = -1, epsilon = 1e-5>(b, gain_z, bias_z) z = Transpose<perm = [0, 3, 1, 2]>(c) }"""
)
HINTS = Derivation((Hint("y", "y"), Hint("z", "z")))


def confirmed(file: str) -> Report:
    return check_derivation(ir.from_onnx_text(SOURCE), ir.from_onnx_text(file), HINTS, [{"x": (2, 3, 4, 4)}])


def test_it_is_confirmed():
    """Its epsilon counts at no point drawn in front of the first norm, whose variance is never small."""
    report = confirmed(FILE)
    assert report.confirmed, [row for row in report.rows if not row.identity]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y = Transpose<perm = [0, 3, 1, 2]>", "y = Transpose<perm = [0, 3, 2, 1]>"),
        ("z = Transpose<perm = [0, 3, 1, 2]>", "z = Transpose<perm = [0, 3, 2, 1]>"),
        ("epsilon = 1e-5>(b", "epsilon = 2e-5>(b"),
        ("epsilon = 1e-5>(b", "epsilon = 0.0>(b"),
        ("gain_z = {2, 3, 4}", "gain_z = {2, 3, 4.001}"),
        ("c = LayerNormalization<axis = -1", "c = LayerNormalization<axis = -2"),
        ("1e-5>(b, gain_z, bias_z)", "1e-5>(a, gain_z, bias_z)"),
    ],
)
def test_another_is_not(old: str, new: str):
    assert old in FILE
    assert not confirmed(FILE.replace(old, new)).confirmed
