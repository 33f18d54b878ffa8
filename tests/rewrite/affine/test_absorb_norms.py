"""Norms that compute statistics: scale and bias take a map behind them, epsilon a scale in front of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

settings.load_profile("affine")

KINDS = ["LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization"]


@st.composite
def norms(draw):
    """A norm of channels first [N, 6, spatial...], or of the last axes [N, 5, 4]."""
    kind = draw(st.sampled_from(KINDS))
    return {
        "kind": kind,
        "layer": kind in KINDS[:2],
        "rank": draw(st.integers(1, 3)),
        "axis": draw(st.sampled_from([-1, 2, -2])),
        "groups": draw(st.sampled_from([1, 2, 6])),
        "epsilon": draw(st.sampled_from([1e-5, 1e-3, 0.5])),
        "bias": draw(st.booleans()),
        "rng": np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
    }


def dims(case):
    return ["N", 5, 4] if case["layer"] else ["N", 6, *(3, 4, 2)[: case["rank"]]]


def parameters(case):
    """The shape of scale and bias."""
    if not case["layer"]:
        return (6,)
    return (5, 4) if case["axis"] == -2 else (4,)


def norm(g, x, case):
    rng, shape = case["rng"], parameters(case)
    attributes = {"epsilon": case["epsilon"]}
    operands = [rng.normal(size=shape)]
    if case["layer"]:
        attributes["axis"] = case["axis"]
        if case["bias"] and case["kind"] == "LayerNormalization":
            operands.append(rng.normal(size=shape))
    else:
        operands.append(rng.normal(size=shape))
    if case["kind"] == "GroupNormalization":
        attributes["num_groups"] = case["groups"]
    return g.known(g.op(case["kind"], x, *operands, name="norm", **attributes), *dims(case))


def turned(g, x, case):
    """A movement that keeps a map from being a part of the norm beside it; undone on the shape of the map."""
    rank = len(dims(case))
    return g.op("Transpose", x, perm=[0, *range(1, rank)[::-1]])


def varying(case, rng, *, of):
    """A constant that varies along the norm's parameters ("channel") or not at all, as it lies behind ``turned``."""
    rank = len(dims(case))
    if of == "nothing":
        return rng.normal(size=())
    shape = [4 if axis == rank - 1 else 1 for axis in range(1, rank)] if case["layer"] else [6, *[1] * (rank - 2)]
    return rng.normal(size=shape[::-1])


@given(norms(), st.sampled_from(["channel", "nothing"]), st.booleans())
def test_behind_a_norm(graph, fold, case, of, shift):
    """In float32, as the runtime's operators are; the check of each rewrite is the one in float64."""
    rng = case["rng"]
    shift = shift and case["kind"] != "RMSNormalization"
    g = graph(dtype=np.float32, opset=23)
    y = turned(g, norm(g, g.input("x", dims(case)), case), case)
    y = g.op("Mul", y, varying(case, rng, of=of))
    y = g.op("Add", y, varying(case, rng, of=of)) if shift else y
    g.output(y, None, ["N", *dims(case)[:0:-1]])
    result = fold(g).agree(g.feeds(rng, N=2), 5e-5)
    assert [row.action for row in result.ledger if row.kind == "affine map"] == ["folded"]
    assert result.ops["Mul"] + result.ops["Add"] == 0


@given(norms(), st.booleans())
def test_one_positive_scale_in_front_of_a_norm(graph, fold, case, shift):
    """n(s x + t; e) = n(x; e / s^2)."""
    rng = case["rng"]
    shift = shift and case["kind"] != "RMSNormalization"
    scale = np.float64(rng.uniform(0.2, 4))
    g = graph(dtype=np.float32, opset=23)
    x = g.op("Mul", g.input("x", ["N", *dims(case)[:0:-1]]), scale)
    x = g.op("Add", x, rng.normal()) if shift else x
    g.output(norm(g, turned(g, x, case), case), None, dims(case))
    result = fold(g).agree(g.feeds(rng, N=2), 5e-5)
    assert [row.action for row in result.ledger if row.kind == "affine map"] == ["folded"]
    assert result.ops["Mul"] + result.ops["Add"] == 0


@given(st.integers(1, 3), st.booleans(), st.sampled_from(["InstanceNormalization", "GroupNormalization"]),
       st.sampled_from([1, 2]), st.integers(0, 2**32 - 1))  # fmt: skip
def test_a_bias_in_front_of_a_norm_of_each_channel_is_dead(graph, fold, rank, transposed, kind, groups, seed):
    rng = np.random.default_rng(seed)
    g = graph(dtype=np.float32, opset=21)
    x = g.input("x", ["N", 4, *[5] * rank])
    weight = rng.normal(size=(4, 4 // groups, *[2] * rank))
    y = g.op("ConvTranspose" if transposed else "Conv", x, weight, rng.normal(size=4), group=groups)
    attributes = {"num_groups": 4} if kind == "GroupNormalization" else {}
    y = g.known(
        g.op(kind, y, rng.normal(size=4), rng.normal(size=4), **attributes), "N", 4, *[6 if transposed else 4] * rank
    )
    g.output(y, None, ["N", 4, *[6 if transposed else 4] * rank])
    result = fold(g).agree(g.feeds(rng, N=2), 5e-5)
    convolution = next(node for node in result.after.graph.node if node.op_type in ("Conv", "ConvTranspose"))
    assert len(convolution.input) == 2
