from __future__ import annotations

import dataclasses
import json
import re
import time
import warnings

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper

from normdeploy.errors import InputError, OutputExistsError, UsageError
from normdeploy.graph import Evaluator
from normdeploy.ort.digest import model_digest
from normdeploy.ort.machine import reduced_precision
from normdeploy.ort.settings import OPENVINO_RUNTIME
from normdeploy.runtime import Plan, PlanWarning, Settings, load, retune, this_machine, tune
from normdeploy.runtime.tuning import opponent, stopwatch, trials, tuning_search, variants
from normdeploy.runtime.tuning.int8 import CORRECTIONS, INT8_RECIPES, Quantizer


def _images(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 3, 16, 16)).astype(np.float32)


def _truth(path, x: np.ndarray) -> np.ndarray:
    """Return the first output of the graph in float64."""
    return next(iter(Evaluator(ir.load(path)).run({"x": x}).values())).numpy()


@pytest.fixture(autouse=True)
def _only_cpu(request, monkeypatch):
    """Leave other runtimes out where a test is not about them: they double its time."""
    if "all_providers" not in request.node.name:
        cpu = [provider for provider in tuning_search.find_providers() if provider.name == "CPUExecutionProvider"]
        monkeypatch.setattr(tuning_search, "find_providers", lambda: cpu)
        if "openvino" not in request.node.name:
            monkeypatch.setattr(opponent, "find_providers", lambda: cpu)


def test_exact_plan(convnet):
    plan = tune(convnet, seconds=0.2)
    assert plan.path == convnet.with_name("conv.plan.json")
    assert Plan.load(plan.path) == plan
    best = plan.chosen
    assert best.precision == "float32"
    assert best.file == "conv.onnx"
    assert best.loss["rounding"] <= 1
    names = [trial.name for trial in plan.trials]
    assert "untuned" in names
    assert any("optimization basic" in name for name in names)
    for trial in plan.trials:
        assert trial.status == "chosen" or trial.reason
        if trial.latency is None:  # never opened, or hopeless at the first glance, as any way may be on a busy machine
            assert trial.status != "chosen"
            assert trial.reason
        else:
            assert trial.status in ("chosen", "accepted", "rejected")
    assert best.latency is not None
    assert best.ratio["value"] <= 1
    assert re.search("budget is exact", plan.summary())
    assert json.loads(plan.to_json())["machine"] == json.loads(json.dumps(this_machine().to_dict()))
    x = _images(4)
    np.testing.assert_allclose(load(convnet, plan=plan)(x), _truth(convnet, x), rtol=1e-4, atol=1e-5)


def test_lossy_plan_is_measured_on_the_users_rows(convnet):
    x = _images(300)
    plan = tune(convnet, data=x, budget="rel=3e-2", seconds=0.2)
    assert "172 of your 300 rows, calibrated on 128 others" in plan.data
    lossy = [trial for trial in plan.trials if trial.precision == "int8"]
    names = {trial.name.split(":")[0] for trial in lossy}
    joined = next(trial for trial in lossy if trial.status == "skipped")
    assert joined.reason == "no MatMul followed by a bias"
    assert "int8, equalized" in {name.removesuffix(", biases corrected") for name in names}
    for recipe in (INT8_RECIPES[0], INT8_RECIPES[1]):  # each with what helps, and each correction was asked
        assert names & {recipe.name, *(recipe.with_correction(kind).name for kind in CORRECTIONS)}
        assert {recipe.with_correction(kind).name for kind in CORRECTIONS} <= names
    for trial in lossy:
        if trial is joined or trial.latency is None:
            continue
        assert 1e-4 < trial.loss["rel"] < 0.2
        assert 1e-4 < trial.loss["rel by conversion"] < 0.2
        if trial.loss["rel"] > 3e-2:
            assert trial.status == "rejected"
            assert "the budget is 0.03" in trial.reason
    truth = _truth(convnet, x)
    found = load(convnet, plan=plan).batched(x)
    assert np.linalg.norm(found - truth) / np.linalg.norm(truth) < 3e-2
    before = set(convnet.parent.iterdir())
    assert convnet.parent / plan.chosen.file in before


def test_budget_below_every_conversion_rejects_them_with_the_number(convnet, monkeypatch):
    monkeypatch.setattr(variants, "WORTH", 1e9)  # operators left in float32 are tried too, whatever they gain here
    plan = tune(convnet, data=_images(40), budget="rel=1e-6", seconds=0.2)
    assert plan.chosen.precision == "float32"
    assert "calibrated on 40 of the same rows" in plan.data
    lossy = [trial for trial in plan.trials if trial.precision in ("int8", "float16") and trial.latency]
    assert len(lossy) >= 3
    for trial in lossy:
        assert trial.status == "rejected"
        assert re.fullmatch(r"loses rel [0-9.e-]+; the budget is 1e-06", trial.reason)
    assert sorted(path.name for path in convnet.parent.iterdir()) == ["conv.onnx", "conv.plan.json"]


@pytest.mark.slow
def test_top1_budget_counts_changed_classes(convnet):
    x = _images(64)
    plan = tune(convnet, data={"x": x}, budget="top1=30%", seconds=0.2)
    truth = _truth(convnet, x).argmax(1)
    found = load(convnet, plan=plan).batched(x).argmax(1)
    assert np.mean(truth != found) <= 0.3
    trial = next(trial for trial in plan.trials if trial.precision == "int8")
    assert trial.loss["top1"] == round(trial.loss["top1"] * 64) / 64


def test_lossy_budget_needs_data(convnet, write_model):
    with pytest.raises(UsageError, match="measured on your data and none was given"):
        tune(convnet, budget="top1=1%")
    with pytest.raises(InputError, match="float64; expected float32"):
        tune(convnet, data=_images(4).astype(np.float64))
    with pytest.raises(UsageError, match="expected exact, top1"):
        tune(convnet, budget="quick")


def _misfused(write_model):
    """A graph that onnxruntime's MatMul+BatchNormalization fusion gets wrong."""
    draw = np.random.default_rng(0)
    weights = {
        "W": draw.normal(size=(6, 6)).astype("f4"), "s": draw.uniform(0.5, 2, 6).astype("f4"),
        "c": draw.normal(size=6).astype("f4"), "m": draw.normal(size=6).astype("f4"),
        "v": draw.uniform(0.5, 2, 6).astype("f4"), "flat": np.array([-1, 6]), "cube": np.array([-1, 6, 6]),
    }  # fmt: skip
    text = """n (float[b, 6, 6] x) => (float[b, 6, 6] y) {
        z = Reshape(x, flat) h = MatMul(z, W) q = Reshape(h, cube) y = BatchNormalization(q, s, c, m, v) }"""
    return write_model(text, weights, "misfused.onnx")


def test_optimization_that_changes_the_result_is_excluded_by_name(write_model):
    path = _misfused(write_model)
    x = np.random.default_rng(1).normal(size=(5, 6, 6)).astype(np.float32)
    truth = _truth(path, x)
    if np.allclose(load(path)(x), truth, atol=1e-3):
        pytest.skip("this onnxruntime fuses MatMul and BatchNormalization correctly")
    plan = tune(path, seconds=0.2)
    untuned = next(trial for trial in plan.trials if trial.name == "untuned")
    assert untuned.status == "rejected"
    assert "changes the result" in untuned.reason
    assert "MatMul_BatchNormalization_Fusion" in untuned.reason
    assert any(trial.settings.disabled_optimizers for trial in plan.trials if trial.status in ("chosen", "accepted"))
    np.testing.assert_allclose(load(path, plan=plan)(x), truth, rtol=1e-4, atol=1e-5)


class _Bfloat16:
    """A provider that rounds every weight-sized result to bfloat16 without a word."""

    provider = OPENVINO_RUNTIME

    def __init__(self, real):
        self._real, self.inputs, self.outputs = real, real.inputs, real.outputs

    def run(self, feeds):
        rounded = {name: value.astype(ml_dtypes.bfloat16).astype(value.dtype) for name, value in feeds.items()}
        return [value.astype(ml_dtypes.bfloat16).astype(value.dtype) for value in self._real.run(rounded)]


@pytest.mark.parametrize(("budget", "status"), [("exact", "rejected"), ("rel=5e-2", "accepted")])
def test_silent_lower_precision_is_treated_as_that_precision(convnet, monkeypatch, budget, status):
    original = trials.open_backend

    def opened(path, settings):
        if settings.provider != OPENVINO_RUNTIME:
            return original(path, settings)
        return _Bfloat16(original(path, dataclasses.replace(settings, provider="CPUExecutionProvider", options=())))

    for module in (trials, tuning_search):
        monkeypatch.setattr(module, "open_backend", opened)
    provider = type(tuning_search.find_providers()[0])
    monkeypatch.setattr(tuning_search, "find_providers", lambda: [provider(OPENVINO_RUNTIME, True)])
    plan = tune(convnet, data=_images(64), budget=budget, seconds=0.2)
    silent = [trial for trial in plan.trials if trial.name.startswith("float32: OpenVINO")]
    assert silent
    for trial in silent:
        assert trial.precision in ("about 7 bits", "about 8 bits", "about 9 bits")
        if status == "rejected":
            assert trial.status == "rejected"
            assert "bfloat16" in trial.reason
        else:
            assert trial.status in ("accepted", "chosen")
            assert 1e-4 < trial.loss["rel"] < 5e-2


def test_nothing_within_the_budget_is_an_error(convnet, write_model):
    other = write_model(
        """n (float[batch, 3, 16, 16] x) => (float[batch, 5] y) {
            p = GlobalAveragePool(x) f = Flatten(p) y = Gemm(f, W) }""",
        {"W": np.ones((3, 5), np.float32)},
        "other.onnx",
    )
    with pytest.raises(UsageError, match=r"nothing runs conv.onnx within budget exact.*changes the result"):
        tune(convnet, reference=other, seconds=0.2)
    assert not convnet.with_name("conv.plan.json").exists()


def test_reference_may_be_the_module(linear):
    path, weight, bias = linear
    module = torch.nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(weight.T))
        module.bias.copy_(torch.from_numpy(bias))
    assert tune(path, reference=module, seconds=0.2).chosen.loss["rounding"] <= 1
    with torch.no_grad():
        module.bias += 0.1
    with pytest.raises(UsageError, match="changes the result"):
        tune(path, reference=module, seconds=0.2, overwrite=True)


@pytest.mark.slow
def test_weights_beside_the_file_can_be_quantized(convnet, tmp_path):
    model = onnx.load(convnet)
    (tmp_path / "ext").mkdir()
    path = tmp_path / "ext" / "ext.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="ext.onnx.data", size_threshold=0)
    inside, outside = (tune(file, data=_images(40), budget="rel=10%", seconds=0.2) for file in (convnet, path))
    assert not [trial.name for trial in outside.trials if trial.status == "failed"]
    assert any(trial.precision == "int8" and trial.status in ("accepted", "chosen") for trial in outside.trials)
    losses = [{t.name: t.loss for t in plan.trials if t.precision == "int8"} for plan in (inside, outside)]
    shared = losses[0].keys() & losses[1].keys()  # which shapes and threads are tried last, times decide
    assert {name: losses[0][name] for name in shared} == {name: losses[1][name] for name in shared}
    assert len(shared) > 5


@pytest.mark.parametrize(
    "instructions", [("avx2",), ("avx2", "avx512f", "avx512bw"), ("avx2", "avx_vnni"), ("avx2", "avx512_vnni")]
)
def test_weights_are_kept_to_7_bits_where_8_would_saturate(convnet, tmp_path, instructions):
    machine = dataclasses.replace(this_machine(), instructions=instructions)
    target = tmp_path / "q.onnx"
    Quantizer(convnet, [{"x": _images(8)}], machine).write(target, INT8_RECIPES[0])
    weights = [
        numpy_helper.to_array(tensor) for tensor in onnx.load(target).graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 4
    ]  # fmt: skip
    assert len(weights) == 2
    largest = max(int(np.abs(weight.astype(int)).max()) for weight in weights)
    assert (largest <= 64) == (not any("vnni" in name for name in instructions))


def test_a_plan_is_replaced_only_when_asked(convnet):
    first = tune(convnet, seconds=0.3)
    text = first.path.read_text()
    with pytest.raises(OutputExistsError, match="--overwrite"):
        tune(convnet, seconds=0.3)
    assert first.path.read_text() == text
    assert tune(convnet, seconds=0.3, overwrite=True).path == first.path


def test_a_plan_that_another_search_wrote_meanwhile_stays(convnet):
    theirs = tune(convnet, seconds=0.2)
    text = theirs.path.read_text()
    theirs.path.unlink()
    steps: list[str] = []

    def tell(step: str) -> None:
        if not steps:
            theirs.save(theirs.path)
        steps.append(step)

    with pytest.raises(OutputExistsError, match=r"conv\.plan\.json exists"):
        tune(convnet, seconds=0.2, progress=tell)
    assert len(steps) > 1
    assert theirs.path.read_text() == text
    assert sorted(path.name for path in convnet.parent.iterdir()) == ["conv.onnx", "conv.plan.json"]


def test_a_variant_that_is_no_longer_chosen_goes_and_a_file_of_others_stays(convnet):
    variant = convnet.with_name("conv.int8.onnx")
    variant.write_bytes(b"mine")
    with pytest.raises(OutputExistsError, match=r"conv\.int8\.onnx"):
        tune(convnet, data=_images(20), budget="rel=20%", seconds=0.3)
    plan = tune(convnet, seconds=0.3)  # exact: no variant will be written, so none is in the way
    assert variant.read_bytes() == b"mine"
    chosen = dataclasses.replace(plan.chosen, file=variant.name, precision="int8")
    before = dataclasses.replace(plan, trials=(chosen,), file_digest=model_digest(variant))
    variant.write_bytes(b"changed since")
    before.save(plan.path, overwrite=True)
    tune(convnet, seconds=0.3, overwrite=True)
    assert variant.read_bytes() == b"changed since"  # no longer what the plan had written
    variant.write_bytes(b"mine")
    before.save(plan.path, overwrite=True)
    tune(convnet, seconds=0.3, overwrite=True)
    assert not variant.exists()


def test_what_gains_most_is_tried_first(convnet, monkeypatch):
    """A time limit gives up what comes last: that must be what gains least."""
    tried = []
    monkeypatch.setattr(tuning_search, "usable_cores", lambda: 2)
    tune(convnet, data=_images(20), budget="rel=20%", seconds=0.2, progress=tried.append)
    names = [text.removeprefix("trying ") for text in tried if text.startswith("trying ")]
    first_int8 = next(index for index, name in enumerate(names) if name.startswith("int8"))
    lower = [index for index, name in enumerate(names) if "optimization" in name or "spinning" in name]
    assert lower
    assert first_int8 < min(lower)


def test_the_plan_says_what_torch_compile_takes(linear, monkeypatch):
    path, weight, bias = linear
    module = torch.nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(weight.T))
        module.bias.copy_(torch.from_numpy(bias))
    monkeypatch.setattr(opponent, "usable_cores", lambda: 1)
    plan = tune(path, opponent=module, seconds=0.2)
    (trial,) = [trial for trial in plan.trials if trial.name.startswith("torch.compile")]
    if trial.status == "failed":
        pytest.skip(f"no compiler here: {trial.reason}")
    assert trial.status == "skipped"
    assert re.search(r"opponent.* of the plan's time", trial.reason)
    assert trial.name in plan.summary()
    assert module.training  # given back


def test_the_plan_says_what_openvino_takes_when_left_to_itself(linear, monkeypatch):
    pytest.importorskip("openvino", reason="openvino is not installed (extra: peers)")
    opened = []
    original = opponent.open_backend

    def opening(file, settings):
        opened.append(settings)
        return original(file, settings)

    monkeypatch.setattr(opponent, "open_backend", opening)
    plan = tune(linear[0], seconds=0.2)
    (trial,) = [trial for trial in plan.trials if trial.name == opponent.OWN_LATENCY]
    assert (trial.status, trial.precision) == ("skipped", (*reduced_precision(this_machine()), "float32")[0])
    assert opened == [Settings(provider="OpenVINO")]  # no threads, no precision: its own
    found = re.search(r"an opponent, .* ([\d.]+) of the plan's time \(([\d.]+) to ([\d.]+)\)", trial.reason)
    assert found
    assert 0 < float(found[2]) <= float(found[1]) <= float(found[3])
    assert trial.name in plan.summary()
    late = tune(linear[0], seconds=0.2, time_limit=1e-3, overwrite=True)
    (trial,) = [trial for trial in late.trials if trial.name == opponent.OWN_LATENCY]
    assert trial.reason == "not tried: the time limit was over"


def test_settings_round_through_the_file(convnet):
    plan = tune(convnet, seconds=0.2)
    again = Plan.load(plan.path)
    assert again.settings == plan.settings
    assert isinstance(again.chosen.settings, Settings)


@pytest.mark.slow
def test_all_providers_that_are_there(convnet):
    plan = tune(convnet, data=_images(64), budget="rel=5e-2", seconds=3.0)
    skipped = {trial.name: trial.reason for trial in plan.trials if trial.status == "skipped"}
    for provider in tuning_search.find_providers():
        if provider.usable:
            assert any(trial.settings and trial.settings.provider == provider.name for trial in plan.trials)
        else:
            assert skipped[provider.name] == provider.reason
    names = [trial.name for trial in plan.trials]
    assert len(names) == len(set(names))


def _elsewhere(plan: Plan) -> None:
    """Change the plan file as if another machine had written it."""
    fields = json.loads(plan.path.read_text())
    fields["machine"]["processor"] = "another"
    plan.path.write_text(json.dumps(fields))


def test_a_plan_from_elsewhere_names_the_command_that_tunes_again(convnet):
    np.save(convnet.with_name("rows.npy"), _images(40))
    plan = tune(convnet, data=convnet.with_name("rows.npy"), budget="rel=20%", seconds=0.2, batch_size=3)
    assert plan.request["data"] == "rows.npy"
    _elsewhere(plan)
    with pytest.warns(PlanWarning, match=r"processor.*another there.*: normdeploy tune conv.onnx --again$"):
        load(convnet, plan=plan.path)
    # what that command does
    found = retune(plan.path)
    assert (found.budget, found.data, found.request) == (plan.budget, plan.data, plan.request)
    assert "batch 3" in found.data
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(convnet, plan=plan.path)


def test_tuning_again_asks_for_rows_that_the_plan_cannot_name(convnet):
    x = _images(40)
    np.save(convnet.with_name("gone.npy"), x)
    plan = tune(convnet, data=convnet.with_name("gone.npy"), budget="rel=20%", seconds=0.2)
    assert plan.request["data"] == "gone.npy"
    convnet.with_name("gone.npy").unlink()
    with pytest.raises(UsageError, match=r"'gone\.npy', which is no file here"):
        retune(plan.path)
    plan = retune(plan.path, data=x, seconds=0.3)
    assert plan.request["seconds"] == 0.3
    assert plan.request["data"] is None
    assert plan.command.endswith("--again --data FILE")
    with pytest.raises(UsageError, match=r"does not say on which file of rows.*--data FILE"):
        retune(plan.path)


def test_tuning_again_needs_the_module_it_was_held_against(linear):
    path, weight, bias = linear
    module = torch.nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(weight.T))
        module.bias.copy_(torch.from_numpy(bias))
    plan = tune(path, reference=module, seconds=0.3)
    with pytest.raises(UsageError, match="reference 'Linear', which is no file here"):
        retune(plan.path)
    assert retune(plan.path, reference=module).chosen.loss["rounding"] <= 1


def test_nothing_new_is_tried_after_the_time_limit(convnet):
    plan = tune(convnet, data=_images(40), budget="rel=20%", seconds=0.2, time_limit=1e-3)
    assert plan.chosen.name == "untuned"
    late = [trial for trial in plan.trials if "the time limit was over" in trial.reason]
    assert len(late) >= 5
    assert all(trial.status == "skipped" for trial in plan.trials if trial.name != "untuned")


def test_a_hopelessly_slow_candidate_is_judged_but_not_timed_further(convnet, monkeypatch):
    original = trials.open_backend

    class Slow:
        def __init__(self, real):
            self.real, self.calls, self.inputs = real, 0, real.inputs

        def run(self, feeds):
            self.calls += 1
            time.sleep(0.05)  # so that calls can be counted
            return self.real.run(feeds)

    made = []

    def opened(path, settings):
        real = original(path, settings)
        if settings.optimization != "basic":
            return real
        made.append(Slow(real))
        return made[-1]

    def glanced(runs, base):  # which are hopeless is asked in test_glance.py, and on a busy machine depends on luck
        return glance(runs, base)[0], {name for name in runs if "optimization basic" in name}

    glance = stopwatch.glance
    monkeypatch.setattr(trials, "open_backend", opened)
    monkeypatch.setattr(stopwatch, "glance", glanced)
    plan = tune(convnet, seconds=0.2)
    slow = [trial for trial in plan.trials if "optimization basic" in trial.name and "parallel" not in trial.name]
    assert slow
    for trial in slow:
        assert trial.status == "accepted"
        assert trial.latency is None  # a time that was not taken in the rounds stands beside none that was
        mine, beside = (float(found) for found in re.findall(r"([\d.]+) ms", trial.reason))
        assert mine >= 50
        assert mine > beside  # that it is HOPELESS times as much is asked in test_glance.py
        assert trial.loss["rounding"] <= 1
    assert max(backend.calls for backend in made) < 40


@pytest.mark.parametrize("budget", ["exact", "rel=20%"])
def test_a_graph_that_fixes_its_batch_is_tuned_on_any_number_of_rows(convnet, budget):
    model = onnx.load(convnet)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    onnx.save(model, convnet)
    x = _images(200)
    plan = tune(convnet, data=x, budget=budget, seconds=0.2, batch_size=8)
    assert "timed at batch 3" in plan.data
    if budget != "exact":
        assert "72 of your 200 rows, calibrated on 126 others" in plan.data  # whole batches of both
    truth = _truth(convnet, x[:3])
    found = load(convnet, plan=plan).batched(x[:10])
    assert found.shape == (10, 5)
    np.testing.assert_allclose(found[:3], truth, atol=0.3 * np.abs(truth).max())
    with pytest.raises(InputError, match="has 2 rows; expected at least 3, which the graph takes in every call"):
        tune(convnet, data=x[:2], budget=budget, seconds=0.2, overwrite=True)
