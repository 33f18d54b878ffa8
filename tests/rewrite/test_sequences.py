"""Splits that take the way over a sequence become plain Splits, and lists of values these values."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from node_kinds import kinds
from onnx import parser
from torch import nn

import normdeploy as nd
from normdeploy.graph import Evaluator
from normdeploy.rewrite.weights import EvaluateConstants, FollowSizes


def model(body: str, outputs: str = "float[n,a] y") -> ir.Model:
    found = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["" : 18]>
    g (float[n,7] x, int64[1] p) => ({outputs}) {{
        one = Constant <value_int = 1> ()
        last = Constant <value_int = -1> ()
        two = Constant <value_int = 3> ()
        sizes = Constant <value_ints = [2, 4, 1]> ()
        {body}
    }}""")
    EvaluateConstants()(found)
    return found


def resolved(found: ir.Model) -> bool:
    return FollowSizes(EvaluateConstants())(found).modified


X = np.arange(14.0).reshape(2, 7)
P = np.array([1])


@pytest.mark.parametrize(("given", "parts"), [("sizes", [2, 4, 1]), ("two", [3, 3, 1])])
def test_parts_at_constant_positions_are_outputs_of_a_split(given, parts):
    found = model(f"""
        s = SplitToSequence <axis = 1> (x, {given})
        a = SequenceAt (s, one)
        b = SequenceAt (s, last)
        y = Add (a, b)
    """)
    assert resolved(found)
    assert kinds(found) == ["Split", "Add"]
    assert [value.name for value in next(iter(found.graph)).outputs][1:] == ["a", "b"]  # what the graph calls the parts
    onnx.checker.check_model(ir.to_proto(found))
    split = np.split(X, np.cumsum(parts)[:-1], axis=1)
    np.testing.assert_array_equal(Evaluator(found).run({"x": X, "p": P})["y"].numpy(), split[1] + split[2])


def test_a_part_that_is_a_graph_output_keeps_its_name():
    found = model(
        "s = SplitToSequence <axis = 1> (x, sizes)\n y = SequenceAt (s, one)\n z = SequenceAt (s, one)",
        "float[n,4] y, float[n,4] z",
    )
    resolved(found)
    assert [value.name for value in found.graph.outputs] == ["y", "z"]
    onnx.checker.check_model(ir.to_proto(found))
    got = Evaluator(found).run({"x": X, "p": P})
    np.testing.assert_array_equal(got["y"].numpy(), X[:, 2:6])
    np.testing.assert_array_equal(got["z"].numpy(), X[:, 2:6])


@pytest.mark.parametrize(
    "body",
    [
        "s = SplitToSequence <axis = 1> (x, sizes)\n i = Squeeze (p)\n a = SequenceAt (s, i)\n y = Relu (a)",
        "s = SplitToSequence <axis = 1> (x, sizes)\n y = ConcatFromSequence <axis = 1> (s)",
        "s = SplitToSequence <axis = 1> (x, p)\n a = SequenceAt (s, one)\n y = Relu (a)",
        "s = SplitToSequence <axis = 1, keepdims = 0> (x)\n a = SequenceAt (s, one)\n y = Unsqueeze (a, p)",
    ],
)
def test_what_is_computed_or_not_only_picked_from_stays(body):
    found = model(body)
    text = kinds(found)
    assert not resolved(found)
    assert kinds(found) == text


def test_sizes_of_parts_tell_those_of_what_is_made_of_them():
    found = model("""
        s = SplitToSequence <axis = 1> (x, sizes)
        a = SequenceAt (s, one)
        b = SequenceAt (s, last)
        c = Concat <axis = -1> (a, b)
        y = Neg (c)
    """)
    assert resolved(found)
    shapes = {node.op_type: [[str(dim) for dim in part.shape] for part in node.outputs] for node in found.graph}
    assert shapes["Split"] == [["n", "2"], ["n", "4"], ["n", "1"]]
    assert shapes["Concat"] == [["n", "5"]]


LISTED = {  # what reads a list of x, -x and 2 x, what is left of it, and what it is
    "at": ("c = SequenceAt (s, one)", ["Neg"], -X),
    "from behind": ("c = SequenceAt (s, last)", ["Add"], 2 * X),
    "joined": ("c = ConcatFromSequence <axis = -1> (s)", ["Neg", "Add", "Concat"], np.hstack([X, -X, 2 * X])),
    "stacked": (
        "c = ConcatFromSequence <axis = 1, new_axis = 1> (s)",
        ["Neg", "Add", "Unsqueeze", "Unsqueeze", "Unsqueeze", "Concat"],
        np.stack([X, -X, 2 * X], 1),
    ),
    "counted": ("k = SequenceLength (s)\n f = Cast <to = 1> (k)\n c = Mul (x, f)", ["Cast", "Mul"], 3 * X),
}
MADE = {
    "at once": "s = SequenceConstruct (x, a, b)",
    "one by one": "e = SequenceEmpty ()\n r = SequenceInsert (e, x)\n q = SequenceInsert (r, b)\n"
    "s = SequenceInsert (q, a, last)",
    "with one too many": "r = SequenceConstruct (x, b, a, b)\n q = SequenceErase (r, one)\n s = Identity (q)",
    "without the last": "r = SequenceConstruct (x, a, b, x)\n s = SequenceErase (r)",
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("read", LISTED)
def test_a_list_of_values_is_these_values(made, read):
    reading, left, expected = LISTED[read]
    found = model(f"a = Neg (x)\n b = Add (x, x)\n {MADE[made]}\n {reading}\n y = Sin (c)", "float[a,b] y")
    assert resolved(found)
    assert [op for op in kinds(found) if op not in ("Constant", "Identity")] == [*left, "Sin"]
    onnx.checker.check_model(ir.to_proto(found))
    got = Evaluator(found).run({"x": X, "p": P})["y"].numpy()
    np.testing.assert_allclose(got, np.sin(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("s = SequenceConstruct (x, x)\n y = SequenceAt (s, p)", "float[n,a] y"),
        ("e = SequenceConstruct (x, x)\n s = SequenceInsert (e, x, p)\n y = SequenceAt (s, one)", "float[n,a] y"),
        ("s = SequenceConstruct (x)\n y = SequenceAt (s, one)", "float[n,a] y"),
        ("s = SequenceConstruct (x)\n t = SequenceInsert (s, x, two)\n y = SequenceAt (t, one)", "float[n,a] y"),
    ],
    ids=["a computed position", "an insertion at one", "no such element", "no such place"],
)
def test_a_list_is_left_where_a_position_is_not_known(body, outputs):
    found = model(body, outputs)
    before = kinds(found)
    assert not resolved(found)
    assert kinds(found) == before


def test_an_element_that_is_given_out_keeps_its_name_and_maps_pass_a_list(tmp_path):
    vector, weight = "{0.5, 2, -1, 3, 1, -2, 0.25}", f"{{{', '.join(map(str, range(49)))}}}"
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    g (float[n,7] x) => (float[n,7] y, float[n,7] z) <float[7] s = {vector}, float[7,7] w = {weight}> {{
        one = Constant <value_int = 1> ()
        a = Mul (x, s)
        q = SequenceConstruct (x, a)
        b = SequenceAt (q, one)
        y = MatMul (b, w)
        z = SequenceAt (q, one)
    }}"""
    path = tmp_path / "in.onnx"
    onnx.save(parser.parse_model(text), path)
    report = nd.fold(path, tmp_path / "out.onnx", verify="quick")
    assert report.verdict is not None
    assert report.verdict.passed
    written = onnx.load(tmp_path / "out.onnx")
    assert not [node for node in written.graph.node if "Sequence" in node.op_type]
    assert [value.name for value in written.graph.output] == ["y", "z"]


class _GhostNorm(nn.Module):
    """BatchNorm over virtual batches, as TabNet has it: the rows of one where a batch holds no more."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.norm(part) for part in x.chunk(-(-x.shape[0] // 128))])


def test_a_ghost_norm_of_one_virtual_batch_folds(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), _GhostNorm(8), nn.ReLU(), nn.Linear(8, 8), _GhostNorm(8), nn.GLU())
    for _ in range(3):
        net(torch.randn(64, 6) + 1)
    result = nd.export(net.eval(), (torch.randn(4, 6),), tmp_path / "net.onnx")
    assert result.verdict.status == "pass", result.verdict
    left = [node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node]
    assert left == ["Gemm", "Relu", "Gemm", "Split", "Sigmoid", "Mul"]
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    x = torch.randn(11, 6)
    with torch.no_grad():
        np.testing.assert_allclose(session.run(None, {"input": x.numpy()})[0], net(x).numpy(), rtol=1e-5, atol=1e-6)
