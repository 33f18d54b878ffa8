"""Mutants held against calls of the module: what lies inside one call, and what drift in front of a site hides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator, save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.mutation.called_parts import CallWatch
from normdeploy.verification.mutation.mutant_sites import sites_of
from normdeploy.verification.mutation.mutate_affine import affine_sites
from normdeploy.verification.mutation.rerun import Target
from normdeploy.verification.mutation.signed_products import Fingerprints
from normdeploy.verification.mutation.watched_sites import SiteWatch
from normdeploy.verification.record.answers import Killer
from normdeploy.verification.record.verdict import Verdict
from normdeploy.verification.sides.double import float64_mode
from normdeploy.verification.sides.two_sides import EagerReference

HEADS, WIDTH, TOKENS = 2, 8, 5


class Attention(nn.Module):
    """A block whose queries and keys are so small that all tokens weigh nearly alike, as before training.

    Args:
        spread: size of the weights that make queries and keys.
    """

    def __init__(self, spread: float = 0.02) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.before, self.qkv = nn.LayerNorm(WIDTH, eps=1e-12), nn.Linear(WIDTH, 3 * WIDTH)
        self.out, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.before.weight.data = torch.rand(WIDTH) + 0.5
        self.before.bias.data = torch.randn(WIDTH)
        self.qkv.weight.data[: 2 * WIDTH] = spread * torch.randn(2 * WIDTH, WIDTH)
        self.qkv.bias.data[: 2 * WIDTH] = spread * torch.randn(2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        y = self.qkv(self.before(x.abs().pow(1.3))).reshape(rows, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(y[0], y[1], y[2])
        return self.last(x + self.out(y.transpose(1, 2).reshape(rows, tokens, WIDTH)).mean(1, keepdim=True))


def inputs(tokens: int = TOKENS) -> Tensor:
    return torch.arange(2.0 * tokens * WIDTH).square().sin().mul(2).reshape(2, tokens, WIDTH)


def targets_of(graph: ir.Model) -> list[Target]:
    canonical = rewrite(graph).canonical
    evaluator = Evaluator(canonical)
    sites = [*sites_of(canonical.graph), *affine_sites(canonical)]
    return [Target(evaluator, site, mutant) for site in sites for mutant in site.mutants]


def said(net: nn.Module, graph: ir.Model, x: Tensor, targets: list[Target]) -> dict[tuple[str, str, str], float]:
    """Return by how many times each mutant would have shown in some call, by where, kind and name; the least of all."""
    (name,) = (str(v.name) for v in graph.graph.inputs)
    watch = CallWatch(Evaluator(graph), targets, {name: x.numpy()})
    with torch.no_grad(), float64_mode(seen=watch.module_call):
        net(x)
    found: dict[tuple[str, str, str], float] = {}
    for place, target in enumerate(targets):
        key = target.site.where, target.site.kind, target.mutant.name
        found[key] = min(found.get(key, float("inf")), watch.ratios.get(place, 0.0))
    return found


def test_a_scale_inside_one_call_is_held_against_what_the_call_returns():
    net, x = Attention(0.5).eval(), inputs()
    graph = trace(net, x).model
    targets = targets_of(graph)
    found = said(net, graph, x, targets)
    scales = {key: ratio for key, ratio in found.items() if key[1] == "affine map" and key[2].startswith("scale")}
    assert len(scales) == 4, found  # two mutants of the queries' scale, and two of the keys'
    # what one in 1000 does to the call's result, in float64 by torch itself
    seen: list[tuple[Tensor, ...]] = []
    call = functional.scaled_dot_product_attention

    def keep(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.append((q.double(), k.double(), v.double()))
        return call(q, k, v)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(functional, "scaled_dot_product_attention", keep)
        net(x)
        ((q, k, v),) = seen
        right = call(q, k, v)
        # each of the two holds the root of 1 / sqrt(width), so that dropping one multiplies the scores by its inverse
        factors = {"scale off by one in 1000": 1.001, "scale dropped": (WIDTH / HEADS) ** 0.25}
        moved = {name: float((call(f * q, k, v) - right).norm() / right.norm()) for name, f in factors.items()}
    limits = {key: moved[key[2]] / ratio for key, ratio in scales.items()}
    # what is let pass is 10 times what the trace's float32 constants change, so one number for all four
    assert max(limits.values()) == pytest.approx(min(limits.values()), rel=1e-3), limits
    assert 1e-13 <= min(limits.values()) < 1e-6


class MaskedAttention(Attention):
    """The same, over the tokens that a mask of integers shows; the call reads booleans, which leave no product."""

    def forward(self, x: Tensor, shown: Tensor | None = None) -> Tensor:
        assert shown is not None
        rows, tokens, _ = x.shape
        y = self.qkv(self.before(x)).reshape(rows, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(y[0], y[1], y[2], attn_mask=(shown != 0)[:, None, None, :])
        return self.last(x + self.out(y.transpose(1, 2).reshape(rows, tokens, WIDTH)))


class LongMaskedAttention(MaskedAttention):
    """The same mask, by more operators on integers than there are in any attention."""

    def forward(self, x: Tensor, shown: Tensor | None = None) -> Tensor:
        assert shown is not None
        for number in range(80):
            shown = torch.where(shown != 0, shown + number, shown * number)
        return super().forward(x, shown)


@pytest.mark.parametrize("kind", [MaskedAttention, LongMaskedAttention])
def test_a_mask_that_a_call_reads_is_followed_from_the_inputs(kind: type[MaskedAttention]):
    net, x = kind(0.5).eval(), inputs()
    shown = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    graph = trace(net, (x, shown)).model
    targets = [t for t in targets_of(graph) if t.mutant.name == "scale off by one in 1000"]
    first, second = (str(v.name) for v in graph.graph.inputs)
    watch = CallWatch(Evaluator(graph), targets, {first: x.numpy(), second: shown.numpy()})
    with torch.no_grad(), float64_mode(seen=watch.module_call):
        net(x, shown)
    of_scores = [place for place, target in enumerate(targets) if target.site.kind == "affine map"]
    assert of_scores
    assert all(watch.ratios.get(place, 0.0) > 2 for place in of_scores)


def test_a_trace_that_is_the_mutant_is_not_taken_for_the_module():
    net, x = Attention(0.5).eval(), inputs()
    graph = trace(net, x).model
    targets = [t for t in targets_of(graph) if t.site.is_affine]
    wrong = Attention(0.5).eval()
    with torch.no_grad():
        wrong.qkv.weight[:WIDTH] *= 1.001
        wrong.qkv.bias[:WIDTH] *= 1.001
    assert max(said(net, graph, x, targets).values()) > 2
    assert max(said(wrong, graph, x, targets).values()) == 0


def test_equal_keys_hide_a_scale_from_every_call():
    net, x = Attention(0.5).eval(), inputs(1).expand(2, TOKENS, WIDTH).contiguous()
    graph = trace(net, x).model
    found = said(net, graph, x, [t for t in targets_of(graph) if t.site.is_affine])
    assert found
    assert max(found.values()) < 2, found


def test_an_epsilon_that_drift_in_front_hides_shows_at_its_own_call():
    """Behind an exponent that the trace holds in float32, values differ by far more than by an epsilon of 1e-12."""
    net, x = Attention().eval(), inputs()
    graph = trace(net, x).model
    targets = [t for t in targets_of(graph) if t.mutant.name == "epsilon x10"]
    (name,) = (str(v.name) for v in graph.graph.inputs)
    evaluator = Evaluator(graph)
    watch = SiteWatch(graph.graph, [(targets[0].evaluator, [targets[0].site])], {name: x.numpy()})
    with torch.no_grad():
        evaluator.run({name: x.numpy()}, hook=watch.graph_hook)
        with float64_mode(seen=watch.module_call):
            net(x)
    count, whole = watch.compared()
    assert count == 1
    assert max(ratio for (_, _, mutant), ratio in whole.items() if mutant == "epsilon x10") < 2
    (ratio,) = said(net, graph, x, targets).values()
    assert ratio > 2


def verdict_of(net: nn.Module, x: Tensor, folder: Path) -> Verdict:
    save_graph(rewrite(trace(net, x).model).model, folder / "net.onnx")
    return verify(net, folder / "net.onnx", args=x)


def test_an_attention_before_training_is_exercised(tmp_path: Path):
    verdict = verdict_of(Attention(1e-3).eval(), inputs(), tmp_path)
    assert verdict.status == "pass", verdict.summary()
    scales = [m for s in verdict.sites if s.kind == "affine map" for m in s.mutants if m.name.startswith("scale")]
    assert scales
    assert {m.by for m in scales} == {Killer.MODULE}


def test_calls_are_compared_in_the_run_in_which_sites_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The module ran three times in float64 where a scale inside a call was asked about: two suffice."""
    runs: list[bool] = []
    truth = EagerReference.truth

    def counted(self: EagerReference, feeds: Any, *, seen: Any = None) -> list[Any]:
        runs.append(seen is not None)
        return truth(self, feeds, seen=seen)

    net, x = Attention(0.5).eval(), inputs()
    save_graph(rewrite(trace(net, x).model).model, tmp_path / "net.onnx")
    monkeypatch.setattr(EagerReference, "truth", counted)
    verdict = verify(net, tmp_path / "net.onnx", args=x, level="default")
    scales = [m for s in verdict.sites if s.kind == "affine map" for m in s.mutants if m.name.startswith("scale")]
    assert {(m.by, m.family) for m in scales} == {(Killer.MODULE, "example")}
    assert runs.count(True) == 1


def test_a_result_that_is_another_where_no_element_was_looked_at_shows_nothing():
    """A tensor is found again by some of its elements, and compared in all of them."""
    rows, tokens = 8, 128
    net, x = Attention(0.5).eval(), torch.randn(rows, tokens, WIDTH, generator=torch.Generator().manual_seed(1))
    graph = trace(net, x).model
    targets = [t for t in targets_of(graph) if t.site.is_affine]
    (name,) = (str(v.name) for v in graph.graph.inputs)
    shape = torch.Size((rows, HEADS, tokens, WIDTH // HEADS))
    counts = torch.zeros(shape, dtype=torch.float64)
    prints = Fingerprints()
    for at in range(shape.numel()):
        counts.view(-1)[at] = 1.0
        if not prints.of(counts)[1]:
            break
        counts.view(-1)[at] = 0.0
    (unseen,) = counts.view(-1).nonzero().flatten().tolist()
    found = []
    for error in (0.0, 1e-3):
        watch = CallWatch(Evaluator(graph), targets, {name: x.numpy()})

        def called(result: Tensor, read: Sequence[Tensor] = (), error: float = error, watch: CallWatch = watch) -> None:
            if result.shape == shape and error:
                result = result.contiguous().clone()
                result.view(-1)[unseen] += error
            watch.module_call(result, read)

        with torch.no_grad(), float64_mode(seen=called):
            net(x)
        found.append([watch.ratios.get(place, 0.0) for place in range(len(targets))])
    scales = [place for place, target in enumerate(targets) if target.mutant.name == "scale off by one in 1000"]
    assert min(found[0][place] for place in scales) > 2
    assert max(found[1][place] for place in scales) < 2


def test_an_attention_over_one_token_is_held_against_no_call(tmp_path: Path):
    """Its weights are 1 whatever the scale is: no call could show another, which is proven before one is asked."""
    verdict = verdict_of(Attention(1e-3).eval(), inputs(1), tmp_path)
    assert verdict.status == "pass", verdict.summary()
    scales = [m for s in verdict.sites if s.kind == "affine map" for m in s.mutants if m.name.startswith("scale")]
    assert scales
    assert all(m.harmless and "over one element" in m.note for m in scales)


def test_what_a_call_is_compared_with_is_joined_once_for_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined anew for each call, the values of the trace take the square of the number of layers."""
    x, joined = torch.linspace(-1, 1, 12).reshape(3, 4), []
    stack = torch.stack
    for layers in (2, 9):
        torch.manual_seed(1)
        net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU()) for _ in range(layers))).eval()
        graph = trace(net, x).model
        (name,) = (str(v.name) for v in graph.graph.inputs)
        calls = CallWatch(Evaluator(graph), targets_of(graph), {name: x.numpy()})
        sites = SiteWatch(graph.graph, [(Evaluator(graph), sites_of(graph.graph))], {name: x.numpy()})
        with torch.no_grad(), monkeypatch.context() as patch:
            Evaluator(graph).run({name: x.numpy()}, hook=sites.graph_hook)
            joined.append([0, 0])

            def counted(*args: Any, joined: list[list[int]] = joined, **more: Any) -> Tensor:
                joined[-1][0] += 1
                return stack(*args, **more)

            def called(result: Tensor, read: Sequence[Tensor] = (), watches: Any = (calls, sites)) -> None:
                joined[-1][1] += 1
                for watch in watches:
                    watch.module_call(result, read)

            patch.setattr(torch, "stack", counted)
            with float64_mode(seen=called):
                net(x)
        assert sites.compared()[0] == layers
    assert joined[1][1] >= 4 * joined[0][1]  # calls
    assert joined[1][0] == joined[0][0]


class Cut(nn.Module):
    """A norm over a token put in front and all others, of which only these are read apart: the trace's site is theirs.

    Args:
        eps: of the norm.
    """

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.norm, self.last = nn.LayerNorm(WIDTH, eps=eps), nn.Linear(WIDTH, 3)
        self.norm.weight.data, self.norm.bias.data = torch.rand(WIDTH) + 0.5, torch.randn(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = x.abs().pow(1.3) * 0.42044821  # of inputs(), whose batch is fixed
        y = self.norm(torch.cat([self.first.expand(2, -1, -1), y], 1))
        return self.last(torch.cat([y[:, :1].tanh(), y[:, 1:]], 1).mean(1))


def targets_behind_the_slice(graph: ir.Model) -> list[Target]:
    """The norm of the rows behind a Slice as one operator on what is joined in front, as XCiT's is recognised."""
    copy = graph.clone()
    norm = next(node for node in copy.graph if node.op_type == "LayerNormalization")
    joined = next(node for node in copy.graph if node.op_type == "Concat" and node.outputs[0] is norm.inputs[0])
    cut = next(node for node in copy.graph if node.op_type == "Slice" and node.inputs[0] is norm.outputs[0])
    out = next(n for n in copy.graph if n.op_type == "Slice" and n.inputs[0] is norm.outputs[0] and n is not cut)
    operands = [joined.inputs[1], *norm.inputs[1:]]
    made = ir.Node("", "LayerNormalization", operands, attributes=list(norm.attributes.values()), num_outputs=1)
    copy.graph.insert_after(out, made)
    name, out.outputs[0].name = out.outputs[0].name, "not_read"
    made.outputs[0].name = name
    for user, index in list(out.outputs[0].uses()):
        user.replace_input_with(index, made.outputs[0])
    evaluator = Evaluator(copy)
    (site,) = (site for site in sites_of(copy.graph) if site.output == name)
    return [Target(evaluator, site, mutant) for mutant in site.mutants if mutant.name.startswith("epsilon")]


def test_a_norm_between_two_calls_is_held_against_what_the_module_made_on_both_sides():
    net, x = Cut().eval(), inputs()
    graph = trace(net, x).model
    between = targets_behind_the_slice(graph)
    assert min(said(net, graph, x, between).values()) > 2
    # a trace with the tenth of the module's epsilon is not held to be the module where that mutant is asked about
    wrong = Cut(eps=1e-6).eval()
    assert max(said(wrong, graph, x, between).values()) < 2
