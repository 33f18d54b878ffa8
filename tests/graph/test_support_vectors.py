"""SVMClassifier in float64 is what onnxruntime computes; probabilities minimize what was published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from normdeploy.graph import Evaluator, load_graph
from normdeploy.graph.support_vectors import coupled


def classifier(path: Path, classes: int, kernel: str, *, proba: bool) -> Path:
    """Write a classifier of three vectors for each class, with numbers at random."""
    rng = np.random.default_rng(classes)
    pairs = classes * (classes - 1) // 2
    given = {"prob_a": rng.uniform(-2, -1, pairs).tolist(), "prob_b": rng.normal(size=pairs).tolist()} if proba else {}
    node = helper.make_node(
        "SVMClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        classlabels_ints=list(range(classes)),
        coefficients=rng.normal(size=3 * classes * (classes - 1)).tolist(),
        kernel_params=[0.3, 0.2, 3.0],
        kernel_type=kernel,
        rho=rng.normal(size=pairs).tolist(),
        support_vectors=rng.normal(size=12 * classes).tolist(),
        vectors_per_class=[3] * classes,
        **given,
    )
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, 4])
    made = [
        helper.make_tensor_value_info("label", onnx.TensorProto.INT64, None),
        helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, None),
    ]
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x], made), opset_imports=imports, ir_version=8), path)
    return path


@pytest.mark.parametrize("proba", [True, False])
@pytest.mark.parametrize("kernel", ["LINEAR", "RBF", "POLY", "SIGMOID"])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_it_is_what_onnxruntime_computes(classes: int, kernel: str, proba: bool, tmp_path: Path) -> None:
    path = classifier(tmp_path / "net.onnx", classes, kernel, proba=proba)
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    label, scores = session.run(None, {"x": x})
    found = Evaluator(load_graph(path)).run({"x": x})
    assert np.array_equal(found["label"].numpy(), label)
    assert np.abs(found["scores"].numpy() - scores).max() <= 2e-5 * max(np.abs(scores).max(), 1.0)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_probabilities_minimize_what_was_published(count: int) -> None:
    rng = np.random.default_rng(count)
    pairs = np.triu(rng.uniform(0.05, 0.95, (count, count)), 1)
    pairs += np.tril(1 - pairs.T, -1)

    def badness(p: np.ndarray) -> float:
        return sum((pairs[j, i] * p[i] - pairs[i, j] * p[j]) ** 2 for i in range(count) for j in range(count) if i != j)

    found = coupled(pairs)
    assert abs(found.sum() - 1) < 1e-9
    assert (found > 0).all()
    for _ in range(50):  # it stops within 0.005 / k of the minimum's gradient, so that a step of 0.1 is no better
        step = rng.normal(size=count)
        step *= 0.1 / np.abs(step - step.mean()).sum()
        assert badness(found) < badness(found + step - step.mean())
