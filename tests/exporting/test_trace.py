"""What the trace gives: the graph, its names, dynamic batch, and a model left as it was."""

import collections
import dataclasses
import logging
import random
import re
import sys
import warnings

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnxruntime_outputs import run_onnxruntime
from torch import nn

import normdeploy as nd
from normdeploy.conformance import by_hand
from normdeploy.errors import InputError, ModeError, ModelError, TraceError
from normdeploy.exporting.module.mode import evaluation_mode
from normdeploy.exporting.trace import Traced, trace


def run(traced: Traced, feeds: dict[str, np.ndarray] | None = None) -> list[np.ndarray]:
    return run_onnxruntime(traced.model, feeds or traced.feeds, plainly=True)


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    parts: tuple[torch.Tensor, ...]
    count: int
    nothing: None = None


class Everything(nn.Module):
    """Nested inputs, ids, constants, plain objects in plain containers, cached attributes, a dataclass result."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.linear = nn.Linear(4, 6)
        self.norms = [by_hand.B1(6), by_hand.B1(6)]
        self.gradient_norm = by_hand.B4(6, 2)
        self.drop = nn.Dropout(0.5)
        self.cache = None

    def forward(self, x, ids, pair, *more, factor=1.0, bias=None, **named):
        self.cache = self.linear(x) + self.table(ids)
        y = self.cache + pair["a"] + pair["b"][0] + sum(more) + sum(named.values())
        for norm in self.norms:
            y = norm(self.drop(y))
        y = self.gradient_norm(y) * factor
        return Answer(y if bias is None else y + bias, (x, y, y), count=3)


@pytest.fixture(scope="module")
def everything():
    torch.manual_seed(0)
    model = Everything()
    for norm in model.norms:
        norm.seen_mean, norm.seen_var = torch.randn(6), torch.rand(6) + 0.5
    args = (
        torch.randn(1, 4),
        torch.tensor([3]),
        {"a": torch.randn(1, 6), "b": [torch.randn(1, 6)]},
        torch.randn(1, 6),
        torch.randn(1, 6),
    )
    kwargs = {"factor": 2.5, "bias": torch.randn(6), "late": torch.randn(1, 6)}
    held = {name: id(value) for name, value in vars(model.norms[0]).items()}
    state = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())  # noqa: NPY002 - the global one
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = trace(model, args, kwargs=kwargs)
    after = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1])  # noqa: NPY002 - likewise
    return model, args, kwargs, held, state, after, traced


def test_nested_arguments_are_named_inputs_with_a_dynamic_batch(everything):
    traced = everything[-1]
    assert traced.input_names == ["x", "ids", "pair_a", "pair_b_0", "more_0", "more_1", "bias", "late"]
    assert traced.output_names == ["logits", "parts_0", "parts_1", "parts_2"]
    shapes = {value.name: [str(dim) for dim in value.shape] for value in traced.model.graph.inputs}
    assert shapes["x"] == ["batch", "4"]
    assert shapes["ids"] == ["batch"]
    assert shapes["bias"] == ["6"]
    assert traced.model.graph.inputs[1].dtype == ir.DataType.INT64


def test_the_graph_computes_what_the_model_does_at_several_batches(everything):
    model, args, kwargs, *_, traced = everything
    x, ids, pair, *more = args
    for copies in (1, 3):
        pair_of = {"a": pair["a"].repeat(copies, 1), "b": [pair["b"][0].repeat(copies, 1)]}
        given = (x.repeat(copies, 1), ids.repeat(copies), pair_of, *(each.repeat(copies, 1) for each in more))
        late = kwargs["late"].repeat(copies, 1)
        with evaluation_mode(model):
            expected = model(*given, **{**kwargs, "late": late})
        feeds = {name: np.repeat(v, copies, 0) if name != "bias" else v for name, v in traced.feeds.items()}
        got = run(traced, feeds)
        for value, truth in zip(got, (expected.logits, *expected.parts), strict=True):
            np.testing.assert_allclose(value, truth.numpy(), rtol=2e-5, atol=2e-6)


def test_the_model_is_given_back_as_it_was(everything):
    model, _, _, held, state, after, _ = everything
    assert {name: id(value) for name, value in vars(model.norms[0]).items()} == held
    assert model.training
    assert model.drop.training
    assert model.norms[0].training
    assert model.cache is None
    assert "forward" not in vars(model)
    assert torch.is_grad_enabled()
    assert torch.equal(state[0], after[0])
    assert state[1] == after[1]
    assert np.array_equal(state[2], after[2])


def test_tensors_of_plain_objects_are_weights_named_by_their_path(everything):
    traced = everything[-1]
    names = set(traced.model.graph.initializers)
    assert {"norms.0.gain", "norms.1.seen_var", "linear.weight"} <= names
    assert not any(name.startswith("lifted") for name in names)
    marked = [node for node in traced.model.graph if node.metadata_props.get("normdeploy.where") == "norms.1"]
    assert {node.op_type for node in marked} >= {"Sub", "Sqrt", "Div", "Mul", "Add"}


def test_no_batch_statistics_and_no_dropout_are_left(everything):
    traced = everything[-1]
    assert not {node.op_type for node in traced.model.graph} & {"Dropout", "ReduceMean", "RandomUniformLike"}


def test_notes_tell_what_was_done(everything):
    notes = "\n".join(everything[-1].notes)
    assert "training mode" in notes
    assert "'norms.0'" in notes
    assert "factor" in notes
    assert "count=3" in notes
    assert "cache" in notes


class TwoPlainNorms(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = [by_hand.L1(4), by_hand.L1(4)]

    def forward(self, x):
        return self.norms[1](torch.relu(self.norms[0](torch.tanh(x)))).exp()


def test_statistics_of_plain_objects_are_marked_and_their_neighbours_are_not():
    graph = trace(TwoPlainNorms().eval(), torch.randn(2, 4)).model.graph
    places = {node.op_type: set() for node in graph}
    for node in graph:
        places[node.op_type].add(node.metadata_props.get("normdeploy.where"))
    assert places["Tanh"] == places["Relu"] == places["Exp"] == {None}
    for kind in ("ReduceMean", "Sub", "Sqrt", "Div", "Mul"):
        assert places[kind] == {"norms.0", "norms.1"}


class Fixing(nn.Module):
    """The batch is fixed for ``table`` (a matrix that happens to be as long as the batch), not for ``x``."""

    def forward(self, x, table):
        return x @ table.reshape(4, 4)


def test_a_batch_that_one_input_fixes_is_fixed_there_alone_with_a_note():
    traced = trace(Fixing().eval(), (torch.randn(4, 4), torch.randn(4, 4)))
    assert [str(value.shape[0]) for value in traced.model.graph.inputs] == ["batch", "4"]
    assert any("'table'" in note and "dynamic_shapes" in note for note in traced.notes)
    x = np.ones((2, 4), np.float32)
    assert run(traced, {"x": x, "table": np.eye(4, dtype=np.float32)})[0].shape == (2, 4)


class OneOnly(nn.Module):
    def forward(self, x):
        return x.reshape(5) * 2


class RowByRow(nn.Module):
    """Goes through the batch in a loop, as Pixtral goes through its images."""

    def forward(self, x):
        return torch.cat([row[:3].tanh() for row in x], 0)


def test_a_batch_that_the_model_goes_through_is_fixed_with_a_note():
    """The trace that failed with a dynamic batch leaves that wish on the tensors it was given."""
    traced = trace(RowByRow(), (torch.randn(2, 5, 8),))
    assert list(traced.model.graph.inputs[0].shape) == [2, 5, 8]
    assert any("the batch dimension of 'x' is fixed at the example's size" in note for note in traced.notes)


def test_a_model_that_wants_a_batch_of_one_keeps_it():
    traced = trace(OneOnly().eval(), torch.randn(1, 5))
    assert [str(dim) for dim in traced.model.graph.inputs[0].shape] == ["1", "5"]
    assert any("fixed" in note for note in traced.notes)


def test_user_names_and_shapes_are_honoured_and_a_size_of_one_is_not_specialised():
    # "conv2d" is also the name that the exporter gives the inner value
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()).eval()
    traced = trace(
        model,
        torch.randn(1, 3, 8, 8),
        input_names=["picture"],
        output_names=["conv2d"],
        dynamic_shapes=({0: "n", 2: "height", 3: "width"},),
        opset_version=21,
    )
    assert [str(dim) for dim in traced.model.graph.inputs[0].shape] == ["n", "3", "height", "width"]
    assert traced.input_names == ["picture"]
    assert traced.output_names == ["conv2d"]
    assert traced.model.opset_imports[""] == 21
    x = np.random.default_rng(0).standard_normal((3, 3, 5, 7)).astype(np.float32)
    with torch.no_grad():
        np.testing.assert_allclose(run(traced, {"picture": x})[0], model(torch.from_numpy(x)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "example", "first"),
    [
        (None, torch.zeros(0, 3, dtype=torch.int64), ["batch", "3"]),
        (({0: "n", 1: "t"},), torch.ones(2, 0).long(), "nt"),
    ],
)
def test_a_size_of_nought_is_not_specialised(shapes, example, first):
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4)).eval()
    traced = trace(model, example, dynamic_shapes=shapes)
    assert [str(dim) for dim in traced.model.graph.inputs[0].shape] == list(first)
    assert traced.notes == []
    ids = torch.tensor([[0, 4, 1], [2, 2, 3]])
    with torch.no_grad():
        (found,) = run(traced, {traced.input_names[0]: ids.numpy()})
        np.testing.assert_allclose(found, model(ids), rtol=1e-5, atol=1e-6)


def test_half_precision_stays_half():
    traced = trace(nn.Linear(4, 3).eval().bfloat16(), torch.randn(2, 4, dtype=torch.bfloat16))
    assert traced.model.graph.inputs[0].dtype == ir.DataType.BFLOAT16
    assert traced.feeds["input"].dtype.name == "bfloat16"
    assert {value.dtype for value in traced.model.graph.initializers.values()} == {ir.DataType.BFLOAT16}


class Opaque(nn.Module):
    def forward(this, x):  # authors do not all write "self"
        return x * 2 if x.sum() > 0 else x


def test_opaque_control_flow_names_the_module_and_the_remedy(capfd):
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), Opaque()))
    with pytest.raises(TraceError, match=r"module '1.1' \(Opaque, line \d+.*control flow.*torch.where"):
        trace(model, torch.randn(2, 3))
    assert model.training
    assert "forward" not in vars(model)
    assert capfd.readouterr().err == ""


def test_wrong_arguments_are_told_before_the_trace():
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(InputError, match=r"input=float32\[2, 4\].*module '0'.*cannot be multiplied"):
        trace(model, torch.randn(2, 4))
    with pytest.raises(InputError, match="takes"):
        trace(model, (torch.randn(2, 3), torch.randn(2, 3)))
    with pytest.raises(InputError, match="no tensor"):
        trace(model, (3,))
    assert model.training


def test_wrong_names_and_shapes_are_told():
    model = nn.Linear(3, 3).eval()
    with pytest.raises(InputError, match="dynamic_shapes names"):
        trace(model, torch.randn(2, 3), dynamic_shapes={"y": {0: "batch"}})
    with pytest.raises(InputError, match="2 output names"):
        trace(model, torch.randn(2, 3), output_names=["a", "b"])


class Followed(nn.Module):
    """A product with what came before, as a decoder's step has it."""

    def forward(self, x, past):
        seen = torch.cat([past, x.chunk(2, -1)[0]], 1)
        return (x.chunk(2, -1)[1] @ seen.mT).softmax(-1) @ seen


def test_an_example_may_be_a_view_of_something_larger(tmp_path):
    whole = torch.randn(2, 6, 16)
    x, past = whole[:, 5:], torch.randn(2, 8, 5).mT
    shapes = {"x": {0: "batch"}, "past": {0: "batch", 1: "seen"}}
    result = nd.export(Followed(), (x, past), tmp_path / "net.onnx", dynamic_shapes=shapes, verify="quick")
    assert result.verdict.passed
    found = nd.load(tmp_path / "net.onnx")({"x": x.numpy(), "past": past.numpy()})
    assert np.allclose(found["output"], Followed()(x, past), atol=1e-5)


def test_what_is_no_eager_module_is_refused():
    with pytest.raises(ModelError, match="function"):
        trace(lambda x: x, torch.randn(2, 3))

    class Wordy(nn.Module):
        def forward(self, x):
            return {"y": x, "why": object()}

    with pytest.raises(ModelError, match="object at why"):
        trace(Wordy(), torch.randn(2, 3))


class Stuck(nn.Module):
    """Functional layers that follow no flag; torch.onnx writes the first as if it used its running statistics."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        x = nn.functional.batch_norm(x, self.norm.running_mean, self.norm.running_var, training=True)
        return nn.functional.dropout(x, 0.3)


def test_functional_layers_that_stay_in_training_are_an_error_that_names_them():
    model = nn.Sequential(nn.Linear(4, 4), Stuck())
    held = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ModeError, match=r"batch normalization .* in '1' \(Stuck\); dropout .*training=self.training"):
        trace(model, torch.randn(3, 4))
    assert model.training
    assert all(torch.equal(value, held[key]) for key, value in model.state_dict().items())


def test_a_convolution_without_bias_is_exported_without_one():
    """torch writes a zero bias of a shape that no runtime takes for the three-dimensional ones."""
    model = nn.Sequential(nn.Conv3d(2, 4, 3, bias=False), nn.ConvTranspose3d(4, 2, 3, bias=False)).eval()
    traced = trace(model, torch.randn(2, 2, 5, 5, 5))
    assert [len(node.inputs) for node in traced.model.graph] == [2, 2]
    with torch.no_grad():
        truth = model(torch.from_numpy(traced.feeds["input"]))
    np.testing.assert_allclose(run(traced)[0], truth, rtol=1e-4, atol=1e-5)


class Bessel(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


def test_an_operator_without_translation_names_its_module():
    with pytest.raises(TraceError, match=r"module '1.0' \(Bessel\).*bessel_j0"):
        trace(nn.Sequential(nn.Linear(4, 4), nn.Sequential(Bessel())), torch.randn(2, 4))


def test_a_randomized_relu_has_its_middle_slope_in_evaluation():
    x = torch.tensor([[-2.0, 3.0]])
    assert run(trace(nn.RReLU(0.25, 0.75).eval(), x), {"input": x.numpy()})[0].tolist() == [[-1, 3]]


class Drawn(nn.Module):
    def forward(self, x):
        return nn.functional.rrelu(x, training=True)


def test_slopes_that_are_drawn_have_no_translation():
    with pytest.raises(
        TraceError, match=r"rrelu\(training=True\) draws its slopes at random: use training=self.training"
    ):
        trace(Drawn(), torch.randn(2, 4))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_model_on_cuda_is_traced_and_stays_there():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).cuda()
    traced = trace(model, torch.randn(2, 3))
    assert next(model.parameters()).is_cuda
    assert isinstance(traced.feeds["input"], np.ndarray)
    with torch.no_grad():
        truth = model.eval()(torch.from_numpy(traced.feeds["input"]).cuda()).cpu()
    np.testing.assert_allclose(run(traced)[0], truth, rtol=1e-4, atol=1e-5)


def test_nothing_is_printed_and_streams_are_untouched(capfd, torchlib_read_anew):
    streams = (sys.stdout, sys.stderr)
    trace(nn.ReLU(), torch.randn(2, 3))
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""
    assert (sys.stdout, sys.stderr) == streams


def test_a_handler_on_every_logger_gets_no_empty_lines():
    """As pytest hangs one up: each trace was hundreds of empty lines below a test that failed."""
    records: list[logging.LogRecord] = []
    logger, handler = logging.getLogger("torch.__trace"), logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign] # what a handler is asked for
    logger.addHandler(handler)
    try:
        trace(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval(), torch.randn(2, 3))
        assert handler in logger.handlers
        logger.debug("heard")
    finally:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in records] == ["heard"]


def test_what_is_put_at_indices_is_traced_without_a_word(heard):
    class Unpooled(nn.Module):
        def forward(self, x, places):
            return nn.functional.max_unpool2d(x, places, 2)

    pooled, places = nn.functional.max_pool2d(torch.randn(2, 3, 4, 4), 2, return_indices=True)
    traced = trace(Unpooled(), (pooled, places))
    truth = nn.functional.max_unpool2d(pooled, places, 2)
    np.testing.assert_array_equal(run(traced)[0], truth)
    assert not [record.getMessage() for record in heard.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("version", [17, 99])
def test_an_operator_set_that_cannot_be_written_is_an_error(version):
    with pytest.raises(InputError, match=f"opset_version is {version}; expected 18"):
        trace(nn.Linear(3, 3), torch.randn(2, 3), opset_version=version)


def test_a_parameter_of_forward_may_have_a_submodules_name():
    class Clash(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.scale = nn.LayerNorm(3), nn.Parameter(torch.ones(3))

        def forward(self, norm, scale):
            return self.norm(norm) * self.scale + scale

    feeds = {"norm": torch.randn(2, 3), "scale": torch.randn(2, 3)}
    traced = trace(Clash(), tuple(feeds.values()))
    assert traced.input_names == ["norm", "scale_1"]  # a weight keeps its name
    np.testing.assert_allclose(run(traced)[0], Clash()(**feeds).detach(), rtol=1e-5, atol=1e-6)


class Standardized(nn.Module):
    """Buffers with the names that the trace gives to the results of operators."""

    def __init__(self, returned: bool):
        super().__init__()
        self.returned = returned
        for name, channels in (("mean", 3), ("mul", 4), ("val_0", 4), ("conv2d", 4)):
            self.register_buffer(name, torch.rand(channels, 1, 1) + 0.5)
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)

    def forward(self, x):
        x = self.conv(x - self.mean)
        if self.returned:
            return x.mean((2, 3))
        return self.norm(x * self.mul + self.val_0) * self.conv2d + x.mean(1, keepdim=True)


@pytest.mark.parametrize("returned", [False, True])
def test_a_weight_may_have_the_name_of_an_operators_result(returned, tmp_path):
    model, x = Standardized(returned).eval(), torch.randn(2, 3, 6, 6)
    traced = trace(model, x)
    values = [
        *traced.model.graph.initializers.values(),
        *(value for node in traced.model.graph for value in node.outputs),
    ]
    assert len({value.name for value in values}) == len(values)
    assert (
        "mean" in traced.model.graph.initializers
    )  # the weight keeps its path, on which its ledger row and proof stand
    np.testing.assert_allclose(run(traced)[0], model(x).detach(), rtol=1e-5, atol=1e-6)
    result = nd.export(model, x, tmp_path / "net.onnx")
    assert result.verdict.status == "pass"
    assert not [row for row in result.ledger.rows if row.where == "norm" and row.action == "kept"]


def test_bookkeeping_of_torchs_own_modules_is_no_news():
    traced = trace(nn.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3))
    assert not any("_flat_weight" in note for note in traced.notes)


def test_outputs_are_named_by_keys_and_fields():
    Pair = collections.namedtuple("Pair", ["boxes", "scores"])

    class Nested(nn.Module):
        def forward(self, x):
            return {"head": Pair(x + 1, [x + 2, {"top": x + 3}]), "aux": x + 4}

    traced = trace(Nested(), torch.randn(2, 3))
    assert traced.output_names == ["head_boxes", "head_scores_0", "head_scores_1_top", "aux"]
    for offset, found in enumerate(run(traced), 1):
        np.testing.assert_allclose(found, traced.feeds["x"] + offset, rtol=1e-6)


def test_a_recurrent_state_given_as_an_input():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTM(3, 4, num_layers=2, batch_first=True)

        def forward(self, x, state):
            return self.cell(x, state)

    model, x = Recurrent(), torch.randn(2, 5, 3)
    state = (torch.randn(2, 2, 4), torch.randn(2, 2, 4))
    traced = trace(model, (x, state), dynamic_shapes={})
    assert traced.input_names == ["x", "state_0", "state_1"]
    y, (h, c) = model(x, state)
    for found, expected in zip(run(traced), (y, h, c), strict=True):
        np.testing.assert_allclose(found, expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inside", [False, True])
def test_a_model_built_under_inference_mode(inside):
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        model[1].cache = [torch.ones(4)]
        x = torch.randn(2, 3)
    held = {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    with torch.inference_mode(inside):
        traced = trace(model, x)
    with torch.inference_mode():
        expected = model.eval()(x)
    np.testing.assert_allclose(run(traced)[0], expected, rtol=1e-5, atol=1e-6)
    assert {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()} == held
    assert model[0].weight.is_inference()


class Logarithmic(nn.Module):
    def forward(self, x):
        return torch.log1p(x) + nn.functional.hardswish(x)


def test_operators_of_the_exporters_functions_are_named_by_their_results():
    """They were n0, n1, ...: what a user's modules are called."""
    names = [node.name for node in trace(Logarithmic(), torch.rand(2, 3)).model.graph]
    assert "node_log1p" in names
    assert all(str(name).startswith("node_") for name in names)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (3, "dynamic_shapes is 3; expected one entry per argument"),
        ("rows", "dynamic_shapes is 'rows'; expected one entry per argument"),
        (({0: "n"}, None, None), "expected one entry per argument"),
        ({"x": 3}, "dynamic_shapes has 3 for"),
        ({"x": "rows"}, "dynamic_shapes has 'rows' for"),
        ({"pair": {0: {0: "n"}, "deep": 4}, "x": None}, None),
        ({"pair": "rows"}, "dynamic_shapes has 'rows' around pair.0; expected the structure of the arguments"),
    ],
)
def test_dynamic_shapes_of_another_structure_are_refused_by_their_place(shapes, words) -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, pair: list[torch.Tensor]) -> torch.Tensor:
            return x + pair[0] * pair[1]

    args = (torch.randn(2, 3), [torch.randn(2, 3), torch.randn(2, 3)])
    if words is None:
        assert trace(Two(), args, dynamic_shapes={"x": ["n", None], "pair": [["n", None], ["n", None]]}).model
        return
    with pytest.raises(InputError, match=re.escape(words)):
        trace(Two(), args, dynamic_shapes=shapes)


@pytest.mark.parametrize("result", [(), {"loss": 1}], ids=str)
def test_a_forward_that_returns_no_tensor_is_refused(result):
    class Nothing(nn.Module):
        def forward(self, _):
            return result

    with pytest.raises(ModelError, match="forward returns no tensor; expected at least one"):
        trace(Nothing(), torch.ones(2, 3))
