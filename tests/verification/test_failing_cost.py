"""A verdict that fails costs little more than one that passes, and names the mistake all the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from normdeploy.exporting.trace import Traced, trace
from normdeploy.graph import Evaluator, save_graph
from normdeploy.graph.operator_evaluation import as_constant
from normdeploy.rewrite import RewriteResult, rewrite
from normdeploy.verification import Verdict, verify
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.bounds.spread import Spread
from normdeploy.verification.checks import by_algebra
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.twins import twins_of
from normdeploy.verification.family_case import Case, make_case
from normdeploy.verification.mutation.closest_mutant import TRIED
from normdeploy.verification.mutation.explaining import nearest, to_first_order
from normdeploy.verification.mutation.mutant_sites import sites_of
from normdeploy.verification.mutation.rerun import CleanRun
from normdeploy.verification.samples.family import Family
from normdeploy.verification.sides.graph_reference import GraphReference

DEPTH = 10


class Deep(nn.Module):
    """Ten Convs, each in front of a BatchNorm and a Relu, and a Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4, eps=1e-3) for _ in range(DEPTH))
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x)).relu()
        return self.head(x.mean((2, 3)))


@dataclass(frozen=True)
class Exported:
    """A network, its trace and its rewriting, and the file of it."""

    model: Deep
    x: Tensor
    traced: Traced
    rewritten: RewriteResult
    path: Path

    def verdict(self, path: Path) -> Verdict:
        return verify(self.model, path, args=self.x, traced=self.traced, rewritten=self.rewritten, level="quick")


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    torch.manual_seed(0)
    model, x = Deep().eval(), torch.randn(2, 4, 6, 6)
    with torch.no_grad():
        for norm in model.norms:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_()
    traced = trace(model, x)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), tmp_path_factory.mktemp("deep") / "net.onnx")
    return Exported(model, x, traced, rewritten, path)


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[Evaluator]:
    """Return what grows by one with each evaluation of a graph."""
    made: list[Evaluator] = []
    run = Evaluator.run

    def counted(self: Evaluator, *given: Any, **options: Any) -> dict[str, Tensor]:
        made.append(self)
        return run(self, *given, **options)

    monkeypatch.setattr(Evaluator, "run", counted)
    return made


def scaled(proto: onnx.ModelProto) -> None:
    """Scale the weight of the fifth convolution by 1.01."""
    node = [n for n in proto.graph.node if n.op_type == "Conv"][5]
    weight = next(i for i in proto.graph.initializer if i.name == node.input[1])
    array = numpy_helper.to_array(weight) * np.float32(1.01)
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))


def removed(proto: onnx.ModelProto) -> None:
    """Let the sixth Relu do nothing."""
    node = [n for n in proto.graph.node if n.op_type == "Relu"][5]
    node.op_type = "Identity"


@pytest.mark.parametrize(("damage", "most"), [(scaled, 40), (removed, 75)])
def test_a_failing_verdict_makes_few_evaluations(
    deep: Exported, damaged: Callable[..., Path], evaluations: list[Evaluator], damage: Callable[..., None], most: int
):
    """Every mutant of ten BatchNorms is a hundred evaluations, four runs with noise for each of six families thirty."""
    path = damaged(deep.path, damage)
    evaluations.clear()
    verdict = deep.verdict(path)
    assert verdict.status == "fail"
    assert verdict.localization is not None
    assert verdict.localization.side == "export"
    assert len(evaluations) <= most


def test_one_wrong_number_is_looked_for_by_the_hints_of_the_rewriting_alone(
    deep: Exported, damaged: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    asked: list[object] = []
    check = by_algebra.check_derivation

    def counted(*given: Any, **options: Any) -> Any:
        asked.append(given)
        return check(*given, **options)

    monkeypatch.setattr(by_algebra, "check_derivation", counted)
    verdict = deep.verdict(damaged(deep.path, scaled))
    assert verdict.check("derivation").status == "fail"
    assert "convs.5" in verdict.check("derivation").detail
    assert len(asked) == 1


def with_mistake(deep: Exported, place: int, change: Callable[[nn.BatchNorm2d], None], folder: Path) -> Verdict:
    other = copy.deepcopy(deep.model)
    change(other.norms[place])
    return deep.verdict(save_graph(rewrite(trace(other, deep.x).model).model, folder / "wrong.onnx"))


def _epsilon(norm: nn.BatchNorm2d) -> None:
    norm.eps = 1e-2


def _scale(norm: nn.BatchNorm2d) -> None:
    with torch.no_grad():
        norm.weight.fill_(1.0)


@pytest.mark.parametrize("place", [4, 7, DEPTH - 1])
@pytest.mark.parametrize(
    ("change", "words"), [(_epsilon, "epsilon 0.01; the module says 0.001"), (_scale, "scale dropped")]
)
def test_the_mistake_is_named_wherever_it_is(
    deep: Exported, tmp_path: Path, place: int, change: Callable[..., None], words: str
):
    found = with_mistake(deep, place, change, tmp_path).localization
    assert found is not None
    assert found.likely == f"output matches {words} at 'norms.{place}'"
    assert found.unexplained is not None
    assert found.unexplained < 0.05


@pytest.fixture
def ranked(deep: Exported, tmp_path: Path) -> tuple[Evaluator, Case]:
    graph = deep.rewritten.canonical
    assert graph is not None
    family = Family("normal", {deep.traced.input_names[0]: deep.x.numpy()})
    case = make_case(
        GraphReference(graph, tmp_path), NoisyGraph(graph), family, ["y"], runs=4, seed=0, precision="float32"
    )
    return Evaluator(graph), case


def test_what_was_made_is_among_the_first_to_be_run(ranked: tuple[Evaluator, Case]):
    """For each mistake that is no more than a tenth of its site's output, by what outputs an exact run gives."""
    evaluator, case = ranked
    sites = sites_of(evaluator.graph)
    assert len(sites) == DEPTH
    clean, tried = CleanRun(evaluator, case, sites), 0
    for site in sites[::3]:
        for mutant in site.mutants:
            values, right = clean.inputs(site), clean.kept[site.output]
            change = float((mutant.apply(values) - right).norm() / right.norm())
            outputs = clean.mutated(site, mutant)
            if change > 0.1 or np.allclose(outputs[0], case.truth[0], 1e-9, 0):
                continue
            tried += 1
            graded = CleanRun(evaluator, case, sites, graded=True)
            first = to_first_order(graded, sites, outputs, seed=1)[:TRIED]
            assert (site, mutant) in first
    assert tried >= 12


def test_what_no_gradient_reaches_counts_as_nothing(ranked: tuple[Evaluator, Case]):
    evaluator, case = ranked
    sites = sites_of(evaluator.graph)
    graded = CleanRun(evaluator, case, sites, graded=True)
    found = to_first_order(graded, sites, case.truth, seed=0)  # nothing is wrong
    assert len(found) == sum(len(site.mutants) for site in sites)


def test_the_nearest_site_is_that_of_the_value(ranked: tuple[Evaluator, Case]):
    evaluator, _ = ranked
    sites = sites_of(evaluator.graph)
    assert nearest(evaluator.graph, sites, sites[3].output) == [sites[3]]
    assert nearest(evaluator.graph, sites, "no value of it") == []


def test_s_that_is_settled_is_what_the_runs_made_so_far_let_expect():
    runs = [np.full(2, 3.0), np.full(2, 5.0)]

    def measure(number: int, _: int) -> Iterator[list[np.ndarray]]:
        total = np.zeros(2)
        for run in runs:
            total = total + np.square(run)
            yield [np.sqrt(total / number)]

    spread = Spread([(2,)], measure, runs=4)
    spread.settle()  # nothing is known yet
    assert not spread.measured
    assert spread.more()
    spread.settle()
    assert spread.measured
    np.testing.assert_allclose(spread.values[0], 3.0)
    assert not spread.more()


def test_a_table_of_equal_constants_is_no_reason_to_go_through_the_file_again(tmp_path: Path):
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) {
        a = Constant <value_float = 2.0> () b = Constant <value_float = 2.0> ()
        c = Add(x, a) y = Mul(c, b) }"""
    assert twins_of(Side(ir.from_onnx_text(text), [{"x": (2,)}])) == {}
    twice = text.replace("c = Add(x, a) y = Mul(c, b)", "c = Add(x, a) d = Add(x, b) y = Mul(c, d)")
    assert len([v for v in twins_of(Side(ir.from_onnx_text(twice), [{"x": (2,)}])) if v.name in "cd"]) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stored_number_is_the_same_in_either_precision(dtype: torch.dtype):
    array = np.array([1.1, np.nan, np.inf, -0.0, 1e-45, 3.4e38], np.float32)
    found = as_constant(ir.tensor(array, name="w"), dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.numpy(), array.astype(found.numpy().dtype))
    assert np.signbit(found.numpy()[3])
