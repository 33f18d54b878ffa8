"""A small number that keeps a result from being 0 stays, where rounding would lose it beside the shift in front."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import normdeploy as nd
from normdeploy.graph import load_graph

HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def folded(text: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Fold a graph; return its operators, and the reason of each map that stays by the value it writes."""
    onnx.save(onnx.parser.parse_model(f"{HEAD}{text}"), folder / "source.onnx")
    result = nd.fold(folder / "source.onnx", folder / "net.onnx", verify="quick")
    reasons = {row.site[0]: str(row.reason) for row in result.ledger if row.action == "kept"}
    return [node.op_type for node in load_graph(folder / "net.onnx").graph], reasons


def outputs(folder: Path, x: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(nd.load(folder / name)(x)) for name in ("source.onnx", "net.onnx")]


LOGARITHM = """ g (float[n, 3] x) => (float[n, 3] y) <float one = {1.0}, float small = {1e-10}> {{
    p = Sigmoid(x)
    rest = Sub(one, p)
    {moved}
    guarded = Add({last}, small)
    y = Log(guarded)
}}"""


@pytest.mark.parametrize(
    ("moved", "last"),
    [
        ("", "rest"),
        ("turned = Transpose <perm = [1, 0]> (rest)\n    back = Transpose <perm = [1, 0]> (turned)", "back"),
        ("mean = ReduceMean <axes = [0]> (rest)", "mean"),
    ],
    ids=["at once", "moved between", "averaged between"],
)
def test_a_saturated_probability_keeps_its_guard(moved: str, last: str, tmp_path: Path) -> None:
    """1 - sigmoid(30) is 0 in float32; its logarithm is that of the guard, not -inf."""
    text = LOGARITHM.replace("{1.0}", "{{1.0}}").replace("{1e-10}", "{{1e-10}}").format(moved=moved, last=last)
    _, reasons = folded(text, tmp_path)
    assert "1e-10" in reasons["guarded"]
    assert "would be lost" in reasons["guarded"]
    source, mine = outputs(tmp_path, np.array([[30.0, -2.0, 0.0], [100.0, 90.0, 16.0]], np.float32))
    np.testing.assert_allclose(mine, source, rtol=1e-6)
    assert np.isclose(mine[0, 0], np.log(1e-10))


def test_a_guard_behind_a_product_by_minus_one_stays(tmp_path: Path) -> None:
    text = """ g (float[n, 3] x) => (float[n, 3] y) <float one = {1.0}, float turn = {-1.0}, float small = {1e-12}> {
        apart = Sub(x, one)
        turned = Mul(apart, turn)
        guarded = Add(turned, small)
        y = Reciprocal(guarded)
    }"""
    operators, reasons = folded(text, tmp_path)
    assert "guarded" in reasons
    assert operators.count("Add") == 1
    source, mine = outputs(tmp_path, np.array([[1.0, 2.0, 0.5]], np.float32))
    np.testing.assert_allclose(mine, source, rtol=1e-6)
    assert np.isfinite(mine).all()


@pytest.mark.parametrize("shift", [3e-3, 1e-5])
def test_a_shift_that_the_sum_holds_is_one_map_with_it(shift: float, tmp_path: Path) -> None:
    text = f""" g (float[n, 3] x) => (float[n, 3] y) <float one = {{1.0}}, float small = {{{shift}}}> {{
        p = Sigmoid(x)
        rest = Sub(one, p)
        more = Add(rest, small)
        y = Sqrt(more)
    }}"""
    operators, reasons = folded(text, tmp_path)
    assert len(operators) == 3
    assert not any("would be lost" in reason for reason in reasons.values())


def test_behind_weights_a_small_number_is_a_bias(tmp_path: Path) -> None:
    text = """ g (float[n, 2] x) => (float[n, 2] y)
        <float[2, 2] w = {1.0, 2.0, -3.0, 0.5}, float[2] b = {0.25, -0.5}, float small = {1e-10}> {
        h = Gemm(x, w, b)
        guarded = Add(h, small)
        y = Log(guarded)
    }"""
    operators, reasons = folded(text, tmp_path)
    assert operators == ["Gemm", "Log"]
    assert reasons == {}


def test_no_gauge_takes_the_shift_of_a_norm_through_a_guard(tmp_path: Path) -> None:
    """A norm behind the guard could give its mean to the small number; then nothing would guard."""
    text = """ g (float[n, 2, 4] x) => (float[n, 2, 4] y, float[n, 2, 4] z) <float one = {1.0}, float small = {1e-10},
        float[2] g = {2.0, 3.0}, float[2] b = {0.5, -1.0}, float[2] m = {0.25, 0.125}, float[2] v = {1.0, 4.0}> {
        p = Sigmoid(x)
        rest = Sub(one, p)
        guarded = Add(rest, small)
        y = Log(guarded)
        z = BatchNormalization(guarded, g, b, m, v)
    }"""
    _, reasons = folded(text, tmp_path)
    assert "guarded" in reasons
    x = np.full((1, 2, 4), 40.0, np.float32)
    source, mine = (nd.load(tmp_path / name)(x) for name in ("source.onnx", "net.onnx"))
    for name in ("y", "z"):
        np.testing.assert_allclose(mine[name], source[name], rtol=1e-6)
