"""The assertion: what it accepts, and what a failure shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from normdeploy.testing import assert_equivalent

TEXT = """<ir_version: 10, opset_import: ["": 20]>
g (float[N,6] x) => (float[N,6] rows, float[N,6] other) {
    rows = LayerNormalization <axis = -1, epsilon = 1e-5> (x, s, b)
    other = Tanh (x)
}"""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    proto = parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name in ("s", "b"):
        proto.graph.initializer.append(numpy_helper.from_array(rng.uniform(0.5, 2, 6).astype(np.float32), name))
    onnx.save(proto, str(tmp_path / "rows.onnx"))
    return tmp_path / "rows.onnx"


def changed(path: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    proto = onnx.load(str(path))
    change(proto)
    target = path.with_name("changed.onnx")
    onnx.save(proto, str(target))
    return target


def other_epsilon(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        if node.op_type == "LayerNormalization":
            node.ClearField("attribute")
            node.attribute.extend([helper.make_attribute("axis", -1), helper.make_attribute("epsilon", 1e-4)])


def test_a_right_file_passes_and_gives_its_verdict(rows: Path):
    assert assert_equivalent(rows, rows, level="quick").status == "pass"


def test_a_failure_says_which_output_where_and_which_mistake(rows: Path):
    wrong = changed(rows, other_epsilon)
    with pytest.raises(AssertionError) as caught:
        assert_equivalent(rows, wrong, level="quick")
    lines = str(caught.value).splitlines()
    assert lines[0] == "changed.onnx is not equivalent to rows.onnx: FAIL"
    outputs = [line.split(maxsplit=1)[1] for line in lines if line.startswith("  output ")]
    assert outputs[0].startswith("'rows' differs: ")
    assert "times the bound at [" in outputs[0]
    assert outputs[1].startswith("'other' is right")
    [looks] = [line for line in lines if line.startswith("  looks like ")]
    assert "epsilon" in looks
    assert any(line.startswith("  wrong ") and "the file itself" in line for line in lines)
    assert any(line.startswith("  what held ") and "structure" in line for line in lines)
    assert lines[-1].split() == ["level", "quick"]


def test_a_mistake_among_the_known_ones_is_named_with_its_site(rows: Path):
    def dropped(proto: onnx.ModelProto) -> None:
        shift = next(t for t in proto.graph.initializer if t.name == "b")
        shift.CopyFrom(numpy_helper.from_array(np.zeros(6, np.float32), "b"))

    with pytest.raises(AssertionError, match=r"looks like .*shift"):
        assert_equivalent(rows, changed(rows, dropped), level="quick")


def test_an_output_that_is_missing_is_said(rows: Path):
    def without(proto: onnx.ModelProto) -> None:
        del proto.graph.output[-1]

    with pytest.raises(AssertionError, match=r"because +structure: .*output"):
        assert_equivalent(rows, changed(rows, without), level="quick")


def test_a_site_that_nothing_exercises_is_named_with_what_would_not_be_noticed(rows: Path):
    def hidden(proto: onnx.ModelProto) -> None:
        proto.graph.node[0].output[0] = "normal"
        proto.graph.node.append(helper.make_node("MatMul", ["normal", "nothing"], ["rows"]))
        proto.graph.initializer.append(numpy_helper.from_array(np.zeros((6, 6), np.float32), "nothing"))

    path = changed(rows, hidden)
    with pytest.raises(AssertionError, match=r"not exercised +.*LayerNormalization.* would not be noticed"):
        assert_equivalent(path, path, level="quick")
    assert assert_equivalent(path, path, level="quick", allow={"not-exercised"}).status == "not-exercised"


def test_a_status_is_accepted_only_where_it_is_named(rows: Path):
    wrong = changed(rows, other_epsilon)
    assert assert_equivalent(rows, wrong, level="quick", allow={"fail"}).status == "fail"
    with pytest.raises(AssertionError):
        assert_equivalent(rows, wrong, level="quick", allow={"weak"})
