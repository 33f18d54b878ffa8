"""Sites of the traced graph against the module, value by value: what is compared, and what that would have shown."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator, save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.mutation.mutant_sites import sites_of
from normdeploy.verification.mutation.watched_sites import Key, SiteWatch
from normdeploy.verification.record.answers import Killer
from normdeploy.verification.sides.double import float64_mode

X = torch.linspace(-2, 3, 2 * 3 * 6 * 6).sin().mul(2).reshape(2, 3, 6, 6)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.norm.weight.data, self.norm.bias.data = torch.rand(4) + 0.5, torch.randn(4)
        self.norm.running_mean, self.norm.running_var = torch.randn(4), torch.rand(4) + 0.5
        self.linear, self.last = nn.Linear(4, 5), nn.LayerNorm(5)
        self.last.weight.data, self.last.bias.data = torch.rand(5) + 0.5, torch.randn(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.last(self.linear(y))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return Net().eval()


@pytest.fixture(scope="module")
def graph(net: nn.Module) -> ir.Model:
    """Return the network's trace, which nobody changes."""
    return trace(net, X).model


def watched(net: nn.Module, graph: ir.Model) -> tuple[int, dict[Key, float]]:
    (name,) = (str(v.name) for v in graph.graph.inputs)
    evaluator = Evaluator(graph)
    watch = SiteWatch(graph.graph, [(evaluator, sites_of(graph.graph))], {name: X.numpy()})
    with torch.no_grad():
        evaluator.run({name: X.numpy()}, hook=watch.graph_hook)
        with float64_mode(seen=watch.module_call):
            net(X)
    return watch.compared()


def mutated(graph: ir.Model, kind: str, change: str) -> ir.Model:
    """The traced graph with the error itself in it, made without the room's own mutants."""
    copy = graph.clone()
    (node,) = (n for n in copy.graph if n.op_type == kind)
    if change.startswith("epsilon"):
        wrong = {"epsilon x10": 1e-4, "epsilon /10": 1e-6, "epsilon 0": 0.0}[change]
        node.attributes["epsilon"] = ir.AttrFloat32("epsilon", wrong)
        return copy
    value = node.inputs[2 if change == "shift dropped" else 1]
    assert value is not None
    assert value.const_value is not None
    make = np.zeros if change == "shift dropped" else np.ones
    value.const_value = ir.Tensor(make(value.const_value.shape.numpy(), np.float32), name=value.name)
    return copy


def test_each_site_is_found_in_the_module_and_every_mutant_would_have_shown(net: nn.Module, graph: ir.Model):
    count, found = watched(net, graph)
    assert count == 2
    assert {where for where, _, _ in found} == {"norm", "last"}
    assert all(ratio > 2 for ratio in found.values()), found


@pytest.mark.parametrize("change", ["epsilon x10", "epsilon /10", "epsilon 0", "shift dropped", "scale dropped"])
@pytest.mark.parametrize(("kind", "where"), [("BatchNormalization", "norm"), ("LayerNormalization", "last")])
def test_a_trace_that_is_a_mutant_is_seen_as_was_said(
    net: nn.Module, graph: ir.Model, kind: str, where: str, change: str
):
    """The number says by how much; the very error in the traced graph is that far beyond what was let pass."""
    _, said = watched(net, graph)
    ratio = next(r for (at, _, name), r in said.items() if (at, name) == (where, change))
    count, found = watched(net, mutated(graph, kind, change))
    assert ratio > 2
    assert where not in {at for at, _, _ in found}, "a wrong site was taken for the module's"
    assert count == (0 if where == "norm" else 1)  # behind the first site all values are others


def test_what_no_call_of_the_module_returns_is_not_compared(net: nn.Module, graph: ir.Model):
    other = deepcopy(net)  # a trace may share the module's memory
    with torch.no_grad():
        other.norm.bias += 1.0
    assert watched(other, graph)[0] == 0


def test_a_verdict_counts_them_as_seen_at_the_module(net: nn.Module, tmp_path: Any):
    traced = trace(net, X)
    rewritten = rewrite(traced.model)
    save_graph(rewritten.model.clone(), tmp_path / "net.onnx")
    known = {"args": X, "traced": traced, "rewritten": rewritten}
    verdict = verify(net, tmp_path / "net.onnx", **known)
    assert verdict.status == "pass", verdict.summary()
    assert {m.by for s in verdict.sites for m in s.mutants if m.killed} == {Killer.MODULE}
    thorough = verify(net, tmp_path / "net.onnx", level="thorough", **known)
    assert Killer.MODULE not in {m.by for s in thorough.sites for m in s.mutants}


def test_of_a_file_that_is_not_confirmed_nothing_is_taken_as_seen(net: nn.Module, graph: ir.Model, tmp_path: Any):
    """A mutant that only the comparison of trace and module would show says nothing of a file that is not the trace."""
    save_graph(mutated(graph, "LayerNormalization", "epsilon x10"), tmp_path / "wrong.onnx")
    verdict = verify(net, tmp_path / "wrong.onnx", args=X)
    assert verdict.status == "fail"
    assert not any(m.by is Killer.MODULE for s in verdict.sites for m in s.mutants if m.killed)


def growing(layers: int) -> ir.Model:
    """Norms of which each makes its input a thousand times larger: behind a few of them a shift of 1 rounds away."""
    generator = np.random.default_rng(5)
    lines, held, at = [], [], "x"
    for i in range(layers):
        scale, shift = 1e3 * (1 + generator.random(3)), generator.random(3) + 0.5
        mean, variance = generator.standard_normal(3), generator.random(3) + 0.5
        for name, numbers in (("s", scale), ("t", shift), ("m", mean), ("v", variance)):
            held.append(f"float[3] {name}{i} = {{{', '.join(f'{n:.6f}' for n in numbers)}}}")
        lines.append(f"n{i} = BatchNormalization({at}, s{i}, t{i}, m{i}, v{i}) r{i} = Relu(n{i})")
        at = f"r{i}"
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": 20]> g (float[2,3,4] x) => (float[2,3,4] {at}) '
        f"<{', '.join(held)}> {{ {' '.join(lines)} }}"
    )


def test_of_a_graph_that_is_the_reference_each_site_is_seen_as_deep_as_it_may_lie(tmp_path: Any, monkeypatch: Any):
    """What is left to be run one by one grows with the square of the depth; here nothing is."""
    runs: list[int] = []
    run = Evaluator.run
    monkeypatch.setattr(Evaluator, "run", lambda *args, **kwargs: (runs.append(1), run(*args, **kwargs))[1])
    counts = []
    for layers in (4, 8):
        save_graph(growing(layers), tmp_path / f"{layers}.onnx")
        runs.clear()
        folded = nd.fold(tmp_path / f"{layers}.onnx", tmp_path / f"{layers}-folded.onnx").verdict
        assert folded is not None
        assert folded.status == "pass", folded.summary()
        assert {m.by for s in folded.sites for m in s.mutants if m.killed} == {Killer.DERIVATION}
        assert len(folded.sites) == layers
        counts.append(len(runs))
    assert counts[1] <= counts[0] + 8


def test_what_a_shift_moves_on_inputs_of_the_stored_statistics():
    graph, x = growing(6), np.linspace(-1, 1, 24).reshape(2, 3, 4)
    evaluator = Evaluator(graph)
    watch = SiteWatch(graph.graph, [(evaluator, sites_of(graph.graph))], {"x": x}, reference=True)
    with torch.no_grad():
        evaluator.run({"x": x}, hook=watch.graph_hook)
    _, found = watch.compared()
    said = next(r for (_, output, name), r in found.items() if (output, name) == ("n5", "shift dropped"))
    stored = graph.graph.initializers
    scale, shift = (np.asarray(stored[f"{name}5"].const_value, np.float64) for name in "st")
    # of inputs with the stored mean and variance the results' means are the shifts and their deviations the scales
    want = np.linalg.norm(shift) / np.linalg.norm([*shift, *scale])
    assert said * 1e-13 == pytest.approx(want, rel=1e-6)


def test_a_file_that_is_not_the_graph_is_not_taken_for_it(tmp_path: Any):
    save_graph(growing(4), tmp_path / "source.onnx")
    wrong = growing(4)
    value = wrong.graph.initializers["t2"]
    value.const_value = ir.Tensor(np.zeros(3, np.float32), name="t2")
    save_graph(wrong, tmp_path / "wrong.onnx")
    verdict = verify(tmp_path / "source.onnx", tmp_path / "wrong.onnx")
    assert verdict.status == "fail", verdict.summary()
    assert not any(m.by is Killer.DERIVATION for s in verdict.sites for m in s.mutants if m.killed)
