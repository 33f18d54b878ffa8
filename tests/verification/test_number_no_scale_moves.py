"""A single weight far off in a tensor that another tool folded: no scale moves one number, so it is wrong by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from normdeploy.verification import verify
from normdeploy.verification.derivation.related.stored_rounding import compare

TEXT = """<ir_version: 8, opset_import: ["": 18]> g (float[N,6] x) => (float[N,5] y)
    <float[1] far = {{-1000000}}, float[4,6] u = {{0}}, float[4] c = {{0}}, {stored}> {{
    h = Gemm <transB = 1> (x, u, c) r = Relu (h) f = Add (r, far) z = Relu (f) p = Concat <axis = -1> (r, z)
    {head} }}"""
"""The last four of eight features are nought in every sample: what their weights are shows in no output."""

WRITTEN = """g = Gemm <transB = 1> (p, w, b)
    y = BatchNormalization <epsilon = 0.001> (g, s, t, m, v)"""


def numbers() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = {"u": (4, 6), "c": (4,), "w": (5, 8), "b": (5,), "s": (5,), "t": (5,), "m": (5,), "v": (5,)}
    return {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}


def write(path: Path, head: str, stored: dict[str, np.ndarray]) -> Path:
    mine = {name: array for name, array in stored.items() if name not in ("u", "c")}
    declared = ", ".join(f"float[{','.join(map(str, a.shape))}] {name} = {{0}}" for name, a in mine.items())
    proto = onnx.parser.parse_model(TEXT.format(stored=declared, head=head))
    for tensor in proto.graph.initializer:
        if tensor.name in stored:
            tensor.CopyFrom(numpy_helper.from_array(stored[tensor.name], tensor.name))
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize(("factor", "status"), [(1.0, "pass"), (1.01, "fail"), (-1.0, "fail")])
def test_a_weight_that_no_sample_wakes(factor: float, status: str, tmp_path: Path) -> None:
    """The file holds the norm folded in float32, as other tools do it."""
    known = numbers()
    source = write(tmp_path / "source.onnx", WRITTEN, known)
    scale = known["s"] / np.sqrt(known["v"] + np.float32(0.001))
    weights, bias = known["w"] * scale[:, None], (known["b"] - known["m"]) * scale + known["t"]
    weights[2, 6] *= np.float32(factor)
    mine = {"u": known["u"], "c": known["c"], "wf": weights, "bf": bias}
    verdict = verify(source, write(tmp_path / "file.onnx", "y = Gemm <transB = 1> (p, wf, bf)", mine), level="quick")
    if status == "fail":
        assert verdict.status == "fail", verdict.summary()
        assert "at [2, 6]" in verdict.check("derivation").detail
    else:
        assert "right within another rounding" in verdict.check("derivation").detail, verdict.summary()
        assert verdict.check("rounding").status == "pass", verdict.summary()


def test_what_another_scale_may_move_is_not_wrong_by_itself() -> None:
    """A row, a column, what a merged identity adds, and a number that nothing stands beside."""
    rng = np.random.default_rng(5)
    want = rng.uniform(1, 2, (6, 4, 3, 3))

    def is_wrong(changed: np.ndarray, right: np.ndarray = want) -> bool:
        rounded = changed.astype(np.float32) * np.float32(1 + 2.0**-22)  # in another rounding throughout
        found = compare(rounded, ir.DataType.FLOAT, right)
        assert found is not None
        assert not found.rounding
        return found.among_right

    one, row, column, merged = (want.copy() for _ in range(4))
    one[2, 1, 0, 2] *= 1.5
    row[2] *= 1.5
    column[:, 1] *= 1.5
    merged[[0, 1, 2, 3], [0, 1, 2, 3], 1, 1] += 1
    assert [is_wrong(each) for each in (one, row, column, merged)] == [True, False, False, False]
    lone = np.zeros((3, 3))
    lone[1, 1], lone[0, 2] = 1.25, 1.75
    other = lone.copy()
    other[1, 1] *= 1.5
    assert not is_wrong(other, lone)
