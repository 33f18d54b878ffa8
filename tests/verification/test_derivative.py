"""First-order effects of mutants: what they kill dies exactly too, and what saturates is not killed by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from normdeploy.graph import Evaluator
from normdeploy.verification import verify
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.bounds.spread import Spread
from normdeploy.verification.family_case import Case, make_case
from normdeploy.verification.mutation.derivative import Sensitivities, affine_map, needed
from normdeploy.verification.mutation.mutant_sites import sites_of
from normdeploy.verification.mutation.mutants import Site
from normdeploy.verification.mutation.rerun import CleanRun, difference_ratio
from normdeploy.verification.samples.family import Family
from normdeploy.verification.sides.flat_values import run_evaluator
from normdeploy.verification.sides.graph_reference import GraphReference

Write = Callable[..., Path]

BODY = """g (float[N,4,5,5] x) => (float[N,6] y) { n = BatchNormalization(x, scale, shift, mean, var)
    r = %s p = GlobalAveragePool(r) f = Flatten(p) y = MatMul(f, w) }"""


def made(body: str, tmp_path: Path) -> tuple[Evaluator, Case, list[Site]]:
    rng = np.random.default_rng(0)
    known = {name: rng.uniform(0.5, 1.5, 4).astype(np.float32) for name in ("scale", "shift", "mean", "var")}
    known["w"] = rng.standard_normal((4, 6)).astype(np.float32)
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 20]> {body}')
    for name, array in known.items():
        value = next(v for n in model.graph for v in n.inputs if v is not None and v.name == name)
        value.const_value = ir.tensor(array, name=name)
        model.graph.register_initializer(value)
    feeds = {"x": rng.standard_normal((2, 4, 5, 5)).astype(np.float32)}
    reference = GraphReference(model, tmp_path)
    case = make_case(reference, NoisyGraph(model), Family("normal", feeds), ["y"], runs=4, seed=0, precision="float32")
    evaluator = Evaluator(model)
    return evaluator, case, sites_of(evaluator.graph)


@pytest.mark.parametrize("operator", ["Relu(n)", "Tanh(n)", "Identity(n)"])
def test_what_an_estimate_kills_an_exact_run_kills(operator: str, tmp_path: Path):
    evaluator, case, sites = made(BODY % operator, tmp_path)
    clean_run = CleanRun(evaluator, case, sites)
    gradients = Sensitivities(CleanRun(evaluator, case, sites, graded=True))
    killed = 0
    for site in sites:
        for mutant in site.mutants:
            found = gradients.estimate(site, mutant, clean_run.inputs(site), clean_run.kept[site.output])
            exact = difference_ratio(case, clean_run.outputs, clean_run.mutated(site, mutant))
            if found.ratio * gradients.wider >= case.constants.kill * needed(found.relative):
                killed += 1
                assert exact >= case.constants.kill, mutant.name
            if found.relative < 1e-3:  # linear: judged over blocks an error may count more, never less
                assert exact >= 0.2 * found.ratio * gradients.wider
    assert killed >= 8


LAYERS = {
    "smooth": ["Tanh({v})", "Sigmoid({v})", "Softplus({v})", "MatMul({v}, w)", "Softmax({v})", "Mul({v}, {v})"],
    "kinks": ["Relu({v})", "LeakyRelu({v})", "MatMul({v}, w)", "Abs({v})", "Max({v}, zero)"],
    "saturating": ["Tanh({v})", "Clip({v}, low, high)", "Sigmoid({v})", "Mul({v}, size)", "MatMul({v}, w)"],
    "cancelling": [
        "Sub({v}, n)",
        "MatMul({v}, w)",
        "ReduceMean<axes=[0], keepdims=1>({v})",
        "Mul({v}, near)",
        "Add({v}, n)",
        "LayerNormalization({v}, scale, shift)",
    ],
}


@given(
    kind=st.sampled_from(list(LAYERS)),
    norm=st.sampled_from(["BatchNormalization(x, scale, shift, mean, var)", "LayerNormalization(x, scale, shift)"]),
    data=st.data(),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=30, deadline=None)
def test_no_estimate_kills_what_an_exact_run_leaves_alive(kind: str, norm: str, data: st.DataObject, seed: int):
    """Networks of one nature behind a norm, scales of any size: what the estimate calls dead is dead."""
    layers = data.draw(st.lists(st.sampled_from(LAYERS[kind]), min_size=1, max_size=5))
    rng = np.random.default_rng(seed)
    lines, value = [f"n = {norm}"], "n"
    for number, layer in enumerate(layers):
        lines.append(f"v{number} = {layer.format(v=value)}")
        value = f"v{number}"
    if rng.random() < 0.5:
        lines.append(f"r = Add({value}, x)")
        value = "r"
    body = "\n".join([*lines, f"y = Identity({value})"])
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": 17]> g (float[6,8] x) => (float[a,b] y) {{ {body} }}'
    )
    known: dict[str, Any] = {
        name: (rng.uniform(0.2, 2, 8) * 10 ** rng.uniform(-3, 3)).astype(np.float32)
        for name in ("scale", "shift", "mean", "var")
    }
    known |= {"w": rng.standard_normal((8, 8)).astype(np.float32), "zero": np.float32(0), "low": np.float32(-1)}
    known |= {"high": np.float32(1), "size": np.float32(10 ** rng.uniform(-2, 4)), "near": np.float32(1.0001)}
    for name, array in known.items():
        for read in {v for node in model.graph for v in node.inputs if v is not None and v.name == name}:
            read.const_value = ir.tensor(np.asarray(array), name=name)
            model.graph.initializers.setdefault(name, read)
    feeds = {"x": (rng.standard_normal((6, 8)) * 10 ** rng.uniform(-2, 2)).astype(np.float32)}
    evaluator, noisy = Evaluator(model), NoisyGraph(model)
    truth, eager = (list(run_evaluator(e, feeds).values()) for e in (evaluator, Evaluator(model, dtype=torch.float32)))
    *_, spread = noisy.spreads(feeds, roundoff=2.0**-24, floor=2.0**-126, runs=4, seed=seed)
    case = Case(Family("drawn", feeds), ["y"], truth, eager, Spread.of(spread), "float32", noisy)
    sites, probes = sites_of(model.graph), data.draw(st.sampled_from([1, 2]))
    run = CleanRun(evaluator, case, sites, graded=True)
    gradients = Sensitivities(run, probes=probes, seed=seed)
    for site, mutant in ((s, m) for s in sites for m in s.mutants):
        found = gradients.estimate(site, mutant, run.inputs(site), run.kept[site.output])
        if found.ratio * gradients.wider >= case.constants.kill * needed(found.relative, probes):
            exact = difference_ratio(case, run.outputs, run.mutated(site, mutant))
            event(f"killed, {kind}")
            assert exact >= case.constants.kill, (mutant.name, found, exact)


def test_channel_sums_are_the_products_with_the_whole_change(tmp_path: Path):
    evaluator, case, sites = made(BODY % "Relu(n)", tmp_path)
    clean_run = CleanRun(evaluator, case, sites)
    gradients = Sensitivities(CleanRun(evaluator, case, sites, graded=True))
    (site,) = sites
    values, clean = clean_run.inputs(site), clean_run.kept[site.output]
    for mutant in site.mutants:
        if not mutant.affine:
            continue
        wrong, right = (affine_map(apply, values) for apply in (mutant.apply, site.clean))
        scale, shift = ((a - b).reshape(1, -1, 1, 1) for a, b in zip(wrong, right, strict=True))
        assert values[0] is not None
        torch.testing.assert_close(scale * values[0] + shift, mutant.apply(values) - clean, rtol=1e-9, atol=1e-12)
        change = mutant.apply(values) - clean
        products = [float((g[site.output] * change).sum()) for g in gradients.gradients]
        want = float(np.sqrt(np.mean(np.square(products))))
        found = gradients.estimate(site, mutant, values, clean)
        assert found.ratio == pytest.approx(want, rel=1e-6)
        assert found.relative == pytest.approx(float(change.norm() / clean.norm()), rel=1e-6)


def test_a_large_change_needs_more_room_than_a_small_one():
    assert needed(0.01) < needed(0.5)


def test_what_saturates_behind_the_site_is_run(write: Write):
    """All of n is beyond 9, where Clip has no derivative: the dropped shift comes back, the scale does not."""
    rng = np.random.default_rng(0)
    known: dict[str, Any] = {name: rng.uniform(0.5, 1.5, 4).astype(np.float32) for name in ("scale", "mean", "var")}
    known["shift"] = np.full(4, 1e6, np.float32)
    body = """g (float[N,4,5,5] x) => (float[N,4,5,5] y) { n = BatchNormalization(x, scale, shift, mean, var)
        y = Clip(n, low, high) }"""
    known |= {"low": np.asarray(-9, np.float32), "high": np.asarray(9, np.float32)}
    path = write(body, **known)
    verdict = verify(path, path)
    reports = {m.name: m for s in verdict.sites for m in s.mutants}
    assert reports["shift dropped"].killed
    assert not reports["scale dropped"].killed
    assert verdict.status == "not-exercised", verdict.summary()


def test_a_clean_run_walks_the_graph_as_often_for_many_sites_as_for_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each site, which the search for constants took, makes a chain's verdict quadratic in its norms."""

    def walks(layers: int) -> int:
        norm = "BatchNormalization({}, scale, shift, mean, var)"
        chain = [f"h{i} = Relu(n{i}) n{i + 1} = {norm.format(f'h{i}')}" for i in range(layers - 1)]
        body = f"n0 = {norm.format('x')} {' '.join(chain)} p = GlobalAveragePool(n{layers - 1}) f = Flatten(p)"
        text = f"g (float[N,4,5,5] x) => (float[N,6] y) {{ {body} y = MatMul(f, w) }}"
        evaluator, case, sites = made(text, tmp_path)
        assert len(sites) == layers
        count, plain = 0, ir.Graph.__iter__

        def counted(graph: ir.Graph) -> Iterator[ir.Node]:
            nonlocal count
            count += 1
            return plain(graph)

        with monkeypatch.context() as patch:
            patch.setattr(ir.Graph, "__iter__", counted)
            CleanRun(evaluator, case, sites)
        return count

    assert walks(8) == walks(4) > 0
