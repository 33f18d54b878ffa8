"""Where a graph cuts at 1e-12 or at 100000, inputs come near that; what takes the largest takes each number put in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from normdeploy.array_types import Array
from normdeploy.graph.computed_constants import computed_constant
from normdeploy.verification import verify
from normdeploy.verification.derivation.side.competing_constants import cuts_nothing, fills
from normdeploy.verification.record.answers import Question, Status
from normdeploy.verification.record.verdict import Verdict
from normdeploy.verification.samples import cut_sizes
from normdeploy.verification.samples.cut_sizes import compared_scales

ROWS = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 4] x) => (float[n, 4] y)
    <float[4] s = {1, 2, 3, 4}, float zero = {0}, float far = {100000}, float low = {-10000}, float two = {2},
     float tiny = {1e-12}, float small = {1e-6}, int64[1] last = {-1}> {
    # y = LayerNormalization(h, s) }"""

PICTURES = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 2, 8, 8] x) => (float[n, 2, 8, 8] y)
    <float[2] s = {1, 2}, float[2] b = {0.1, 0.2}, float[2] m = {0.1, 0.3}, float[2] v = {1.5, 2}, float low = {-10000},
     float none = {-3.4028235e38}, int64[8] rim = {0, 0, 1, 1, 0, 0, 1, 1}> {
    h = BatchNormalization(x, s, b, m, v) # }"""

MOST = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 4] x) => (float[n, 4] y)
    <float[1, 1] low = {-100000}, float[1, 1] high = {100000}, float[4] s = {1, 2, 3, 4}, int64[1] axis = {1},
     int64[1] one = {1}> {
    rows = Shape<end = 1>(x) size = Concat<axis = 0>(rows, one) below = Expand(low, size) above = Expand(high, size)
    # n = LayerNormalization(x, s) y = Add(n, t) }"""

POOL = "y = MaxPool<kernel_shape = [3, 3], strides = [1, 1]>(q)"
POOLED = "y = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [1, 1]>(h)"


def judged(folder: Path, graph: str, one: str, other: str, level: str = "default") -> Verdict:
    for name, text in (("reference", one), ("net", other)):
        onnx.save(onnx.parser.parse_model(graph.replace("#", text)), folder / f"{name}.onnx")
    return verify(folder / "reference.onnx", folder / "net.onnx", level=level)


CUT = {
    "a second bound": (ROWS, "h = Relu(x)", "h = Clip(x, zero, far)"),
    "a bound": (ROWS, "h = Identity(x)", "h = Max(x, low)"),
    "a bound of a multiple": (ROWS, "h = Mul(x, two)", "a = Mul(x, two) h = Min(a, far)"),
    "a sum": (ROWS, "a = Abs(x) m = Max(a, tiny) h = Div(x, m)", "a = Abs(x) m = Add(a, tiny) h = Div(x, m)"),
    "a sum, of norms": (
        ROWS,
        "a = ReduceL2(x, last) m = Max(a, tiny) h = Div(x, m)",
        "a = ReduceL2(x, last) m = Add(a, tiny) h = Div(x, m)",
    ),
    "a sum, of squares": (
        ROWS,
        "q = Mul(x, x) a = ReduceSum(q, last) m = Max(a, small) r = Sqrt(m) h = Div(x, r)",
        "q = Mul(x, x) a = ReduceSum(q, last) m = Add(a, small) r = Sqrt(m) h = Div(x, r)",
    ),
    "a border": (PICTURES, POOLED, f"q = Pad(h, rim, low) {POOL}"),
    "one more": (MOST, "t = ReduceMax(x, axis)", "a = Concat<axis = 1>(x, below) t = ReduceMax(a, axis)"),
    "one more of the smallest": (
        MOST,
        "t = ReduceMin(x, axis)",
        "a = Concat<axis = 1>(above, x) t = ReduceMin(a, axis)",
    ),
    "one more to choose of": (
        MOST,
        "t, i = TopK<largest = 1>(x, one)",
        "a = Concat<axis = 1>(x, below) t, i = TopK<largest = 1>(a, one)",
    ),
}


@pytest.mark.parametrize("level", ["quick", "default"])
@pytest.mark.parametrize("name", CUT)
def test_inputs_near_what_is_cut_at_decide(name: str, level: str, tmp_path: Path) -> None:
    """|x| + 1e-12 is max(|x|, 1e-12) to rounding where x is 1, and where it is 0; -10000 is not the largest of any."""
    graph, one, other = CUT[name]
    for pair in ((one, other), (other, one)):
        verdict = judged(tmp_path, graph, *pair, level)
        assert verdict.status is Status.FAIL, verdict.summary()
        near = "numbers around", "rows beyond", "row variance around"
        assert any(family in reason for family in near for reason in verdict.reasons)


NORMED = MOST.replace("#", "z = LayerNormalization(x, s) #")


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ("h = Relu(n)", "b = Mul(far, far) h = Clip(n, zero, b)", "Clip 'h' cuts at 1e+10, where the other graph"),
        ("m = Neg(n) h = Max(n, m)", "m = Neg(n) h = Max(n, m, low)", "Max 'h' takes of -10000 as well"),
    ],
)
def test_a_bound_that_is_computed_or_one_of_three_is_named(
    one: str, other: str, told: str, lost: bool, tmp_path: Path
) -> None:
    graph = ROWS.replace("#", "n = LayerNormalization(x, s) #")
    verdict = judged(tmp_path, graph, *((other, one) if lost else (one, other)))
    assert verdict.status is Status.NOT_EXERCISED
    assert any(told in check.detail for check in verdict.checks if check.name is Question.IDLE)


@pytest.mark.parametrize("lost", [False, True])
def test_a_number_that_is_never_taken_is_named(lost: bool, tmp_path: Path) -> None:
    """No row of four is further than 7 from 0 behind the norm."""
    plain, filled = "t = ReduceMax(z, axis)", "a = Concat<axis = 1>(z, below) t = ReduceMax(a, axis)"
    verdict = judged(tmp_path, NORMED, *((filled, plain) if lost else (plain, filled)))
    assert verdict.status is Status.NOT_EXERCISED
    [told] = [check.detail for check in verdict.checks if check.name is Question.IDLE]
    assert "ReduceMax 't' takes of -100000 as well, which the other graph does not, and never took that" in told
    assert told.startswith("the reference's") == lost


@pytest.mark.parametrize(
    ("graph", "one", "other"),
    [
        (NORMED, "a = Concat<axis = 1>(z, below) t = ReduceMax(a, axis)",
         "a = Concat<axis = 1>(below, z) t = ReduceMax(a, axis)"),
        (PICTURES, POOLED, f"q = Pad(h, rim, none) {POOL}"),
        (PICTURES.replace("#", "k = Relu(h) #"), POOLED.replace("(h)", "(k)"), f"q = Pad(k, rim) {POOL}"),
        (ROWS, "h = Relu(x)", "r = Relu(x) h = Max(r, low)"),
    ],
    ids=["both", "the type's last", "below all", "a bound below all"],
)  # fmt: skip
def test_what_can_never_be_taken_is_not_asked(graph: str, one: str, other: str, tmp_path: Path) -> None:
    for pair in ((one, other), (other, one)):
        verdict = judged(tmp_path, graph, *pair)
        assert verdict.status is Status.PASS, verdict.summary()


def opened(graph: str, text: str) -> ir.Graph:
    return ir.from_proto(onnx.parser.parse_model(graph.replace("#", text))).graph


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("k = Relu(h) q = Pad(k, rim)", []),
        ("k = Sigmoid(h) q = Pad(k, rim)", []),
        ("q = Pad(h, rim)", [0.0]),
        ('q = Pad<mode = "edge">(h, rim)', []),
        ("p = Pad(h, rim, low) q = Transpose<perm = [0, 1, 3, 2]>(p)", [-10000.0]),
        ("p = Pad(h, rim, low) q = Tanh(p)", []),
        ("f = Greater(h, x) p = Where(f, low, h) q = Pad(p, rim, none)", [-10000.0]),
        ("two = Add(low, low) q = Pad(h, rim, two)", [-20000.0]),
        ("z = Neg(h) two = Add(low, low) q = Max(h, z, two)", [-20000.0]),
        ("z = Neg(h) q = Max(h, z)", []),
        ("d = Shape(h) e = ConstantOfShape<value = float {-5.0}>(d) q = Concat<axis = 0>(e, h)", [-5.0]),
    ],
)
def test_numbers_that_compete(made: str, found: list[float]) -> None:
    graph = opened(PICTURES, f"{made} {POOL}")
    assert [number for node in graph for number in fills(node)] == found


@pytest.mark.parametrize(
    ("made", "nothing"),
    [
        ("r = Relu(x) h = Max(r, low)", True),
        ("r = Relu(x) h = Max(zero, r)", True),
        ("r = Relu(x) h = Max(r, tiny)", False),
        ("r = Tanh(x) h = Min(r, two)", True),
        ("r = Tanh(x) h = Max(r, two)", False),
        ("r = Clip(x, zero, two) h = Min(r, far)", True),
        ("r = Clip(x, zero) h = Min(r, far)", False),
        ("r = Exp(x) c = Concat<axis = -1>(r, x) a, b = Split<axis = -1, num_outputs = 2>(c) h = Max(a, low)", False),
    ],
)
def test_bounds_that_cut_nothing(made: str, nothing: bool) -> None:
    [node] = [node for node in opened(ROWS, made) if node.outputs[0].name == "h"]
    assert cuts_nothing(node) == nothing


@pytest.mark.parametrize(
    ("made", "sizes"),
    [
        ("a = Abs(x) h = Max(a, tiny)", [1e-12]),
        ("a = Mul(x, x) h = Max(a, tiny)", [1e-6]),
        ("a = ReduceSumSquare(x, last) b = Sqrt(a) h = Max(b, tiny)", [1e-12]),
        ("a = Mul(x, two) h = Min(a, far)", [1e5]),
        ("h = Clip(x, low, far)", [1e4]),
        ("a = Add(x, tiny) h = Min(a, far)", [1e-12, 1e5]),
        ("h = Max(x, two)", []),
        ("a = Exp(x) h = Min(a, far)", []),
        ("b = Mul(far, two) a = Abs(x) h = Min(a, b)", [2e5]),
        ("b = Mul(far, two) c = Identity(b) a = Abs(x) d = Min(c, a) h = Max(d, tiny)", [1e-12, 2e5]),
    ],
)
def test_sizes_of_inputs(made: str, sizes: list[float]) -> None:
    assert np.allclose(compared_scales(opened(ROWS, made).inputs[0]), sizes)


def test_what_hangs_on_the_inputs_is_not_looked_up_as_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a deep network that would be a walk up through it for each of its operators."""
    asked: list[str] = []

    def noted(value: ir.Value | None) -> Array | None:
        asked.append("" if value is None else str(value.name))
        return computed_constant(value)

    monkeypatch.setattr(cut_sizes, "computed_constant", noted)
    model = opened(ROWS, "b = Mul(far, two) a = Abs(x) d = Add(a, a) e = Add(d, tiny) h = Min(e, b)")
    assert np.allclose(compared_scales(model.inputs[0]), [1e-12, 2e5])
    assert asked == ["tiny", "b"]
