"""Stored weights against recomputed ones by dataflow: how a file is written makes no difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper
from torch import nn
from writing_ways import WAYS, Change

import normdeploy as nd
from normdeploy.graph import load_graph, save_graph
from normdeploy.verification import verify
from normdeploy.verification.derivation.recomputed import compare_graphs

Write = Callable[..., Path]


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
def test_another_way_of_writing_leaves_the_comparison_on(way: Change, small: Any, damaged: Callable[..., Path]):
    path = damaged(small.folded, way)
    comparison = compare_graphs(small.rewritten.model, load_graph(path))
    assert comparison.same_structure, comparison.reason
    assert comparison.problems == []
    assert comparison.tensors >= 8

    def also_wrong(proto: onnx.ModelProto) -> None:
        tensors = list(proto.graph.initializer) + [
            a.t for n in proto.graph.node for a in n.attribute if n.op_type == "Constant"
        ]
        largest = max((t for t in tensors if t.data_type == TensorProto.FLOAT), key=lambda t: int(np.prod(t.dims)))
        value = numpy_helper.to_array(largest).copy()
        at = np.unravel_index(int(np.argmax(np.abs(value))), value.shape)
        value[at] = np.nextafter(value[at], np.float32(np.inf))
        largest.CopyFrom(numpy_helper.from_array(value, largest.name))

    wrong = damaged(path, also_wrong)
    problems = compare_graphs(small.rewritten.model, load_graph(wrong)).problems
    assert len(problems) == 1
    assert problems[0].rounding


def test_another_operator_or_other_wiring_is_another_structure(small: Any, damaged: Callable[..., Path]):
    def other(proto: onnx.ModelProto) -> None:
        node = next(n for n in proto.graph.node if n.op_type == "Relu")
        node.op_type = "Sigmoid"

    assert "Sigmoid" in compare_graphs(small.rewritten.model, load_graph(damaged(small.folded, other))).reason

    def stride(proto: onnx.ModelProto) -> None:
        node = next(n for n in proto.graph.node if n.op_type == "Conv")
        for attribute in [a for a in node.attribute if a.name == "pads"]:
            node.attribute.remove(attribute)

    found = compare_graphs(small.rewritten.model, load_graph(damaged(small.folded, stride)))
    assert any("'pads'" in p.text for p in found.problems)


def test_which_of_two_alike_branches_is_told_by_their_weights(write: Write):
    body = """g (float[N,4] x) => (float[N,4] y) { a = MatMul(x, v) b = MatMul(x, w) y = Add(%s) }"""
    rng = np.random.default_rng(0)
    known = {k: rng.standard_normal((4, 4)).astype(np.float32) for k in "vw"}
    one, other = write(body % "a, b", "a", **known), write(body % "b, a", "b", **known)
    comparison = compare_graphs(load_graph(one), load_graph(other))
    assert comparison.same_structure
    assert comparison.problems == []


def test_exchanged_rows_of_a_table_no_sample_touches_are_found_whatever_the_nodes_are(write: Write):
    body = "g (int64[N,3] ids) => (float[N,3,8] y) { %s }"
    table = np.random.default_rng(0).standard_normal((5000, 8)).astype(np.float32)
    wrong = table.copy()
    wrong[[2000, 3000]] = wrong[[3000, 2000]]
    reference = write(body % "y = Gather(table, ids)", "a", table=table)
    text = body % "k = Identity(ids) z = Gather(table, k) y = Identity(z)"
    assert verify(reference, write(text, "b", table=table), level="quick").status == "pass"
    verdict = verify(reference, write(text, "b", table=wrong), level="quick")
    assert verdict.status == "fail"
    assert verdict.check("weights").status == "fail"


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_verify_compares_the_weights_of_what_export_wrote(norm: str, tmp_path: Path):
    torch.manual_seed(0)
    middle: nn.Module = nn.BatchNorm2d(5) if norm == "batch" else nn.GroupNorm(1, 5)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), middle, nn.ReLU(), nn.Conv2d(5, 4, 3)).eval()
    x = torch.randn(2, 3, 9, 9)
    nd.export(model, x, tmp_path / "net.onnx", verify=False)
    verdict = nd.verify(model, tmp_path / "net.onnx", args=x)
    assert verdict.check("weights").status == "pass", verdict.summary()
    assert "one rounding" in verdict.check("weights").detail


def test_a_batchnorm_that_torch_folded_in_float32_is_right_within_rounding(
    folded_by_torch: Any,
    tmp_path: Path,
):
    """Another tool's correct file: half a unit off here and there, default attributes and all."""
    verdict = nd.verify(folded_by_torch.model, folded_by_torch.path, args=folded_by_torch.x)
    assert verdict.status == "pass", verdict.summary()
    assert "right within rounding" in verdict.check("weights").detail
    proto = onnx.load(str(folded_by_torch.path))
    weight = next(t for t in proto.graph.initializer if len(t.dims) == 4)
    value = numpy_helper.to_array(weight).copy()
    value[3, 1] *= np.float32(1 + 1e-5)
    weight.CopyFrom(numpy_helper.from_array(value, weight.name))
    onnx.save(proto, str(tmp_path / "wrong.onnx"))
    wrong = nd.verify(folded_by_torch.model, tmp_path / "wrong.onnx", args=folded_by_torch.x)
    assert wrong.status == "fail"


def test_a_body_is_compared_like_the_graph_around_it(tmp_path: Path):
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[4] x, bool c) => (float[4] y) <float two = {%s}> {
        y = If (c) <then_branch = t () => (float[4] a) { %s },
                    else_branch = e () => (float[4] b) { b = Neg(x) }> }"""
    paths = []
    for name, two, body in (
        ("a", "2", "a = Mul(x, two)"),
        ("b", "2", "k = Identity(x) z = Mul(two, k) a = Identity(z)"),
        ("c", "3", "a = Mul(x, two)"),
    ):
        proto = onnx.parser.parse_model(text % (two, body))
        onnx.save(proto, str(tmp_path / f"{name}.onnx"))
        paths.append(load_graph(tmp_path / f"{name}.onnx"))
    same, other = compare_graphs(paths[0], paths[1]), compare_graphs(paths[0], paths[2])
    assert same.same_structure, same.reason
    assert not same.problems
    assert other.problems
    assert save_graph(paths[0], tmp_path / "kept.onnx")
