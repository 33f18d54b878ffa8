"""Detection-type outputs: what hangs on a tie is left out, everything else is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.building.recipe_model import load_trained, recipe_example
from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.parsing.recipe import load_recipe
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.bounds.decisions import Ties
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.bounds.spread import Spread
from normdeploy.verification.family_case import Case
from normdeploy.verification.judging.outputs import hold_against
from normdeploy.verification.samples.family import Family

Write = Callable[..., Path]
EXPORT = Path(__file__).parents[2] / "export"

SUPPRESSION = """g (float[N,20,8] x) => (float[K,3] out, int64[K,3] chosen)
    <int64 most = {5}, float overlap = {0.5}, float least = {0.1}>
    { f = LayerNormalization<axis=-1>(x, scale, shift)
      b = MatMul(f, wb) boxes = Sigmoid(b)
      s = MatMul(f, ws) p = Sigmoid(s) scores = Transpose<perm=[0,2,1]>(p)
      chosen = NonMaxSuppression(boxes, scores, most, overlap, least)
      out = Cast<to=1>(chosen) }"""


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"shift": (8,), "wb": (8, 4), "ws": (8, 3)}
    found = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {"scale": rng.uniform(0.5, 2, 8).astype(np.float32), **found}


class Detector(nn.Module):
    """A heat map's local maxima, the ten best of them, and a box for each: saturated scores are exact ties."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.heat, self.box = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.norm(self.first(x)).relu()
        heat = torch.sigmoid(self.heat(features))
        heat = heat * (nn.functional.max_pool2d(heat, 3, 1, 1) == heat)
        scores, places = torch.topk(heat.flatten(1), 10)
        cells = features.shape[2] * features.shape[3]
        boxes = self.box(features).flatten(2).transpose(1, 2)
        chosen = torch.gather(boxes, 1, (places % cells)[..., None].expand(-1, -1, 4))
        return {"scores": scores, "labels": places // cells, "boxes": chosen}


@pytest.fixture(scope="module")
def detector() -> Detector:
    torch.manual_seed(0)
    model = Detector()
    nn.init.normal_(model.norm.running_mean)
    nn.init.uniform_(model.norm.running_var, 0.5, 2)
    return model.eval()


def test_a_detector_whose_scores_saturate_is_no_false_failure(detector: Detector, tmp_path: Path):
    path = tmp_path / "detector.onnx"
    args = torch.randn(2, 3, 32, 32)
    traced = trace(detector, args)
    rewritten = rewrite(traced.model)
    save_graph(rewritten.model.clone(), path)
    known = {"args": args, "traced": traced, "rewritten": rewritten}
    verdict = verify(detector, path, **known)
    assert verdict.status == "pass", verdict.summary()
    assert any("hangs on decisions" in text for text in verdict.not_checked)
    proto = onnx.load(str(path))
    bias = next(t for t in proto.graph.initializer if t.name.endswith("box.bias"))
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + np.float32(1e-3), bias.name))
    onnx.save(proto, str(path))
    assert verify(detector, path, level="quick", **known).status == "fail"


class Routed(nn.Module):
    """The best two of four experts: where one takes all, the others have 0 in float32, not in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = nn.BatchNorm1d(6), nn.Linear(6, 4)
        with torch.no_grad():
            self.gate.weight.mul_(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, experts = self.gate(self.norm(x)).softmax(-1).topk(2, -1)
        return weights, experts


def test_an_order_among_what_underflows_is_a_tie(tmp_path: Path):
    model, x = Routed().eval(), torch.randn(2, 6)
    with torch.no_grad():
        wide = 255 * torch.rand(64, 6, generator=torch.Generator().manual_seed(0))
        assert (model.gate(model.norm(wide)).softmax(-1) == 0).sum(-1).max() > 1
    assert nd.export(model, x, tmp_path / "net.onnx").verdict.status == "pass"


def test_non_maximum_suppression_with_limits_without_axes(write: Write):
    path = write(SUPPRESSION, **weights())
    verdict = verify(path, path)
    assert verdict.status == "pass", verdict.summary()
    proto = onnx.load(str(path))
    norm = next(n for n in proto.graph.node if n.op_type == "LayerNormalization")
    norm.attribute.append(helper.make_attribute("epsilon", 1e-2))
    other = path.with_name("other.onnx")
    onnx.save(proto, str(other))
    assert verify(path, other, level="quick").status == "fail"


def test_an_output_that_hangs_on_ties_in_most_families_is_not_exercised(write: Write):
    """Relu(-x^2) is zero everywhere: which of the equal places TopK names is nobody's error, and nothing is shown."""
    body = """g (float[N,16] x) => (float[N,4] v, int64[N,4] i) {
        h = LayerNormalization<axis=-1>(x, scale, shift)
        square = Mul(h, h) low = Neg(square) flat = Relu(low) sum = Mul(flat, h)
        v, i = TopK(sum, four) }"""
    rng = np.random.default_rng(0)
    known = {"scale": rng.uniform(0.5, 2, 16).astype(np.float32), "shift": rng.standard_normal(16).astype(np.float32)}
    path = write(body, four=np.asarray([4], np.int64), **known)
    for level in ("default", "thorough"):  # the derivation says it of every input, but the kernels behind show nothing
        verdict = verify(path, path, level=level)
        assert verdict.status == "not-exercised", verdict.summary()


def test_a_level_leaves_no_family_out_that_decides_where_the_others_do_not(tmp_path: Path):
    """A trained network behind quantizers: at 24 times its rounding most outputs move by a step, but not everywhere."""
    recipe = load_recipe(EXPORT / "digits_int8.toml")
    model = load_trained(recipe)
    example = recipe_example(recipe, model)
    options = {"kwargs": example.kwargs, "dynamic_shapes": example.dynamic_shapes}
    done = nd.export(model, example.args, tmp_path / "net.onnx", verify="quick", **options)
    assert done.verdict is not None
    assert done.verdict.status == "pass", done.verdict.summary()


def test_the_spread_is_that_of_held_decisions(graph_of: Callable[[str], ir.Model]):
    """Two scores one rounding apart: a turned decision would make the spread as large as their places' difference."""
    graph = graph_of(
        "g (float[2] x) => (float[1] y) <float[2] place = {0, 1000}, int64[1] one = {1}>"
        "{ v, i = TopK(x, one) y = Gather(place, i) }"
    )
    feeds = {"x": np.asarray([1.0, 1.0 + 2.0**-24])}
    noisy = NoisyGraph(graph)
    *_, (spread,) = noisy.spreads(feeds, roundoff=2.0**-24, floor=2.0**-126, runs=16)
    assert float(noisy.evaluator.run(feeds)["y"]) == 1000
    assert float(spread.max()) < 1e-3


TURNED = {
    "s = Shape(x) n = Gather(s, nought) r = Range(nought, n, one) c = Less(r, three) y = Where(c, x, zero)": False,
    "c = Greater(x, zero) y = Where(c, x, zero)": False,
    "a = Mul(x, x) c = Greater(a, zero) y = Where(c, x, zero)": True,
    "c = Greater(x, table) y = Where(c, x, zero)": True,
    "a = Mul(x, x) i = Cast<to = 7>(a) c = Greater(i, three) y = Where(c, x, zero)": True,
    "y, i = TopK(x, k)": True,
    "y = Exp(x)": False,
    "r = Range(nought, k0, one) f = Cast<to = 1>(r) h = Div(f, two) g = Floor(h) y = Mul(x, g)": False,
    "r = Range(nought, k0, one) f = Cast<to = 1>(r) h = Div(f, tri) g = Floor(h) y = Mul(x, g)": True,
    "g = Floor(table) y = Mul(x, g)": False,
    "g = Floor(computed) y = Mul(x, g)": True,
}


@pytest.mark.parametrize("body", TURNED)
def test_rounding_turns_no_decision_on_places_and_sizes(body: str, graph_of: Callable[[str], ir.Model]):
    """A causal mask compares places: no run with noise finds it elsewhere, so that none is made for it."""
    graph = graph_of(
        "g (float[4] x) => (float[4] y) <float zero = {0}, float[4] table = {1, 2, 3, 4}, int64 nought = {0},"
        f" int64 k0 = {{4}}, float two = {{2}}, float tri = {{3}}, float[4] computed = {{0.1, 0.99999994, 2, 3}},"
        f" int64 one = {{1}}, int64 three = {{3}}, int64[1] k = {{4}}> {{ {body} }}"
    )
    assert NoisyGraph(graph).decides == TURNED[body]


class Counted(NoisyGraph):
    runs = 0

    def run(self, *args: Any, **options: Any) -> dict[str, Any]:
        self.runs += 1
        return super().run(*args, **options)


def test_no_more_runs_look_for_ties_than_decide(graph_of: Callable[[str], ir.Model]):
    """An order among equal scores turns at once, and that is enough; of what does not turn, each run says so."""
    graph = graph_of(
        "g (float[16] x) => (int64[16] i, int64[1] top) <int64[1] all = {16}, int64[1] one = {1}, float[1] far = {9}>"
        "{ v, i = TopK(x, all) more = Concat<axis = 0>(far, x) w, top = TopK(more, one) }"
    )
    noisy, feeds = Counted(graph), {"x": np.ones(16)}
    truth = [np.arange(16), np.zeros(1, np.int64)]
    ties = Ties(noisy, feeds, truth, roundoff=2.0**-24, floor=2.0**-126, seed=0)
    case = Case(Family("equal", feeds), ["i", "top"], truth, truth, Spread.of(truth), "float32", noisy)
    assert not case.found_undecided
    assert case.undecided(0)
    assert case.found_undecided == [0]
    assert noisy.runs < 3
    assert not case.undecided(1)
    assert not case.ties(1).any()
    made, wanted = noisy.runs, case.ties(0)
    assert made > 20
    while ties.look(case.spread):
        pass
    assert noisy.runs == 2 * made
    np.testing.assert_array_equal(ties.found[0], wanted)


def test_an_order_that_turned_is_seen_before_rounding_is_measured(graph_of: Callable[[str], ir.Model]):
    """What hangs on an order among equal scores takes one run to see; what only looks so is judged as ever."""
    graph = graph_of(
        "g (float[16] x) => (float[16] y) <float[16] place = {9, 2, 8, 1, 7, 5, 6, 3, 4, 10, 11, 12, 13, 14, 15, 16},"
        " int64[1] all = {16}> { v, i = TopK(x, all) e = Mul(place, place) y = Gather(e, i) }"
    )
    place = np.asarray([9, 2, 8, 1, 7, 5, 6, 3, 4, *range(10, 17)], np.float64)
    measured = []

    def measure(runs: int, _: int) -> Iterator[list[np.ndarray]]:
        measured.append(runs)
        yield from ([place**2 * 2.0**-24] for _ in range(runs))

    for scores, judged in ((np.ones(16), False), (np.arange(16.0, 0, -1), True)):
        noisy, truth = Counted(graph), place**2
        case = Case(
            Family("drawn", {"x": scores}),
            ["y"],
            [truth],
            [(truth * (1 + 2.0**-23)).astype(np.float32)],
            Spread([(16,)], measure, runs=4),
            "float32",
            noisy,
        )
        (result,) = hold_against(case, [truth[::-1].astype(np.float32)])
        assert (result.judgement is not None) is judged
        assert result.holds is not judged
        assert bool(measured) is judged
        assert judged or noisy.runs == 1


POSITIONS = """g (float[N,8] x) => (float[N,8] y) <float[8] place = {0, 1, 2, 3, 4, 5, 6, 7}>
    { h = LayerNormalization<axis=-1>(x, scale, shift)
      t = Mul(TIMES, by) k = Div(t, by) pair = Floor(k) wave = Sin(pair) y = Add(h, wave) }"""
"""Positions scaled and floored, as Fourier features of an index are written."""


def positions(times: str, by: float, write: Write) -> Path:
    rng = np.random.default_rng(0)
    known = {"scale": rng.uniform(0.5, 2, 8).astype(np.float32), "shift": rng.standard_normal(8).astype(np.float32)}
    return write(POSITIONS.replace("TIMES", times), by=np.asarray(by, np.float32), **known)


@pytest.mark.parametrize("by", [2.0, 7.0])
def test_exact_arithmetic_in_front_of_a_decision_is_no_tie(write: Write, by: float):
    """7 k / 7 is k in every IEEE arithmetic: noise there would call each floored position a tie and judge nothing."""
    path = positions("place", by, write)
    verdict = verify(path, path, level="quick")
    assert verdict.status == "pass", verdict.summary()
    proto = onnx.load(str(path))
    place = next(t for t in proto.graph.initializer if t.name == "place")
    other = path.with_name("other.onnx")
    place.CopyFrom(onnx.numpy_helper.from_array(np.asarray([0, 1, 2, 3, 4, 5, 6, 6], np.float32), "place"))
    onnx.save(proto, str(other))
    assert verify(path, other, level="quick").status == "fail"


def test_a_rounded_quotient_in_front_of_a_decision_stays_a_tie(write: Write):
    """0.1 k / 0.1 is k by luck of the rounding, but where k is a power of two: else either floor is right."""
    path = positions("place", 0.1, write)
    graph = NoisyGraph(ir.load(path))
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 8))}
    arguments = {"roundoff": 24 * 2.0**-24, "floor": 2.0**-126, "distinct": True, "exact": 2.0**-24}
    runs = [graph.run(feeds, seed=seed, **arguments)["y"] for seed in range(8)]
    turned = np.abs(np.asarray(runs) - np.median(runs, axis=0)).max(axis=(0, 1)) > 1e-3
    assert turned.tolist() == [False, False, False, True, False, True, True, True]


HEADS = {
    "argmax": ("int64[N]", "y = ArgMax<axis=-1, keepdims=0>(n)"),
    "comparison": ("bool[N,16]", "y = Greater(n, half)"),
    "three best": ("int64[N,3]", "v, y = TopK(n, three)"),
    "one number": ("float", "y = ReduceMax<keepdims=0>(n)"),
}


@pytest.mark.parametrize("head", HEADS)
def test_outputs_that_decide_pass_where_what_they_decide_on_is_proven(head: str, write: Write):
    """No epsilon turns an argmax: the numbers in front of it are compared, right and wrong."""
    kind, text = HEADS[head]
    body = "g (float[N,16] x) => (%s y) { n = LayerNormalization<axis=-1, epsilon=%s>(x, scale, shift) %s }"
    rng = np.random.default_rng(0)
    known: dict[str, np.ndarray] = {"scale": rng.uniform(0.5, 2, 16).astype(np.float32)}
    known["shift"] = rng.standard_normal(16).astype(np.float32)
    if "half" in text:
        known["half"] = np.float32(0.5)
    if "three" in text:
        known["three"] = np.asarray([3], np.int64)
    right = write(body % (kind, "1e-5", text), "a", **known)
    split = body.replace("{ n =", "{ k = Neg(x) m = Neg(k) n =").replace(">(x,", ">(m,")
    other = write(split % (kind, "1e-5", text), "b", **known)
    verdict = verify(right, other)
    assert verdict.status == "pass", verdict.summary()
    wrong = write(split % (kind, "1e-3", text), "c", **known)
    assert verify(right, wrong, level="quick").status != "pass"


@pytest.mark.parametrize(
    "ends",
    [
        (
            "int64[N] other",
            "c = Identity(z) best = ArgMax<axis=-1, keepdims=0>(z) other = ArgMin<axis=-1, keepdims=0>(c)",
        ),
        ("float[N,5] z", "c = Identity(z) best = ArgMax<axis=-1, keepdims=0>(c)"),
    ],
    ids=["two names of one value", "an output"],
)
def test_what_decisions_are_taken_on_is_looked_at_once(ends: tuple[str, str], write: Write):
    """Two names hold one value: in front of the decisions it becomes an output once, or is one already."""
    rng = np.random.default_rng(0)
    known = {"w": rng.standard_normal((6, 5)).astype(np.float32), "s": np.ones(5, np.float32)}
    head, body = (
        f"g (float[N,6] x) => (int64[N] best, {ends[0]})",
        "m = MatMul(x, w) z = LayerNormalization<axis=-1>(m, s)",
    )
    path = write(f"{head} {{ {body} {ends[1]} }}", **known)
    verdict = verify(path, path, level="quick")
    assert verdict.status == "pass", verdict.summary()


LOGITS = "g (float[N,8] x) => (int64[N] best) {{ m = MatMul(x, w) z = Relu(m) {} }}"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("best = ArgMax<axis=-1, keepdims=0>(z)", "pass"),
        ("a = Cast<to=16>(z) b = Cast<to=1>(a) best = ArgMax<axis=-1, keepdims=0>(b)", "not-exercised"),
        ("a = Cast<to=10>(z) b = Cast<to=1>(a) best = ArgMax<axis=-1, keepdims=0>(b)", "not-exercised"),
        ("a = Cast<to=11>(z) b = Cast<to=1>(a) best = ArgMax<axis=-1, keepdims=0>(b)", "pass"),
        ("b = Softmax<axis=-1>(z) best = ArgMax<axis=-1, keepdims=0>(b)", "not-exercised"),
    ],
)
def test_what_an_output_decides_on_is_compared_where_no_algebra_shows_it(body: str, status: str, write: Write):
    known = {"w": np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)}
    right = write(LOGITS.format("best = ArgMax<axis=-1, keepdims=0>(z)"), "right", **known)
    verdict = verify(right, write(LOGITS.format(body), "file", **known), level="quick")
    assert verdict.status == status, verdict.summary()
    if status != "pass":
        assert {check.name for check in verdict.checks if check.status == status} == {"decisions"}


STEPS = "g (float[N,8] x) => ({}[N,6] y) {{ n = LayerNormalization<axis=-1>(x, s) {} }}"
LOW = "c = Cast<to=16>(n) k = Cast<to=1>(c) m = MatMul(k, w)"


@pytest.mark.parametrize(
    ("kind", "ends"),
    [("float", "y = Round(m)"), ("float", "g = Greater(m, o) y = Where(g, o, z)"), ("int64", "y = Cast<to=7>(m)")],
)
def test_numbers_that_only_say_what_was_decided_show_no_more_than_integers_do(kind: str, ends: str, write: Write):
    known = {"w": np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32), "s": np.ones(8, np.float32)}
    known |= {"o": np.float32(0.2), "z": np.float32(0)} if "Where" in ends else {}
    right = write(STEPS.format(kind, f"m = MatMul(n, w) {ends}"), "right", **known)
    verdict = verify(right, write(STEPS.format(kind, f"{LOW} {ends}"), "file", **known), level="quick")
    assert verdict.status in ("not-exercised", "fail"), verdict.summary()
    assert verify(right, right, level="quick").passed


def test_boxes_of_which_one_side_takes_the_size_are_other_boxes(write: Write):
    text = "g (float[1,6,4] x, float[1,2,6] p) => (int64[K,3] y) {{ {} y = NonMaxSuppression(b, p, k, o, l) }}"
    known = {"k": np.array([3]), "o": np.array([0.3], np.float32), "l": np.array([0.1], np.float32)}
    right = write(text.format("b = Abs(x)"), "right", **known)
    assert verify(right, right, level="quick").passed
    for name, other in (("named", text.format("b = Identity(x)")), ("read", text.format("").replace("(b", "(x"))):
        assert not verify(right, write(other, name, **known), level="quick").passed


def test_rows_that_quantizers_decide_how_many_there_are_of_have_no_loss(write: Write):
    body = "n = LayerNormalization<axis=-1>(x, s) r = Round(n) y = Unique<sorted=1>(r)"
    path = write(f"g (float[N,4] x) => (float[K] y) {{ {body} }}", "unique", s=np.ones(4, np.float32))
    assert verify(path, path, level="quick").passed


@pytest.mark.parametrize("order", ["sorted=0", "sorted=-1"])
def test_rows_in_another_order_are_judged_though_what_flips_makes_other_rows(order: str, write: Write):
    body = "n = LayerNormalization<axis=-1>(x, s) r = Round(n) y = Unique<{}>(r)"
    head = "g (float[N,4] x) => (float[K] y)"
    right, other = (
        write(f"{head} {{ {body.format(said)} }}", name, s=np.ones(4, np.float32))
        for said, name in (("sorted=1", "right"), (order, "other"))
    )
    assert not verify(right, other, level="quick").passed


class Signs(nn.Module):
    """Asks which results of a norm are above a whole number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm = nn.Linear(8, 4), nn.BatchNorm1d(4)
        nn.init.uniform_(self.norm.running_mean, -1, 1)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(self.norm(self.linear(x)) > 0, 1, 0)


@pytest.mark.parametrize("moved", [0.0, 1e-3])
def test_a_bound_that_is_cast_is_nothing_that_is_decided_on(moved: float, tmp_path: Path):
    """Folded in float32, as another tool does: the numbers in front of the comparison are compared, not 0 with them."""
    net = Signs().eval()
    norm, linear = net.norm, net.linear
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = (linear.weight * scale[:, None] + moved).detach().numpy()
    bias = ((linear.bias - norm.running_mean) * scale + norm.bias).detach().numpy()
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[n,8] x) => (int64[n,4] output)
        <float zero = {0}, int64 yes = {1}, int64 no = {0}> {
        y = Gemm<transB = 1>(x, w, b) c = Greater(y, zero) output = Where(c, yes, no) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend([onnx.numpy_helper.from_array(a, name) for name, a in (("w", weight), ("b", bias))])
    onnx.save(proto, tmp_path / "net.onnx")
    traced = trace(net, torch.randn(3, 8)).model.graph
    assert any(node.op_type == "Cast" and node.inputs[0].producer() for node in traced), "the trace casts no bound"
    verdict = verify(net, tmp_path / "net.onnx", args=(torch.randn(3, 8),))
    assert verdict.passed == (not moved), verdict.summary()
