"""No file ends the process: onnx's shape inference, which some files end, runs in one of its own."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

import normdeploy as nd
from normdeploy.errors import GraphError, NormdeployError
from normdeploy.graph import Evaluator, infer_apart, shape_inference
from normdeploy.graph.shape_inference import NotInferredError, infer_shapes
from normdeploy.rewrite.infer import infer_missing_types

NEGATIVE = """g (float[2, 1, 3] x, float[1, 1, 6] w) => (float[2, q, n] y)
    <int64[1] start = {0}, int64[1] end = {2}, int64[1] axis = {2}> {
      c = Conv (x, w)
      y = Slice (c, start, end, axis)
    }"""
ENDING = {
    "a Slice of a dimension that came out negative": NEGATIVE,
    "a Split into more parts than it says": """g (float[4] x) => (float[n] y) {
      a, b = Split <num_outputs = 1> (x)
      y = Relu (b) }""",
    "a scale along an axis far outside": """g (float[3, 3] x, float[3] w) => (float[3, 3] y) {
      y, m = LayerNormalization <axis = 9223372036854775807> (x, w) }""",
    "every known number of a terabyte": """g (float[1] x, float[4611686018427387904] z) => (float[n] y) {
      y = Sub (x, z) }""",
}


def model_of(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}')


@pytest.mark.parametrize("what", ENDING)
def test_what_ends_onnx_is_an_error_of_ours(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_inference, "_MEMORY", 2**28)  # filling 2 GiB, four times, takes 19 s of processor time
    model = model_of(ENDING[what])
    with pytest.raises(NotInferredError, match="cannot be inferred"):
        infer_shapes(model)
    infer_missing_types(ir.from_proto(model))  # nothing is raised: what is unknown stays so
    onnx.save(model, tmp_path / "net.onnx")
    with suppress(NormdeployError):
        nd.inspect(tmp_path / "net.onnx")
    with pytest.raises(NormdeployError):
        nd.fold(tmp_path / "net.onnx", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_what_is_inferred_comes_back_for_bodies_too() -> None:
    body = "inner () => (float[p, q] z) { h = Transpose <perm = [1, 0]> (x)\n z = Relu (h) }"
    other = "other () => (float[p, q] z) { z = Transpose <perm = [1, 0]> (x) }"
    text = f"g (float[2, 3] x, bool c) => (float[p, q] y) {{ y = If (c) <then_branch = {body}, else_branch = {other}>}}"
    model = ir.from_proto(model_of(text))

    assert infer_missing_types(model)
    (node,) = model.graph
    inside = node.attributes["then_branch"].as_graph()
    assert [value.shape.numpy() for each in inside for value in each.outputs if value.shape] == [(3, 2), (3, 2)]


def test_what_lacks_a_type_is_inferred_by_itself_with_what_lies_behind_and_what_computes_its_sizes(monkeypatch) -> None:
    text = """g (float[2, 3] x) => (float[p, q] y, float[2, 3] beside) {
      a = Relu (x)
      beside = Exp (a)
      s = Shape (a)
      r = Identity (s)
      t = Reshape (a, r)
      y = Neg (t) }"""
    model = ir.from_proto(model_of(text))
    assert infer_missing_types(model)
    found = {value.name: value for node in model.graph for value in node.outputs}
    shapes = {name: (value.dtype, value.shape) for name, value in found.items()}
    assert found["y"].shape is not None
    seen: list[list[str]] = []

    def noted(proto: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
        seen.append([node.op_type for node in proto.graph.node])
        return infer_shapes(proto, **options)

    monkeypatch.setattr("normdeploy.rewrite.infer.infer_shapes", noted)
    assert not infer_missing_types(model)
    found["t"].shape = found["t"].type = None
    assert infer_missing_types(model)
    assert seen == [["Shape", "Identity", "Reshape", "Neg"]]
    assert {name: (value.dtype, value.shape) for name, value in found.items()} == shapes


RELU = "g (float[2, 3] x) => (float[p, q] y) { z = Relu (x)\n y = Relu (z) }"


def test_after_a_file_that_ended_onnx_the_next_is_inferred_in_the_same_process() -> None:
    infer_shapes(model_of(RELU))
    before = shape_inference._WORKER._process
    with pytest.raises(NotInferredError):
        infer_shapes(model_of(NEGATIVE))
    assert infer_shapes(model_of(RELU)).graph.value_info[0].type.tensor_type.shape.dim[1].dim_value == 3
    if hasattr(os, "fork"):
        assert shape_inference._WORKER._process is before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("ends", [True, False])
def test_a_model_that_fails_behind_others_is_asked_about_again_alone(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one model leaves in the process is not another one's fault."""
    wrong = NEGATIVE if ends else "g (float[2, 3] x, float[4, 5] z) => (float[p, q] y) { y = MatMul (x, z) }"
    codes: list[int] = []
    ask = shape_inference._WORKER.ask

    def noted(asked: bytes) -> tuple[int, bytes]:
        code, answer = ask(asked)
        codes.append(code)
        return code, answer

    shape_inference._WORKER.end()
    monkeypatch.setattr(shape_inference._WORKER, "ask", noted)
    for text in (wrong, RELU, RELU, wrong, RELU):
        with suppress(NotInferredError):
            infer_shapes(model_of(text), strict=True)
    end = codes[0]
    assert end != 0
    assert codes == [end, 0, 0, infer_apart.AGAIN, end, 0]


@pytest.mark.skipif(not list(Path("/proc/self/task").glob("*/children")), reason="this system does not list forks")
def test_one_process_answers_until_a_model_ends_it() -> None:
    shape_inference._WORKER.end()
    for _ in range(20):
        infer_shapes(model_of(RELU))
    assert shape_inference._WORKER._process is not None
    (fork,) = Path(f"/proc/{shape_inference._WORKER._process.pid}/task").glob("*/children")
    (before,) = fork.read_text().split()
    infer_shapes(model_of(RELU))
    assert fork.read_text().split() == [before]
    with pytest.raises(NotInferredError):
        infer_shapes(model_of(NEGATIVE))
    assert fork.read_text().split() != [before]


def test_where_the_process_was_killed_another_is_started() -> None:
    infer_shapes(model_of(RELU))
    assert shape_inference._WORKER._process is not None
    shape_inference._WORKER._process.kill()
    shape_inference._WORKER._process.wait()
    assert len(infer_shapes(model_of(RELU)).graph.value_info) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12's, of any process with threads
def test_a_fork_has_a_process_of_its_own() -> None:
    """Two that read from one pipe would get each other's answers."""
    infer_shapes(model_of(RELU))
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if len(infer_shapes(model_of(RELU)).graph.value_info) == 1 else 2
            shape_inference._WORKER.end()
        finally:
            os._exit(code)
    assert len(infer_shapes(model_of(RELU)).graph.value_info) == 1
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_contradiction_is_named_where_it_is_strict() -> None:
    model = model_of("g (float[2, 3] x, float[4, 5] z) => (float[p, q] y) { y = MatMul (x, z) }")
    with pytest.raises(NotInferredError, match="MatMul"):
        infer_shapes(model, check_type=True, strict=True)


def test_where_no_process_can_be_started_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(NotInferredError, match="start Python again"):
        infer_shapes(model_of(NEGATIVE))


def test_element_types_that_there_are_not_stay_unknown(tmp_path: Path) -> None:
    text = """g (float[2] x) => (float[2] y) <int64 a = {8}, float b = {1.0}> {
      m = MelWeightMatrix <output_datatype: int = -1> (a, a, a, b, b)
      s = Shape (m)
      f = Cast <to = 1> (s)
      y = Add (x, f) }"""
    onnx.save(model_of(text), tmp_path / "net.onnx")
    with pytest.raises(NormdeployError):
        nd.fold(tmp_path / "net.onnx", tmp_path / "out.onnx")
    with suppress(GraphError):
        nd.inspect(tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "g (float[1, 1, 4, 4] x, float[1, 4] r, int64[1] i) => (float[1, 1, 1, 1] y) { "
            "y = RoiAlign <sampling_ratio = 2147483647> (x, r, i) }",
            "asks for",
        ),
        (
            'g (int64[4] x) => (float[n] y) { y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, '
            "max_gram_length = 1, max_skip_count = 0, ngram_counts = [0, 4611686018427387904], ngram_indexes = [0], "
            "pool_int64s = [2]> (x) }",
            "lead out of the pool",
        ),
    ],
)
def test_loops_of_the_reference_implementation_are_counted_first(text: str, reason: str) -> None:
    model = ir.from_proto(model_of(text))
    feeds = {str(v.name): np.ones(v.shape.numpy(), v.dtype.numpy()) for v in model.graph.inputs if v.shape and v.dtype}
    with pytest.raises(GraphError, match=reason):
        Evaluator(model).run(feeds)
