"""Statistics of layers behind quantized weights: brought back layer by layer, and kept where they help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from normdeploy.budget import parse_budget
from normdeploy.graph import Evaluator
from normdeploy.runtime import this_machine, tune
from normdeploy.runtime.tuning.int8 import CORRECTIONS, INT8_RECIPES, Quantizer


def images(count: int, seed: int = 0) -> np.ndarray:
    """Rows whose mean is far from 0: what a weight's rounding error becomes a shift by."""
    return (np.random.default_rng(seed).random((count, 3, 16, 16)) + 0.5).astype(np.float32)


def layers(path: Path, x: np.ndarray) -> dict[str, np.ndarray]:
    """Return what each layer writes, in float64, by the layer's name."""
    graph, found = ir.load(path), {}

    def hook(node: ir.Node, results: list) -> None:
        if node.op_type in ("Conv", "Gemm"):
            found[node.name] = results[0].numpy()

    Evaluator(graph).run({"x": x}, hook=hook)
    return found


def integers(path: Path) -> dict[str, np.ndarray]:
    stored = onnx.load(path).graph.initializer
    return {
        t.name: numpy_helper.to_array(t) for t in stored if t.data_type == onnx.TensorProto.INT8 and len(t.dims) > 1
    }


def moments(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    axes = tuple(axis for axis in range(y.ndim) if axis != 1)
    return y.mean(axes), y.std(axes)


@pytest.fixture
def written(convnet: Path, tmp_path: Path) -> dict[str, Path]:
    """The float network, named, and its int8 variants without and with corrections; 64 rows calibrate."""
    x = images(64)
    quantizer = Quantizer(convnet, [{"x": x[:32]}, {"x": x[32:]}], this_machine())
    found = {"float": tmp_path / "float.onnx"}
    onnx.save(quantizer.plain, found["float"])
    for kind in ("", *CORRECTIONS):
        recipe = INT8_RECIPES[0] if not kind else INT8_RECIPES[0].with_correction(kind)
        found[kind] = tmp_path / f"int8{kind}.onnx"
        assert (quantizer.write(found[kind], recipe) > 0) == bool(kind)
    return found


@pytest.mark.parametrize("kind", list(CORRECTIONS))
def test_every_layer_has_the_statistics_of_the_float_network_again(written: dict[str, Path], kind: str) -> None:
    x = images(64)
    wanted, before, after = (layers(written[name], x) for name in ("float", "", kind))
    assert set(after) == set(wanted)
    for name, y in wanted.items():
        (mean, deviation), (mean0, _), (mean1, deviation1) = moments(y), moments(before[name]), moments(after[name])
        off = np.abs(mean1 - mean).max()
        assert off < 0.3 * np.abs(mean0 - mean).max() + 1e-6, name  # the bias' own rounding is left
        assert off < 1e-2 * deviation.max()
        if kind == "statistics":
            np.testing.assert_allclose(deviation1, deviation, rtol=1e-2)


@pytest.mark.parametrize("kind", list(CORRECTIONS))
def test_a_layer_without_a_bias_gets_one(write_model: Callable[..., Path], tmp_path: Path, kind: str) -> None:
    weight = np.random.default_rng(2).normal(size=(6, 3, 3, 3)).astype(np.float32)
    path = write_model("n (float[batch, 3, 16, 16] x) => (float[batch, 6, 14, 14] y) { y = Conv(x, W) }", {"W": weight})
    x = images(64)
    quantizer = Quantizer(path, [{"x": x[:32]}, {"x": x[32:]}], this_machine())
    onnx.save(quantizer.plain, tmp_path / "float.onnx")
    quantizer.write(tmp_path / "int8.onnx", INT8_RECIPES[0])
    assert quantizer.write(tmp_path / "other.onnx", INT8_RECIPES[0].with_correction(kind)) == 1
    found = [moments(*layers(tmp_path / f"{name}.onnx", x).values()) for name in ("float", "int8", "other")]
    (mean, deviation), (mean0, _), (mean1, deviation1) = found
    assert np.abs(mean1 - mean).max() < 0.01 * np.abs(mean0 - mean).max()
    if kind == "statistics":
        np.testing.assert_allclose(deviation1, deviation, rtol=1e-3)


def test_the_integers_of_weights_stay(written: dict[str, Path]) -> None:
    plain = integers(written[""])
    assert plain
    for kind in CORRECTIONS:
        for name, array in integers(written[kind]).items():
            np.testing.assert_array_equal(array, plain[name])


@pytest.mark.parametrize("kind", list(CORRECTIONS))
def test_rows_that_were_not_seen_gain(written: dict[str, Path], kind: str) -> None:
    x = images(200, seed=9)
    truth, before, after = (layers(written[name], x)["Gemm_6"] for name in ("float", "", kind))
    gain = parse_budget("rel=1%").gain([before], [after], [truth])
    assert gain.high < 0
    assert gain.value == pytest.approx(
        (np.linalg.norm(after - truth) - np.linalg.norm(before - truth)) / np.linalg.norm(truth)
    )


def test_what_does_not_help_is_listed_with_its_number(convnet: Path) -> None:
    plan = tune(convnet, data=images(300), budget="rel=3e-2", seconds=0.2)
    names = {trial.name.split(":")[0]: trial for trial in plan.trials if trial.precision == "int8"}
    tried = {f"int8, {words}" for words in CORRECTIONS.values()}
    kept = {name for name in tried if name in names and "does not help" not in names[name].reason}
    assert kept, "corrected biases help this network"
    for trial in names.values():
        if "does not help" in trial.reason:
            assert trial.status == "rejected"
            assert trial.loss is not None
            assert trial.loss["rel by conversion"] > 0
    timed = [trial for trial in plan.trials if trial.latency and trial.precision == "int8"]
    for trial in timed:
        assert trial.loss is not None
        assert trial.loss["rel low"] <= trial.loss["rel"] <= trial.loss["rel high"]


def test_gain_of_top1_counts_the_same_rows() -> None:
    truth = np.eye(4)[[0, 1, 2, 3] * 25]
    before, after = truth.copy(), truth.copy()
    before[:10] = np.roll(before[:10], 1, axis=1)
    gain = parse_budget("top1=1%").gain([before], [after], [truth])
    assert gain.value == -0.1
    assert gain.high < 0
    none = parse_budget("top1=1%").gain([before], [before], [truth])
    assert none.low < 0 < none.high
