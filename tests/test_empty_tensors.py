"""Files whose inputs have no element are looked at, folded and judged like others, without a warning."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

import normdeploy as nd


@pytest.mark.parametrize("kind", ["float", "int64", "bool"])
@pytest.mark.parametrize("step", [1, -1])
def test_a_file_without_an_element(kind: str, step: int, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20]>
        g ({kind}[2,0] x) => ({kind}[2,n] y)
        <int64[1] s = {{1}}, int64[1] e = {{0}}, int64[1] a = {{1}}, int64[1] p = {{{step}}}>
        {{ y = Slice (x, s, e, a, p) }}""")
    onnx.save(model, path)
    nd.inspect(path)
    nd.fold(path, tmp_path / "folded.onnx")
    assert nd.verify(path, tmp_path / "folded.onnx").status != "fail"


def test_a_map_of_no_channel_beside_what_it_reads(tmp_path: Path) -> None:
    """The derivation follows it to its end: of no scale there is no smallest."""
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        g (float[2,0] x) => (float[2,n] z) <float[0] s = {}> { y = Mul (x, s) z = Concat <axis = 1> (y, x) }""")
    onnx.save(model, tmp_path / "net.onnx")
    verdict = nd.fold(tmp_path / "net.onnx", tmp_path / "folded.onnx").verdict
    assert verdict is not None
    assert verdict.status == "pass"
    assert "cannot be followed" not in verdict.check("derivation").detail
