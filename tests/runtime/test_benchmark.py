from __future__ import annotations

import dataclasses
import json
import logging
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch import nn

from normdeploy.errors import InputError, UsageError
from normdeploy.ort.machine import reduced_precision, this_machine
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime import ModuleSource, Settings, bench, tune
from normdeploy.runtime import contestant as contestant_module
from normdeploy.runtime import peers as peers_module
from normdeploy.runtime.contestant import (
    CHANNELS_LAST,
    COMPILED,
    EAGER,
    OPENVINO,
    OPENVINO_EXACT,
    PLAIN,
    SIMPLIFIED,
    SLIM,
)
from normdeploy.runtime.memory import measure_footprint
from normdeploy.runtime.module_peers import quiet_torch, torch_threads
from normdeploy.runtime.samples import make_samples, tile_samples

FILE_PEERS = [PLAIN, SLIM, SIMPLIFIED, OPENVINO]


class Scale(nn.Module):
    """The float32 network of conftest's ``linear``."""

    def __init__(self, weight, bias):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(weight.T))
            self.linear.bias.copy_(torch.from_numpy(bias))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.linear(x))


def _bench(path, **options):
    return bench(path, **{"rounds": 5, "memory": False, "threads": (1,), "batch_sizes": (2,), **options})


def test_sweep_has_a_row_for_every_cell(linear):
    result = _bench(linear[0], batch_sizes=(1, 3), threads=(1, 2), against=linear[0], peers=[PLAIN])
    cells = [(row.name, row.batch, row.threads) for row in result.rows]
    assert cells == [(n, b, t) for t in (1, 2) for b in (1, 3) for n in ("normdeploy", "net.onnx")]
    assert all(len(row.latency.samples) == 5 for row in result.rows)
    assert all(row.ratio.value == 1.0 for row in result.rows if row.name == "normdeploy")
    assert all(row.difference == 0.0 for row in result.rows)


def test_module_runs_in_evaluation_mode_and_is_given_back(linear):
    path, weight, bias = linear
    module = Scale(weight, bias).train()
    before = torch.get_num_threads()
    result = _bench(path, against=module, peers=[EAGER, PLAIN])
    assert module.training
    assert module.dropout.training
    assert [row.name for row in result.rows] == ["normdeploy", EAGER, PLAIN]
    assert result.row(EAGER, batch=2, threads=1).difference < 1e-6  # with dropout active it would be of order 1
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_compiled_torch_agrees(linear):
    path, weight, bias = linear
    result = _bench(path, against=Scale(weight, bias), peers=[COMPILED])
    assert result.row(COMPILED, batch=2, threads=1).difference < 1e-6


def test_every_installed_file_peer_agrees(convnet):
    pytest.importorskip("onnxslim")
    pytest.importorskip("onnxsim")
    pytest.importorskip("openvino")
    result = _bench(convnet, against=convnet, peers=[*FILE_PEERS, OPENVINO_EXACT])
    plain, *others = FILE_PEERS  # a file that is compared with stands under its own name
    assert plain == PLAIN
    assert [row.name for row in result.rows if row.name != OPENVINO_EXACT] == ["normdeploy", convnet.name, *others]
    lower = bool(reduced_precision(this_machine()))  # then OpenVINO's default follows the processor, without a word
    assert (OPENVINO_EXACT in [row.name for row in result.rows]) == lower
    for row in result.rows:
        assert row.difference < (0.03 if row.name == OPENVINO and lower else 1e-5)
    assert ("computes in no less than float32" in result.skipped.get(OPENVINO_EXACT, "")) != lower


def test_missing_peers_are_skipped_by_name(linear, monkeypatch):
    missing = {"onnxslim", "onnxsim", "openvino"}
    find = peers_module.importlib.util.find_spec
    monkeypatch.setattr(
        peers_module.importlib.util, "find_spec", lambda name, *rest: None if name in missing else find(name, *rest)
    )
    result = _bench(linear[0], against=linear[0])
    assert [row.name for row in result.rows] == ["normdeploy", "net.onnx"]
    assert {name: "not installed" in reason for name, reason in result.skipped.items()} == {
        SLIM: True,
        SIMPLIFIED: True,
        OPENVINO: True,
        OPENVINO_EXACT: True,
    }
    assert f"skipped {SLIM}" in result.summary()


def test_peer_that_cannot_export_is_skipped_with_the_reason(linear):
    class Opaque(nn.Module):
        def forward(self, x):
            return torch.from_numpy(np.linalg.svd(x.numpy())[1])

    result = _bench(linear[0], against=Opaque(), peers=[EAGER, PLAIN])
    assert "torch.onnx.export failed" in result.skipped[PLAIN]
    assert result.row(EAGER, batch=2, threads=1).difference > 0.01


def test_two_references_are_told_apart(linear, write_model):
    other = write_model(
        "n (float[b, 3] x) => (float[b, 2] y) { y = Gemm(x, W) }", {"W": np.eye(3, 2, dtype="f4")}, "o.onnx"
    )
    result = _bench(linear[0], against=[linear[0], other], peers=[PLAIN])
    assert [row.name for row in result.rows] == ["normdeploy", "net.onnx", "o.onnx"]
    assert result.rows[1].difference == 0.0
    assert result.rows[2].difference > 0.1


def test_json_plot_and_footprint(linear, tmp_path):
    result = bench(linear[0], rounds=5, batch_sizes=(4,), threads=(1,), against=linear[0], peers=[PLAIN])
    report = json.loads(result.to_json())
    assert report["rows"][1]["name"] == "net.onnx"
    assert report["rows"][1]["median_s"] > 0
    assert report["machine"]["cores"] >= 1
    footprint = report["footprints"]["normdeploy"]
    assert 10e6 < footprint["peak_bytes"] < 2e9
    assert 0 < footprint["load_s"] < 60
    picture = result.plot(tmp_path / "bench.svg")
    assert "<svg" in picture.read_text()
    assert picture.read_text().count("<path") > 20


def test_footprint_sees_the_size_of_the_model(write_model):
    big = write_model(
        "n (float[b, 2000] x) => (float[b, 4000] y) { y = MatMul(x, W) }", {"W": np.ones((2000, 4000), np.float32)}
    )
    found = measure_footprint(big, Settings(), {"x": np.ones((1, 2000), np.float32)})
    assert found.added_bytes > 2000 * 4000 * 4


def test_fixed_batch_ignores_the_sweep(write_model):
    path = write_model("n (float[4, 3] x) => (float[4, 3] y) { y = Neg(x) }")
    assert {row.batch for row in _bench(path, batch_sizes=(1, 2)).rows} == {4}


def test_wrong_use_is_refused(linear, write_model):
    with pytest.raises(UsageError, match="unknown peer 'caffe'"):
        _bench(linear[0], peers=["caffe"])
    with pytest.raises(UsageError, match="at least 1"):
        _bench(linear[0], batch_sizes=(0,))
    open_ended = write_model("n (float[b, t] x) => (float[b, t] y) { y = Neg(x) }", name="open.onnx")
    with pytest.raises(UsageError, match="no size for dimension 't'"):
        _bench(open_ended)
    assert _bench(open_ended, sizes={"t": 5}).rows
    assert _bench(open_ended, inputs=np.zeros((3, 7), np.float32)).rows
    with pytest.raises(UsageError, match="was not measured"):
        _bench(linear[0]).row("x", batch=1, threads=1)


def test_samples_fit_what_is_asked():
    specs = [TensorSpec("x", "float32", ("n", 4)), TensorSpec("i", "int64", ("n",)), TensorSpec("k", "float64", ())]
    made = make_samples(specs, 5)
    assert {name: (array.shape, str(array.dtype)) for name, array in made.items()} == {
        "x": ((5, 4), "float32"),
        "i": ((5,), "int64"),
        "k": ((), "float64"),
    }
    tiled = tile_samples(
        specs, {"x": np.arange(8, dtype="f4").reshape(2, 4), "i": np.array([7, 9]), "k": np.array(1.0)}, 5
    )
    assert tiled["i"].tolist() == [7, 9, 7, 9, 7]
    assert tiled["x"][4].tolist() == [0, 1, 2, 3]
    with pytest.raises(InputError, match="no samples"):
        tile_samples(specs[1:2], {"i": np.zeros(0, np.int64)}, 2)
    with pytest.raises(UsageError, match="texts cannot be made up"):
        make_samples([TensorSpec("s", "object", ("n",))], 2)


@pytest.mark.parametrize(
    ("shape", "sizes", "told"),
    [
        (("n", "h"), {}, r"no size for dimension 'h'; expected sizes=\{'h': N\} \(--size h=N\) or example inputs"),
        (("n", None), {}, "no size for dimension 1; expected example inputs: give them"),
        (("n", "h"), {"h": 2, "w": 3}, "a size is given for 'w'; expected one of the model's dynamic dimensions: n, h"),
        ((2, 3), {"h": 2}, "expected one of the model's dynamic dimensions: it has none"),
    ],
)
def test_sizes_that_are_missing_or_of_no_dimension_are_told(shape, sizes, told):
    with pytest.raises(UsageError, match=told):
        make_samples([TensorSpec("x", "float32", shape)], 2, sizes=sizes)


SOURCE = """
import torch

class Wide(torch.nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.linear = torch.nn.Linear(width, 2, bias=False)
        self.ballast = torch.nn.Parameter(torch.zeros(4_000_000))

    def forward(self, x):
        return self.linear(x)
"""


@pytest.fixture
def wide(tmp_path):
    """Return a SOURCE with a parameter of 16 MB beside its three by two weight."""
    (tmp_path / "wide.py").write_text(SOURCE)
    return f"{tmp_path / 'wide.py'}:Wide"


def test_memory_of_a_torch_module_comes_from_a_fresh_process(linear, wide, monkeypatch):
    result = _bench(linear[0], against=ModuleSource(wide, {"width": 3}), peers=[EAGER], memory=True)
    assert [name for name in result.skipped if "memory" in name] == []
    eager = result.footprints[EAGER]
    assert eager.added_bytes > 4_000_000 * 4
    assert eager.peak_bytes > result.footprints["normdeploy"].peak_bytes
    assert 0 < eager.load_s < 60


def test_a_module_given_as_an_object_travels_by_pickle(linear):
    result = _bench(linear[0], against=nn.Linear(3, 2), peers=[EAGER], memory=True)
    assert result.footprints[EAGER].peak_bytes > 50e6


def test_a_module_that_no_other_process_can_make_is_skipped_with_the_reason(linear):
    class Local(nn.Module):
        def forward(self, x):
            return x[:, :2]

    result = _bench(linear[0], against=Local(), peers=[EAGER], memory=True)
    assert "cannot be pickled" in result.skipped[f"{EAGER} (memory)"]
    assert "expected a SOURCE" in result.skipped[f"{EAGER} (memory)"]
    Local.__module__ = "__main__"
    result = _bench(linear[0], against=Local(), peers=[EAGER], memory=True)
    assert "defined in __main__" in result.skipped[f"{EAGER} (memory)"]


@pytest.mark.slow
def test_memory_of_compiled_torch(linear, wide):
    result = _bench(linear[0], against=wide, peers=[EAGER, COMPILED], memory=True)
    compiled = result.footprints[COMPILED]
    assert compiled.load_s > result.footprints[EAGER].load_s
    assert compiled.added_bytes > result.footprints[EAGER].added_bytes


def test_rounds_are_shared_between_fresh_sessions(linear, monkeypatch):
    opened = []
    original = contestant_module.open_backend

    def counted(path, settings):
        opened.append(path)
        return original(path, settings)

    monkeypatch.setattr(contestant_module, "open_backend", counted)
    result = _bench(linear[0], against=linear[0], peers=[PLAIN])
    assert len(opened) == 10  # five rounds in five sessions of two files
    assert {len(row.latency.samples) for row in result.rows} == {5}


def test_each_step_is_announced(linear):
    steps = []
    _bench(linear[0], against=linear[0], peers=[PLAIN], memory=True, progress=steps.append)
    assert steps == [
        "making the other contestants",
        "batch 2, 1 threads",
        "memory of normdeploy, in a fresh process",
        "memory of net.onnx, in a fresh process",
    ]


def test_a_module_with_other_weights_is_noted_and_one_with_the_same_is_not(linear):
    path, weight, bias = linear
    assert _bench(path, against=Scale(weight, bias), peers=[EAGER]).notes == ()
    result = _bench(path, against=Scale(weight[::-1].copy(), bias), peers=[EAGER])
    (note,) = result.notes
    assert note.startswith(f"{EAGER} is off by ")
    assert note.endswith(f"expected the weights that {path.name} was exported with (--weights)")
    assert f"note: {note}" in result.summary()
    assert json.loads(result.to_json())["notes"] == [note]


def test_a_plan_keeps_its_threads_and_the_table_says_so(linear):
    plan = tune(linear[0], seconds=0.3)
    result = _bench(linear[0], plan=plan, peers=[])
    assert result.notes == (
        f"normdeploy tuned is {linear[0].name} on {plan.settings.describe()}, whatever the cell's threads",
    )


def test_files_of_one_name_are_told_apart_by_their_paths(linear, tmp_path):
    (tmp_path / "a").mkdir()
    copy = tmp_path / "a" / "net.onnx"
    copy.write_bytes(linear[0].read_bytes())
    result = _bench(linear[0], against=[linear[0], copy, copy], peers=[PLAIN])
    names = [row.name for row in result.rows]
    assert names[0] == "normdeploy"
    assert len(set(names)) == 4
    assert str(linear[0]) in names


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x)


def test_channels_last_is_tried_with_convolutions_and_the_module_keeps_its_layout(tmp_path):
    module = Images()
    strides = module.conv.weight.stride()
    path = tmp_path / "conv.onnx"
    x = torch.randn(2, 3, 8, 8)
    torch.onnx.export(module.eval(), (x,), path, dynamo=True, verbose=False, input_names=["x"], external_data=False)
    result = _bench(path, against=module, peers=[CHANNELS_LAST])
    assert [row.name for row in result.rows] == ["normdeploy", CHANNELS_LAST]
    assert result.row(CHANNELS_LAST, batch=2, threads=1).difference < 1e-5
    assert module.conv.weight.stride() == strides


def test_channels_last_of_a_network_without_images_is_skipped(linear):
    path, weight, bias = linear
    result = _bench(path, against=Scale(weight, bias), peers=[EAGER, CHANNELS_LAST])
    assert "no convolution" in result.skipped[CHANNELS_LAST]


def test_whoever_is_compared_runs_where_the_file_runs(linear, monkeypatch):
    """With the file on a GPU, so are plain export and torch, on the same one; inputs and outputs stay there."""
    from normdeploy.ort.providers import provider_chain
    from normdeploy.ort.settings import CUDA
    from normdeploy.runtime.lineup import contestants_of

    path, weight, bias = linear
    ours = Settings(CUDA, options=(("use_tf32", "0"), ("device_id", "1")))
    with ExitStack() as stack:
        found = list(
            contestants_of(
                Scale(weight, bias), stack, path.parent, "", PLAIN, (EAGER, COMPILED, PLAIN, OPENVINO),
                [TensorSpec("x", "float32", ("b", 3))], {"x": np.zeros((2, 3), np.float32)}, ours,
            )
        )  # fmt: skip
    by_name = {entry.name: entry for entry in found if not isinstance(entry, tuple)}
    assert by_name[EAGER].device == by_name[COMPILED].device == "cuda:1"
    assert by_name[PLAIN].settings == ours
    assert provider_chain(by_name[PLAIN].settings)[0] == (CUDA, {"use_tf32": "0", "device_id": "1"})


def test_a_file_on_a_gpu_is_timed_with_bound_arrays(linear, monkeypatch):
    from normdeploy.ort.settings import CUDA
    from normdeploy.runtime.backend import OrtBackend
    from normdeploy.runtime.contestant import FileContestant

    asked = []
    bound = OrtBackend.bound

    def on_the_cpu(self, feeds, device, number):
        asked.append((device, number))
        return bound(self, feeds, "cpu")

    monkeypatch.setattr(OrtBackend, "bound", on_the_cpu)
    monkeypatch.setattr(contestant_module, "open_backend", lambda path, _: OrtBackend(path, Settings()))
    x = np.random.default_rng(0).standard_normal((4, 3), dtype=np.float32)
    made = FileContestant("f", linear[0], Settings(CUDA, options=(("device_id", "2"),))).prepare({"x": x}, 1)
    assert asked == [("cuda", 2)]
    made.call()
    np.testing.assert_allclose(made.fetch()[0], x @ linear[1] + linear[2], rtol=1e-5, atol=1e-6)


def test_made_up_inputs_of_a_lower_precision_plan_are_noted(linear):
    plan = tune(linear[0], seconds=0.3)
    chosen = dataclasses.replace(plan.chosen, precision="int8")
    lower = dataclasses.replace(plan, trials=(chosen,))
    made_up = _bench(linear[0], plan=lower, peers=[])
    assert any("made up" in note and "--data" in note for note in made_up.notes)
    given = _bench(linear[0], plan=lower, peers=[], inputs=np.zeros((5, 3), np.float32))
    assert not any("made up" in note for note in given.notes)


def test_torch_computes_in_float32_on_a_gpu_too_and_is_given_back():
    conv, before = torch.backends.cudnn.conv, torch.get_num_threads()
    allowed = conv.fp32_precision
    with torch_threads(1):
        assert conv.fp32_precision == torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.get_num_threads() == 1
    assert (conv.fp32_precision, torch.get_num_threads()) == (allowed, before)


@pytest.mark.parametrize(
    "name", ["onnxscript.optimizer._constant_folding", "torch.onnx._internal.exporter._registration"]
)
def test_what_the_libraries_say_while_a_peer_is_made_is_not_shown(name: str, heard: pytest.LogCaptureFixture):
    with quiet_torch():
        logging.getLogger(name).warning("Evaluation failed")
    assert not heard.records
    logging.getLogger(name).warning("heard again")
    assert heard.messages == ["heard again"]
