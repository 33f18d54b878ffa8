"""With --quick: sites whose numbers the module's calls name, and traces that are not the module by a little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator, save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.check_context import Context
from normdeploy.verification.evaluation_cost import counted, counted_by_sizes
from normdeploy.verification.mutation.mutant_sites import sites_of
from normdeploy.verification.mutation.named_sites import NamedSites
from normdeploy.verification.record.verdict import Verdict
from normdeploy.verification.sides.call_record import CallRecord

X = torch.linspace(-2, 3, 2 * 4 * 6 * 6).sin().mul(2).reshape(2, 4, 6, 6)


class Net(nn.Module):
    """Norms of both kinds and a scale per channel; while it is traced, one of its numbers may be another."""

    def __init__(self, what: str = "", factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.what, self.factor = what, factor
        self.conv, self.norm, self.last = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.LayerNorm(4)
        self.norm.running_mean, self.norm.running_var = torch.randn(4), torch.rand(4) + 0.5
        for norm in (self.norm, self.last):
            norm.weight.data, norm.bias.data = torch.rand(4) + 0.5, torch.randn(4)
        self.gamma = nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        def number(what: str) -> float:
            return self.factor if torch.compiler.is_compiling() and what == self.what else 1.0

        norm, last = self.norm, self.last
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None
        assert variance is not None
        given = (
            (mean * number("mean"), variance, norm.weight * number("scale"))
            if self.what
            else (mean, variance, norm.weight)
        )
        y = functional.batch_norm(self.conv(x), *given, norm.bias, False, 0.1, norm.eps * number("batch epsilon"))
        y = functional.leaky_relu(y, 0.3 * number("slope")).mean((2, 3))
        y = functional.layer_norm(y, (4,), last.weight, last.bias, last.eps * number("epsilon"))
        return y * self.gamma


def quick(net: nn.Module, folder: Path, x: Tensor = X) -> Verdict:
    traced = trace(net, x)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), folder / "net.onnx")
    return verify(net, path, args=x, traced=traced, rewritten=rewritten, level="quick")


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return what grows with each run of the traced graph on the example."""
    runs: list[bool] = []
    run = Context.run_traced

    def counting(self: Context, *args: object, **options: object) -> None:
        runs.append(True)
        run(self, *args, **options)  # type: ignore[arg-type] # passed on as they are

    monkeypatch.setattr(Context, "run_traced", counting)
    return runs


def test_a_trace_whose_numbers_the_module_names_is_not_evaluated(tmp_path: Path, evaluated: list[bool]):
    verdict = quick(Net().eval(), tmp_path)
    assert verdict.status == "pass", verdict.reasons
    assert not evaluated
    assert (
        verdict.check("traced").detail
        == "the file, which is the traced graph for every input, is the module to rounding"
    )
    assert any("against the module in float64" in text and "level quick" in text for text in verdict.not_checked)
    mutants = [mutant for site in verdict.sites for mutant in site.mutants]
    assert mutants
    assert {mutant.by for mutant in mutants} == {"module"}


def test_by_default_it_is(tmp_path: Path, evaluated: list[bool]):
    net = Net().eval()
    traced = trace(net, X)
    path = save_graph(rewrite(traced.model).model, tmp_path / "net.onnx")
    assert verify(net, path, args=X, traced=traced).status == "pass"
    assert evaluated


@pytest.mark.parametrize(
    ("what", "factor"),
    [
        ("batch epsilon", 10.0), ("batch epsilon", 0.1), ("epsilon", 10.0), ("epsilon", 0.1), ("scale", 1.001),
        ("scale", 1 + 1e-6), ("mean", 1.001), ("mean", 1 + 1e-6), ("slope", 1.001), ("slope", 1 + 1e-4),
    ],
)  # fmt: skip
def test_a_trace_of_another_number_does_not_pass(what: str, factor: float, tmp_path: Path, evaluated: list[bool]):
    verdict = quick(Net(what, factor).eval(), tmp_path)
    assert verdict.status in ("fail", "not-exercised")
    assert evaluated  # it was looked into
    assert verdict.check("traced").status == "note"


def test_a_trace_of_another_weight_is_evaluated(tmp_path: Path, evaluated: list[bool]):
    """One weight of a convolution that is off by a thousandth may show in no output."""
    net, other = Net().eval(), Net().eval()
    other.conv.weight.data[0, 0] *= 1 + 2.0**-10
    traced = trace(other, X)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), tmp_path / "net.onnx")
    verdict = verify(net, path, args=X, traced=traced, rewritten=rewritten, level="quick")
    assert evaluated
    assert verdict.status == "fail"


def named(net: nn.Module, *, asked: nn.Module | None = None) -> NamedSites:
    """Compare the sites of a network's trace with its calls, or with those of another network."""
    graph, record = trace(net, X).model, CallRecord()
    with torch.no_grad(), record:
        (net if asked is None else asked)(X)
    evaluator = Evaluator(graph)
    return NamedSites(evaluator, [(evaluator, sites_of(graph.graph))], record)


def test_sites_are_named_by_the_numbers_of_calls():
    found = named(Net().eval())
    assert (found.count, found.left, found.same) == (2, [], set())
    assert min(found.ratios.values()) > 2


@pytest.mark.parametrize("where", ["norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "last.weight"])
def test_a_call_of_one_other_number_names_no_site(where: str):
    net, other = Net().eval(), Net().eval()
    tensor = other.get_buffer(where) if "running" in where else other.get_parameter(where)
    tensor.data[1] = torch.nextafter(tensor.data[1], torch.tensor(10.0))
    assert named(net, asked=other).count == 1
    assert named(net, asked=net).count == 2


def test_each_call_names_one_site():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(6)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(self.norm(x).tanh())
            return y

    class Once(Twice):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(x)
            return y

    assert named(Twice().eval()).count == 2
    assert named(Twice().eval(), asked=Once().eval()).count == 1


def test_mutants_that_are_the_right_function_are_told():
    net = Net().eval()
    net.norm.weight.data.fill_(1)
    net.last.bias.data.zero_()
    found = named(net)
    assert {name for _, _, name in found.same} == {"scale dropped", "shift dropped"}
    assert len(found.same) == 2


def test_one_row_has_no_neighbour():
    class Row(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm((2, 4, 6, 6))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(x)
            return y

    assert not any("neighbouring row" in name for _, _, name in named(Row().eval()).ratios)


class OfAllAxes(nn.Module):
    """A group norm of one group and a LayerNorm between Transposes, each one LayerNormalization of several axes."""

    def __init__(self, what: str = "", factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.what, self.factor = what, factor
        self.conv, self.norm, self.last = nn.Conv2d(4, 4, 1), nn.GroupNorm(1, 4), nn.LayerNorm(4)
        for norm in (self.norm, self.last):
            norm.weight.data, norm.bias.data = torch.rand(4) + 0.5, torch.randn(4)

    def forward(self, x: Tensor) -> Tensor:
        def number(what: str) -> float:
            return self.factor if torch.compiler.is_compiling() and what == self.what else 1.0

        norm, last = self.norm, self.last
        y = functional.group_norm(self.conv(x), 1, norm.weight, norm.bias, norm.eps * number("group epsilon"))
        y = (functional.avg_pool2d(y, 3, 1, 1) - y).square().mean((2, 3), keepdim=True).permute(0, 2, 3, 1)
        y = functional.layer_norm(y, (4,), last.weight, last.bias, last.eps * number("epsilon"))
        return y.permute(0, 3, 1, 2).flatten(1)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_norm_between_what_arranges_is_named(rows: int, tmp_path: Path, evaluated: list[bool]):
    """One sample is one row of each norm; a neighbour's statistics are none of the function that was called."""
    verdict = quick(OfAllAxes().eval(), tmp_path, x=X[:rows])
    assert verdict.status == "pass", verdict.reasons
    assert not evaluated
    assert [site.kind for site in verdict.sites] == ["LayerNormalization"] * 2
    found = {mutant.by for site in verdict.sites for mutant in site.mutants if not mutant.harmless}
    assert found == {"module"}


@pytest.mark.parametrize(("what", "factor"), [("group epsilon", 10.0), ("group epsilon", 0.1), ("epsilon", 10.0)])
def test_a_trace_of_another_norm_between_what_arranges_does_not_pass(
    what: str, factor: float, tmp_path: Path, evaluated: list[bool]
):
    verdict = quick(OfAllAxes(what, factor).eval(), tmp_path)
    assert verdict.status in ("fail", "not-exercised")
    assert evaluated


class SpelledOut(nn.Module):
    """A global response norm, whose epsilon is a site and an affine map at once, and a token of every sample."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.factor, self.norm = factor, nn.LayerNorm(6)
        self.gamma, self.beta = nn.Parameter(torch.rand(4, 1) + 0.5), nn.Parameter(torch.randn(4, 1))
        self.token, self.scale = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        epsilon = 1e-6 * (self.factor if torch.compiler.is_compiling() else 1.0)
        x = x.flatten(2)
        size = x.norm(p=2, dim=2, keepdim=True)
        y = x + torch.addcmul(self.beta, self.gamma, x * (size / (size.mean(1, keepdim=True) + epsilon)))
        y = self.token.expand(x.shape[0], -1, -1) + self.scale * y[..., :6].mean(1, keepdim=True)
        z: Tensor = self.norm(y).flatten(1)
        return z


def test_an_epsilon_that_is_added_and_a_token_of_every_sample_are_named(tmp_path: Path, evaluated: list[bool]):
    verdict = quick(SpelledOut().eval(), tmp_path)
    assert verdict.status == "pass", verdict.reasons
    assert not evaluated
    assert {site.kind for site in verdict.sites} >= {"epsilon", "affine map", "LayerNormalization"}


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_trace_of_another_epsilon_that_is_added_does_not_pass(factor: float, tmp_path: Path, evaluated: list[bool]):
    verdict = quick(SpelledOut(factor).eval(), tmp_path)
    assert verdict.status in ("fail", "not-exercised")
    assert evaluated


def test_a_convolution_that_pads_what_a_norm_makes_is_named_by_weight_and_padding():
    class Padded(nn.Module):
        def __init__(self, padding: int = 1, seed: int = 5) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.norm = nn.BatchNorm2d(4)
            self.norm.bias.data, self.norm.running_mean = torch.randn(4), torch.randn(4)
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(4, 4, 3, padding=padding, dilation=2, groups=2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.conv(self.norm(x))
            return y

    def borders(found: NamedSites) -> list[float]:
        return [ratio for (_, _, name), ratio in found.ratios.items() if "border" in name]

    (ratio,) = borders(named(Padded().eval()))
    assert ratio > 2
    assert borders(named(Padded().eval(), asked=Padded(padding=2).eval())) == []
    assert borders(named(Padded().eval(), asked=Padded(seed=6).eval())) == []


def test_taking_down_calls_changes_nothing_and_finds_attention_s_scale():
    q = torch.randn(1, 2, 5, 16)
    with torch.no_grad():
        expected = functional.scaled_dot_product_attention(q, q, q) * 3 + q
        with CallRecord() as record:
            assert torch.equal(functional.scaled_dot_product_attention(q, q, q) * 3 + q, expected)
    numbers = [one for one in record.scales if isinstance(one, (int, float))]
    assert numbers == [0.5, 0.5, 3]  # the root of 1/4 for queries and for keys


def test_arguments_may_be_given_by_name():
    x, one = torch.randn(2, 4, 3, 4), torch.rand(4) + 0.5
    with CallRecord() as record:
        functional.batch_norm(input=x, running_mean=one, running_var=one, weight=one, eps=1e-3, momentum=0.5)
        functional.batch_norm(x, one, one, training=True)
        functional.layer_norm(input=x, normalized_shape=(4,), bias=one)
        functional.scaled_dot_product_attention(query=x, key=x, value=x)
    first, second = record.norms
    assert (first.kind, first.epsilon, first.size) == ("BatchNormalization", 1e-3, 0)
    assert [number is one for number in first.numbers] == [True, False, True, True]
    assert (second.kind, second.epsilon, second.size) == ("LayerNormalization", 1e-5, 4)
    assert second.numbers[0] is None
    assert second.numbers[1] is one
    assert record.scales == [4**-0.25] * 2


def test_work_is_counted_by_stated_sizes():
    """Where the graph states all sizes but those of shapes, the two counts differ by the elements of these alone."""
    model = trace(Net().eval(), X).model
    feeds = {str(model.graph.inputs[0].name): X.numpy()}
    by_sizes, by_run = counted_by_sizes(model.graph, feeds), counted(Evaluator(model), feeds)
    assert by_sizes.operators == by_run.operators
    assert np.isclose(by_sizes.work, by_run.work, rtol=1e-3)
