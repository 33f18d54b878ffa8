"""One property for all rules: whatever gauges an operator allows, it computes the same; what it forbids, contradicts.

An operator is drawn with an affine map in front of every computed operand and behind every result, varying from element
to element, so that each of the operator's gauges is as free as its own ties leave it. Every free unknown gets a random
value, every operator is written under it, and the graph is evaluated by onnx's reference evaluator before and after.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from affine_graphs import GraphBuilder
from gauge_operators import LINEAR, STRATEGIES, Draw
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference.op_run import OpRun
from reference_operators import OPERATORS, evaluate

from normdeploy.graph import AFFINE_DOMAIN, FLOATS, constant_tensor
from normdeploy.rewrite.affine.affine_map import AffineMap
from normdeploy.rewrite.affine.affine_node import new_affine
from normdeploy.rewrite.gauge.equations.expression_rows import Rows
from normdeploy.rewrite.gauge.equations.substitute import values
from normdeploy.rewrite.gauge.equations.system import System
from normdeploy.rewrite.gauge.gauge import Gauge
from normdeploy.rewrite.gauge.operator_edit import Edit, Solution
from normdeploy.rewrite.gauge.rules import RULES, rule_of
from normdeploy.rewrite.gauge.stated_ties import build
from normdeploy.rewrite.gauge.ties import Ties

settings.register_profile(
    "rules", settings.get_profile("affine"), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("rules")
SEED = st.integers(0, 2**32 - 1)
EXACT, ROUNDED = 1e-9, 2e-3
INEXACT = {"LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization", "GridSample"}
"""Their epsilon is stored in float32; the weights of places are computed in it."""


class Affine(OpRun):
    """The package's own operator, y = a x + b."""

    op_domain = AFFINE_DOMAIN

    def _run(self, x, a, b):
        return ((a * x + b).astype(x.dtype),)


def drawn(key: tuple[str, str], seed: int) -> tuple[ir.Model, ir.Node, dict[str, np.ndarray], float]:
    """Return a graph with one operator of a rule between affine maps, the operator, feeds and a tolerance."""
    rng = np.random.default_rng(seed)
    integers = key[1] in LINEAR and bool(rng.integers(3) == 0)
    g = GraphBuilder(dtype=np.float32 if integers else np.float64, opset=23)
    d = Draw(g, rng, integers)
    made = STRATEGIES[key](key[1] if key[0] == "" else "Identity", d)
    for value in made if isinstance(made, list) else [made]:
        g.output(value, None, [2, 4, 5] if key[1] == "GroupNormalization" else None)
    feeds = g.feeds(rng)
    proto = onnx.shape_inference.infer_shapes(g.proto(), data_prop=True)
    model = ir.from_proto(proto)
    model.opset_imports[AFFINE_DOMAIN] = 1
    graph = model.graph
    wanted = key[1] if key[0] == "" else "Identity"
    node = next(item for item in graph if item.op_type == wanted)
    computed = [value for value in graph.inputs if value.dtype in FLOATS]
    for value in computed:
        put_affine(graph, value, rng, in_front=True)
    for value in [value for value in graph.outputs if value.dtype in FLOATS]:
        put_affine(graph, value, rng, in_front=False)
    tolerance = ROUNDED if integers else 1e-5 if key[1] in INEXACT else EXACT
    return model, node, feeds, tolerance


def put_affine(graph: ir.Graph, value: ir.Value, rng: np.random.Generator, *, in_front: bool) -> None:
    """Put a map that differs from element to element between a value and what reads it."""
    assert value.shape is not None
    shape = tuple(size if isinstance(size, int) else 1 for size in value.shape)
    scale = rng.uniform(0.5, 2, shape) * rng.choice([-1.0, 1.0], shape)
    mapping = AffineMap(scale, rng.normal(size=shape))
    readers = [(usage.node, usage.idx) for usage in value.uses()]
    like = readers[0][0] if in_front else value.producer()
    assert like is not None
    made = new_affine(graph, value, mapping, like=like, origins=(), output=value)
    made.name = f"map.{value.name}"
    if in_front:
        for reader, index in readers:
            reader.replace_input_with(index, made.outputs[0])
        graph.insert_before(next(iter(graph)), made)
    else:
        graph.append(made)
        name = value.name
        graph.outputs[list(graph.outputs).index(value)] = made.outputs[0]
        value.name, made.outputs[0].name = f"{name}.raw", name


def random_solution(ties: Ties, rng: np.random.Generator) -> Solution:
    """Give every free unknown a random value of the sign that is required of it."""
    scales, shifts = ties.scales, ties.shifts
    sign = scales.signs.settled(rng.choice([-1, 1], scales.size).astype(np.int8))
    free, moved = rng.uniform(0.5, 2, scales.size) * sign, rng.normal(size=shifts.size)
    free[0], moved[0] = 1.0, 0.0  # what no unknown has
    return Solution(ties, values(scales, free), values(shifts, moved))


def run(model: ir.Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return evaluate(ir.to_proto(model), feeds, [*OPERATORS, Affine])


@pytest.mark.parametrize("key", RULES, ids=lambda key: key[1])
@given(seed=SEED)
def test_what_a_rule_allows_computes_the_same(key, seed):
    model, _, feeds, tolerance = drawn(key, seed)
    before = run(model, feeds)
    solution = random_solution(build(model.graph), np.random.default_rng(seed + 1))
    edits = []
    for node in model.graph:
        rule = rule_of(node)
        if rule is not None and node not in solution.ties.parts and solution.touches(node):
            edits.append(Edit(node, solution))
            rule.write(edits[-1])
    for edit in edits:
        edit.apply()
    for edit in edits:
        edit.tidy()
    for old, new in zip(before, run(model, feeds), strict=True):
        assert old.shape == new.shape
        assert old.dtype == new.dtype
        top = max(float(np.abs(old).max(initial=0.0)), 1e-300)
        np.testing.assert_allclose(new / top, old / top, rtol=0, atol=tolerance)


def cells_of(node: ir.Node, ties: Ties) -> list[Gauge]:
    """Return the gauges around an operator, each once."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and constant_tensor(value) is None]
    values += [part.outputs[0] for part, whole in ties.parts.items() if whole is node]
    return [ties.of[value] for value in dict.fromkeys(values) if value in ties.of]


def perturbed(system: System, cells: list[tuple[int, float, float]], chosen: int) -> None:
    """State all cells but one as they are, then that one otherwise: refused exactly if the others determine it."""
    neutral = 1.0 if system.multiplicative else 0.0

    def state(unknown: object, factor: object, value: object) -> Rows:
        constant = 1 / np.asarray(value) if system.multiplicative else -np.asarray(value)
        return Rows.of((np.atleast_1d(unknown), np.atleast_1d(factor)), constant=constant)

    mark = system.mark()
    others = [cell for at, cell in enumerate(cells) if at != chosen and cell[0] and cell[1]]
    if others:
        unknowns, factors, found = map(np.array, zip(*others, strict=True))
        assert system.add(state(unknowns, factors, found), "as found") is None
    unknown, factor, value = cells[chosen]
    reduced = system.reduce(Rows.of((np.array([unknown]), np.array([factor])), constant=neutral))
    determined = not (reduced.coefficients != 0).any()
    other = value * 1.5 if system.multiplicative else value + 1.0
    conflict = system.add(state(unknown, factor, other), "perturbed")
    assert (conflict is not None) == determined
    system.rollback(mark)
    signed = system.multiplicative and bool(system.signs.known[unknown])
    if signed and unknown:
        mark = system.mark()
        turned = system.positive(Rows.of((np.array([unknown]), 1.0), constant=-np.sign(value)), "turned")
        assert turned is not None
        assert turned.because is not None
        system.rollback(mark)


@pytest.mark.parametrize("key", RULES, ids=lambda key: key[1])
@given(seed=SEED)
def test_what_a_rule_forbids_contradicts(key, seed):
    """A cell that the others around the operator determine: another value there is refused, by whatever comes first."""
    model, node, _, _ = drawn(key, seed)
    rng = np.random.default_rng(seed + 2)
    ties = build(model.graph)
    solution = random_solution(ties, rng)
    gauges = cells_of(node, ties)
    for system in (ties.scales, ties.shifts):
        cells: list[tuple[int, float, float]] = []
        for gauge in gauges:
            unknowns = gauge.scale_of if system.multiplicative else gauge.shift_of
            factors = np.ones_like(gauge.factor) if system.multiplicative else gauge.factor
            found = solution.scale(gauge) if system.multiplicative else solution.shift(gauge)
            flat = (array.reshape(-1) for array in (unknowns, factors, found))
            cells += [(int(u), float(f), float(v)) for u, f, v in zip(*flat, strict=True)]
        for chosen in rng.permutation(len(cells))[:6]:
            perturbed(system, cells, int(chosen))


@pytest.mark.parametrize("key", RULES, ids=lambda key: key[1])
def test_the_draws_of_a_rule_are_not_all_pinned(key):
    """Some draw lets the operator's operands be computed otherwise, and some draw restricts them."""
    moved, restricted = False, False
    for seed in range(24):
        model, node, _, _ = drawn(key, seed)
        ties = build(model.graph)
        solution = random_solution(ties, np.random.default_rng(seed))
        gauges = cells_of(node, ties)
        moved |= any(not solution.is_identity(gauge) for gauge in gauges)
        held = [batch for system in (ties.scales, ties.shifts) for batch in system.held]
        restricted |= any(batch.stated.why(row).node is node for batch in held for row in batch.origin.tolist())
        cells = [set(gauge.scale_of.reshape(-1).tolist()) for gauge in gauges]
        restricted |= len(set().union(*cells)) < sum(map(len, cells))
        if moved and restricted:
            break
    assert moved
    assert restricted or key[1] in ("Affine", "ConstantOfShape")


def test_every_rule_has_a_strategy():
    assert set(STRATEGIES) == set(RULES)
