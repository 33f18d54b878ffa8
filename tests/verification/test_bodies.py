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
