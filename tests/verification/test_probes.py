"""Sites that no input of the model exercises are fed directly: kills, damage found, cuts that are not believed."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.building.recipe_model import load_trained, recipe_example
from normdeploy.conformance import by_hand
from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator, load_graph, save_graph
from normdeploy.parsing.recipe import load_recipe
from normdeploy.rewrite import rewrite
from normdeploy.verification import Verdict, verify
from normdeploy.verification.mutation.probes import KILLED
from normdeploy.verification.mutation.split_graph import dominators, first_equal, joined, with_input_at

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "verdict.schema.json").read_text())
IDS = torch.tensor([[0, 3, 5, 2], [1, 4, 6, 8]])


class Tokens(nn.Module):
    """Numbers of words, a table of rows with spread 10, a norm that adds 1e-6 to the deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.norm = by_hand.L4(8)
        self.head = nn.Linear(8, 5)
        with torch.no_grad():
            self.table.weight.mul_(10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        return self.head(self.norm(x)) + x.sum(-1, keepdim=True)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokens, Path]:
    """Return the model and its file, which multiplies sign by size in front of the norm: no algebra explains it."""
    torch.manual_seed(0)
    model = Tokens().eval()
    path = tmp_path_factory.mktemp("tokens") / "net.onnx"
    save_graph(rewrite(trace(model, IDS).model).model.clone(), path)
    proto = onnx.load(str(path))
    table = next(n for n in proto.graph.node if n.op_type == "Gather")
    rows = table.output[0]
    for node in proto.graph.node:
        node.input[:] = ["again" if name == rows else name for name in node.input]
    at = list(proto.graph.node).index(table) + 1
    for node in (
        helper.make_node("Mul", ["sign", "size"], ["again"]),
        helper.make_node("Abs", [rows], ["size"]),
        helper.make_node("Sign", [rows], ["sign"]),
    ):
        proto.graph.node.insert(at, node)
    onnx.save(proto, str(path))
    return model, path


def damaged(path: Path, target: Path, factor: float) -> Path:
    """Write a copy with another epsilon: the short form holds 1 / epsilon, and a scale divided by it."""
    proto = onnx.load(str(path))
    norm = next(node for node in proto.graph.node if node.op_type == "LayerNormalization")
    added = next(node for node in proto.graph.node if node.op_type == "Add" and norm.output[2] in node.input)
    (inverse,) = set(added.input) - {norm.output[2]}
    for tensor in proto.graph.initializer:
        if tensor.name in (inverse, norm.input[1]):
            value = numpy_helper.to_array(tensor) / factor
            tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float32), tensor.name))
    onnx.save(proto, str(target))
    return target


def test_rows_without_spread_are_fed_to_a_norm_whatever_its_mutants_die_of(tokens: tuple[Tokens, Path], tmp_path: Path):
    """Words never make such a row: what keeps its 0 / 0 from being NaN is an epsilon that changes nothing else."""
    model, path = tokens
    proto = onnx.load(str(path))
    norm = next(node for node in proto.graph.node if node.op_type == "LayerNormalization")
    (epsilon,) = [a for a in norm.attribute if a.name == "epsilon"]
    assert 0 < epsilon.f < 1e-30
    epsilon.f = 0.0
    onnx.save(proto, str(tmp_path / "wrong.onnx"))
    verdict = verify(model, tmp_path / "wrong.onnx", args=IDS, level="quick")
    assert verdict.status == "fail", verdict.summary()
    assert verdict.check("site").status == "fail"


def by_site(verdict: Verdict) -> set[str]:
    return {m.name for site in verdict.sites for m in site.mutants if m.by == "site"}


def test_what_no_words_exercise_is_killed_at_the_site_and_says_so(tokens: tuple[Tokens, Path]):
    model, path = tokens
    verdict = verify(model, path, args=IDS)
    assert verdict.check("derivation").status == "note"
    assert verdict.status == "pass", verdict.summary()
    assert {"epsilon /10", "epsilon 0"} <= by_site(verdict)
    killed = [m for site in verdict.sites for m in site.mutants if m.by == "site"]
    assert all(m.killed and m.ratio >= 2 and m.note == KILLED for m in killed)
    assert all("row variance" in m.family and "at norm" in m.family for m in killed)
    assert verdict.check("site").status == "pass"
    assert "fed directly" in verdict.summary()
    assert KILLED in verdict.to_html()
    jsonschema.validate(json.loads(verdict.to_json()), SCHEMA)


def test_without_feeding_the_site_the_verdict_is_not_exercised(
    tokens: tuple[Tokens, Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        importlib.import_module("normdeploy.verification.checks.sensitivity"), "probe_sites", lambda *_: []
    )
    model, path = tokens
    assert verify(model, path, args=IDS, level="quick").status == "not-exercised"


@pytest.mark.parametrize("factor", [0.1, 0.5, 1e-6])
def test_an_epsilon_that_no_words_show_is_found_at_the_site(tokens: tuple[Tokens, Path], tmp_path: Path, factor: float):
    model, path = tokens
    verdict = verify(model, damaged(path, tmp_path / "wrong.onnx", factor), args=IDS, level="quick")
    assert verdict.check("logic").status == "pass"
    assert verdict.status == "fail", verdict.summary()
    assert any("fed directly at 'norm' with rows that no model input was found to make" in r for r in verdict.reasons)
    assert verdict.localization is not None
    assert (verdict.localization.side, verdict.localization.where) == ("export", "norm")
    if factor != 0.5:
        assert "output matches epsilon" in verdict.localization.summary
    jsonschema.validate(json.loads(verdict.to_json()), SCHEMA)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_clean_site_does_not_fail(tokens: tuple[Tokens, Path], seed: int):
    model, path = tokens
    verdict = verify(model, path, args=IDS, level="quick", seed=seed)
    assert verdict.status == "pass", verdict.summary()


CLEAN = """g (int64[N,T] ids) => (float[N,T,8] y) {
    e = Gather(table, ids) n = LayerNormalization<axis=-1, epsilon=2e-7>(e, scale, shift) y = Add(n, e) }"""
COPIED = CLEAN.replace("y = Add(n, e)", "c = Identity(e) y = Add(n, c)")
TWICE = CLEAN.replace("y = Add(n, e)", "f = Gather(table, ids) y = Add(n, f)")


@pytest.mark.parametrize(("body", "status"), [(CLEAN, "pass"), (COPIED, "pass"), (TWICE, "not-exercised")])
def test_a_cut_is_believed_only_where_it_is_right(write: Callable[..., Path], body: str, status: str):
    """A file that reads the table a second time beside the norm cannot be cut at the norm's input: no false failure."""
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.standard_normal((9, 8)).astype(np.float32),
        "scale": rng.uniform(0.5, 2, 8).astype(np.float32),
        "shift": rng.standard_normal(8).astype(np.float32),
    }
    reference = write(CLEAN, "a", **weights)
    other = body.replace("y = Add(n,", "o = Sign(n) p = Abs(n) m = Mul(o, p) y = Add(m,")  # no algebra explains it
    verdict = verify(reference, write(other, "b", **weights), level="quick")
    assert verdict.status == status, verdict.summary()
    if status != "pass":
        assert "its input feeds the file in another way than the reference" in verdict.reasons[0]


OVERFLOWS = """g (int64[N,T] ids) => (float[N,T,8] y) {
    e = Gather(table, ids) q = Mul(e, scale) r = Exp(q) z = Sub(r, r) y = Add(e, z) }"""
PLAIN = "g (int64[N,T] ids) => (float[N,T,8] y) { e = Gather(table, ids) q = Mul(e, scale) r = Exp(q) y = Max(e, e) }"


def test_rows_fed_to_an_affine_map_of_which_no_number_comes_fail_no_file(write: Callable[..., Path]):
    """inf - inf, which no row of the table makes: the reference has no number there; the file without it has."""
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.standard_normal((9, 8)).astype(np.float32),
        "scale": np.float32(1.5) + np.zeros(8, np.float32),
    }
    verdict = verify(write(OVERFLOWS, "a", **weights), write(PLAIN, "b", **weights), level="quick")
    assert verdict.status == "not-exercised", verdict.summary()
    assert any("rows fed at the site itself" in reason for reason in verdict.reasons), verdict.reasons


class ByEdges(nn.Module):
    """Softmax over the edges that end in a node, as graph networks write it; loops are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.head = nn.Linear(4, 1), nn.Linear(4, 2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        edges = edges[:, edges[0] != edges[1]]
        start, end = edges[0], edges[1]
        weight = self.score(x)[start].exp()
        total = torch.zeros(len(x), 1).scatter_add(0, end[:, None], weight) + 1e-16
        part = weight / total[end] * self.head(x)[start]
        return torch.zeros(len(x), 2).scatter_add(0, end[:, None].expand(-1, 2), part)


def test_a_guard_that_a_sum_in_front_takes_fails_no_file(tmp_path: Path):
    """What the file sums up from the guard on is like the sum without it, and not what a sum of nothing is: 0."""
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 2, 3, 4, 1, 2, 2], [1, 2, 3, 4, 0, 1, 0, 2]])
    result = nd.export(ByEdges(), (torch.randn(5, 4), edges), tmp_path / "net.onnx", dynamic_shapes={})
    assert result.verdict is not None
    assert result.verdict.passed, result.verdict.summary()
    assert not any(
        n.op_type == "Add" and n.inputs[0].producer().op_type == "ScatterElements" for n in result.program.graph
    )


def test_a_reference_whose_trace_is_another_function_shows_nothing_at_the_site(
    tokens: tuple[Tokens, Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(importlib.import_module("normdeploy.verification.checks.traced"), "hold_trace", lambda *_: 7.0)
    model, path = tokens
    verdict = verify(model, path, args=IDS, level="quick")
    assert verdict.status == "not-exercised"
    assert "the traced graph is not the eager model in float64" in verdict.reasons[0]


WRITTEN = """g (float[N,6] a) => (float[N,6] y) {
    x = Exp(a) m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes=[-1]>(q)
    e = Add(v, eps) r = Sqrt(e) n = Div(d, r) y = Add(n, x) }"""


def written() -> ir.Model:
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 13]> {WRITTEN}')
    old = next(v for n in model.graph for v in n.inputs if v is not None and v.name == "eps")
    new = ir.Value(name="eps", const_value=ir.tensor(np.float32(1e-5), name="eps"))
    old.replace_all_uses_with(new)
    model.graph.register_initializer(new)
    return model


def test_the_entry_of_a_norm_written_out_is_what_all_of_it_reads():
    values = {v.name: v for node in written().graph for v in node.outputs}
    assert joined(values["e"]).name == "n"
    assert dominators(values["n"]) == ["d", "x"]  # nearest first: deviation and quotient both read the difference
    assert dominators(values["v"]) == ["q", "d", "x"]
    assert dominators(values["y"]) == ["x"]


def test_a_cut_graph_computes_the_rest():
    model = written()
    whole = Evaluator(model)
    a = np.random.default_rng(0).standard_normal((3, 6))
    x = np.exp(a)
    assert first_equal(whole, {"a": a}, x, 1e-12) == "x"
    assert first_equal(whole, {"a": a}, a, 1e-12) == ""  # an input needs no cut
    assert first_equal(whole, {"a": a}, x + 1.0, 1e-12) == ""
    behind = with_input_at(model, "x")
    assert behind is not None
    expected = whole.run({"a": a})["y"]
    torch.testing.assert_close(Evaluator(behind).run({"a": 9 * a, "x": x})["y"], expected)
    assert "Exp" not in {node.op_type for node in behind.graph}
    assert "Exp" in {node.op_type for node in model.graph}
    assert with_input_at(model, "y") is None
    assert with_input_at(model, "nothing") is None


def char_transformer(tmp_path: Path) -> tuple[nn.Module, Any, Path]:
    recipe = load_recipe(ROOT / "export" / "char_transformer.toml")
    model = load_trained(recipe)
    example = recipe_example(recipe, model)
    known = {"kwargs": example.kwargs, "dynamic_shapes": example.dynamic_shapes}
    path = tmp_path / "net.onnx"
    save_graph(rewrite(trace(model, example.args, **known).model).model.clone(), path)
    return model, example, path


@pytest.mark.slow  # what test_an_epsilon_that_no_words_show_is_found_at_the_site asks of a network of three layers
@pytest.mark.parametrize("static", [False, True], ids=["weights compared", "fed"])
def test_a_tampered_epsilon_of_the_character_model_never_passes(tmp_path: Path, static: bool):
    """No text shows half of its epsilon. A trace with another length is another graph: weights are not compared."""
    model, example, path = char_transformer(tmp_path)
    wrong = damaged(path, tmp_path / "wrong.onnx", 0.5)
    shapes = {"ids": {0: "batch"}} if static else None
    verdict = verify(model, wrong, kwargs=example.kwargs, args=(), dynamic_shapes=shapes, level="quick")
    assert verdict.status == "fail", verdict.summary()
    assert ("fed directly" in " ".join(verdict.reasons)) == static


@pytest.mark.slow
@pytest.mark.parametrize("level", ["quick", "default", "thorough"])
@pytest.mark.parametrize("static", [False, True])
def test_the_character_model_passes_at_every_level(tmp_path: Path, level: str, static: bool):
    model, example, path = char_transformer(tmp_path)
    shapes = {"ids": {0: "batch"}} if static else None
    verdict = verify(model, path, kwargs=example.kwargs, args=(), dynamic_shapes=shapes, level=level)
    assert verdict.status == "pass", verdict.summary()
    assert bool(by_site(verdict)) == static


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e-6, 0.5, 2.0, 10.0])
def test_every_tampered_epsilon_of_the_character_model_is_caught(tmp_path: Path, factor: float):
    model, example, path = char_transformer(tmp_path)
    wrong = damaged(path, tmp_path / "wrong.onnx", factor)
    verdict = verify(model, wrong, kwargs=example.kwargs, args=(), dynamic_shapes={"ids": {0: "batch"}})
    assert verdict.status in ("fail", "not-exercised"), verdict.summary()


SATURATED = """g (float[N,6,8] x) => (float[N,6,8] y) {
    a = MatMul(x, first) e = Add(a, place)
    q = MatMul(e, query) s = Mul(q, scale) k = MatMul(e, key) turned = Transpose<perm=[0,2,1]>(k)
    logits = MatMul(s, turned) p = Softmax<axis=-1>(logits) o = MatMul(p, e)
    r = MatMul(o, query) t = Mul(r, other) m = MatMul(t, turned) w = Softmax<axis=-1>(m) y = MatMul(w, e) }"""
"""Places so large that each softmax is one-hot, whatever x is: neither scale moves an output."""


def test_a_scale_in_front_of_a_saturated_softmax_is_fed_from_further_up(write: Callable[..., Path]):
    """The file holds no value in front of the scales, which it folds into the queries; the tokens it does hold."""
    rng = np.random.default_rng(0)
    shapes = {"first": (8, 8), "place": (6, 8), "query": (8, 8), "key": (8, 8), "scale": (8,), "other": (8,)}
    known = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    known["place"] *= np.float32(1e4)
    path = write(SATURATED, **known)
    folded = path.with_name("folded.onnx")
    save_graph(rewrite(load_graph(path)).model, folded)
    verdict = verify(path, folded, level="thorough")  # others ask no input where the derivation says it of all
    assert verdict.status == "pass", verdict.summary()
    maps = [m for site in verdict.sites if site.kind == "affine map" for m in site.mutants]
    slight = [m for m in maps if m.name == "scale off by one in 1000"]
    assert [m.by for m in slight] == ["site", "site"]
    assert "exercised behind" in slight[1].note  # one cut serves both scales


def test_a_file_that_is_not_evaluated_here_is_not_cut(tokens: tuple[Tokens, Path], tmp_path: Path):
    """onnxruntime runs an operator of its own that has no meaning in float64: weak, with the reason, no exception."""
    model, path = tokens
    proto = onnx.load(str(path))
    output = proto.graph.output[0].name
    for node in proto.graph.node:
        node.output[:] = ["before" if name == output else name for name in node.output]
    hashed = helper.make_node("MurmurHash3", ["one"], ["hashed"], domain="com.microsoft", positive=1)
    none = [helper.make_node("Cast", ["hashed"], ["number"], to=1), helper.make_node("Min", ["number", "zero"], ["0"])]
    proto.graph.node.extend([hashed, *none, helper.make_node("Add", ["before", "0"], [output])])
    held = {"one": np.ones(1, np.int32), "zero": np.zeros(1, np.float32)}
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in held.items())
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(proto, str(tmp_path / "hashed.onnx"))
    verdict = verify(model, tmp_path / "hashed.onnx", args=IDS, level="quick")
    assert verdict.status == "weak", verdict.summary()
    notes = [mutant.note for site in verdict.sites for mutant in site.mutants]
    assert any("the file cannot be evaluated in float64 (operator com.microsoft::MurmurHash3" in note for note in notes)
