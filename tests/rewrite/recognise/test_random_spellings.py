"""Random compositions of equivalent spellings are recognised; with one random flaw in them they are not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from normdeploy.graph import Evaluator
from normdeploy.rewrite.recognise import RecogniseNorms
from normdeploy.rewrite.rewrite_context import RewriteContext

FULL = ("LayerNormalization", "RMSNormalization", "InstanceNormalization")
FLAWS = ("exponent", "outside", "weights", "other axis", "mean", "clamp", "gain")


@dataclass(frozen=True)
class Plan:
    """One draw: what is computed, and how it is spelled."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    centred: bool
    outside: bool
    epsilon: float
    correction: int
    mean: str
    variance: str
    root: str
    affine: str
    affine_axes: tuple[int, ...]
    wrap: str
    seed: int

    @property
    def count(self) -> int:
        return math.prod(self.shape[axis - 1] for axis in self.axes)

    def constants(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        dims = [size if axis + 1 in self.affine_axes else 1 for axis, size in enumerate(self.shape)]
        scale = rng.uniform(0.3, 2.0, dims) * rng.choice([-1, 1], dims)
        return scale.astype(np.float32), rng.standard_normal(dims).astype(np.float32)


@st.composite
def plans(draw) -> Plan:
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.lists(st.integers(3, 6), min_size=rank, max_size=rank)))
    every = list(range(1, rank + 1))
    axes = tuple(sorted(draw(st.sets(st.sampled_from(every), min_size=1))))
    centred = draw(st.booleans())
    outside = draw(st.booleans()) and draw(st.booleans())
    return Plan(
        shape,
        axes,
        centred,
        outside,
        draw(st.sampled_from([1e-12, 1e-6, 1e-5, 1e-3, 0.1] if outside else [0.0, 1e-12, 1e-6, 1e-5, 1e-3, 0.1])),
        draw(st.sampled_from([0, 1])) if centred and math.prod(shape[a - 1] for a in axes) > 2 else 0,
        draw(st.sampled_from(["ReduceMean", "sum", "twice", "axis by axis"])),
        draw(st.sampled_from(["product", "Pow", "squares"] + (["moments", "clamped moments"] if centred else []))),
        draw(st.sampled_from(["Div", "rsqrt", "Pow", "one over"])),
        draw(st.sampled_from(["none", "after", "scale", "shift", "before", "swapped", "joined"])),
        tuple(sorted(draw(st.sets(st.sampled_from(every))))),
        draw(st.sampled_from(["none", "turned", "unsqueezed"])),
        draw(st.integers(0, 2**16)),
    )


def mean_of(x, plan: Plan, axes):
    if plan.mean == "sum":
        return x.sum(axes) / float(plan.count)
    if plan.mean == "twice":
        return 0.5 * (x.mean(axes) + x.mean(axes))
    if plan.mean == "axis by axis":
        for axis in axes:
            x = x.mean((axis,))
        return x
    return x.mean(axes)


def write(plan: Plan, x, flaw: str = ""):
    """Write a plan as a graph."""
    rank = len(plan.shape) + 1
    order = list(range(rank))
    axes = plan.axes
    scale, shift = (item[None] for item in plan.constants())
    if plan.wrap == "turned":
        order = [0, *range(rank - 1, 0, -1)]
        x = x.transpose(*order)
        axes = tuple(sorted(order.index(axis) for axis in axes))
        scale, shift = scale.transpose(order), shift.transpose(order)
    if plan.wrap == "unsqueezed":
        x = x.op("Unsqueeze", np.array([rank]))
        scale, shift = scale[..., None], shift[..., None]
    m = mean_of(x, plan, axes)
    if flaw == "mean":
        m = 0.9 * m + 1e-3
    d = x - m if plan.centred else x
    if flaw == "weights":
        ramp = np.linspace(0.8, 1.2, x.value.shape[axes[0]] if False else plan_size(plan, axes[0], order))
        shape = [-1 if axis == axes[0] else 1 for axis in range(rank + (plan.wrap == "unsqueezed"))]
        square = d * d * ramp.reshape(shape).astype(np.float32)
    else:
        square = d**2 if plan.variance == "Pow" else d * d
    if plan.variance == "squares":
        v = (square.sum(axes)) / float(plan.count)
    elif "moments" in plan.variance and flaw != "weights":
        v = mean_of(x * x, plan, axes) - m * m
        v = v.op("Relu") if plan.variance == "clamped moments" else v
    else:
        v = mean_of(square, plan, axes)
    if plan.correction:
        v = v * (plan.count / (plan.count - 1))
    if flaw == "clamp":
        v = v.op("Clip", 1e-3)
    if flaw == "other axis":
        v = v + 1e-3 * (x * x).mean((0,))
    exponent = 0.45 if flaw == "exponent" else 0.5
    root = v**exponent + plan.epsilon if plan.outside else (v + plan.epsilon) ** exponent
    if plan.root != "Pow" and exponent == 0.5:
        root = v.sqrt() + plan.epsilon if plan.outside else (v + plan.epsilon).sqrt()
    if flaw == "outside":
        root = root + 1e-3 * v
    return unwrap(finish(plan, x, m, d, root, scale, shift, flaw), plan, order, rank)


def plan_size(plan: Plan, axis: int, order: list[int]) -> int:
    return plan.shape[order[axis] - 1]


def finish(plan: Plan, x, m, d, root, scale, shift, flaw: str):
    inverse = root.op("Reciprocal") if plan.root == "rsqrt" else 1.0 / root if plan.root == "one over" else None
    if flaw == "gain":
        d = d * x.op("Sigmoid")
    if plan.affine == "joined" and plan.centred and flaw == "":
        factor = (inverse if inverse is not None else 1.0 / root) * scale
        return x * factor + (shift - m * factor)
    if plan.affine == "before":
        d = d * scale
    z = d / root if inverse is None else inverse * d
    if plan.affine in ("after", "joined"):
        return z * scale + shift
    if plan.affine == "swapped":
        return shift + scale * z
    if plan.affine == "scale":
        return z * scale
    return z + shift if plan.affine == "shift" else z


def unwrap(y, plan: Plan, order: list[int], rank: int):
    if plan.wrap == "turned":
        return y.transpose(*[order.index(axis) for axis in range(rank)])
    return y.op("Squeeze", np.array([rank])) if plan.wrap == "unsqueezed" else y


def batch(plan: Plan, size: int) -> torch.Tensor:
    rng = np.random.default_rng(plan.seed + size)
    spread = 10 ** rng.uniform(-3, 1, (size,) + (1,) * len(plan.shape))
    return torch.from_numpy(spread * (rng.standard_normal((size, *plan.shape)) + 0.5))


def run(model, x: torch.Tensor) -> torch.Tensor:
    return Evaluator(model).run({"x": x})["y0"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans())
def test_random_spelling_is_recognised(plan: Plan, sketch, reference):
    drawing = sketch()
    model = drawing.model(write(plan, drawing.input(("n", *plan.shape))))
    context = RewriteContext()
    RecogniseNorms(context)(model)
    kinds = [node.op_type for node in model.graph]
    note(f"{kinds} {[row.reason for row in context.ledger]}")
    if plan.outside and not plan.centred:
        # no operator has this form: the shortest there is
        assert kinds.count("ReduceMean") == kinds.count("Sqrt") == kinds.count("Div") == 1
    else:
        assert sum(kind in FULL for kind in kinds) == 1
        assert "Sqrt" not in kinds
    assert [row.action for row in context.ledger] == ["fused"]
    scale, shift = plan.constants()
    scale = scale if plan.affine not in ("none", "shift") else np.float32(1)
    shift = shift if plan.affine in ("after", "swapped", "shift", "joined") else np.float32(0)
    x = batch(plan, 3)
    expected = reference(
        x,
        plan.axes,
        epsilon=plan.epsilon,
        correction=plan.correction,
        centred=plan.centred,
        outside=plan.outside,
        scale=scale,
        shift=shift,
    )
    difference = float((run(model, x) - expected).abs().max())
    assert difference <= 1e-6 * (1 + float(expected.abs().max()))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(), flaw=st.sampled_from(FLAWS))
def test_one_flaw_and_it_stays_as_written(plan: Plan, flaw: str, sketch):
    if flaw == "mean" and not plan.centred:
        flaw = "exponent"
    drawing = sketch()
    model = drawing.model(write(plan, drawing.input(("n", *plan.shape)), flaw))
    before = model.clone()
    context = RewriteContext()
    RecogniseNorms(context)(model)
    kinds = [node.op_type for node in model.graph]
    note(f"{kinds} {[row.reason for row in context.ledger]}")
    assert all(row.action == "kept" for row in context.ledger)
    assert not set(FULL) & set(kinds)
    x = batch(plan, 3)
    torch.testing.assert_close(run(model, x), run(before, x), rtol=0, atol=0, equal_nan=True)
