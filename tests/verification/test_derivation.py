"""The checker of derivations: it confirms what is right however it is written, and nothing that is wrong."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import graph_damage
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import random_networks
import torch
from onnx import numpy_helper
from torch import nn
from writing_ways import WAYS

import normdeploy as nd
from normdeploy.building.recipe_model import load_trained, recipe_example
from normdeploy.errors import GraphError
from normdeploy.exporting.trace import trace
from normdeploy.graph import load_graph, save_graph
from normdeploy.graph.derivation import Derivation, Hint, read_derivation
from normdeploy.parsing.recipe import load_recipe
from normdeploy.rewrite import rewrite
from normdeploy.verification.checks.by_algebra import assignments
from normdeploy.verification.derivation import checker
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.related.report import Report
from normdeploy.verification.derivation.side import result_sizes
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.hints import unchanged
from normdeploy.verification.record.certificate import certify, check_certificate
from normdeploy.verification.samples.example import example_from_file
from normdeploy.verification.samples.ranges import input_specs

SIZES = [{"x": (n, 3, 8, 8)} for n in (2, 3, 5)]


@cache
def source_of(traced: ir.Model) -> Side:
    return Side(traced, SIZES)


def confirm(small: Any, file: ir.Model, derivation: Derivation | None = None) -> Report:
    hints = small.rewritten.derivation if derivation is None else derivation
    return check_derivation(source_of(small.traced.model), file, hints, SIZES)


def test_no_module_of_the_checker_imports_the_rewriting():
    room = Path(checker.__file__).parent
    for path in room.glob("*.py"):
        names = [
            name
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [str(node.module)]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        ]
        assert not [name for name in names if name.startswith("normdeploy.rewrite")], path


def test_the_folded_file_and_the_plain_one_are_confirmed(small: Any):
    folded = confirm(small, load_graph(small.folded))
    assert folded.confirmed
    assert not folded.open
    assert any(row.identity.startswith("linear") for row in folded.rows)
    assert confirm(small, load_graph(small.plain), Derivation()).confirmed


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
def test_another_way_of_writing_is_confirmed(way: Callable[..., None], small: Any, damaged: Callable[..., Path]):
    report = confirm(small, load_graph(damaged(small.folded, way)))
    assert report.confirmed, [(row.name, row.reason) for row in report.open]


@pytest.mark.parametrize("which", ["folded", "plain"])
@pytest.mark.parametrize("kind", sorted(graph_damage.KINDS))
def test_no_damage_is_confirmed(kind: str, which: str, small: Any):
    proto = onnx.load(str(getattr(small, which)))
    for damaged in graph_damage.damages(proto, kinds=(kind,)):
        report = confirm(small, ir.serde.deserialize_model(damaged.model))
        assert not report.confirmed, damaged.where
        assert report.open, damaged.where


def test_what_is_open_is_the_operator_that_is_wrong(small: Any):
    proto = onnx.load(str(small.folded))
    damaged = next(graph_damage.damages(proto, kinds=("one weight's last bit",)))
    report = confirm(small, ir.serde.deserialize_model(damaged.model))
    (row,) = report.open
    assert row.node.op_type == damaged.where.split()[0]
    assert row.wrong is not None
    assert row.wrong.rounding
    assert "expected" in row.reason


def test_a_derivation_survives_being_written(small: Any):
    kept = read_derivation(small.rewritten.derivation.to_json())
    assert kept.to_json() == small.rewritten.derivation.to_json()
    assert confirm(small, load_graph(small.folded), kept).confirmed


def test_sizes_of_results_are_found_out_once_for_all_graphs(small: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(result_sizes, "told_by_operands", lambda *_: None)  # what is told is never asked

    def confirm_anew() -> Report:
        return check_derivation(small.traced.model, load_graph(small.folded), small.rewritten.derivation, SIZES)

    assert confirm_anew().confirmed
    asked: list[str] = []
    evaluate = result_sizes.evaluate_node

    def counted(node: ir.Node, *args: Any, **options: Any) -> Any:
        asked.append(node.op_type)
        return evaluate(node, *args, **options)

    monkeypatch.setattr(result_sizes, "evaluate_node", counted)
    assert confirm_anew().confirmed
    assert asked == []
    monkeypatch.setattr(result_sizes, "MOST", 3)
    result_sizes._KEPT.clear()
    assert confirm_anew().confirmed
    assert asked
    assert len(result_sizes._KEPT) <= 3


def hints(small: Any, change: Callable[[Hint], Hint | None]) -> Derivation:
    changed = (change(hint) for hint in small.rewritten.derivation.hints)
    return Derivation(tuple(hint for hint in changed if hint is not None))


HOSTILE: dict[str, Callable[[Hint], Hint]] = {
    "other source": lambda h: Hint(h.value, "x", h.key, h.scale, h.shift),
    "no such source": lambda h: Hint(h.value, "nothing", h.key, h.scale, h.shift),
    "twice the scale": lambda h: Hint(h.value, h.source, h.key, 2 * h.scale, h.shift),
    "shifted": lambda h: Hint(h.value, h.source, h.key, h.scale, h.shift + 1),
    "scale 0": lambda h: Hint(h.value, h.source, h.key, 0 * h.scale, h.shift),
    "NaN": lambda h: Hint(h.value, h.source, h.key, h.scale * np.nan, h.shift),
    "infinite": lambda h: Hint(h.value, h.source, h.key, h.scale, h.shift + np.inf),
    "wrong shape": lambda h: Hint(h.value, h.source, h.key, np.ones((7, 1, 1)), h.shift),
    "too many axes": lambda h: Hint(h.value, h.source, h.key, np.ones((1,) * 12), np.zeros((2, 1, 1, 1, 1, 1))),
    "empty": lambda h: Hint(h.value, h.source, h.key, np.ones((0,)), h.shift),
    "turned": lambda h: Hint(h.source, h.value, h.key, h.scale, h.shift),
}


@pytest.mark.parametrize("way", sorted(HOSTILE))
@pytest.mark.parametrize("whole", [True, False], ids=["wrong file", "right file"])
def test_a_hostile_derivation_confirms_nothing_wrong(way: str, whole: bool, small: Any):
    derivation = hints(small, HOSTILE[way])
    proto = onnx.load(str(small.folded))
    if not whole:
        confirm(small, ir.serde.deserialize_model(proto), derivation)  # whatever it says, it says it
        return
    for damaged in graph_damage.damages(proto, first_only=True):
        assert not confirm(small, ir.serde.deserialize_model(damaged.model), derivation).confirmed, damaged.kind


WHOLE: dict[str, Any] = {"schema": 1, "left_out": 0, "hints": [], "constants": []}
NAMED = {"value": "a", "source": "b", "key": "k", "which": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100000,
        *(json.dumps({key: value for key, value in WHOLE.items() if key != left}) for left in WHOLE),
        *(
            json.dumps(WHOLE | change)
            for change in ({"schema": 2}, {"left_out": -1}, {"left_out": True}, {"hints": {}}, {"constants": 3})
        ),
        *(
            json.dumps(WHOLE | {key: [row]})
            for key in ("hints", "constants")
            for row in (1, {}, {"value": "a"}, NAMED | {"key": 1})
        ),
        *(
            json.dumps(WHOLE | {key: [NAMED | {name: number}]})
            for key, name in (("hints", "scale"), ("hints", "shift"), ("constants", "number"))
            for number in (
                1,
                {"shape": [1e9]},
                {"shape": [9999999999], "float64": ""},
                {"shape": [-1], "float64": ""},
                {"shape": [1] * 99, "number": "0x1p+0"},
                {"shape": [2], "float64": "AA=="},
                {"shape": [4000000], "number": "0x1p+0"},
                {"shape": [], "number": "x"},
                {"shape": []},
            )
        ),
    ],
)
def test_what_is_no_derivation_is_refused(text: str):
    with pytest.raises(GraphError, match="derivation"):
        read_derivation(text)


def test_the_smallest_derivations_are_read():
    assert read_derivation(json.dumps(WHOLE)).to_json() == Derivation().to_json()
    (hint,) = read_derivation(json.dumps(WHOLE | {"hints": [NAMED]})).hints
    assert (hint.value, hint.source, float(hint.scale), float(hint.shift)) == ("a", "b", 1.0, 0.0)


def test_a_batchnorm_that_torch_folded_in_float32_is_not_called_wrong(
    folded_by_torch: Any,
):
    verdict = nd.verify(folded_by_torch.model, folded_by_torch.path, args=folded_by_torch.x)
    assert verdict.status == "pass", verdict.summary()
    check = verdict.check("derivation")
    assert check.status == "note"
    assert "covered by samples only: Conv" in check.detail
    assert "right within another rounding" in check.detail
    assert "covered by samples only: Conv" in verdict.summary()
    assert "for every input: each" not in verdict.summary()
    certify(folded_by_torch.path, verdict)
    report = check_certificate(folded_by_torch.path)
    assert report.matches, report.problems
    assert "for every input: each" not in report.summary()
    (said,) = [text for text in report.not_covered if "covered by samples only" in text]
    assert "Conv" in said


def weight_changed(path: Path, target: Path, index: int, factor: float) -> Path:
    proto = onnx.load(str(path))
    weights = [t for t in proto.graph.initializer if len(t.dims) == 4]
    value = numpy_helper.to_array(weights[index]).copy()
    value[1, 1] *= np.float32(factor)
    weights[index].CopyFrom(numpy_helper.from_array(value, weights[index].name))
    onnx.save(proto, str(target))
    return target


def test_what_another_tool_folded_wrongly_is_called_wrong_by_name(folded_by_torch: Any, tmp_path: Path):
    path = weight_changed(folded_by_torch.path, tmp_path / "wrong.onnx", 0, 1 + 1e-5)
    verdict = nd.verify(folded_by_torch.model, path, args=folded_by_torch.x)
    assert verdict.status == "fail"
    check = verdict.check("derivation")
    assert check.status == "fail"
    assert "weights of Conv" in check.detail
    assert " at [1, 1, " in check.detail
    assert verdict.localization is not None
    assert "weights of Conv" in verdict.localization.stored


@pytest.mark.parametrize("which", ["folded", "plain"])
@pytest.mark.parametrize("kind", ["one weight off by 1e-3", "one bias off by 1e-3", "epsilon x10", "scale dropped"])
def test_one_wrong_number_is_proven_wrong_and_named(which: str, kind: str, small: Any):
    """Whatever else the file is: also where no sample wakes the number."""
    for damaged in graph_damage.damages(onnx.load(str(getattr(small, which))), kinds=(kind,)):
        file = ir.serde.deserialize_model(damaged.model)
        found = [confirm(small, file, given) for given in (None, unchanged(small.traced.model))]
        (row,) = max((report.contradicted for report in found), key=len)
        assert row.wrong is not None
        assert not row.wrong.rounding
        assert row.node.op_type == damaged.where.split()[0]
        assert "expected" in row.reason or "differs" in row.reason


def test_a_scale_that_one_convolution_takes_up_and_the_next_gives_back_is_no_failure(tmp_path: Path):
    """Cross-layer equalization, by another tool: two weights that are not as expected, and one function."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 3)).eval()
    x = torch.randn(2, 3, 9, 9)
    nd.export(model, x, tmp_path / "net.onnx", verify=False)
    proto = onnx.load(str(tmp_path / "net.onnx"))
    scale = np.array([1, 2, 0.5, 4, 1], np.float32)
    held = {t.name: t for t in proto.graph.initializer}
    first, second = (n for n in proto.graph.node if n.op_type == "Conv")
    changes = (
        (first.input[1], scale[:, None, None, None]),
        (first.input[2], scale),
        (second.input[1], 1 / scale[None, :, None, None]),
    )
    for name, factor in changes:
        held[name].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(held[name]) * factor, name))
    onnx.save(proto, str(tmp_path / "equalized.onnx"))
    verdict = nd.verify(model, tmp_path / "equalized.onnx", args=x)
    assert verdict.status == "pass", verdict.summary()
    assert verdict.check("derivation").status == "note"


class SharedNorm(nn.Module):
    """Queries, keys and values are computed alike from one norm; both factors of the scale go into the queries."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.queries, self.keys, self.values = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        heads = [line(y).view(*y.shape[:2], 4, 8).transpose(1, 2) for line in (self.queries, self.keys, self.values)]
        return nn.functional.scaled_dot_product_attention(*heads)


def test_what_is_computed_alike_from_other_weights_is_no_witness_against_a_folded_one(tmp_path: Path):
    torch.manual_seed(0)
    verdict = nd.export(SharedNorm().eval(), torch.randn(2, 12, 32), tmp_path / "net.onnx").verdict
    assert verdict is not None
    assert verdict.status == "pass", verdict.summary()
    assert verdict.check("derivation").status == "pass"


def test_exchanged_rows_of_a_table_no_sample_touches_are_found_whatever_the_nodes_are(write: Callable[..., Path]):
    body = "g (int64[N,3] ids) => (float[N,3,8] y) { %s }"
    table = np.random.default_rng(0).standard_normal((5000, 8)).astype(np.float32)
    wrong = table.copy()
    wrong[[2000, 3000]] = wrong[[3000, 2000]]
    reference = write(body % "y = Gather(table, ids)", "a", table=table)
    text = body % "k = Identity(ids) z = Gather(table, k) y = Identity(z)"
    assert nd.verify(reference, write(text, "b", table=table), level="quick").status == "pass"
    verdict = nd.verify(reference, write(text, "b", table=wrong), level="quick")
    assert verdict.status == "fail"
    assert "table of Gather" in verdict.check("derivation").detail


class DeviationNorm(nn.Module):
    """Epsilon is added to the deviation: a LayerNormalization and a factor per row, with a guard for its epsilon."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)


def test_a_guard_that_is_gone_is_told_though_random_rows_need_none(tmp_path: Path):
    """Only a constant row shows it; what is wrong in one operator stands for all that are one function with it."""
    x = torch.randn(2, 5, 8)
    nd.export(DeviationNorm(), x, tmp_path / "net.onnx", verify=False)
    proto = onnx.load(str(tmp_path / "net.onnx"))
    (epsilon,) = [
        a for n in proto.graph.node for a in n.attribute if n.op_type == "LayerNormalization" and a.name == "epsilon"
    ]
    assert 0 < epsilon.f < graph_damage.GUARD
    assert nd.verify(DeviationNorm(), tmp_path / "net.onnx", args=x, level="quick").status == "pass"
    epsilon.f = 0.0
    onnx.save(proto, str(tmp_path / "wrong.onnx"))
    check = nd.verify(DeviationNorm(), tmp_path / "wrong.onnx", args=x, level="quick").check("derivation")
    assert check.status == "fail", check.detail
    assert "'epsilon' of LayerNormalization: is 0" in check.detail


@pytest.mark.parametrize(("behind", "right"), [("Mul(d, d)", True), ("Mul(d, x)", False)])
def test_operands_of_a_difference_may_change_places_under_a_square(
    behind: str, right: bool, write: Callable[..., Path]
):
    body = "g (float[N,4] x) => (float[N,4] y) { m = ReduceMean<keepdims = 1>(x, a) d = Sub(%s) y = %s }"
    source, turned = (
        load_graph(write(body % (order, behind), name, a=np.array([1])))
        for name, order in (("source", "x, m"), ("turned", "m, x"))
    )
    assert check_derivation(source, turned, unchanged(source), [{"x": (n, 4)} for n in (2, 3)]).confirmed is right


def test_which_of_two_alike_branches_is_told_by_their_weights(write: Callable[..., Path]):
    body = """g (float[N,4] x) => (float[N,4] y) { a = MatMul(x, v) b = MatMul(x, w) y = Add(%s) }"""
    rng = np.random.default_rng(0)
    known = {k: rng.standard_normal((4, 4)).astype(np.float32) for k in "vw"}
    one, other = (load_graph(write(body % text, name, **known)) for text, name in (("a, b", "a"), ("b, a", "b")))
    assert check_derivation(one, other, Derivation(), [{"x": (n, 4)} for n in (2, 3)]).confirmed


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_verify_confirms_what_export_wrote(norm: str, tmp_path: Path):
    torch.manual_seed(0)
    middle: nn.Module = nn.BatchNorm2d(5) if norm == "batch" else nn.GroupNorm(1, 5)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), middle, nn.ReLU(), nn.Conv2d(5, 4, 3)).eval()
    x = torch.randn(2, 3, 9, 9)
    nd.export(model, x, tmp_path / "net.onnx", verify=False)
    verdict = nd.verify(model, tmp_path / "net.onnx", args=x)
    assert verdict.check("derivation").status == "pass", verdict.summary()
    assert "rounded once" in verdict.check("derivation").detail


RECIPES = [  # tests/equivalence asks for each without the rewriting's hints, which is more
    pytest.param(path, id=path.stem, marks=() if path.stem in ("cnn_view_norm", "digits_int4") else pytest.mark.slow)
    for path in sorted((Path(__file__).parents[2] / "export").glob("*.toml"))
]


def confirmed(model: nn.Module, args: tuple[Any, ...], folder: Path, **known: Any) -> Report:
    """Trace, rewrite, write and read back, and confirm."""
    traced = trace(model, args, **known)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), folder / "net.onnx")
    specs = input_specs(traced.model, example_from_file(traced.model))
    return check_derivation(traced.model, load_graph(path), rewritten.derivation, assignments(specs))


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_reference_model_is_confirmed_for_every_input(recipe: Path, tmp_path: Path):
    settings = load_recipe(recipe)
    model = load_trained(settings)
    example = recipe_example(settings, model)
    known = {"kwargs": example.kwargs, "input_names": example.input_names, "dynamic_shapes": example.dynamic_shapes}
    report = confirmed(model, example.args, tmp_path, **known)
    assert report.confirmed, [(row.name, row.reason) for row in report.open]


@pytest.mark.parametrize("kind", [random_networks.convolutional, random_networks.over_tokens], ids=lambda k: k.__name__)
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 4))])
def test_networks_drawn_at_random_are_confirmed(seed: int, kind: Any, tmp_path: Path):
    torch.manual_seed(seed)
    model, x = random_networks.draw(seed, kind)
    report = confirmed(model, (x,), tmp_path)
    assert report.confirmed, [(row.name, row.reason) for row in report.open]


class AllOfAHead(nn.Module):
    """Turns all of what a part is written for, as rotary embeddings do; the other part has no element."""

    def __init__(self, turned: int) -> None:
        super().__init__()
        self.turned, self.before, self.behind = turned, nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        found: torch.Tensor = self.behind(torch.cat([y[..., : self.turned].sin(), y[..., self.turned :]], -1))
        return found


@pytest.mark.parametrize(("turned", "joined"), [(8, False), (6, True)])
def test_a_part_without_an_element_is_confirmed_to_be_nothing(turned: int, joined: bool, tmp_path: Path):
    report = confirmed(AllOfAHead(turned).eval(), (torch.randn(2, 5, 8),), tmp_path)
    assert report.confirmed, [(row.name, row.reason) for row in report.open]
    assert ("Concat" in {node.op_type for node in load_graph(tmp_path / "net.onnx").graph}) == joined


def test_a_merged_kernel_is_confirmed_and_its_last_bit_is_not(tmp_path: Path):
    model, x = random_networks.merging()
    traced = trace(model, (x,))
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), tmp_path / "net.onnx")
    proto = onnx.load(str(path))
    assert [node.op_type for node in proto.graph.node] == ["Conv", "Relu"]
    sizes = [{"x": (n, 6, 7, 7)} for n in (1, 2)]
    source = Side(traced.model, sizes)
    assert check_derivation(source, load_graph(path), rewritten.derivation, sizes).confirmed
    for damaged in graph_damage.damages(proto):
        file = ir.serde.deserialize_model(damaged.model)
        assert not check_derivation(source, file, rewritten.derivation, sizes).confirmed, damaged.kind


def test_a_number_of_a_product_whose_shift_the_sum_behind_takes_up_is_proven_wrong_too(tmp_path: Path):
    """What a norm's shift becomes behind a product stands in the bias of the sum: the two are one linear operator."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 6)).eval()
    nn.init.normal_(model[0].weight)
    nn.init.normal_(model[0].bias)
    x = torch.randn(2, 3, 8)
    nd.export(model, x, tmp_path / "net.onnx", verify=False)
    proto = onnx.load(str(tmp_path / "net.onnx"))
    product = next(node for node in proto.graph.node if node.op_type == "MatMul")
    assert [node.op_type for node in proto.graph.node if product.output[0] in node.input] == ["Add"]
    (weight,) = [t for t in proto.graph.initializer if t.name == product.input[1]]
    value = numpy_helper.to_array(weight).copy()
    value[2, 3] *= np.float32(1 + 1e-5)
    weight.CopyFrom(numpy_helper.from_array(value, weight.name))
    onnx.save(proto, str(tmp_path / "wrong.onnx"))
    check = nd.verify(model, tmp_path / "wrong.onnx", args=x, level="quick").check("derivation")
    assert check.status == "fail", check.detail
    assert check.detail.startswith("MatMul")
    assert f"is {value[2, 3]:.9g} at [2, 3]; expected" in check.detail
    assert "1 of 48 numbers differ" in check.detail


@pytest.mark.parametrize(
    ("layer", "shape", "stored", "at"),
    [
        (lambda: nn.Linear(6, 4), (2, 6), (4, 6), (3, 5)),
        (lambda: nn.Linear(6, 4, bias=False), (2, 3, 6), (6, 4), (5, 1)),
        (lambda: nn.ConvTranspose2d(6, 4, 3, groups=2), (2, 6, 5, 5), (6, 2, 3, 3), (4, 1, 0, 2)),
        (lambda: nn.Conv1d(6, 4, 3, groups=2), (2, 6, 5), (4, 3, 3), (3, 1, 2)),
    ],
    ids=["Gemm", "MatMul", "ConvTranspose", "Conv"],
)
def test_a_wrong_weight_is_told_at_the_index_where_the_file_holds_it(
    layer: Callable[[], nn.Module], shape: tuple[int, ...], stored: tuple[int, ...], at: tuple[int, ...], tmp_path: Path
):
    torch.manual_seed(0)
    model = layer().eval()
    x = torch.randn(shape)
    nd.export(model, x, tmp_path / "net.onnx", verify=False)
    proto = onnx.load(str(tmp_path / "net.onnx"))
    (weight,) = [t for t in proto.graph.initializer if len(t.dims) > 1]
    value = numpy_helper.to_array(weight).copy()
    assert value.shape == stored
    right = float(value[at])
    value[at] *= np.float32(1.5)
    weight.CopyFrom(numpy_helper.from_array(value, weight.name))
    onnx.save(proto, str(tmp_path / "wrong.onnx"))
    check = nd.verify(model, tmp_path / "wrong.onnx", args=x, level="quick").check("derivation")
    assert check.status == "fail", check.detail
    before, said, after = check.detail.partition(f"is {value[at]:.9g} at {list(at)}; expected ")
    assert said, before
    assert float(after.split()[0]) == pytest.approx(right, rel=1e-9)


def test_export_and_fold_hand_the_derivation_over(small: Any, tmp_path: Path):
    exported = nd.export(small.model, small.args, tmp_path / "net.onnx", verify=False)
    report = check_derivation(exported.plain, load_graph(exported.path), exported.derivation, SIZES)
    assert report.confirmed
    folded = nd.fold(small.plain, tmp_path / "folded.onnx", verify=False)
    report = check_derivation(load_graph(small.plain), load_graph(folded.path), folded.derivation, SIZES)
    assert report.confirmed


def test_what_is_known_of_the_graphs_by_themselves_serves_any_number_of_derivations(small: Any):
    """In any order: nothing that one derivation claims is left for the next."""
    file = load_graph(small.folded)
    right = small.rewritten.derivation
    hints = [Derivation(), right, unchanged(small.traced.model), right]

    def told(report: Report) -> list[Any]:
        rows = [(row.name, row.identity, row.reason, row.wrong and row.wrong.text) for row in report.rows]
        return [rows, report.outputs, report.follows, report.to_be_seen, report.sizes, set(report.used)]

    alone = [told(confirm(small, file, given)) for given in hints]
    assert [not one[1] for one in alone] == [False, True, False, True]
    ours = Side(small.traced.model, SIZES)
    theirs = Side(file, ours.followed, beside=ours)
    assert [told(check_derivation(ours, theirs, given, SIZES)) for given in hints] == alone


def test_each_graph_is_followed_once_for_all_hints(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    proto = onnx.load(small.folded)
    weight = max(proto.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.1), weight.name))
    del proto.metadata_props[:]
    onnx.save(proto, tmp_path / "wrong.onnx")
    made, begin = list[ir.Graph](), Side.__init__

    def noted(self: Side, model: ir.Model, *args: Any, **named: Any) -> None:
        made.append(model.graph)
        begin(self, model, *args, **named)

    monkeypatch.setattr(Side, "__init__", noted)
    verdict = nd.verify(small.model, tmp_path / "wrong.onnx", args=small.args, level="quick")  # of another tool
    assert verdict.check("derivation").status == "fail"
    assert len(made) >= 2
    assert len(set(map(id, made))) == len(made)


def test_a_graph_that_contradicts_itself_confirms_nothing_and_stops_nothing(
    small: Any, monkeypatch: pytest.MonkeyPatch
):
    """Whatever an operator raises when it is looked at, the other checks still judge the file."""
    proven = importlib.import_module("normdeploy.verification.checks.by_algebra")

    def contradict(*_: Any, **__: Any) -> Report:
        raise ValueError("cannot reshape")

    monkeypatch.setattr(proven, "check_derivation", contradict)
    verdict = small.verdict(small.folded, level="quick")
    assert verdict.check("logic").status == verdict.check("rounding").status == "pass"
    assert "nothing is confirmed" in verdict.check("derivation").detail


class Cell(nn.Module):
    """A cell with norms by hand whose state starts from zeros: of the first step one norm is a constant, one is not.

    All norms of the steps are computed alike but for constants: what the derivation says of one is not of another.
    """

    def __init__(self) -> None:
        super().__init__()
        self.of_input, self.of_state = nn.Linear(4, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.gain, self.bias = nn.Parameter(torch.rand(6) + 0.5), nn.Parameter(torch.randn(6))

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 6)
        for step in range(x.shape[1]):
            gate = torch.sigmoid(self.norm(self.of_input(x[:, step])) + self.norm(self.of_state(state + 0.1)))
            state = gate * state + (1 - gate) * torch.tanh(gate)
        return state


def test_steps_that_are_computed_alike_are_confirmed_each_by_its_own(tmp_path: Path):
    verdict = nd.export(Cell().eval(), torch.randn(2, 3, 4), tmp_path / "net.onnx").verdict
    assert verdict is not None
    assert verdict.status == "pass"
    assert verdict.check("derivation").status == "pass", verdict.check("derivation").detail


class _Shortcut(nn.Module):
    """relu(BN(conv(x)) + BN(conv(tanh(x)))), whose two shifts become one bias."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(3, 64, 1, bias=False), nn.Conv2d(3, 64, 1, bias=False)
        self.norm, self.beside = nn.BatchNorm2d(64), nn.BatchNorm2d(64)
        rng = torch.Generator().manual_seed(0)
        sizes = torch.logspace(0, -9, 64).where(torch.logspace(0, -9, 64) > least, 0.0)
        for norm, size in ((self.norm, sizes), (self.beside, sizes.flip(0))):
            norm.running_mean = torch.randn(64, generator=rng) * size
            norm.running_var = torch.rand(64, generator=rng) + 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.one(x)) + self.beside(self.other(torch.tanh(x))))


@pytest.mark.parametrize("least", [0.0, 1e-4])
def test_a_shift_may_be_small_beside_what_it_was_summed_from(least: float):
    """t = b - (b + t) is off by float64's rounding of b; a bias that lacks small shifts is off by more."""
    torch.manual_seed(0)
    whole, lacking = _Shortcut(0.0).eval(), _Shortcut(least).eval()
    lacking.one, lacking.other = whole.one, whole.other
    source = trace(whole, torch.randn(2, 3, 8, 8)).model
    file = rewrite(trace(lacking, torch.randn(2, 3, 8, 8)).model).model
    assert not [node for node in file.graph if node.op_type == "BatchNormalization"]
    report = check_derivation(source, file, rewrite(source).derivation, SIZES)
    assert report.confirmed == (least == 0.0), [(row.name, row.reason) for row in report.open]
