"""Gemm, MatMul, embedding tables and statistics-computing norms take affine maps over."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

settings.load_profile("affine")

SEED = st.integers(0, 2**32 - 1)
BOOL = st.booleans()
DTYPES = st.sampled_from([np.float64, np.float32, np.float16])
ADDENDS = {
    "absent": None, "empty name": None, "scalar": (), "one": (1,), "vector": (5,), "one row": (1, 5),
    "one column": (4, 1), "one of rank 2": (1, 1), "full": (4, 5),
}  # fmt: skip


@st.composite
def gemms(draw):
    """Attributes, operand orientations and the shape of C."""
    return {
        "transA": int(draw(BOOL)),
        "transB": int(draw(BOOL)),
        "alpha": draw(st.sampled_from([1.0, 0.5, -2.0])),
        "beta": draw(st.sampled_from([1.0, 0.25, 0.0, -3.0])),
        "addend": draw(st.sampled_from(sorted(ADDENDS))),
        "dtype": draw(DTYPES),
        "rng": np.random.default_rng(draw(SEED)),
    }


def gemm(g, a, case, *, rows=4, weight=None):
    """Y [4, 5] = A' [4, 3] B' [3, 5]; ``a`` is already oriented by transA."""
    rng, shape = case["rng"], ADDENDS[case["addend"]]
    weight = rng.normal(size=(5, 3) if case["transB"] else (3, 5)) if weight is None else weight
    operands = [weight] if shape is None else [weight, rng.normal(size=shape)]
    if case["addend"] == "empty name":
        operands.append(None)
    names = ("transA", "transB", "alpha", "beta")
    return g.op("Gemm", a, *operands, name="gemm", **{name: case[name] for name in names})


@given(gemms(), BOOL)
def test_behind_a_gemm(graph, fold, case, scalar):
    g = graph(dtype=case["dtype"])
    y = gemm(g, g.input("x", [3, 4] if case["transA"] else [4, 3]), case)
    if scalar:
        y = g.op("Sub", g.op("Div", y, case["rng"].uniform(0.5, 2)), case["rng"].normal())
    else:
        y = g.batch_norm(y, 5, case["rng"])
    g.output(y)
    assert fold(g).folded().agree_exactly(g.feeds(case["rng"])).ops == {"Gemm": 1}


@given(gemms(), BOOL)
def test_in_front_of_a_gemm(graph, fold, case, scalar):
    g = graph(dtype=case["dtype"])
    rng = case["rng"]
    shape = () if scalar else (3, 1) if case["transA"] else (1, 3)
    x = g.input("x", [3, 4] if case["transA"] else [4, 3])
    x = g.op("Add", g.op("Mul", x, rng.normal(size=shape)), rng.normal(size=shape))
    g.output(gemm(g, x, case))
    assert fold(g).folded().agree_exactly(g.feeds(rng)).ops == {"Gemm": 1}


@given(gemms(), BOOL, BOOL)
def test_rows_of_a_gemm_go_into_a_constant_a(graph, fold, case, in_front, with_shift):
    """B is computed and A a constant: the same algebra with the operands' parts changed."""
    rng, shape = case["rng"], ADDENDS[case["addend"]]
    g = graph(dtype=case["dtype"])
    x = g.input("x", [5, 3] if case["transB"] else [3, 5])
    along_k = (1, 3) if case["transB"] else (3, 1)

    def mapped(value, shape):
        value = g.op("Mul", value, rng.normal(size=shape))
        return g.op("Add", value, rng.normal(size=shape)) if with_shift else value

    if in_front:
        x = mapped(x, along_k)
    a = rng.normal(size=(3, 4) if case["transA"] else (4, 3))
    operands = [] if shape is None else [rng.normal(size=shape)]
    y = g.op("Gemm", a, x, *operands, **{name: case[name] for name in ("transA", "transB", "alpha", "beta")})
    if not in_front:
        y = mapped(y, (4, 1))
    g.output(y)
    assert fold(g).folded().agree_exactly(g.feeds(rng)).ops == {"Gemm": 1}


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm"])
def test_a_scale_in_front_leaves_a_computed_bias_alone(graph, fold, kind):
    rng = np.random.default_rng(0)
    for shift, action in ((False, "folded"), (True, "kept")):
        g = graph()
        shape = (3,) if kind == "Gemm" else (3, 1)
        x = g.op("Mul", g.input("x", ["N", 3] if kind == "Gemm" else ["N", 3, 4]), rng.normal(size=shape))
        x = g.op("Add", x, rng.normal(size=shape)) if shift else x
        weight = rng.normal(size=(3, 3) if kind == "Gemm" else (3, 3, 1))
        g.output(g.op(kind, x, weight, g.input("b", [3]), name="linear"))
        result = fold(g).agree(g.feeds(rng, N=2))
        assert result.actions == [action]
        if shift:
            called = "an addend" if kind == "Gemm" else "a bias"
            result.kept("its shift cannot leave", f"{kind} 'linear' has {called} that is computed at run time")


def test_gemm_refusals(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Gemm", g.input("x", [4, 3]), g.input("w", [3, 5]), name="gemm")
    g.output(g.op("Mul", y, rng.normal(size=5)))
    fold(g).kept("Gemm 'gemm' has a weight that is computed at run time").agree(g.feeds(rng))
    g = graph()
    y = g.op("Gemm", g.input("x", [4, 3]), rng.normal(size=(3, 5)), g.input("c", [5]), name="gemm")
    g.output(g.op("Mul", y, rng.normal(size=5)))
    fold(g).kept("Gemm 'gemm' has an addend that is computed at run time").agree(g.feeds(rng))
    g = graph()
    x = g.op("Mul", g.input("x", [4, 3]), rng.normal(size=(4, 1)))
    g.output(g.op("Gemm", x, rng.normal(size=(3, 5)), name="gemm"))
    fold(g).kept("Gemm 'gemm' sums over one axis and passes the others on").agree(g.feeds(rng))
    g = graph()
    x = g.op("Mul", g.input("x", [4, 3]), rng.normal(size=(3,)))
    g.output(g.op("Gemm", g.input("a", [4, 2]), rng.normal(size=(2, 3)), x, name="gemm"))
    fold(g).kept("Gemm 'gemm' has an addend that is computed at run time").agree(g.feeds(rng))


@st.composite
def products(draw):
    """Batch shapes of a constant and a computed operand, and on which side the constant stands."""
    rank = draw(st.integers(0, 2))
    batch = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    own = draw(st.integers(0, rank))
    constant_batch = tuple(1 if draw(BOOL) else size for size in batch[rank - own :])
    return {
        "batch": batch,
        "constant_batch": constant_batch,
        "left": draw(BOOL),
        "bias": draw(BOOL),
        "shift": draw(BOOL),
        "swapped": draw(BOOL),
        "dtype": draw(DTYPES),
        "rng": np.random.default_rng(draw(SEED)),
    }


def product(g, x, case):
    """[.., 4, 3] @ [.., 3, 5]; the last axis of the features is 5 behind a right constant, -2 behind a left one."""
    rng = case["rng"]
    if case["left"]:
        return g.op("MatMul", rng.normal(size=(*case["constant_batch"], 4, 3)), x)
    y = g.op("MatMul", x, rng.normal(size=(*case["constant_batch"], 3, 5)))
    if not case["bias"]:
        return y
    bias = rng.normal(size=5)
    return g.op("Add", *((bias, y) if case["swapped"] else (y, bias)))


def operand(g, case):
    return g.input("x", [*case["batch"], *((3, 5) if case["left"] else (4, 3))])


@given(products())
def test_behind_a_matmul(graph, fold, case):
    g = graph(dtype=case["dtype"])
    y = product(g, operand(g, case), case)
    shape = (4, 1) if case["left"] else (5,)
    y = g.op("Mul", y, case["rng"].normal(size=shape))
    if case["shift"]:
        y = g.op("Add", y, case["rng"].normal(size=shape))
    g.output(y)
    result = fold(g).folded().agree_exactly(g.feeds(case["rng"]))
    added = case["shift"] or (case["bias"] and not case["left"])
    assert result.ops == ({"MatMul": 1, "Add": 1} if added else {"MatMul": 1})


@given(products())
def test_in_front_of_a_matmul(graph, fold, case):
    g = graph(dtype=case["dtype"])
    shape = (3, 1) if case["left"] else (3,)
    x = g.op("Mul", operand(g, case), case["rng"].normal(size=shape))
    if case["shift"]:
        x = g.op("Add", x, case["rng"].normal(size=shape))
    g.output(product(g, x, case))
    result = fold(g).folded().agree_exactly(g.feeds(case["rng"]))
    added = case["shift"] or (case["bias"] and not case["left"])
    assert result.ops == ({"MatMul": 1, "Add": 1} if added else {"MatMul": 1})


@given(products(), BOOL, st.integers(0, 3))
def test_a_map_along_any_axis_beside_a_matmul(graph, fold, case, behind, position):
    """Rows, columns, batches: what the constant has along that axis takes it, else it stays; never a wrong one."""
    g = graph(dtype=case["dtype"])
    rng, sizes = case["rng"], [*case["batch"], *((4, 5) if behind else (3, 5) if case["left"] else (4, 3))]
    axis = position % len(sizes)
    shape = [1] * len(sizes)
    shape[axis] = sizes[axis]

    def mapped(value):
        value = g.op("Mul", value, rng.normal(size=shape))
        return g.op("Add", value, rng.normal(size=shape)) if case["shift"] else value

    x = operand(g, case)
    y = mapped(product(g, x, case)) if behind else product(g, mapped(x), case)
    g.output(y)
    result = fold(g).agree_exactly(g.feeds(rng))
    assert len(result.ledger) == 1
    own = len(sizes) - 2 - len(case["constant_batch"])
    taken = len(sizes) - 2 if case["left"] else len(sizes) - 1
    in_batch = behind and own <= axis < len(sizes) - 2 and case["constant_batch"][axis - own] == sizes[axis]
    if axis == taken or in_batch or sizes[axis] == 1:
        result.folded()


@given(SEED)
def test_a_scale_of_attention_scores_goes_into_the_query_projection(graph, fold, seed):
    rng = np.random.default_rng(seed)
    g = graph()
    x = g.input("x", ["N", 5, 4])
    query, key = g.op("MatMul", x, rng.normal(size=(4, 6))), g.op("MatMul", x, rng.normal(size=(4, 6)))
    scores = g.op("MatMul", query, g.op("Transpose", key, perm=[0, 2, 1]))
    g.output(g.op("Softmax", g.op("Div", scores, np.float64(rng.uniform(1, 3)))))
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert result.ops == {"MatMul": 3, "Transpose": 1, "Softmax": 1}


@pytest.mark.parametrize("cosine", [True, False])
def test_a_temperature_of_each_head(graph, fold, cosine):
    """It goes into the queries' weights; where queries are divided by their length, every scale of theirs cancels."""
    rng = np.random.default_rng(0)
    heads, width = 3, 4
    g = graph()
    x = g.input("x", ["N", 5, 6])

    def turned(weight, perm):
        y = g.op("Reshape", g.op("MatMul", x, weight), np.array([0, 5, heads, width]))
        return g.op("Transpose", y, perm=perm)

    q, k, v = (turned(rng.normal(size=(6, heads * width)), perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    if cosine:
        q = g.op("Div", q, g.op("Clip", g.op("ReduceL2", q, np.array([-1])), 1e-6), name="cosine")
        k = g.op("Div", k, g.op("Clip", g.op("ReduceL2", k, np.array([-2])), 1e-6), name="cosine of k")
    a = g.op("Softmax", g.op("Mul", g.op("MatMul", q, k), rng.uniform(0.5, 2, size=(heads, 1, 1))), name="attention")
    g.output(g.op("MatMul", a, v))
    result = fold(g).agree(g.feeds(rng, N=2))
    if cosine:
        result.kept("behind it Softmax 'attention' sees every scale", "Div 'cosine' divides by what has the same scale")
        assert "sums over" not in result.reasons
    else:
        assert result.actions == ["folded"]
        assert "Mul" not in result.ops


def test_matmul_refusals(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Add", g.input("x", ["N", 4, 3]), rng.normal(size=3))
    g.output(g.op("MatMul", x, g.input("y", ["N", 3, 2]), name="product"))
    fold(g).kept("MatMul 'product' multiplies, which leaves no place for a shift").agree(g.feeds(rng, N=2))
    g = graph()
    x = g.op("Mul", g.input("x", ["N", 4, 3]), rng.normal(size=3))
    g.output(g.op("MatMul", x, g.input("y", ["N", 3, 2]), name="product"))
    fold(g).kept("MatMul 'product' sums over the axis along which it varies, with a value computed").agree(
        g.feeds(rng, N=2)
    )
    g = graph()
    y = g.op("MatMul", g.op("Add", g.input("x", ["N", 4, 3]), rng.normal(size=3)), rng.normal(size=3), name="product")
    g.output(y)
    result = fold(g).kept("the graph output").agree(g.feeds(rng, N=2))
    assert "leaves no place" not in result.reasons
    g = graph()
    y = g.op("MatMul", rng.normal(size=4), g.input("x", ["N", 4, 3]), name="product")
    g.output(g.op("Mul", y, rng.normal(size=3)))
    fold(g).kept("the graph input 'x' is given").agree(g.feeds(rng, N=2))


@given(SEED, st.booleans())
def test_a_vector_takes_a_scale(graph, fold, seed, behind):
    rng = np.random.default_rng(seed)
    g, w, s = graph(), rng.normal(size=3), rng.normal(size=3)
    x = g.input("x", ["N", 4, 3])
    if behind:
        g.output(g.op("Mul", g.op("MatMul", x, w), rng.normal(size=1)))
    else:
        g.output(g.op("MatMul", g.op("Mul", x, s), w))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"MatMul": 1}


@given(SEED, st.booleans(), st.booleans())
def test_the_shift_in_front_of_a_vector_goes_on_behind_it(graph, fold, seed, left, along):
    """sum_k (x_k + t_k) v_k = sum_k x_k v_k + sum_k t_k v_k, which the next bias takes."""
    rng = np.random.default_rng(seed)
    g, v = graph(), rng.normal(size=4 if left else 3)
    shape = (4, 1) if left == along else (3,)
    x = g.op("Add", g.op("Mul", g.input("x", ["N", 4, 3]), rng.normal(size=1)), rng.normal(size=shape))
    y = g.op("MatMul", v, x) if left else g.op("MatMul", x, v)
    g.output(g.op("Gemm", y, rng.normal(size=(3 if left else 4, 2)), rng.normal(size=2)))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"MatMul": 1, "Gemm": 1}


@given(SEED, st.sampled_from([0, 1, -1]), DTYPES)
def test_behind_an_embedding(graph, fold, seed, axis, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    ids = g.input("ids", ["N", 2], np.int64)
    y = g.op("Gather", rng.normal(size=(4, 4)), ids, axis=axis)
    shape = (4,) if axis == 0 else (4, 1, 1)
    g.output(g.op("Add", g.op("Mul", y, rng.normal(size=shape)), rng.normal(size=shape)))
    assert fold(g).folded().agree_exactly(g.feeds(rng, N=3)).ops == {"Gather": 1}


def test_a_large_table_that_a_head_shares_is_not_copied_for_a_small_pass(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    g.constant(rng.normal(size=(500, 4)), name="table")
    x = g.op("Mul", g.op("Gather", "table", g.input("ids", [2], np.int64)), rng.normal(size=4))
    g.output(g.op("Gemm", g.op("Sigmoid", x), "table", transB=1))
    result = fold(g).agree(g.feeds(rng))
    assert result.actions == ["kept"]
    assert result.weight("table").shape == (500, 4)


def test_a_shared_weight_is_copied_where_the_pass_is_dearer(graph, fold):
    """One convolution used twice with different BatchNorms."""
    rng = np.random.default_rng(0)
    g = graph()
    g.constant(rng.normal(size=(4, 4, 3, 3)), name="w")
    for index in range(2):
        x = g.input(f"x{index}", ["N", 4, 16, 16])
        g.output(g.batch_norm(g.op("Conv", x, "w", pads=[1] * 4), 4, rng))
    result = fold(g).folded(2).agree(g.feeds(rng, N=2))
    assert result.ops == {"Conv": 2}
    assert len({node.input[1] for node in result.after.graph.node}) == 2


NORMS = {
    "LayerNormalization": {"axis": -1},
    "InstanceNormalization": {},
    "RMSNormalization": {"axis": -1},
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", NORMS)
def test_behind_a_norm(graph, fold, kind, bias):
    """The Transpose keeps the map from being recognised as part of the norm itself."""
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=23)  # in float64 an InstanceNormalization is lowered to what has a kernel
    layer = kind != "InstanceNormalization"
    operands = [rng.normal(size=4)]
    if not layer or (bias and kind == "LayerNormalization"):
        operands.append(rng.normal(size=4))
    y = g.op(kind, g.input("x", ["N", 3, 4] if layer else ["N", 4, 3]), *operands, **NORMS[kind])
    y = g.op("Transpose", y, perm=[0, 2, 1])
    shape = (4, 1) if layer else (4,)
    y = g.op("Mul", y, rng.normal(size=shape))
    if kind != "RMSNormalization":
        y = g.op("Add", y, rng.normal(size=shape))
    g.output(y)
    result = fold(g).agree(g.feeds(rng, N=2), 2e-5)
    assert result.ops == {kind: 1, "Transpose": 1}
    assert [row.action for row in result.ledger if row.kind == "affine map"] == ["folded"]


def test_a_shift_behind_rms_norm_is_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(opset=23)
    y = g.op("RMSNormalization", g.input("x", ["N", 3, 4]), rng.normal(size=4), axis=-1, name="rms")
    g.output(g.op("Add", g.op("Transpose", y, perm=[0, 2, 1]), rng.normal(size=(4, 1))))
    result = fold(g).agree(g.feeds(rng, N=2), 1e-6)
    assert "RMSNormalization 'rms' has no bias" in result.reasons


@pytest.mark.parametrize(("scale", "shift"), [(2.0, 0.7), (0.01, -3.0), (50.0, 0.0)])
def test_one_scale_in_front_of_a_layer_norm_goes_into_epsilon(graph, fold, scale, shift):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Add", g.op("Mul", g.input("x", ["N", 3, 8]), np.float64(scale)), np.float64(shift))
    g.output(g.op("LayerNormalization", x, rng.normal(size=8), rng.normal(size=8), axis=-1, epsilon=1e-3))
    result = fold(g).agree(g.feeds(rng, N=2), 1e-6)
    assert result.ops == {"LayerNormalization": 1}


def test_a_bias_in_front_of_an_instance_norm_is_dead(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32)
    x = g.op("Add", g.input("x", ["N", 3, 8]), rng.normal(size=(3, 1)))
    g.output(g.op("InstanceNormalization", x, rng.normal(size=3), rng.normal(size=3)))
    assert fold(g).agree(g.feeds(rng, N=2), 2e-5).ops == {"InstanceNormalization": 1}


def test_in_front_of_a_norm_refusals(graph, fold):
    rng = np.random.default_rng(0)
    for factor, words in (
        (rng.normal(size=(8, 1)), "has one epsilon for all, so that one scale can pass"),
        (rng.uniform(1, 2, (1, 3)), "has one epsilon for all, so that one scale can pass"),
    ):
        g = graph()
        x = g.op("Transpose", g.op("Mul", g.input("x", ["N", 8, 3]), factor), perm=[0, 2, 1])
        g.output(g.op("LayerNormalization", x, rng.normal(size=8), rng.normal(size=8), axis=-1))
        result = fold(g).agree(g.feeds(rng, N=2), 1e-6)
        assert words in result.reasons


@given(SEED, st.booleans(), st.booleans(), st.sampled_from(["row", "one number", "both"]))
def test_a_map_of_the_rows_crosses_a_product_by_a_constant(graph, fold, seed, left, with_bias, kind):
    """s and t vary along an axis that is not summed over: (s x + t) W = s (x W) + t W, taken by what follows."""
    rng = np.random.default_rng(seed)
    g = graph()
    dims = ["N", 5, 4]  # W over the last axis, or (left) over the one before it
    rows = (4,) if left else (5, 1)
    shift = rng.normal(size=(5, 4) if kind == "both" else rows)
    scale = rng.normal(size=rows) if kind == "row" else rng.normal(size=rows) * 0 + 1.5
    x = (
        g.op("Mul", g.op("Sub", g.input("x", dims), shift), scale)
        if kind == "both"
        else g.op("Add", g.op("Mul", g.input("x", dims), scale), shift)
    )
    y = g.op("MatMul", rng.normal(size=(6, 5)), x) if left else g.op("MatMul", x, rng.normal(size=(4, 3)))
    if with_bias:
        y = g.op("Add", y, rng.normal(size=(6, 1) if left else (3,)))
    # a product over the other axis takes all of it
    y = g.op("MatMul", y, rng.normal(size=(4, 2))) if left else g.op("MatMul", rng.normal(size=(2, 5)), y)
    g.output(y)
    result = fold(g).folded().agree(g.feeds(rng, N=3))
    assert "Mul" not in result.ops


def test_a_shift_in_front_of_a_product_of_two_computed_values_is_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Add", g.input("x", ["N", 4, 4]), rng.normal(size=(4, 1)))
    g.output(g.op("MatMul", x, g.input("z", ["N", 4, 4])))
    fold(g).kept("multiplies, which leaves no place for a shift").agree(g.feeds(rng, N=2))


def test_a_scale_along_the_summed_axis_and_another_is_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Div", g.op("Sub", g.input("x", ["N", 5, 4]), rng.normal(size=(5, 4))), rng.uniform(1, 2, (5, 4)))
    g.output(g.op("MatMul", x, rng.normal(size=(4, 3)), name="product"))
    fold(g).kept("MatMul 'product' sums over one axis and passes the others on").agree(g.feeds(rng, N=2))


@given(SEED, st.sampled_from(["Conv", "Gemm", "MatMul", "Gather"]), BOOL, DTYPES)
def test_a_weight_that_two_operators_read_is_copied_or_stays(graph, fold, seed, kind, large, dtype):
    """A copy that costs less than the pass is made; the other reader keeps the old weight either way."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    size = 40 if large else 2  # elements beside the pass over [2, 3] rows
    shape = {"Conv": (3, size, 1), "Gemm": (size, 3), "MatMul": (size, 3), "Gather": (size, 3)}[kind]
    g.constant(rng.normal(size=shape), name="shared")
    for index in range(2):
        if kind == "Gather":
            y = g.op(kind, "shared", g.input(f"ids{index}", [4], np.int64))
        else:
            x = g.input(f"x{index}", [2, size, 2] if kind == "Conv" else [2, size])
            y = g.op(kind, x, "shared")
        if index == 0:
            y = g.op("Mul", y, rng.uniform(0.5, 2, (3, 1) if kind == "Conv" else 3))
        g.output(g.op("Sigmoid", y))
    feeds = g.feeds(rng)
    for index in range(2):
        if kind == "Gather":
            feeds[f"ids{index}"] = np.array([0, 1, 1, 0])
    result = fold(g).agree_exactly(feeds)
    elements = {"Conv": 12, "Gather": 12}.get(kind, 6)
    assert result.actions == ["folded" if size * 3 < 2 * elements else "kept"]
    copies = 2 if result.actions == ["folded"] else 1
    assert (
        len({node.input[0 if kind == "Gather" else 1] for node in result.after.graph.node if node.op_type == kind})
        == copies
    )
