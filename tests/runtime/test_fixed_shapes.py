"""Sessions for the shapes that are timed: the same results whatever the shapes, each session made when it is needed."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from usable_providers import provider_params

from normdeploy.errors import GraphError, InputError, UsageError
from normdeploy.ort.providers import float32_options
from normdeploy.ort.settings import CPU, OPENVINO_PLUGIN, OPENVINO_RUNTIME
from normdeploy.ort.specs import TensorSpec, file_specs
from normdeploy.runtime import Settings, load
from normdeploy.runtime import backend as room
from normdeploy.runtime.backend import OpenVinoBackend, OrtBackend, open_backend, plugin_options
from normdeploy.runtime.predictor import Predictor
from normdeploy.runtime.tuning.candidates import Candidate
from normdeploy.runtime.tuning.fixed import InFixedBatches, with_fixed_shapes

PROVIDERS = provider_params(CPU, OPENVINO_RUNTIME, OPENVINO_PLUGIN)


def _settings(provider: str, *shape: int) -> Settings:
    return Settings(provider, options=float32_options(provider), threads=1, fixed_shapes=(("x", shape),))


@pytest.fixture
def opened(monkeypatch):
    """Count the sessions that are made, by their fixed shapes."""
    made: list[tuple] = []
    session = room.backend_for

    def counted(file, settings, *declared):
        made.append(settings.fixed_shapes)
        return session(file, settings, *declared)

    monkeypatch.setattr(room, "backend_for", counted)
    return made


@pytest.mark.parametrize("provider", PROVIDERS)
def test_results_are_the_same_for_every_shape(linear, provider, opened):
    path, weight, bias = linear
    backend = open_backend(path, _settings(provider, 4, 3))
    assert backend.inputs == (TensorSpec("x", "float32", ("batch", 3)),)
    assert backend.outputs == (TensorSpec("y", "float32", ("batch", 2)),)
    assert backend.provider == provider
    assert opened == []  # nothing is made before the first call
    draw = np.random.default_rng(0)
    for rows in (4, 4, 1, 7, 4, 1):
        x = draw.normal(size=(rows, 3)).astype(np.float32)
        (y,) = backend.run({"x": x})
        np.testing.assert_allclose(y, x.astype(np.float64) @ weight + bias, rtol=1e-5, atol=1e-6)
    assert opened == [(("x", (4, 3)),), ()]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_fixed_session_is_static(linear, provider):
    path, *_ = linear
    settings = _settings(provider, 4, 3)
    own = provider == OPENVINO_RUNTIME
    backend = OpenVinoBackend(path, settings) if own else OrtBackend(path, settings, file_specs(path)[0])
    assert backend.inputs[0].shape == (4, 3)
    assert backend.outputs[0].shape == (4, 2)
    with pytest.raises(Exception, match=r"(?i)dimension|shape"):
        backend.run({"x": np.zeros((5, 3), np.float32)})


def test_a_call_of_other_shapes_alone_makes_no_fixed_session(linear, opened):
    path, *_ = linear
    open_backend(path, _settings(CPU, 4, 3)).run({"x": np.zeros((2, 3), np.float32)})
    assert opened == [()]


def test_threads_share_one_session(linear, opened):
    path, weight, bias = linear
    backend = open_backend(path, _settings(CPU, 4, 3))
    rows = [np.full((4, 3), value, np.float32) for value in range(16)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda x: backend.run({"x": x})[0], rows))
    assert opened == [(("x", (4, 3)),)]
    for x, y in zip(rows, found, strict=True):
        np.testing.assert_allclose(y, x.astype(np.float64) @ weight + bias, rtol=1e-5, atol=1e-5)


def test_a_predictor_travels_and_still_takes_any_batch(linear):
    path, weight, bias = linear
    predictor = pickle.loads(pickle.dumps(Predictor(path, _settings(CPU, 4, 3))))
    x = np.random.default_rng(1).normal(size=(10, 3)).astype(np.float32)
    expected = x.astype(np.float64) @ weight + bias
    np.testing.assert_allclose(predictor(x[:4]), expected[:4], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(predictor.batched(x, batch_size=4), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="'x' has shape"):
        predictor(x[:4, :2])


def test_dimensions_of_several_inputs_and_without_a_name(write_model):
    path = write_model(
        """net (float[batch, time] x, int64[batch] i, float s) => (float[batch, time] y) {
            f = Cast <to = 1> (i)
            axes = Constant <value_ints = [1]> ()
            u = Unsqueeze(f, axes)
            v = Add(x, u)
            y = Mul(v, s)
        }"""
    )
    inputs, outputs = file_specs(path)
    plain = load(path)
    assert inputs == plain.inputs
    assert outputs == plain.outputs
    shapes = (("i", (2,)), ("s", ()), ("x", (2, 5)))
    fixed = Predictor(path, Settings(fixed_shapes=shapes))
    draw = np.random.default_rng(3)
    for rows, length in ((2, 5), (3, 5), (2, 4)):
        x, i = draw.normal(size=(rows, length)).astype(np.float32), np.arange(rows)
        feeds = {"x": x, "i": i, "s": np.float32(3)}
        np.testing.assert_allclose(fixed(feeds)["y"], (x + i[:, None]) * 3.0, rtol=1e-6)
    assert OrtBackend(path, Settings(fixed_shapes=shapes), inputs).inputs[0].shape == (2, 5)


def test_an_undeclared_output_is_named(write_model):
    import onnx

    path = write_model("net (float[batch, 3] x) => (float[batch, 3] y) { y = Relu(x) }")
    model = onnx.load(path)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    with pytest.raises(GraphError, match="'y' has no declared type and rank"):
        open_backend(path, _settings(CPU, 4, 3))


def test_settings_keep_their_shapes_in_json():
    settings = Settings(fixed_shapes=(("ids", (2, 7)), ("x", (2, 3, 8, 8))))
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    assert Settings.from_dict({"threads": 1}) == Settings(threads=1)  # a plan of an earlier version
    assert settings.describe() == "CPU, auto threads, made for ids [2, 7], made for x [2, 3, 8, 8]"
    with pytest.raises(UsageError, match=r"fixed_shapes=.*at least 1"):
        Settings(fixed_shapes=(("x", (0, 3)),))


def test_the_plugin_is_told_its_threads_beside_what_else_it_is_told():
    told = plugin_options(Settings(OPENVINO_PLUGIN, options=float32_options(OPENVINO_PLUGIN), threads=2))
    assert json.loads(told["load_config"]) == {"CPU": {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "2"}}
    assert plugin_options(Settings(OPENVINO_PLUGIN)) == {}
    own = Settings(OPENVINO_PLUGIN, options=(("load_config", '{"CPU": {"INFERENCE_NUM_THREADS": "1"}}'),), threads=2)
    assert json.loads(plugin_options(own)["load_config"]) == {"CPU": {"INFERENCE_NUM_THREADS": "1"}}


# what the tuner makes of it ---------------------------------------------------------------------------------------


def test_providers_that_gain_by_it_are_tried_with_the_timed_shapes(tmp_path):
    specs = [TensorSpec("x", "float32", ("batch", 3))]
    feeds = {"x": np.zeros((8, 3), np.float32)}
    ways = [Settings(CPU), Settings(OPENVINO_RUNTIME, threads=2), Settings(OPENVINO_PLUGIN, threads=1)]
    best = [Candidate(f"int8: {way.describe()}", "int8", tmp_path / "net.int8.onnx", way) for way in ways]
    found = list(with_fixed_shapes(best, specs, feeds))
    assert [entry.name for entry in found] == [
        "int8: OpenVINO, 2 threads, made for x [8, 3]",
        "int8: OpenVINO plugin, 1 thread, made for x [8, 3]",
    ]
    assert [replace(entry.settings, fixed_shapes=()) for entry in found] == ways[1:]
    assert {(entry.precision, entry.file) for entry in found} == {("int8", tmp_path / "net.int8.onnx")}
    assert not list(with_fixed_shapes(best, [TensorSpec("x", "float32", (8, 3))], feeds))


@pytest.mark.parametrize("rows", [1, 4, 6, 9])
def test_the_judge_asks_the_fixed_session_whatever_its_rows(linear, rows, opened):
    path, weight, bias = linear
    fixed = InFixedBatches(open_backend(path, _settings(CPU, 4, 3)), {"x": (4, 3)})
    x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
    (y,) = fixed.run({"x": x})
    np.testing.assert_allclose(y, x.astype(np.float64) @ weight + bias, rtol=1e-5, atol=1e-6)
    assert fixed.fitting == -(-rows // 4)
    assert opened == [(("x", (4, 3)),)]


def test_what_a_fixed_session_does_not_answer_is_not_counted(write_model):
    path = write_model("net (float[batch, time] x) => (float[batch, time] y) { y = Relu(x) }")
    fixed = InFixedBatches(open_backend(path, _settings(CPU, 4, 3)), {"x": (4, 3)})
    np.testing.assert_array_equal(fixed.run({"x": -np.ones((5, 2), np.float32)})[0], np.zeros((5, 2)))
    assert fixed.fitting == 0


def test_an_output_without_rows_cannot_be_judged_in_batches(write_model):
    path = write_model(
        """net (float[batch, 3] x) => (float[1, 3] y) {
            axes = Constant <value_ints = [0]> ()
            y = ReduceSum(x, axes)
        }"""
    )
    fixed = InFixedBatches(open_backend(path, _settings(CPU, 4, 3)), {"x": (4, 3)})
    with pytest.raises(InputError, match="no row for each of 4 samples"):
        fixed.run({"x": np.ones((6, 3), np.float32)})
