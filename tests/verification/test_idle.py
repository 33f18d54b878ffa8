"""Operators that nothing explains and that do nothing in any sample are named, and keep a verdict from passing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.record.answers import Question, Status
from normdeploy.verification.record.verdict import Verdict

Numbers = dict[str, np.ndarray]


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(12, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return self.head(self.norm(x) + self.table(ids))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Callable[..., Verdict], Path]:
    """Return what judges a changed file, with one trace for all of them, and the file."""
    torch.manual_seed(0)
    model, args = Rows().eval(), (torch.randn(3, 4), torch.randint(0, 12, (3,)))
    traced = trace(model, args)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), tmp_path_factory.mktemp("idle") / "net.onnx")
    return partial(verify, model, args=args, traced=traced, rewritten=rewritten), path


def with_operators(path: Path, value: str, text: str, constants: Numbers) -> Path:
    """Write the file with operators on a value: "y = f(x)", x in its place and y for all that read it."""
    model = onnx.load(path)
    graph = model.graph
    made = onnx.parser.parse_graph(f"g (float x) => (float y) {{ {text} }}").node
    name = {"x": value, "y": f"{value}.y"}
    if value in {output.name for output in graph.output}:
        name = {"x": f"{value}.x", "y": value}
        for node in graph.node:
            node.output[:] = [name["x"] if one == value else one for one in node.output]
    else:
        for node in graph.node:
            node.input[:] = [name["y"] if one == value else one for one in node.input]
    for node in made:
        node.input[:] = [name.get(one, one) for one in node.input]
        node.output[:] = [name.get(one, one) for one in node.output]
    place = len(graph.node) if name["y"] == value else 0
    nodes = [*graph.node[:place], *made, *graph.node[place:]]
    rest = helper.make_graph(nodes, graph.name, graph.input, graph.output, graph.initializer)
    rest.initializer.extend(numpy_helper.from_array(array, key) for key, array in constants.items())
    del model.metadata_props[:]
    model.graph.CopyFrom(rest)
    changed = path.with_name("changed.onnx")
    onnx.save(model, changed)
    return changed


def number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


IDLE: dict[str, tuple[str, str, Numbers, str]] = {
    "a bound": ("x", "y = Min(x, c)", {"c": number(1e32)}, "Min"),  # squares of inputs near it are infinite
    "a term": ("x", "s = Sub(x, c) r = Relu(s) y = Add(x, r)", {"c": number(1e5)}, "Relu 'r' returned 0 everywhere"),
    "a guard": ("x", "b = IsNaN(x) y = Where(b, c, x)", {"c": number(0)}, "IsNaN"),
    "beyond a batch": (
        "output",
        "s = Shape(x) n = Gather(s, i) b = Greater(n, k) d = Mul(x, c) y = Where(b, d, x)",
        {"i": np.array(0), "k": np.array(50), "c": number(2)},
        "Greater",
    ),
    "a bound of indices": ("ids", "y = Max(x, c)", {"c": np.array(-1)}, ""),
    "a cast of indices": ("ids", "b = Cast<to = 2>(x) y = Cast<to = 7>(b)", {}, ""),
    "the last index": ("ids", "b = Equal(x, c) y = Where(b, d, x)", {"c": np.array(99), "d": np.array(0)}, "Equal"),
}


@pytest.mark.parametrize("name", IDLE)
def test_what_no_sample_shows_at_work_is_no_pass(
    name: str, exported: tuple[Callable[..., Verdict], Path], tmp_path: Path
):
    value, text, constants, named = IDLE[name]
    judge, path = exported
    verdict = judge(with_operators(path, value, text, constants))
    found = [check for check in verdict.checks if check.name is Question.IDLE]
    if not named:  # every index there is was tried
        assert verdict.status is Status.PASS
        assert not found
        return
    assert verdict.status is Status.NOT_EXERCISED
    [check] = found
    assert named in check.detail
    assert "data=" in check.detail


BOUNDED = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 4] x) => (float[n, 4] y)
    <float[4] s = {{1, 2, 3, 4}}, float zero = {{0}}, float far = {{100000}}, float near = {{1}},
     float ten = {{10}}, float half = {{0.5}},
     int64[1] first = {{0}}, int64[1] last = {{9223372036854775807}}, int64[1] some = {{500}}> {{
    {} y = LayerNormalization(h, s) }}"""


def bounded(folder: Path, text: str) -> Path:
    """Write a norm of h, which operators make of x."""
    onnx.save(onnx.parser.parse_model(BOUNDED.format(text)), folder / "net.onnx")
    return folder / "net.onnx"


LOST = {
    "a bound": ("h = Min(n, far)", "the reference's Min 'h' returned what it read"),
    "a choice": ("b = Greater(n, far) h = Where(b, zero, n)", "the reference's Greater 'b' gave one answer"),
    "a cut": ("h = Slice(x, first, some, first)", "the reference's Slice"),
    "a cut at no end": ("h = Slice(x, first, last, first)", ""),
    "a sum of halves": ("a = Max(x, zero) b = Min(x, zero) h = Add(a, b)", ""),
}


@pytest.mark.parametrize("name", LOST)
def test_what_the_reference_does_where_no_sample_is_may_be_lost(name: str, tmp_path: Path):
    text, named = LOST[name]
    for folder in (tmp_path / "reference", tmp_path / "file"):
        folder.mkdir()
    read, norm = ("n", "n = LayerNormalization(x, s) ") if "far" in text else ("x", "")
    reference = bounded(tmp_path / "reference", norm + text)  # behind a norm of four nothing is further from 0 than 7
    file = bounded(tmp_path / "file", f"{norm}h = Identity({read})")
    verdict = verify(reference, file, level="quick")
    assert verdict.status is (Status.NOT_EXERCISED if named else Status.PASS), verdict.summary()
    assert [named in check.detail for check in verdict.checks if check.name is Question.IDLE] == [True] * bool(named)


@pytest.mark.parametrize("name", ["a bound", "a choice"])
def test_what_was_lost_shows_on_the_users_rows(name: str, tmp_path: Path):
    """On the graph's own inputs, and on those of its user."""
    for folder in (tmp_path / "reference", tmp_path / "file"):
        folder.mkdir()
    bare = "n = Identity(x) "
    reference = bounded(tmp_path / "reference", bare + LOST[name][0])
    file = bounded(tmp_path / "file", f"{bare}h = Identity(n)")
    rows = np.array([[1e6, 0, 1, 2], [3e5, -1e6, 2e5, 0]], np.float32)
    assert verify(reference, file, level="quick", data=rows).status is Status.FAIL


@pytest.mark.parametrize("asks", ["IsNaN", "IsInf"])
def test_a_guard_sees_what_is_no_number(asks: str, tmp_path: Path):
    for name in ("guard", "none", "beyond"):
        (tmp_path / name).mkdir()
    guarded = bounded(tmp_path / "guard", f"b = {asks}(x) h = Where(b, near, x)")
    assert verify(guarded, guarded, level="quick").status is Status.PASS
    for name, text in (("none", "h = Identity(x)"), ("beyond", f"b = {asks}(x) h = Where(b, zero, x)")):
        verdict = verify(guarded, bounded(tmp_path / name, text), level="quick")
        assert verdict.status is Status.FAIL, verdict.summary()
        assert any("in places" in reason for reason in verdict.reasons) or name == "beyond"


def test_inputs_on_which_it_acts_decide(exported: tuple[Callable[..., Verdict], Path]):
    judge, path = exported
    changed = with_operators(path, "x", "y = Min(x, c)", {"c": number(1e5)})
    rows = {"x": np.array([[1e6, 0, 1, 2], [3e5, -1e6, 2e5, 0]], np.float32), "ids": np.array([0, 1])}
    assert judge(changed, data=rows).status is Status.FAIL


FAR = {
    "Sigmoid": "f = Sub(n, wide) g = Sigmoid(f) h = Add(n, g)",
    "Softplus": "f = Sub(n, wide) g = Softplus(f) h = Add(n, g)",
    "Exp": "f = Sub(n, wide) g = Exp(f) t = Add(g, near) h = Mul(n, t)",
    "Tanh": "f = Add(n, wide) g = Tanh(f) h = Mul(n, g)",
}
"""Behind a norm of four nothing is further from 0 than 7: what these add or multiply by is 0 or 1 to 40 digits."""


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("name", FAR)
def test_what_saturates_everywhere_is_no_pass(name: str, lost: bool, tmp_path: Path) -> None:
    for folder in (tmp_path / "reference", tmp_path / "file"):
        folder.mkdir()
    texts = [FAR[name], "h = Identity(n)"] if lost else ["h = Identity(n)", FAR[name]]
    paths = [
        bounded(tmp_path / folder, f"wide = Mul(ten, ten) n = LayerNormalization(x, s) {text}")
        for folder, text in zip(("reference", "file"), texts, strict=True)
    ]
    verdict = verify(*paths)
    assert verdict.status is not Status.PASS, verdict.summary()  # where it was lost, feeding a site may show it
    [told] = [check.detail for check in verdict.checks if check.name is Question.IDLE]
    assert f"{name} 'g' returned" in told


def test_what_saturates_at_times_is_a_pass(tmp_path: Path) -> None:
    """A sigmoid spelled otherwise: no operator of the file is the reference's, and each is seen to move."""
    for folder in (tmp_path / "reference", tmp_path / "file"):
        folder.mkdir()
    norm = "n = LayerNormalization(x, s)"
    reference = bounded(tmp_path / "reference", f"{norm} h = Sigmoid(n)")
    file = bounded(tmp_path / "file", f"{norm} f = Mul(n, half) g = Tanh(f) t = Mul(g, half) h = Add(t, half)")
    assert verify(reference, file).status is Status.PASS


def test_what_acts_and_gives_it_back_is_a_pass(exported: tuple[Callable[..., Verdict], Path]):
    """max(x, 0) + min(x, 0) is x, and no algebra of the checker says so: both are seen at work."""
    judge, path = exported
    changed = with_operators(path, "x", "a = Max(x, c) b = Min(x, c) y = Add(a, b)", {"c": number(0)})
    verdict: Verdict = judge(changed)
    assert verdict.status is Status.PASS
    assert any(check.name is Question.DERIVATION and check.status is Status.NOTE for check in verdict.checks)


SCANNED = """g (float[L,4] x, float[4] z) => (float[4] f, float[L,4] y) {
    n = LayerNormalization<axis=-1>(x, s)
    f, y = Scan<num_scan_inputs = 1, body = b (float[4] h, float[4] p) => (float[4] t, float[4] q) {
        %s t = Add(d, p) q = Tanh(t) }>(z, n) }"""
STEPS = {
    "on the state": "k = Clip(h, low, high) d = Mul(k, half)",
    "on what is made": "k = Mul(h, half) d = Clip(k, low, high)",
}


@pytest.mark.parametrize("step", STEPS)
def test_a_bound_in_a_body_is_asked_what_it_did(step: str, write: Callable[..., Path]):
    known = {"s": np.ones(4, np.float32), "half": np.float32(0.5), "low": np.float32(-1e4), "high": np.float32(1e4)}
    free = write(SCANNED % "d = Mul(h, half)", "free", **known)
    bounded = write(SCANNED % STEPS[step], "bounded", **known)
    for reference, file, whose in ((free, bounded, "Clip"), (bounded, free, "the reference's Clip")):
        verdict = verify(reference, file, level="quick")
        assert verdict.status is Status.NOT_EXERCISED, verdict.summary()
        assert [c.detail.startswith(whose) for c in verdict.checks if c.name is Question.IDLE] == [True]
    assert verify(bounded, bounded, level="quick").passed


MASKED = """g (float[N,3,4] x, bool[N,3] m) => (float[N,3,4] y) {
    k = Transpose<perm = [0, 2, 1]>(x) s = MatMul(x, k) a = Unsqueeze(m, one) h = Where(a, s, low)
    p = Softmax<axis = -1>(h) %s y = MatMul(w, x) }"""
BY_KEYS = "c = Cast<to = 1>(a) t = ReduceMax<keepdims = 1>(c, last) e = Cast<to = 9>(t) w = Where(e, p, %s)"


@pytest.mark.parametrize(("otherwise", "status"), [("zero", Status.PASS), ("half", Status.FAIL)])
def test_families_that_a_level_leaves_out_are_judged_where_they_wake_an_operator(
    otherwise: str, status: Status, write: Callable[..., Path]
):
    """Rows masked whole come behind what --quick judges, and without them a guard of another tool did nothing."""
    known = {"one": np.array([1]), "last": np.array([-1]), "low": np.float32(-np.inf)}
    known |= {"zero": np.float32(0), "half": np.float32(0.5)}
    right = write(MASKED % "b = IsNaN(p) w = Where(b, zero, p)", "right", **known)
    verdict = verify(right, write(MASKED % (BY_KEYS % otherwise), "file", **known), level="quick")
    assert verdict.status is status, verdict.summary()
    assert "rows masked whole" in verdict.environment["families"]


@pytest.mark.parametrize(
    "behind", ["y0, at, inv, count = Unique<sorted=1>(m) y = Add(y0, one)", "t = Expand(m, one) y = Add(t, one)"]
)
def test_a_remainder_is_no_mask(write: Callable[..., Path], behind: str) -> None:
    """Of 0 and 1, which an example may hold, every remainder is the number itself."""
    text = "g (int64[N] x) => (int64[K] y) { m = Mod(x, by) " + behind + " }"
    right = write(text, "right", by=np.array(5), one=np.array([1]))
    assert verify(right, write(text, "same", by=np.array(5), one=np.array([1])), level="quick").status == "pass"
    verdict = verify(right, write(text, "file", by=np.array(6), one=np.array([1])), level="quick")
    assert verdict.status in ("fail", "not-exercised"), verdict.summary()


SLICED = """<ir_version: 8, opset_import: ["": 18]> g (float[n,4] x) => (float[n,3] y)
    <float[4,3] w = {0.5, -0.2, 0.1, 0.3, 0.7, -0.4, 0.2, -0.6, 0.9, -0.1, 0.8, 0.4}, float zero = {0.0},
    int64[1] none = {0}, int64[1] one = {1}, int64[1] far = {1000},
    float ten = {10.0}, float nine = {9.0}> { %s y = MatMul(h, w) }"""
LESS_THAN_TEN = "g = Sign(x) h0 = Relu(g) c = Less(%s, ten) h = Where(c, h0, x)"
CUT = "g = Greater(x, zero) c = Cast<to = 1>(g) s = Shape<start = 0, end = 1>(x) e = %s h = Slice(c, none, e, none)"
BY_SIGNS = "g = Sign(x) h = Relu(g)"
"""The same without the cut, in front of which nothing is known by algebra: samples judge it."""


@pytest.mark.parametrize(("end", "idle"), [("Div(s, one)", False), ("Min(s, far)", True)])
def test_a_cut_that_leaves_nothing_out_at_any_size_need_not_act(end: str, idle: bool, tmp_path: Path) -> None:
    """As what splits a batch into as many parts as a layer dilates: one."""
    for name, body in (("source", CUT % end), ("file", BY_SIGNS)):
        onnx.save(onnx.parser.parse_model(SLICED % body), tmp_path / f"{name}.onnx")
    verdict = verify(tmp_path / "source.onnx", tmp_path / "file.onnx", level="quick")
    assert ("the reference's Slice" in verdict.summary()) == idle, verdict.summary()


@pytest.mark.parametrize(("asked", "idle"), [("nine", False), ("g", True)])
def test_a_choice_by_a_constant_need_not_act(asked: str, idle: bool, tmp_path: Path) -> None:
    """As in torch's interpolation, which chooses between two formulas by its weight."""
    signs = "g = Greater(x, zero) h = Cast<to = 1>(g)"
    for name, body in (("source", LESS_THAN_TEN % asked), ("file", signs)):
        onnx.save(onnx.parser.parse_model(SLICED % body), tmp_path / f"{name}.onnx")
    verdict = verify(tmp_path / "source.onnx", tmp_path / "file.onnx", level="quick")
    assert ("the reference's Where" in verdict.summary() or "the reference's Less" in verdict.summary()) == idle


BY_GREATER = "g = Greater(x, zero) h = Cast<to = 1>(g)"


@pytest.mark.parametrize(("bound", "idle"), [("Max(r)", False), ("Min(r)", False), ("Min(r, none)", True)])
def test_a_bound_of_one_operand_need_not_act(bound: str, idle: bool, tmp_path: Path) -> None:
    """As torch's exporter writes of the shape that some indices have in common: it returns what it reads."""
    for name, body in (("source", f"g = Sign(x) r = Relu(g) h = {bound}"), ("file", BY_GREATER)):
        model = SLICED.replace("int64[1] none = {0}", "float none = {100.0}") % body
        onnx.save(onnx.parser.parse_model(model), tmp_path / f"{name}.onnx")
    verdict = verify(tmp_path / "source.onnx", tmp_path / "file.onnx", level="quick")
    assert ("the reference's M" in verdict.summary()) == idle, verdict.summary()
    assert verdict.status is (Status.NOT_EXERCISED if idle else Status.PASS), verdict.summary()


BY_SIZE = """<ir_version: 8, opset_import: ["": 18]> g (float[n,4] x) => (float[n,3] y)
    <float[4,3] w = {0.5, -0.2, 0.1, 0.3, 0.7, -0.4, 0.2, -0.6, 0.9, -0.1, 0.8, 0.4}, float zero = {0.0},
    int64 place = {%d}, int64 asked = {%d}> {
    g = Greater(x, zero) signs = Cast<to = 1>(g) s = Shape(x) size = Gather(s, place) c = %s(size, asked)
    h = If(c) <then_branch = t () => (float[n,4] a) { a = Identity(signs) },
               else_branch = e () => (float[n,4] b) { b = Neg(signs) }> y = MatMul(h, w) }"""


@pytest.mark.parametrize(
    ("place", "asked", "by", "idle"), [(1, 4, "Equal", False), (0, 1000, "Less", True), (0, 0, "Greater", False)]
)
def test_a_choice_by_a_size_need_not_act_where_nothing_varies_it(
    place: int, asked: int, by: str, idle: bool, tmp_path: Path
) -> None:
    """As torch's older exporter asks whether an axis that it squeezes is of one element."""
    onnx.save(onnx.parser.parse_model(SLICED % BY_SIGNS), tmp_path / "source.onnx")
    onnx.save(onnx.parser.parse_model(BY_SIZE % (place, asked, by)), tmp_path / "file.onnx")
    verdict = verify(tmp_path / "source.onnx", tmp_path / "file.onnx", level="quick")
    assert ("never took its else_branch" in verdict.summary()) == idle, verdict.summary()
    assert verdict.status is (Status.NOT_EXERCISED if idle else Status.PASS)
