"""With --quick: group and instance norms whose numbers the module's calls name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator, save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.check_context import Context
from normdeploy.verification.float64_chain import FINEST
from normdeploy.verification.mutation.mutant_sites import sites_of
from normdeploy.verification.mutation.mutate_affine import affine_sites
from normdeploy.verification.mutation.named_sites import NamedSites
from normdeploy.verification.mutation.rerun import CleanRun
from normdeploy.verification.sides.call_record import CallRecord

X = torch.linspace(-2, 3, 2 * 8 * 4 * 4).sin().mul(2).reshape(2, 8, 4, 4)


class Net(nn.Module):
    """A norm between convolutions; while it is traced, its epsilon may be another."""

    def __init__(self, norm: nn.Module, factor: float = 1.0, *, spread: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.norm, self.last, self.factor = nn.Conv2d(8, 8, 1), norm, nn.Conv2d(8, 2, 1), factor
        for parameter in norm.parameters() if spread else ():
            parameter.data = torch.rand(8) + 0.5
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        norm, epsilon = self.norm, self.norm.eps
        if torch.compiler.is_compiling():
            norm.eps = epsilon * self.factor  # type: ignore[assignment] # nn.Module's attributes are of any type
        y: Tensor = self.last(norm(self.conv(x)).relu())
        norm.eps = epsilon
        return y


def named(net: nn.Module, *, asked: nn.Module | None = None, x: Tensor = X) -> NamedSites:
    """Compare the sites of a network's trace with its calls, or with those of another network."""
    traced, record = trace(net, x).model, CallRecord()
    canonical = rewrite(traced).canonical
    assert canonical is not None
    with torch.no_grad(), record:
        (net if asked is None else asked)(x)
    evaluator = Evaluator(traced)
    return NamedSites(evaluator, [(evaluator, sites_of(canonical.graph) + affine_sites(canonical))], record)


NORMS = [nn.GroupNorm(4, 8), nn.GroupNorm(2, 8, affine=False), nn.InstanceNorm2d(8, affine=True), nn.InstanceNorm2d(8)]


@pytest.mark.parametrize("spread", [True, False])
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_its_mutants_are_killed_without_a_run_of_the_graph(
    norm: nn.Module, spread: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    runs: list[object] = []
    monkeypatch.setattr(Context, "run_traced", lambda *_, **__: runs.append(None))
    monkeypatch.setattr(CleanRun, "mutated", lambda *_, **__: runs.append(None))
    net = Net(norm, spread=spread)
    traced = trace(net, X)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), tmp_path / "net.onnx")
    verdict = verify(net, path, args=X, traced=traced, rewritten=rewritten, level="quick")
    assert verdict.status == "pass", verdict.reasons
    assert not runs
    mutants = [mutant for site in verdict.sites for mutant in site.mutants]
    assert {mutant.by for mutant in mutants if mutant.killed} == {"module"}
    assert {m.name for m in mutants if m.killed} >= {"epsilon x10", "epsilon /10", "epsilon 0"}
    assert all(mutant.killed or mutant.harmless for mutant in mutants)


class Divided(nn.Module):
    """A residual sum that is divided by a number in front of a convolution that pads, as diffusers' blocks have it."""

    def __init__(self, divisor: float, shift: float) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.norm, self.last = (
            nn.Conv2d(8, 8, 1),
            nn.GroupNorm(4, 8),
            nn.Conv2d(8, 2, 3, padding=1, stride=2),
        )
        self.divisor, self.shift = divisor, shift
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        y = (x + self.conv(self.norm(x))) / self.divisor
        found: Tensor = self.last(y + self.shift if self.shift else y)
        return found


@pytest.mark.parametrize(("divisor", "shift"), [(1.0, 0.0), (2.0, 0.0), (2.0, 0.5)])
def test_a_border_to_which_nothing_is_added_needs_no_run(
    divisor: float, shift: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    runs: list[object] = []
    run = Context.run_traced
    monkeypatch.setattr(Context, "run_traced", lambda *a, **k: (runs.append(None), run(*a, **k))[1])
    net = Divided(divisor, shift)
    traced = trace(net, X)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), tmp_path / "net.onnx")
    verdict = verify(net, path, args=X, traced=traced, rewritten=rewritten, level="quick")
    assert verdict.status == "pass", verdict.reasons
    assert bool(runs) == bool(shift)  # there the border shows it
    borders = [
        m for site in verdict.sites for m in site.mutants if m.name == "a fold that ignores the zero-padded border"
    ]
    assert borders
    assert all((mutant.killed, mutant.harmless) == (bool(shift), not shift) for mutant in borders)


@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("norm", [nn.GroupNorm(4, 8), nn.InstanceNorm2d(8, affine=True)], ids=str)
def test_a_trace_of_another_epsilon_does_not_pass(norm: nn.Module, factor: float, tmp_path: Path):
    net = Net(norm, factor)
    traced = trace(net, X)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), tmp_path / "net.onnx")
    verdict = verify(net, path, args=X, traced=traced, rewritten=rewritten, level="quick")
    assert verdict.status in ("fail", "not-exercised")


def test_a_call_of_other_numbers_names_no_site():
    net = Net(nn.GroupNorm(4, 8))
    assert named(net).count == 2  # the norm, and the scale and shift behind it
    assert not named(net).left
    for other in (nn.GroupNorm(4, 8, eps=1e-4), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True)):
        assert named(net, asked=Net(other)).count == 0
    for where in ("weight", "bias"):
        changed = Net(nn.GroupNorm(4, 8))
        tensor = changed.norm.get_parameter(where).data
        tensor[1] = torch.nextafter(tensor[1], torch.tensor(10.0))
        assert named(net, asked=changed).count == 0
    instance = Net(nn.InstanceNorm2d(8, affine=True))
    assert named(instance).count == 1
    assert named(instance, asked=Net(nn.InstanceNorm2d(8, affine=True, eps=1e-4))).count == 0


def test_groups_of_one_number_are_left_to_others():
    """Of one number a norm leaves 0 whatever its epsilon: no call shows it."""
    assert named(Net(nn.GroupNorm(8, 8)), x=X[:, :, :1, :1]).count == 0


@pytest.mark.parametrize("size", [4, 128])
def test_ratios_are_no_more_than_what_a_mutant_does(size: int):
    """The other correction of n numbers is a factor of sqrt((n - 1) / n)."""
    x = X.repeat(1, 1, size // 4, size // 4)
    found = named(Net(nn.GroupNorm(4, 8)), x=x).ratios
    n = 2 * size * size
    expected = (1 - ((n - 1) / n) ** 0.5) / FINEST
    (ratio,) = (ratio for (_, _, name), ratio in found.items() if "correction" in name)
    assert 0.5 * expected < ratio < 1.01 * expected


def test_calls_are_taken_down():
    with CallRecord() as record:
        torch.nn.functional.group_norm(X, 4, eps=1e-3)
        torch.nn.functional.instance_norm(input=X, weight=torch.ones(8))
        torch.nn.functional.instance_norm(X, torch.zeros(8), torch.ones(8), use_input_stats=False)
    kinds = [(call.kind, call.epsilon, call.size, call.groups) for call in record.norms]
    assert kinds == [
        ("GroupNormalization", 1e-3, 32, 4),
        ("InstanceNormalization", 1e-5, 16, 8),
        ("BatchNormalization", 1e-5, 0, 0),
    ]
