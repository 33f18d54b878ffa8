"""Norms in the bodies of If, Loop and Scan are sites like any other: mutants of them are tried, damage is caught."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from norms_in_bodies import BRANCHES, SCAN, STEPS
from onnx import GraphProto, ModelProto, parser

from normdeploy.rewrite import rewrite
from normdeploy.verification import verify

TEXTS = {"If": BRANCHES, "Loop": STEPS, "Scan": SCAN}


def files(operator: str, folder: Path) -> tuple[Path, Path]:
    """Write a graph as it was and rewritten."""
    written, rewritten = folder / "written.onnx", folder / "rewritten.onnx"
    proto = parser.parse_model(TEXTS[operator])
    onnx.save(proto, str(written))
    onnx.save(ir.to_proto(rewrite(ir.from_proto(proto)).model), str(rewritten))
    return written, rewritten


def enlarge_epsilons(graph: GraphProto) -> int:
    count = 0
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                count += enlarge_epsilons(attribute.g)
            elif node.op_type == "LayerNormalization" and attribute.name == "epsilon":
                attribute.f *= 10
                count += 1
    return count


@pytest.mark.parametrize(("operator", "sites"), [("If", 2), ("Loop", 2), ("Scan", 1)])
def test_every_norm_of_a_body_is_a_site_whose_mutants_die(operator: str, sites: int, tmp_path: Path):
    verdict = verify(*files(operator, tmp_path))
    assert verdict.status == "pass", verdict.summary()
    assert [site.kind for site in verdict.sites] == ["LayerNormalization"] * sites
    assert all(m.killed for site in verdict.sites for m in site.mutants)


@pytest.mark.parametrize("operator", TEXTS)
def test_a_wrong_epsilon_in_a_body_is_caught(operator: str, tmp_path: Path):
    written, rewritten = files(operator, tmp_path)
    proto: ModelProto = onnx.load(str(rewritten))
    assert enlarge_epsilons(proto.graph)
    onnx.save(proto, str(rewritten))
    verdict = verify(written, rewritten, level="quick")
    assert verdict.status == "fail"
    assert verdict.localization is not None
    assert verdict.localization.where.startswith("m_")
    assert "'epsilon' of LayerNormalization" in verdict.localization.summary


def test_a_branch_that_no_input_takes_is_not_exercised(tmp_path: Path):
    """c and not c is false whatever c is: the norm of the branch for true never runs."""
    path = tmp_path / "never.onnx"
    text = TEXTS["If"].replace("h = Tanh (x)", "h = Tanh (x) n = Not (c) never = And (c, n)")
    onnx.save(parser.parse_model(text.replace("If (c)", "If (never)")), str(path))
    verdict = verify(path, path)
    assert verdict.status == "not-exercised", verdict.summary()
    assert "'m_a'" in verdict.reasons[0]
    assert "m_p" not in verdict.reasons[0]


DISTANCES = """<ir_version: 8, opset_import: ["": 18]> g (float[n,4] x) => (float[n,3] y)
    <float[3,4] points = {1, 2, 3, 4, 0, 1, 0, 1, -1, -2, 0.5, 0}, int64[1] last = {-1}> {
    kept, apart = Scan <num_scan_inputs = 1, body = b (float[n,4] state, float[4] point) =>
        (float[n,4] state_out, float[n] distance) {
        state_out = Identity (state) d = Sub (state, point) distance = ReduceSumSquare <keepdims = 0> (d, last) }> (%s)
    y = %s }"""
"""Squared distances as other tools write them: what is looked through, turn by turn, is stored."""

SUMS = """<ir_version: 8, opset_import: ["": 18]> g (float[n,4] x) => (float[4] y)
    <float[4] start = {1, 2, 3, 4}> {
    y, each = Scan <num_scan_inputs = 1, body = b (float[4] state, float[4] row) => (float[4] state_out, float[4] out) {
        state_out = Add (state, row) out = Identity (row) }> (start, x) }"""
"""A sum that begins with stored numbers."""


@pytest.mark.parametrize("text", [DISTANCES % ("x, points", "Transpose <perm = [1, 0]> (apart)"), SUMS])
def test_a_body_that_is_fed_constants_is_confirmed(text: str, tmp_path: Path) -> None:
    paths = []
    for name, stored in (("written", "3, 4"), ("damaged", "3, 4.001")):
        paths.append(tmp_path / f"{name}.onnx")
        onnx.save(parser.parse_model(text.replace("3, 4", stored)), paths[-1])
    verdict = verify(paths[0], paths[0], level="quick")
    assert verdict.check("derivation").status == "pass", verdict.summary()
    assert verdict.status == "pass", verdict.summary()
    assert verify(*paths, level="quick").status == "fail"
