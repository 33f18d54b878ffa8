"""A formula of an integer that is cut to an integer: one that rounds otherwise is another function of integers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest

from normdeploy.verification import verify
from normdeploy.verification.record.answers import Status

BELOW, PARTS = math.log(20 / 5), 15.0
ONE = float(np.float32(PARTS / BELOW))
"""log(20 / 5) times this is the number below 15, in float32; by two constants it is 15."""

GRAPH = f"""<ir_version: 10, opset_import: ["": 21]> g ({{kind}}[n] d, float[n, 2] x) => (float[n, 2] y, int64[n] i)
    <float five = {{{{5}}}}, float fifth = {{{{0.125}}}}, float eight = {{{{8}}}}, float log = {{{{{BELOW!r}}}}},
     float parts = {{{{{PARTS}}}}}, float one = {{{{{ONE!r}}}}}, float[2] s = {{{{1, 2}}}}> {{{{
    f = Cast<to = 1>(d) q = Div(f, five) l = Log(q) {{body}} y = LayerNormalization(x, s) }}}}"""

TWO = "m = Div(l, log) c = Mul(m, parts) "


def judged(folder: Path, one: str, other: str, kind: str = "int64") -> Status:
    for name, body in (("reference", one), ("net", other)):
        onnx.save(onnx.parser.parse_model(GRAPH.format(kind=kind, body=body)), folder / f"{name}.onnx")
    args = {"d": np.arange(1, 5).astype(np.int64 if kind == "int64" else np.float32), "x": np.ones((4, 2), np.float32)}
    args["x"][:, 1] = [2, 3, 5, 7]
    return verify(folder / "reference.onnx", folder / "net.onnx", args=args).check("derivation").status


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (f"{TWO} i = Cast<to = 7>(c)", "c = Mul(l, one) i = Cast<to = 7>(c)", Status.FAIL),
        (f"{TWO} r = Floor(c) i = Cast<to = 7>(r)", "c = Mul(l, one) r = Floor(c) i = Cast<to = 7>(r)", Status.FAIL),
        (f"{TWO} i = Cast<to = 7>(c)", f"{TWO} i = Cast<to = 7>(c)", Status.PASS),
        ("c = Div(f, eight) i = Cast<to = 7>(c)", "c = Mul(f, fifth) i = Cast<to = 7>(c)", Status.PASS),
    ],
)
def test_what_integers_meet_is_held_at_each(one: str, other: str, expected: Status, tmp_path: Path) -> None:
    for pair in ((one, other), (other, one)):
        assert judged(tmp_path, *pair) is expected


def test_what_floats_meet_by_chance_is_rounding(tmp_path: Path) -> None:
    pair = f"{TWO} i = Cast<to = 7>(c)", "c = Mul(l, one) i = Cast<to = 7>(c)"
    assert judged(tmp_path, *pair, kind="float") is Status.PASS
