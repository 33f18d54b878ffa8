"""Initializers among the inputs: their own numbers are compared as any, whichever side lets a caller replace them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import normdeploy as nd
from normdeploy.graph import Evaluator, load_graph
from normdeploy.verification import verify
from normdeploy.verification.judging.parts import held_in_parts
from normdeploy.verification.record.answers import Question, Status
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.sides.subgraph import subgraph
from normdeploy.verification.sides.subject import Subject

GRAPH = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] y)
    <float[4] s = {1, 2, 3, 4}, float[4] b = {4, 3, 2, 1}> { h = LayerNormalization(x, s) y = Mul(h, b) }"""

LISTED = ("s", "b")


def written(path: Path, *, listed: bool, version: int = 8, off: float = 0.0) -> Path:
    """Write the graph. Args: listed: its initializers are inputs. off: by how much one of their numbers is off."""
    model = onnx.parser.parse_model(GRAPH)
    model.ir_version = version
    if listed:
        model.graph.input.extend([helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in LISTED])
    [stored] = [tensor for tensor in model.graph.initializer if tensor.name == "b"]
    numbers = numpy_helper.to_array(stored) + np.array([0, off, 0, 0], np.float32)
    stored.CopyFrom(numpy_helper.from_array(numbers, "b"))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("version", [3, 8])
@pytest.mark.parametrize("sides", [(True, True), (True, False), (False, True)])
def test_a_number_that_is_off_is_found(sides: tuple[bool, bool], version: int, tmp_path: Path) -> None:
    """One part in a million moves no output beyond its rounding: only comparing numbers shows it."""
    of = [version if listed else 8 for listed in sides]
    reference = written(tmp_path / "a.onnx", listed=sides[0], version=of[0])
    right = verify(reference, written(tmp_path / "b.onnx", listed=sides[1], version=of[1]))
    assert right.status is Status.PASS
    assert [check.status for check in right.checks if check.name is Question.DERIVATION] == [Status.PASS]
    wrong = verify(reference, written(tmp_path / "c.onnx", listed=sides[1], version=of[1], off=2e-6))
    assert wrong.status is Status.FAIL
    assert any("of Mul" in reason for reason in wrong.reasons)
    both_chosen = sides == (True, True) or version == 3
    assert any("may give for 'b'" in text for text in right.not_checked) == (not both_chosen)


def test_operators_cut_out_of_a_graph_keep_what_nothing_is_fed_for(tmp_path: Path) -> None:
    """It ended in a KeyError wherever a run is held part by part, and where a failure is located."""
    model = ir.load(written(tmp_path / "a.onnx", listed=True))
    h, y = np.array([[1, 1, 2, 2]], np.float32), np.array([[4, 3, 4, 2]], np.float32)
    [product] = [node for node in model.graph if node.op_type == "Mul"]
    small = subgraph(model, [product], ["y"], {"h": h, "y": y})
    assert [value.name for value in small.graph.inputs] == ["h"]
    np.testing.assert_array_equal(Evaluator(small).run({"h": torch.from_numpy(h)})["y"], y)


def test_a_run_is_held_part_by_part_where_initializers_are_among_the_inputs(tmp_path: Path) -> None:
    side = Subject(written(tmp_path / "a.onnx", listed=True))
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)}
    assert held_in_parts(side, feeds, side.run(feeds, Setting()), Setting(), seed=0).holds


def test_numbers_that_differ_are_taken_as_constants_of_the_callers_model_too(tmp_path: Path) -> None:
    """The graph that is handed over keeps its inputs."""
    model = ir.load(written(tmp_path / "a.onnx", listed=True))
    assert verify(model, written(tmp_path / "c.onnx", listed=True, off=2e-6)).status is Status.FAIL
    assert [value.name for value in model.graph.inputs] == ["x", *LISTED]


@pytest.mark.parametrize(("version", "names"), [(3, ["x"]), (8, ["x", *LISTED])])
def test_up_to_version_three_nothing_is_chosen(version: int, names: list[str], tmp_path: Path) -> None:
    graph = load_graph(written(tmp_path / "net.onnx", listed=True, version=version)).graph
    assert [value.name for value in graph.inputs] == names
    assert sorted(graph.initializers) == sorted(LISTED)


def test_a_module_beside_a_file_that_lets_weights_be_replaced(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval(), torch.randn(3, 4)
    nd.export(model, x, tmp_path / "net.onnx")
    file = onnx.load(tmp_path / "net.onnx")
    file.graph.input.extend(
        [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in file.graph.initializer]
    )
    onnx.save(file, tmp_path / "listed.onnx")
    verdict = verify(model, tmp_path / "listed.onnx", args=x)
    assert verdict.status is Status.PASS
    assert [check.status for check in verdict.checks if check.name is Question.DERIVATION] == [Status.PASS]
