"""Thresholds, leaves and coefficients that stand in attributes are numbers that a file holds, met by samples or not."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from normdeploy.verification import verify
from normdeploy.verification.record.answers import Question, Status

GRAPH = """<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]> g ({}) => (float[n, {}] y) {{
    h = {} y = Mul(h, h) }}"""
FLOATS, KEYS = ("float[n, 4] x", 4), ("int64[n, 4] x", 4)


def tree(leaf: float, threshold: float, beside: float = 0.0) -> str:
    """A threshold far from what is fed, whose other side is a leaf; ``beside`` is what leaves are compared with."""
    return f"""ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1, nodes_treeids = [0, 0, 0, 0, 0],
        nodes_nodeids = [0, 1, 2, 3, 4], nodes_featureids = [0, 1, 0, 0, 0],
        nodes_values = [{threshold}, 0.5, {beside}, 0.0, 0.0],
        nodes_modes = ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"], nodes_truenodeids = [1, 3, 0, 0, 0],
        nodes_falsenodeids = [2, 4, 0, 0, 0], target_treeids = [0, 0, 0], target_nodeids = [2, 3, 4],
        target_ids = [0, 0, 0], target_weights = [{leaf}, 2.0, 3.0]>(x)"""


BINARY = "ai.onnx.ml.Binarizer<threshold = {}>(x)"
LABELS = "ai.onnx.ml.LabelEncoder<keys_int64s = [0, 1, 777], values_floats = [1.0, 2.0, {}], default_float = {}>(x)"


def status(folder: Path, inputs: tuple[str, int], right: str, file: str) -> tuple[Status, str]:
    paths = folder / "reference.onnx", folder / "net.onnx"
    for path, text in zip(paths, (right, file), strict=True):
        onnx.save(onnx.parser.parse_model(GRAPH.format(inputs[0], 1 if "Tree" in text else inputs[1], text)), path)
    verdict = verify(paths[0], paths[1], level="quick")
    return verdict.status, next(check.detail for check in verdict.checks if check.name is Question.DERIVATION)


@pytest.mark.parametrize(
    ("inputs", "right", "wrong", "named"),
    [
        (FLOATS, tree(1.0, 1e6), tree(1.1, 1e6), "'target_weights'"),
        (FLOATS, tree(1.0, 1e6), tree(1.0, 2e6), "'nodes_values'"),
        (FLOATS, BINARY.format(1e6), BINARY.format(2e6), "'threshold'"),
        (KEYS, LABELS.format(3.0, 0.5), LABELS.format(4.0, 0.5), "'values_floats'"),
        (KEYS, LABELS.format(3.0, 0.5), LABELS.format(3.0, 0.6), "'default_float'"),
        (KEYS, LABELS.format(3.0, 0.5), LABELS.format(3.0, 0.5).replace("777", "778"), "'keys_int64s'"),
    ],
    ids=["leaf", "split", "threshold", "label", "other label", "key"],
)
def test_a_number_that_no_sample_meets_fails(
    inputs: tuple[str, int], right: str, wrong: str, named: str, tmp_path: Path
) -> None:
    found, detail = status(tmp_path, inputs, right, wrong)
    assert found is Status.FAIL
    assert named in detail


@pytest.mark.parametrize(
    ("inputs", "right", "file"),
    [
        (FLOATS, tree(1.0, 0.25), tree(1.0, 0.25, beside=7.0)),
        (FLOATS, tree(0.1, 0.25), tree(0.10000000149011612, 0.25)),
        (KEYS, LABELS.format(3.0, 0.5), LABELS.format(3.0, 0.5).replace("default", "default_int64 = 5, default")),
    ],
    ids=["what leaves are compared with", "as float32 holds it", "what stands for other values"],
)
def test_what_is_never_read_makes_no_difference(inputs: tuple[str, int], right: str, file: str, tmp_path: Path) -> None:
    assert status(tmp_path, inputs, right, file)[0] is Status.PASS
