"""Parallel and serial products of one value become one; what does not pay or is not exact stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def close(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 1e-12 * max(np.abs(expected).max(), 1e-300)


DTYPES = st.sampled_from([ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE])


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 4), st.integers(2, 4), st.booleans(), st.booleans(), DTYPES, st.integers(0, 2**31))
def test_a_sum_of_matmuls_is_one(net, rank, branches, square, identity, dtype, seed):
    rng = np.random.default_rng(seed)
    ins, outs = 6, 6 if square else 4
    n = net(("n", 3, 5, ins)[-rank:] if rank < 4 else ("n", 3, 5, ins), dtype)
    x = n.feeds(seed)["x"]
    total, expected = None, 0.0
    for index in range(branches):
        w = rng.standard_normal((ins, outs))
        value = n.op("MatMul", n.x, n.constant(w))
        expected = expected + x @ n.rounded(w)
        if index % 2:
            b = rng.standard_normal((outs,) if index % 4 == 1 else (1,) * (rank - 1) + (outs,))
            value = n.op("Add", value, n.constant(b))
            expected = expected + n.rounded(b)
        total = value if total is None else n.op("Add", value, total)
    if square and identity:
        total = n.op("Add", n.x, total)
        expected = expected + x
    n.end(total)
    assert n.merge() == ["MatMul", "Add"]
    close(n.run(n.feeds(seed)), expected)
    n.check_rounding()


@settings(deadline=None, max_examples=30)
@given(
    st.booleans(),
    st.booleans(),
    st.sampled_from([1.0, 0.5, -2.0]),
    st.sampled_from([1.0, 0.0, 3.0]),
    st.sampled_from([None, "empty name", (), (1,), (4,), (1, 4), (1, 1)]),
    DTYPES,
    st.integers(0, 2**31),
)
def test_a_sum_of_gemms_is_one_whatever_their_attributes(net, trans1, trans2, alpha, beta, shape, dtype, seed):
    rng = np.random.default_rng(seed)
    n = net(("n", 6), dtype)
    x = n.feeds(seed)["x"]
    a, b = rng.standard_normal((6, 4)), rng.standard_normal((6, 4))
    c = rng.standard_normal(shape) if isinstance(shape, tuple) else None
    addend = [] if shape is None else [None if c is None else n.constant(np.asarray(c))]
    first = n.op(
        "Gemm",
        n.x,
        n.constant(a.T if trans1 else a),
        *addend,
        alpha=alpha,
        beta=beta,
        transB=int(trans1),
    )
    second = n.op("Gemm", n.x, n.constant(b.T if trans2 else b), transB=int(trans2))
    n.end(n.op("Add", first, second))
    assert n.merge() == ["Gemm"]
    expected = alpha * (x @ n.rounded(a)) + x @ n.rounded(b)
    if c is not None:
        expected = expected + beta * n.rounded(np.asarray(c))
    close(n.run(n.feeds(seed)), expected)
    n.check_rounding()


def test_a_low_rank_adapter_goes_into_its_weight(net):
    rng = np.random.default_rng(0)
    n = net(("n", 7, 32))
    base = n.op("MatMul", n.x, n.constant(rng.standard_normal((32, 16)), "proj.weight"))
    base = n.op("Add", base, n.constant(rng.standard_normal(16)))
    low = n.op("MatMul", n.x, n.constant(rng.standard_normal((32, 2))))
    low = n.op("MatMul", low, n.constant(rng.standard_normal((2, 16))))
    n.end(n.op("Add", base, low))
    before = n.run()
    assert n.merge() == ["MatMul", "Add"]
    close(n.run(), before)
    assert "proj.weight" in n.graph.initializers


def test_a_low_rank_pair_on_its_own_stays(net):
    rng = np.random.default_rng(0)
    n = net(("n", 7, 256))
    low = n.op("MatMul", n.x, n.constant(rng.standard_normal((256, 2))))
    n.end(n.op("MatMul", low, n.constant(rng.standard_normal((2, 256)))))
    assert n.merge() == ["MatMul", "MatMul"]


def test_linears_in_a_row_are_one_with_their_biases(net):
    rng = np.random.default_rng(1)
    n = net(("n", 7, 8))
    value = n.x
    for _ in range(3):
        value = n.op("MatMul", value, n.constant(rng.standard_normal((8, 8))))
        value = n.op("Add", n.constant(rng.standard_normal(8)), value)
    n.end(value)
    before = n.run()
    assert n.merge() == ["MatMul", "Add"]
    close(n.run(), before)


def test_gemms_in_a_row_are_one(net):
    rng = np.random.default_rng(2)
    n = net(("n", 8))
    value = n.op("Gemm", n.x, n.constant(rng.standard_normal((8, 8))), n.constant(rng.standard_normal(8)), transB=1)
    n.end(n.op("Gemm", value, n.constant(rng.standard_normal((8, 3))), n.constant(rng.standard_normal(3)), beta=2.0))
    before = n.run()
    assert n.merge() == ["Gemm"]
    close(n.run(), before)


def test_an_affine_branch_is_merged_and_accounted_for(net):
    rng = np.random.default_rng(3)
    n = net(("n", 6))
    norm = n.affine(n.x, rng.standard_normal(6), rng.standard_normal(6), "bn")
    n.end(n.op("Add", norm, n.op("Gemm", n.x, n.constant(rng.standard_normal((6, 6))))))
    before = n.run()
    assert n.merge() == ["Gemm"]
    close(n.run(), before)
    assert [(row.where, row.action) for row in n.context.ledger] == [("bn", "merged")]


def test_strangers_in_the_sum_stay(net):
    rng = np.random.default_rng(4)
    n = net(("n", 5, 6))
    a = n.op("MatMul", n.x, n.constant(rng.standard_normal((6, 6))))
    b = n.op("MatMul", n.x, n.constant(rng.standard_normal((6, 6))))
    position = n.constant(rng.standard_normal((1, 5, 6)))
    n.end(n.op("Add", n.op("Sub", n.op("Sin", n.x), a), n.op("Add", position, b)))
    before = n.run()
    assert sorted(n.merge()) == ["Add", "Add", "MatMul", "Sin"]
    close(n.run(), before)


@pytest.mark.parametrize("case", ["another reader", "widths", "run-time weight", "row-wise C", "transA", "overflow"])
def test_what_is_not_exact_stays(net, case):
    rng = np.random.default_rng(5)
    n = net(("n", 6), ir.DataType.FLOAT16 if case == "overflow" else ir.DataType.FLOAT)
    extra = []
    a = n.op("Gemm", n.x, n.constant(rng.standard_normal((6, 6))))
    if case == "another reader":
        b = n.op("Gemm", n.x, n.constant(rng.standard_normal((6, 6))))
        extra = [n.op("Relu", b)]
    elif case == "widths":
        b = n.op("Gemm", n.x, n.constant(rng.standard_normal((6, 1))))
    elif case == "run-time weight":
        b = n.op("Gemm", n.x, n.op("Relu", n.constant(rng.standard_normal((6, 6)))))
    elif case == "row-wise C":
        b = n.op("Gemm", n.x, n.constant(rng.standard_normal((6, 6))), n.constant(rng.standard_normal((2, 1))))
    elif case == "transA":
        n = net((6, 6))
        a = n.op("Gemm", n.x, n.constant(rng.standard_normal((6, 6))))
        b = n.op("Gemm", n.x, n.constant(rng.standard_normal((6, 6))), transA=1)
    elif case == "overflow":
        a = n.op("Gemm", n.x, n.constant(np.full((6, 6), 6e4)))
        b = n.op("Gemm", n.x, n.constant(np.full((6, 6), 6e4)))
    n.end(n.op("Add", a, b), *extra)
    text = n.operators()
    assert n.merge() == text
