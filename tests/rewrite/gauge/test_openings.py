"""Exact openings: what algebra removes beyond the plain cases, each against the reference evaluator in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

settings.load_profile("affine")
SEED = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_native_group_norm_is_a_norm_like_any_other(graph, fold, groups, dynamic):
    """onnxruntime spells the operator out; as an InstanceNormalization its scale and bias go into the Conv."""
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=21)
    y = g.op("Mul", g.input("x", ["N", 4, "H" if dynamic else 6, 5]), np.float64(1.5))
    y = g.op("GroupNormalization", y, rng.normal(size=4), rng.normal(size=4), num_groups=groups, name="norm")
    y = g.known(y, "N", 4, "H" if dynamic else 6, 5)
    g.output(g.op("Conv", y, rng.normal(size=(3, 4, 1, 1))), None, ["N", 3, "H" if dynamic else 6, 5])
    result = fold(g).agree(g.feeds(rng, N=2, H=7), 5e-5)
    assert result.ops["InstanceNormalization"] + result.ops["LayerNormalization"] == result.ops["Conv"] == 1
    assert not result.ops.keys() & {"GroupNormalization", "Mul", "Add", "BatchNormalization"}


@pytest.mark.parametrize("sizes", [[6, 5], ["H", "W"]], ids=str)
def test_a_norm_far_behind_a_native_group_norm_whose_sizes_no_file_states(graph, fold, sizes):
    """onnx infers no sizes of its result, nor of all that follows."""
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=21)
    y = g.op("GroupNormalization", g.input("x", ["N", 4, *sizes]), rng.normal(size=4), rng.normal(size=4), num_groups=2)
    y = g.op("Conv", g.op("Sigmoid", y), rng.normal(size=(3, 4, 1, 1)))
    g.output(g.batch_norm(y, 3, rng), None, ["N", 3, *sizes])
    result = fold(g).agree(g.feeds(rng, N=2, H=7, W=4), 5e-5)
    assert [row.action for row in result.ledger if row.kind == "BatchNormalization"] == ["folded"]


@pytest.mark.parametrize("kind", ["Sub", "Concat", "Add"])
def test_two_inputs_that_carry_the_same_norm(graph, fold, kind):
    """Siamese networks: N(a) - N(b) = s (a - b); behind a Concat over a batch of any size the norm is one map."""
    rng = np.random.default_rng(0)
    g = graph()
    mean, deviation = rng.normal(size=(3, 1, 1)), rng.uniform(0.5, 2, (3, 1, 1))
    sides = [
        g.op("Div", g.op("Sub", g.input(name, [size, 3, 5, 5]), mean), deviation)
        for name, size in (("a", "N"), ("b", "M" if kind == "Concat" else "N"))
    ]
    y = g.op(kind, *sides, **({"axis": 0} if kind == "Concat" else {}))
    g.output(g.op("Conv", y, rng.normal(size=(4, 3, 3, 3)), rng.normal(size=4)))
    assert fold(g).folded(2).agree(g.feeds(rng, N=2, M=3)).ops == {kind: 1, "Conv": 1}


@pytest.mark.parametrize("scale", [0.125, -0.5])
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_number_passes_a_rotary_embedding_beside_a_prefix_token(graph, fold, scale, dynamic):
    """EVA-02: the class token is cut off, the others are turned in pairs by position, and joined again."""
    rng = np.random.default_rng(0)
    g = graph()
    tokens = "L" if dynamic else 5
    x = g.input("x", ["N", tokens, 4])
    cos = g.input("cos", ["M", 4]) if dynamic else g.constant(rng.normal(size=(4, 4)))
    sin = g.input("sin", ["M", 4]) if dynamic else g.constant(rng.normal(size=(4, 4)))
    q = g.op("Add", g.op("MatMul", x, rng.normal(size=(4, 4))), rng.normal(size=4))
    first = g.op("Slice", q, np.array([0]), np.array([1]), np.array([1]))
    rest = g.op("Slice", q, np.array([1]), np.array([2**31]), np.array([1]))
    pairs = g.op("Reshape", rest, np.array([0, -1, 2, 2]))
    odd, even = (g.op("Gather", pairs, np.array(at), axis=3) for at in (1, 0))
    turned = g.op("Concat", *(g.op("Unsqueeze", half, np.array([3])) for half in (g.op("Neg", odd), even)), axis=3)
    turned = g.op("Reshape", turned, np.array([0, -1, 4]))
    rest = g.op("Add", g.op("Mul", rest, cos), g.op("Mul", turned, sin))
    q = g.op("Mul", g.op("Concat", first, rest, axis=1), np.float64(scale), name="scale")
    g.output(g.op("Softmax", q))
    result = fold(g).agree(g.feeds(rng, N=2, L=5, M=4))
    assert [row.action for row in result.ledger if row.where == "scale"] == ["folded"], result.reasons


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("exchanged", [True, False])
def test_what_has_to_stay_stands_at_the_smallest_place(graph, fold, last, exchanged):
    """Global response norm, x + (gamma x n(x) + beta): gamma goes to the factor n, one number per channel."""
    rng = np.random.default_rng(0)
    g = graph()
    shape, axes = (["N", 6, 6, 3], [1, 2]) if last else (["N", 3, 6, 6], [2, 3])
    varies = (3,) if last else (3, 1, 1)
    x = g.op("Sigmoid", g.input("x", shape))
    factor = g.op("Sigmoid", g.op("ReduceMean", x, np.array(axes), keepdims=1))
    y = g.op("Mul", *((factor, x) if exchanged else (x, factor)), name="product")
    y = g.op("Mul", y, rng.uniform(0.5, 2, varies) * [-1, 1, 1] if last else rng.uniform(0.5, 2, varies), name="gamma")
    y = g.op("Add", x, g.op("Add", y, rng.normal(size=varies), name="beta"))
    g.output(g.op("MatMul", y, rng.normal(size=(3, 4))) if last else g.op("Conv", y, rng.normal(size=(4, 3, 1, 1))))
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    nodes = {node.output[0]: node for node in result.after.graph.node}
    product = next(node for node in nodes.values() if node.op_type == "Mul" and "product" in node.name)
    assert result.ops["Mul"] == 2
    assert "product" in result.ledger.rows[0].into  # the place is named by whose operand stands there
    scaled = nodes[product.input[0 if exchanged else 1]]
    assert scaled.op_type == "Mul"
    assert nodes[scaled.input[0]].op_type == "Sigmoid"


def test_no_place_is_made_where_all_maps_leave(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.input("x", ["N", 3, 6, 6])
    gate = g.op("Sigmoid", g.op("GlobalAveragePool", x))
    x = g.op("Conv", x, rng.normal(size=(3, 3, 1, 1)))
    g.output(g.op("Relu", g.op("Mul", g.op("Mul", x, gate), rng.uniform(0.5, 2, (3, 1, 1)))))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops["Mul"] == 1


def attention(g, rng, x, values, heads=2, width=4, tokens=5):
    """Return what attention of some heads makes of values; q and k are projections of x."""

    def split(value, perm):
        return g.op("Transpose", g.op("Reshape", value, np.array([0, tokens, heads, width // heads])), perm=perm)

    q, k = (g.op("Add", g.op("MatMul", x, rng.normal(size=(width, width))), rng.normal(size=width)) for _ in range(2))
    weights = g.op("Softmax", g.op("MatMul", split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1])), axis=-1)
    y = g.op("Transpose", g.op("MatMul", weights, split(values, [0, 2, 1, 3]), name="average"), perm=[0, 2, 1, 3])
    return g.op("Reshape", y, np.array([0, tokens, width]))


@pytest.mark.parametrize("behind", [True, False])
def test_a_shift_passes_the_average_of_values(graph, fold, behind):
    """Rows of weights sum to one: P (V + t) = P V + t. In front of attention or behind it, a norm leaves."""
    rng = np.random.default_rng(0)
    g = graph()
    x = g.input("x", ["N", 5, 4])

    def norm(value):
        return g.op("Add", g.op("Mul", value, rng.uniform(0.5, 2, 4), name="norm"), rng.normal(size=4))

    if behind:
        values = g.op("Add", g.op("MatMul", x, rng.normal(size=(4, 4))), rng.normal(size=4))
        y = g.op("Sigmoid", norm(attention(g, rng, x, values)))
    else:
        values = g.op("Sigmoid", x)
        y = g.op("Add", g.op("MatMul", attention(g, rng, x, norm(values)), rng.normal(size=(4, 4))), rng.normal(size=4))
    g.output(y)
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert result.ops["Mul"] == 0
    assert result.ops["Add"] == 3


POOLED = {
    "Mul and ReduceSum": lambda g, scores, y: summed(g, g.op("Softmax", scores, axis=1), y, 1),
    "turned": lambda g, scores, y: summed(g, y, g.op("Softmax", scores, axis=1), 1),
    "with axes kept": lambda g, scores, y: g.op(
        "Squeeze", summed(g, g.op("Softmax", scores, axis=-2), y, -2, keepdims=1), np.array([1])
    ),
    "of rows": lambda g, scores, y: summed(
        g, g.op("Unsqueeze", g.op("Softmax", g.op("Squeeze", scores, np.array([2])), axis=-1), np.array([-1])), y, 1
    ),
    "of columns, turned": lambda g, scores, y: g.op(
        "Squeeze",
        g.op("MatMul", g.op("Transpose", g.op("Softmax", scores, axis=1), perm=[0, 2, 1]), y, name="average"),
        np.array([1]),
    ),
    "by columns": lambda g, scores, y: g.op(
        "Squeeze",
        g.op("MatMul", g.op("Transpose", y, perm=[0, 2, 1]), g.op("Softmax", scores, axis=1), name="average"),
        np.array([2]),
    ),
}


def summed(g, one, other, axis, keepdims=0):
    return g.op("ReduceSum", g.op("Mul", one, other, name="average"), np.array([axis]), keepdims=keepdims)


@pytest.mark.parametrize("form", POOLED)
@pytest.mark.parametrize("tokens", [5, "T"])
def test_a_norm_passes_attentive_pooling(graph, fold, form, tokens):
    """Weights of sum one, however they were turned and viewed since; the norm stands behind what no weight takes."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Sigmoid", g.input("x", ["N", tokens, 4]))
    y = g.op("Add", g.op("Mul", y, rng.uniform(0.5, 2, 4), name="norm"), rng.normal(size=4))
    y = POOLED[form](g, g.input("scores", ["N", tokens, 1]), y)
    g.output(g.op("Add", g.op("MatMul", y, rng.normal(size=(4, 2))), rng.normal(size=2)))
    feeds = g.feeds(rng, N=2, **({} if tokens == 5 else {"T": 3}))
    fold(g).folded().agree(feeds)


def test_a_norm_in_front_of_the_scores_and_of_what_they_weigh_leaves(graph, fold):
    """Attentive pooling as it is written: the scores are a layer's, of what they weigh."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Sigmoid", g.input("x", ["N", "T", 4]))
    y = g.op("Add", g.op("Mul", y, rng.uniform(0.5, 2, 4), name="norm"), rng.normal(size=4))
    scores = g.op("Add", g.op("MatMul", y, rng.normal(size=(4, 1))), rng.normal(size=1))
    y = summed(g, y, g.op("Softmax", scores, axis=1), 1)
    g.output(g.op("Add", g.op("MatMul", y, rng.normal(size=(4, 2))), rng.normal(size=2)))
    result = fold(g).folded().agree(g.feeds(rng, N=2, T=3))
    assert result.ops == {"Sigmoid": 1, "MatMul": 2, "Add": 2, "Softmax": 1, "Mul": 1, "ReduceSum": 1}


@pytest.mark.parametrize(
    ("softmax", "axes", "scores"),
    [
        (2, [1], ["N", 5, 4]),  # they sum to one along another axis
        (1, [2], ["N", 5, 4]),
        (1, [1, 2], ["N", 5, 4]),  # and over one more
        (1, [1], ["N", 1, 4]),  # repeated along the axis
    ],
)
def test_sums_that_are_no_average_pass_no_shift(graph, fold, softmax, axes, scores):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Add", g.op("Sigmoid", g.input("x", ["N", 5, 4])), rng.normal(size=4))
    weights = g.op("Softmax", g.input("scores", scores), axis=softmax)
    y = g.op("ReduceSum", g.op("Mul", weights, y, name="product"), np.array(axes), keepdims=1)
    g.output(g.op("Sigmoid", y))
    fold(g).agree(g.feeds(rng, N=2)).kept("Mul 'product' multiplies two values, which leaves no place for a shift")


def test_a_product_that_others_read_is_no_part_of_an_average(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Add", g.op("Sigmoid", g.input("x", ["N", 5, 4])), rng.normal(size=4))
    product = g.op("Mul", g.op("Softmax", g.input("scores", ["N", 5, 1]), axis=1), y, name="product")
    g.output(g.op("ReduceSum", product, np.array([1])))
    g.output(g.op("Sigmoid", product))
    fold(g).agree(g.feeds(rng, N=2)).kept("Mul 'product' multiplies two values, which leaves no place for a shift")


def test_a_shift_that_differs_from_key_to_key_does_not_pass_the_average(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    weights = g.op("Softmax", g.input("scores", ["N", 3, 5]), axis=-1)
    y = g.op("Div", g.op("Sub", g.op("Sigmoid", g.input("x", ["N", 5, 4])), rng.normal(size=(5, 1))), np.float64(2.0))
    g.output(g.op("MatMul", g.op("MatMul", weights, y, name="average"), rng.normal(size=(4, 2))))
    fold(g).agree(g.feeds(rng, N=2)).kept("MatMul 'average' averages over the axis along which it varies")


@pytest.mark.parametrize("axis", [1, 2])
def test_weights_that_do_not_sum_to_one_pass_no_shift(graph, fold, axis):
    rng = np.random.default_rng(0)
    g = graph()
    weights = g.op("Softmax", g.input("scores", ["N", 3, 5]), axis=axis)
    y = g.op("Add", g.op("Sigmoid", g.input("x", ["N", 5, 4])), rng.normal(size=4))
    g.output(g.op("MatMul", g.op("MatMul", weights, y, name="average"), rng.normal(size=(4, 2))))
    result = fold(g).agree(g.feeds(rng, N=2))
    if axis == 2:
        result.folded()
    else:
        result.kept("MatMul 'average' multiplies, which leaves no place for a shift")


@pytest.mark.parametrize(
    ("equation", "axis", "passes"),
    [
        ("nij,njc->nic", -1, True), ("nij,njc->nci", 2, True), ("nij,njc->nic", 1, False),
        ("nji,njc->nic", -1, False), ("nji,njc->nic", 1, True), ("nij,njc->nc", -1, False),
        ("...ij,...jc->...ic", -1, True), ("...ij,...jc->...ic", 1, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_a_shift_passes_an_einsum_that_averages_by_rows_of_sum_one(graph, fold, equation, axis, passes, turned):
    rng = np.random.default_rng(0)
    g = graph()
    weights = g.op("Softmax", g.input("scores", ["N", 5, 5]), axis=axis)
    y = g.op("Add", g.op("Sigmoid", g.input("x", ["N", 5, 4])), rng.normal(size=4))
    read = (y, weights) if turned else (weights, y)
    terms, _, written = equation.partition("->")
    if turned:
        equation = "->".join([",".join(terms.split(",")[::-1]), written])
    y = g.op("Einsum", *read, equation=equation, name="average")
    y = g.op("Transpose", y, perm=[0, 2, 1]) if written == "nci" else y
    g.output(g.op("Add", g.op("MatMul", y, rng.normal(size=(4, 2))), rng.normal(size=2)))
    result = fold(g).agree(g.feeds(rng, N=2))
    if passes:
        result.folded()
    else:
        result.kept("Einsum 'average' multiplies, which leaves no place for a shift")


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("around", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("shifted", [True, False])
def test_a_norm_passes_a_sampling_at_computed_places(graph, fold, mode, around, shifted):
    """Weights of the places sum to one, but where some of them are zeros: a shift stays in front of these."""
    rng = np.random.default_rng(0)
    g = graph(opset=20)
    y = g.op("Mul", g.input("x", ["N", 3, 5, 6]), rng.uniform(0.5, 2, (3, 1, 1)))
    y = g.op("Add", y, rng.normal(size=(3, 1, 1))) if shifted else y
    y = g.op(
        "GridSample",
        y,
        g.input("places", ["N", 4, 4, 2]),
        mode=mode,
        padding_mode=around,
        align_corners=1,
        name="sample",
    )
    g.output(g.op("Conv", y, rng.normal(size=(4, 3, 2, 2)), rng.normal(size=4)))
    result = fold(g).agree(g.feeds(rng, N=2), 1e-5)  # the reference has its weights in float32
    if shifted and around == "zeros":
        result.kept("GridSample 'sample' takes zeros for what is outside, which a shift would change")
    else:
        assert result.ops == {"GridSample": 1, "Conv": 1}


def times_itself(g, y, kind):
    """Return a value in which y comes by powers alone: s_result = s^2, s^3, or s_a^2 s_b^3."""
    if kind == "square":
        return g.op("Mul", y, y)
    if kind == "cube":
        return g.op("Mul", y, g.op("Mul", y, y))
    if kind == "gram":
        return g.op("MatMul", y, g.op("Transpose", y, perm=[0, 1, 3, 2]))
    if kind == "sum of squares":
        other = g.op("Conv", y, np.full((4, 4, 1, 1), 0.25))
        return g.op("Add", g.op("Mul", y, y), g.op("Mul", other, other))
    other = g.op("Conv", y, np.full((4, 4, 1, 1), 0.25))  # "square by cube"
    return g.op("Mul", g.op("Mul", y, y), g.op("Mul", other, g.op("Mul", other, other)))


@pytest.mark.parametrize("kind", ["square", "cube", "gram", "sum of squares", "square by cube"])
@pytest.mark.parametrize("behind", [False, True])
def test_what_is_multiplied_with_itself_has_a_gauge(graph, fold, kind, behind):
    """In front of an operator that sees every scale, s^2 = 1 says s = 1; it contradicts nothing, and the map goes."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Conv", g.input("x", ["N", 3, 5, 5]), rng.normal(size=(4, 3, 1, 1)))
    y = times_itself(g, g.op("Mul", y, rng.uniform(0.5, 2, (4, 1, 1))), kind)
    y = g.op("Mul", y, np.float64(4.0)) if behind else y
    g.output(g.op("Sigmoid", y))
    result = fold(g).agree(g.feeds(rng, N=2))
    if kind != "square by cube" or not behind:  # its powers share no root: the map behind it stays
        result.folded(1 + behind)


def test_a_square_is_never_negative(graph, fold):
    """-y^2 is no square of anything: the scale in front of the Sigmoid stays, and says so."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Conv", g.input("x", ["N", 3, 5, 5]), rng.normal(size=(4, 3, 1, 1)))
    g.output(g.op("Sigmoid", g.op("Mul", g.op("Mul", y, y), np.float64(-4.0))))
    fold(g).agree(g.feeds(rng, N=2)).kept("Sigmoid")


@pytest.mark.parametrize("constant", [False, True])
def test_the_scale_of_scores_that_are_picked_by_distance_passes(graph, fold, constant):
    """DeBERTa: scores of positions are gathered element by element; one number passes, whatever is picked."""
    rng = np.random.default_rng(0)
    g = graph()
    at = g.constant(rng.integers(0, 7, (2, 5, 5))) if constant else g.input("at", [2, 5, 5], np.int64)
    x = g.input("x", [2, 5, 4])
    q, k = (g.op("MatMul", x, rng.normal(size=(4, 4))) for _ in range(2))
    content = g.op("Div", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1])), np.float64(3))
    by_position = g.op("GatherElements", g.op("MatMul", q, rng.normal(size=(4, 7))), at, axis=2)
    g.output(g.op("Softmax", g.op("Add", content, g.op("Div", by_position, np.float64(3)))))
    feeds = g.feeds(rng)
    if not constant:
        feeds["at"] = rng.integers(0, 7, (2, 5, 5))
    assert "Div" not in fold(g).folded(2).agree(feeds).ops


@pytest.mark.parametrize(
    "equation", ["bhlk,bhtk->bhlt", "blhk,bthk->bhlt", "bhlk,bthk->blht", "...lk,...tk", "...lk,...tk->...lt"]
)
@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
@given(seed=SEED)
def test_a_scale_passes_an_einsum_of_computed_values(graph, fold, equation, behind, dynamic, seed):
    """CvT: scores of attention by Einsum, whose scale goes into a projection."""
    rng = np.random.default_rng(seed)
    g = graph()
    sizes = {"b": "N", "h": 2, "l": "L" if dynamic else 5, "t": "T" if dynamic else 4, "k": 6}
    left, right = equation.replace("...", "bh").split("->")[0].split(",")
    sides = []
    for name, term in (("q", left), ("k", right)):
        value = g.op("MatMul", g.input(name, [sizes[label] for label in term]), rng.normal(size=(6, 6)))
        sides.append(value if behind else g.op("Mul", value, rng.uniform(0.5, 2, 6), name=f"scale_{name}"))
    y = g.op("Einsum", *sides, equation=equation)
    g.output(g.op("Softmax", g.op("Mul", y, np.float64(0.35), name="scale") if behind else y))
    result = fold(g).folded(*([] if behind else [2])).agree(g.feeds(rng, N=2, L=5, T=4))
    assert result.ops == {"MatMul": 2, "Einsum": 1, "Softmax": 1}


def test_a_shift_does_not_pass_an_einsum_of_computed_values(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    q = g.op("Add", g.input("q", ["N", 5, 6]), rng.normal(size=6), name="shift")
    g.output(g.op("Einsum", q, g.input("k", ["N", 4, 6]), equation="blk,btk->blt", name="scores"))
    fold(g).kept("Einsum 'scores' multiplies, which leaves no place for a shift").agree(g.feeds(rng, N=2))


@pytest.mark.parametrize("axis", [1, 2])
def test_elements_at_places_of_another_size(graph, fold, axis):
    """What a GatherElements reads and where it reads are called otherwise along each axis, as DeBERTa's scores are."""
    rng = np.random.default_rng(0)
    g = graph()
    x, at = g.input("x", ["N", 5, 6]), g.input("at", ["M", "L", 4] if axis == 1 else ["M", 5, "L"], np.int64)
    read = g.op("GatherElements", g.op("MatMul", x, rng.normal(size=(6, 4))), at, axis=axis)
    g.output(g.op("Mul", read, np.float64(-0.3)))
    feeds = g.feeds(rng, N=2, M=2, L=7)
    assert fold(g).folded().agree(feeds).ops == {"MatMul": 1, "GatherElements": 1}


@pytest.mark.parametrize(("axis", "chosen"), [(1, 3), (1, 2), (2, 3)])
def test_channels_pass_what_is_gathered_along_another_axis(graph, fold, axis, chosen):
    """Places are chosen along one axis: along another each position is its own."""
    rng = np.random.default_rng(0)
    g = graph()
    x, at = g.input("x", ["N", 3, 5]), g.input("at", ["N", chosen, 5], np.int64)
    y = g.op("Mul", g.op("Conv", x, rng.normal(size=(3, 3, 1))), rng.uniform(0.5, 2, (3, 1)), name="channels")
    g.output(g.op("GatherElements", y, at, axis=axis, name="gather"))
    feeds = {**g.feeds(rng, N=2), "at": rng.integers(0, 3, (2, chosen, 5))}
    result = fold(g).agree(feeds)
    assert result.folded().ops == {"Conv": 1, "GatherElements": 1}
    g = graph()
    x, at = g.input("x", ["N", 3, 5]), g.input("at", ["N", chosen, 5], np.int64)
    read = g.op("GatherElements", g.op("Mul", x, rng.uniform(0.5, 2, (3, 1)), name="channels"), at, axis=axis, name="g")
    g.output(g.op("Conv", read, rng.normal(size=(3, chosen, 1))))
    result = fold(g).agree({**g.feeds(rng, N=2), "at": feeds["at"]})
    if axis == 2:
        assert result.folded().ops == {"GatherElements": 1, "Conv": 1}
    else:
        result.kept("GatherElements 'g' moves along the axis where it varies, by what is known at run time only")


@pytest.mark.parametrize(("kind", "groups"), [("Conv", 1), ("Conv", 2), ("ConvTranspose", 1), ("ConvTranspose", 2)])
def test_channels_of_unknown_number_are_as_many_as_the_weight_reads(graph, fold, kind, groups):
    """FasterNet from a file without sizes: what a Concat makes of parts has channels of unknown number."""
    rng = np.random.default_rng(0)
    g = graph()
    weight = rng.normal(size=(8, 6 // groups, 3) if kind == "Conv" else (6, 8 // groups, 3))
    y = g.op(kind, g.input("x", ["N", "C", 7]), weight, group=groups)
    g.output(g.batch_norm(y, 8, rng))
    assert fold(g).folded().agree(g.feeds(rng, N=2, C=6)).ops == {kind: 1}
