"""A row of a table that a computed number chooses: a file with another one is no pass where no sample chose it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from normdeploy.verification import verify

HEAD = """<ir_version: 8, opset_import: ["": 18]> g (float[n,4] x) => (float[n,3] y)
    <float[4,6] w = {{0}}, float[6,3] t = {{0}}> {{ {body} y = Gather(t, i) }}"""
WRITTEN = "s = MatMul(x, w) i = ArgMax<axis = -1, keepdims = 0>(s)"
OTHERWISE = "m = Neg(x) s = MatMul(m, w) i = ArgMin<axis = -1, keepdims = 0>(s)"


def written(path: Path, body: str, *, changed: bool = False, hidden: bool = True) -> Path:
    """Write a codebook; the fifth row is chosen by no sample if it is hidden."""
    rng = np.random.default_rng(1)
    weights, table = rng.standard_normal((4, 6)).astype(np.float32), rng.standard_normal((6, 3)).astype(np.float32)
    if hidden:
        weights[:, 4] = 0.5 * (weights[:, 0] + weights[:, 1])  # between two others: never the largest
    if changed:
        table[4] *= 2
    proto = parser.parse_model(HEAD.format(body=body))
    for tensor in proto.graph.initializer:
        if tensor.name in ("w", "t"):
            tensor.CopyFrom(numpy_helper.from_array(weights if tensor.name == "w" else table, tensor.name))
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize("hidden", [True, False])
def test_a_row_that_no_sample_chose_is_named(hidden: bool, tmp_path: Path) -> None:
    source = written(tmp_path / "source.onnx", WRITTEN, hidden=hidden)
    changed = written(tmp_path / "changed.onnx", OTHERWISE, changed=True, hidden=hidden)
    verdict = verify(source, changed, level="quick")
    assert verdict.check("derivation").status != "pass"
    assert verdict.status == ("not-exercised" if hidden else "fail"), verdict.summary()
    assert not hidden or "and never row" in verdict.summary()


def test_the_table_of_the_reference_need_not_be_read_whole(tmp_path: Path) -> None:
    source = written(tmp_path / "source.onnx", WRITTEN)
    verdict = verify(source, written(tmp_path / "other.onnx", OTHERWISE), level="quick")
    assert "never row" not in verdict.summary()
