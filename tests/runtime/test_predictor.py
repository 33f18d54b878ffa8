from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normdeploy.errors import GraphError, InputError, MissingDependencyError, UsageError
from normdeploy.ort.digest import model_digest
from normdeploy.ort.providers import float32_options
from normdeploy.ort.settings import OPENVINO_PLUGIN, OPENVINO_RUNTIME
from normdeploy.runtime import Machine, Plan, PlanWarning, Predictor, Settings, Trial, load, plan_path, this_machine

TWO = """net (float[batch, 3] a, int64[batch] i) => (float[batch, 3] s, float[batch] m) {
    table = Constant <value = float[4] {1.0, 2.0, 3.0, 4.0}> ()
    g = Gather(table, i)
    axis = Constant <value = int64[1] {1}> ()
    c = Unsqueeze(g, axis)
    s = Add(a, c)
    m = ReduceMean <keepdims = 0> (s, axis)
}"""


def _samples(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def test_array_in_array_out(linear):
    path, weight, bias = linear
    x = _samples(5)
    y = load(path)(x)
    np.testing.assert_allclose(y, x.astype(np.float64) @ weight + bias, rtol=1e-5, atol=1e-6)


def test_dict_in_dict_out_and_several_outputs(write_model):
    predictor = load(write_model(TWO))
    a, i = _samples(4), np.array([0, 3, 1, 2])
    out = predictor({"a": a, "i": i})
    expected = a + np.array([1.0, 4, 2, 3])[:, None]
    assert list(out) == ["s", "m"]
    np.testing.assert_allclose(out["s"], expected, rtol=1e-6)
    np.testing.assert_allclose(out["m"], expected.mean(1), rtol=1e-5)
    with pytest.raises(InputError, match=r"expected a dict of .*a: float32"):
        predictor(a)


def test_torch_tensors_and_lists_are_arrays(linear):
    predictor = load(linear[0])
    x = _samples(2)
    expected = predictor(x)
    np.testing.assert_array_equal(predictor(torch.tensor(x, requires_grad=True)), expected)
    np.testing.assert_array_equal(predictor(x.tolist()), expected)


def test_description_of_inputs_and_outputs(write_model):
    predictor = load(write_model(TWO))
    assert [str(spec) for spec in predictor.inputs] == ["a: float32[batch, 3]", "i: int64[batch]"]
    assert [str(spec) for spec in predictor.outputs] == ["s: float32[batch, 3]", "m: float32[batch]"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((2, 3)), r"float64; expected float32: .*astype\('float32'\)"),
        (np.zeros((2, 3), np.float16), "float16; expected float32"),
        (np.zeros((2, 4), np.float32), r"shape \[2, 4\]; expected x: float32\[batch, 3\]"),
        (np.zeros(3, np.float32), "add the batch dimension"),
        (np.zeros((1, 2, 3), np.float32), "reshape"),
        ([["a", "b", "c"]], "cannot become"),
        ([[1.0, 2.0, 3.0], [1.0]], "cannot become"),
        ({"z": np.zeros((2, 3), np.float32)}, r"named \['z'\]; expected \['x'\]: add 'x'"),
        ({"x": np.zeros((2, 3), np.float32), "z": 1}, "leave out 'z'"),
    ],
)
def test_wrong_input_is_refused_with_remedy(linear, value, message):
    with pytest.raises(InputError, match=message):
        load(linear[0])(value)


def test_dimensions_of_one_name_must_agree(write_model):
    with pytest.raises(InputError, match="'batch' is 2 in input 'a' and 3 in 'i'"):
        load(write_model(TWO))({"a": _samples(2), "i": np.array([0, 1, 2])})


def test_refusal_by_the_runtime_is_an_input_error(write_model):
    with pytest.raises(InputError, match=r"cannot run on a \[2, 3\], i \[2\]"):
        load(write_model(TWO))({"a": _samples(2), "i": np.array([0, 9])})


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(GraphError, match="does not exist"):
        load(tmp_path / "no.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(
        GraphError, match=r"cannot be read as ONNX; expected a valid \.onnx file: it may be another kind of file"
    ):
        load(tmp_path / "bad.onnx")(np.zeros(1))


def test_pickle_carries_no_session_and_checks_the_file(linear):
    predictor = load(linear[0])
    x = _samples(3)
    expected = predictor(x)
    data = pickle.dumps(predictor)
    assert len(data) < 2000
    copy = pickle.loads(data)
    np.testing.assert_array_equal(copy(x), expected)
    late = pickle.loads(data)
    linear[0].write_bytes(linear[0].read_bytes() + b"\x00")
    with pytest.raises(GraphError, match="the file this Predictor was made for"):
        late(x)


def test_session_is_made_once_for_many_threads(linear, monkeypatch):
    import normdeploy.runtime.predictor as module

    made: list[int] = []
    original = module.open_backend
    monkeypatch.setattr(module, "open_backend", lambda *args: made.append(threading.get_ident()) or original(*args))
    path, weight, bias = linear
    predictor = load(path)
    assert made == []
    batches = [_samples(1 + seed % 7, seed) for seed in range(64)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(predictor, batches))
    assert len(made) == 1
    for x, y in zip(batches, results, strict=True):
        np.testing.assert_allclose(y, x.astype(np.float64) @ weight + bias, rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(total=st.integers(1, 40), size=st.integers(1, 50))
def test_batched_equals_the_rows(linear, total, size):
    path, weight, bias = linear
    x = _samples(total)
    y = load(path).batched(x, batch_size=size)
    assert y.shape == (total, 2)
    np.testing.assert_allclose(y, x.astype(np.float64) @ weight + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("total", [1, 3, 4, 5, 8])
def test_fixed_batch_is_filled_and_cut(write_model, total):
    predictor = load(write_model("net (float[4, 3] x) => (float[4, 3] y) { y = Neg(x) }"))
    x = _samples(total)
    np.testing.assert_array_equal(predictor.batched(x), -x)
    assert predictor.fixed_batch == 4


def test_batched_refuses_what_has_no_rows(write_model, linear):
    predictor = load(linear[0])
    with pytest.raises(InputError, match="at least 1"):
        predictor.batched(np.zeros((0, 3), np.float32))
    two = load(write_model(TWO, name="two.onnx"))
    with pytest.raises(InputError, match="one common count"):
        two.batched({"a": _samples(3), "i": np.array([0, 1])})
    total = load(write_model("n (float[batch, 3] x) => (float y) { y = ReduceSum<keepdims=0>(x) }", name="sum.onnx"))
    with pytest.raises(InputError, match="one row per sample"):
        total.batched(_samples(3))


def _plan(path, **changes) -> Plan:
    trial = Trial("2 threads", "float32", "chosen", file=path.name, settings=Settings(threads=2, spinning="off"))
    digest = model_digest(path)
    fields = {"model": path.name, "model_digest": digest, "budget": "exact", "data": "none", "file_digest": digest}
    return Plan(**{**fields, "machine": this_machine(), "trials": (trial,), **changes})


def test_plan_file_round_trip_and_use(linear):
    path = linear[0]
    plan = _plan(path).save(plan_path(path))
    assert plan_path(path).name == "net.plan.json"
    again = Plan.load(plan_path(path))
    assert again == plan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictor = load(path, plan=plan_path(path))
    assert predictor.settings == Settings(threads=2, spinning="off")
    assert predictor(_samples(1)).shape == (1, 2)


def test_plan_of_another_machine_or_model_falls_back_with_a_word(linear, tmp_path):
    path = linear[0]
    there: Machine = replace(this_machine(), cores=1000)
    with pytest.warns(PlanWarning, match=r"cores: \d+ here, 1000 there"):
        assert load(path, plan=_plan(path, machine=there)).settings == Settings()
    with pytest.warns(PlanWarning, match="was made for 000000000000"):
        assert load(path, plan=_plan(path, model_digest="0" * 64)).path == path
    variant = tmp_path / "net.int8.onnx"
    trial = Trial("int8", "int8", "chosen", file=variant.name, settings=Settings())
    with pytest.warns(PlanWarning, match="does not exist"):
        load(path, plan=_plan(path, trials=(trial,)))
    variant.write_bytes(path.read_bytes())
    with pytest.warns(PlanWarning, match="changed since"):
        load(path, plan=_plan(path, trials=(trial,), file_digest="1" * 64))
    chosen = load(path, plan=_plan(path, trials=(trial,)))
    assert (chosen.path, chosen.origin) == (variant, path)


def test_plan_files_that_are_none(tmp_path, linear):
    for name, text, message in [
        ("a.json", "{", "not JSON"),
        ("b.json", "[]", "schema 'list'"),
        ("c.json", '{"schema": 1}', "not a whole plan"),
        ("d.json", '{"schema": 99}', "schema 99"),
    ]:
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=message):
            load(linear[0], plan=tmp_path / name)
    with pytest.raises(UsageError, match="does not exist"):
        load(linear[0], plan=tmp_path / "none.json")


@settings(max_examples=30, deadline=None)
@given(
    st.builds(
        Settings,
        provider=st.sampled_from(["CPUExecutionProvider", OPENVINO_RUNTIME]),
        options=st.lists(st.tuples(st.text(min_size=1), st.text()), unique_by=lambda pair: pair[0]).map(
            lambda pairs: tuple(sorted(pairs))
        ),
        threads=st.integers(0, 64),
        parallel=st.booleans(),
        spinning=st.sampled_from(["off", "run", "always"]),
        optimization=st.sampled_from(["disable", "basic", "extended", "layout", "all"]),
        disabled_optimizers=st.lists(st.text()).map(tuple),
    )
)
def test_settings_round_trip(value):
    assert Settings.from_dict(value.to_dict()) == value


def test_wrong_settings_are_refused():
    with pytest.raises(UsageError, match="threads=-1"):
        Settings(threads=-1)
    with pytest.raises(UsageError, match="optimization='most'"):
        Settings(optimization="most")
    with pytest.raises(UsageError, match="spinning='fast'"):
        Settings(spinning="fast")
    with pytest.raises(UsageError, match="unknown setting 'speed'"):
        Settings.from_dict({"speed": 11})


def test_every_optimization_level_and_mode_runs(convnet):
    x = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)
    results = [
        Predictor(convnet, Settings(threads=2, parallel=parallel, spinning="off", optimization=level))(x)
        for level in ("disable", "basic", "extended", "layout", "all")
        for parallel in (False, True)
    ]
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-5)


def test_provider_that_is_not_there_is_refused(linear):
    with pytest.raises(UsageError, match="'NoneExecutionProvider' is not in this onnxruntime"):
        Predictor(linear[0], Settings(provider="NoneExecutionProvider"))(_samples(1))


def test_openvino_plugin_runs_or_says_why(linear):
    from normdeploy.runtime import find_providers

    found = {provider.name: provider for provider in find_providers()}
    assert found["CPUExecutionProvider"].usable
    plugin = found[OPENVINO_PLUGIN]
    predictor = Predictor(linear[0], Settings(provider=OPENVINO_PLUGIN))
    if plugin.usable:
        assert predictor(_samples(1)).shape == (1, 2)
    else:
        assert plugin.reason
        with pytest.raises((UsageError, MissingDependencyError), match="OpenVINO"):
            predictor(_samples(1))


def test_openvino_runtime_is_thread_safe(linear):
    pytest.importorskip("openvino")
    path, weight, bias = linear
    exact = Settings(provider=OPENVINO_RUNTIME, options=float32_options(OPENVINO_RUNTIME), threads=1)
    predictor = pickle.loads(pickle.dumps(Predictor(path, exact)))
    assert [spec.name for spec in predictor.inputs] == ["x"]
    batches = [_samples(1 + seed % 5, seed) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for x, y in zip(batches, pool.map(predictor, batches), strict=True):
            np.testing.assert_allclose(y, x.astype(np.float64) @ weight + bias, rtol=1e-4, atol=1e-5)


def test_changed_file_no_longer_matches_its_certificate(linear):
    import onnx

    from normdeploy.runtime import CertificateWarning
    from normdeploy.verification import Verdict
    from normdeploy.verification.record.certificate import certify

    path = linear[0]
    certify(path, Verdict(status="pass"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(path)
    model = onnx.load(path)
    model.graph.initializer[0].raw_data = b"\x01" + model.graph.initializer[0].raw_data[1:]
    onnx.save(model, path)
    with pytest.warns(CertificateWarning, match="changed after the verification"):
        load(path)


def test_what_passed_once_does_not_let_others_pass(linear):
    path, weight, bias = linear
    predictor = load(path)
    x = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)
    for _ in range(2):
        np.testing.assert_allclose(predictor(x), x.astype(np.float64) @ weight + bias, rtol=1e-5, atol=1e-6)
    for wrong in (x.astype(np.float64), x[:, :2], x[0], {"z": x}, {"x": x, "y": x}, {}):
        with pytest.raises(InputError):
            predictor(wrong)
        np.testing.assert_allclose(predictor(x), x.astype(np.float64) @ weight + bias, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(predictor(x.tolist()), predictor(x), rtol=1e-6)
    np.testing.assert_allclose(predictor({"x": x[::2]})["y"], predictor(x)[::2], rtol=1e-6)


def test_thirty_two_threads_equal_one(convnet):
    """Each thread mixes calls, batches and shapes; every result is that of a serial run, to the last bit."""
    predictor = load(convnet).with_settings(Settings(threads=1))
    draw = np.random.default_rng(0)
    work = [draw.normal(size=(1 + at % 5, 3, 16, 16)).astype(np.float32) for at in range(256)]
    serial = [(predictor(x), predictor.batched(x, batch_size=2)) for x in work]
    start = threading.Barrier(32)

    def several(first: int) -> list[tuple[np.ndarray, np.ndarray]]:
        start.wait(60)
        return [(predictor(x), predictor.batched(x, batch_size=2)) for x in work[first::32]]

    with ThreadPoolExecutor(32) as pool:
        for first, found in enumerate(pool.map(several, range(32))):
            for (one, many), (call, batches) in zip(found, serial[first::32], strict=True):
                np.testing.assert_array_equal(one, call)
                np.testing.assert_array_equal(many, batches)


_NOTHING_LEFT = """
import gc, os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
import pyarrow as pa
from normdeploy.runtime import Settings, load, predict

pa.set_cpu_count(1)  # Arrow starts threads of its own when it has work for them, so that a busy machine has more
pa.set_io_thread_count(1)

def left():
    gc.collect()
    tasks = list(Path("/proc/self/task").iterdir())
    return len(tasks), threading.active_count(), sum(len((task / "children").read_text().split()) for task in tasks)

model, data, out = sys.argv[1:]
x = np.load(data)

def work():
    predictor = load(model).with_settings(Settings(threads=2))
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(predictor, [x] * 64))
    predict(model, data, out, batch_size=2, overwrite=True)

work()  # what numpy, onnxruntime and Arrow start once, for the process
before = left()
for _ in range(3):
    work()
after = left()
# one may have been about to end when they were first counted; what is left behind, is three times
assert after[0] <= before[0] and after[1:] == before[1:], (before, after)
assert before[1:] == (1, 0), before
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_no_thread_and_no_process_is_left_behind(convnet, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(6, 3, 16, 16)).astype(np.float32))
    words = [sys.executable, "-c", _NOTHING_LEFT, str(convnet), str(tmp_path / "x.npy"), str(tmp_path / "o.npz")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [0, -3, 1.5])
def test_a_batch_size_that_is_none_is_refused(linear, size):
    with pytest.raises(UsageError, match=f"batch_size={size}"):
        load(linear[0]).batched(_samples(3), batch_size=size)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2, 3, dtype=torch.bfloat16),
        torch.zeros(2, 3, dtype=torch.float8_e4m3fn),
        torch.zeros(2, 3, device="meta"),
        torch.zeros(2, 3).to_sparse(),
        torch.zeros(2, 3, dtype=torch.complex64).conj(),
        torch.zeros(2, 3, dtype=torch.float16),
        None,
        object(),
        "text",
    ],
    ids=["bfloat16", "float8", "meta", "sparse", "conj", "float16", "None", "object", "text"],
)
def test_what_is_no_array_of_the_inputs_type_is_an_error_of_ours(linear, value):
    for call in (load(linear[0]), load(linear[0]).batched):
        with pytest.raises(InputError, match=r"input 'x' .*expected .*float32"):
            call(value)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("uint8", [0, 255, 3.0], [300, -1, 1.5, float("nan"), 2**70]),
        ("int32", [-(2**31), 7.0], [2**32 + 7, 1e20, float("inf")]),
        ("bool", [True, 0, 1.0], [2, 0.5]),
        ("float", [1, 0.1, float("inf"), float("nan"), True], [1e39]),
    ],
)
def test_numbers_without_a_type_take_the_inputs_where_it_holds_them(write_model, kind, good, bad):
    predictor = load(write_model(f"net ({kind}[batch] x) => ({kind}[batch] y) {{ y = Identity(x) }}"))
    for value in good:
        np.testing.assert_array_equal(predictor([value]), np.array([value]).astype(predictor.inputs[0].dtype))
    for value in bad:
        with pytest.raises(InputError, match=r"input 'x' holds .* and cannot become"):
            predictor([value])


@pytest.mark.parametrize("code", ["from normdeploy.runtime import load", "import normdeploy as nd; load = nd.load"])
def test_loading_in_a_worker_imports_what_it_needs_alone(linear, tmp_path, code):
    np.save(tmp_path / "x.npy", _samples(3))
    text = f"""
import sys, numpy as np
{code}
y = load({str(linear[0])!r}).batched(np.load({str(tmp_path / "x.npy")!r}), batch_size=2)
assert y.shape == (3, 2)
heavy = {{"torch", "onnx", "onnx_ir", "onnxscript", "pyarrow", "matplotlib", "sklearn"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run(
        [sys.executable, "-c", text], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
