"""Einsum of data with a constant: written as a product, and what stands around it folds."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from affine_graphs import GraphBuilder, fold_proto
from hypothesis import given, settings
from hypothesis import strategies as st

import normdeploy as nd

settings.load_profile("affine")

SIZES = {"b": 2, "n": 3, "m": 4, "c": 5, "d": 6, "h": 2, "w": 3, "k": 4, "e": 3, "o": 2}
PRODUCTS = [
    ("bnd,dk->bnk", {"MatMul": 1}),
    ("bnd,kd->bnk", {"MatMul": 1}),
    ("dk,bnd->bnk", {"MatMul": 1}),
    ("...d,dk->...k", {"MatMul": 1}),
    ("...d,dk", {"MatMul": 1}),
    ("bchw,oc->bohw", {"Conv": 1}),
    ("bcn,oc->bon", {"MatMul": 1}),
    ("oc,bcnhw->bonhw", {"Conv": 1}),
    ("bnd,d->bn", {"MatMul": 1, "Squeeze": 1}),
    ("bhnd,hd->bhn", {"MatMul": 1, "Squeeze": 1}),
    ("bnhd,hdo->bno", {"Reshape": 1, "MatMul": 1}),
    ("bnd,dhk->bnhk", {"MatMul": 1, "Reshape": 1}),
    ("bnd,dhk->bhnk", {"MatMul": 1, "Reshape": 1, "Transpose": 1}),
    ("bhnd,hdo->bno", {"Transpose": 1, "Reshape": 1, "MatMul": 1}),
    ("bhnd,hde->bhne", {"MatMul": 1}),
    ("bnhd,hde->bnhe", {"Transpose": 2, "MatMul": 1}),
    ("bdn,dk->bnk", {"Transpose": 1, "MatMul": 1}),
    ("bcd,cdm->bcm", {"Transpose": 2, "MatMul": 1}),
]
TOLERANCES = {np.float64: 1e-12, np.float32: 1e-5}


def left_in(left: dict[str, int], dtype: type) -> dict[str, int]:
    """Return what is left in a type: onnxruntime's CPU has no convolution of float64."""
    return {"Transpose": 2, "MatMul": 1} if dtype is np.float64 and "Conv" in left else left


def sized(letters: str) -> list[int]:
    return [SIZES[letter] for letter in letters.replace("...", "bn")]


def data_shape(equation: str) -> tuple[str, str, int]:
    terms = equation.split("->")[0].split(",")
    at = 0 if terms[0].startswith(("b", ".")) else 1
    return terms[at].replace("...", "bn"), terms[1 - at], at


def einsum(g: GraphBuilder, equation: str, x: str, weight: np.ndarray) -> str:
    at = data_shape(equation)[2]
    return str(g.op("Einsum", *((x, weight) if at == 0 else (weight, x)), equation=equation, name="einsum"))


@pytest.mark.parametrize(("equation", "left"), PRODUCTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_what_an_equation_becomes(equation, left, dtype):
    """One operator becomes one operator: what would be several stays where nothing is to be folded."""
    rng = np.random.default_rng(0)
    g = GraphBuilder(dtype=dtype)
    data, weight, _ = data_shape(equation)
    x = g.input("x", [SIZES[letter] if letter in weight else letter.upper() for letter in data])
    w = rng.normal(size=sized(weight)).astype(dtype)
    g.output(einsum(g, equation, x, w))
    feeds = g.feeds(rng, **{letter.upper(): SIZES[letter] for letter in data})
    result = fold_proto(g).agree(feeds, TOLERANCES[dtype])
    left = left_in(left, dtype)
    assert result.ops == (left if sum(left.values()) == 1 else {"Einsum": 1})
    operands = (feeds["x"], w) if data_shape(equation)[2] == 0 else (w, feeds["x"])
    wanted = np.einsum(equation, *(operand.astype(np.float64) for operand in operands))
    np.testing.assert_allclose(result.run(feeds)[0], wanted, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize(("equation", "left"), PRODUCTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@given(st.data())
def test_maps_in_front_of_it_and_behind_it_fold(equation, left, dtype, data):
    """Along each of the data's axes in turn: what is summed goes into the weight, what is kept moves to its end."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    letters, weight, _ = data_shape(equation)
    g = GraphBuilder(dtype=dtype)
    x = g.input("x", [SIZES[letter] if letter in weight else letter.upper() for letter in letters])
    summed = [letter for letter in letters if letter in weight]
    axis = letters.index(data.draw(st.sampled_from(summed)))
    varies = [SIZES[letters[axis]] if at == axis else 1 for at in range(len(letters))]
    x = g.op("Mul", x, rng.uniform(0.5, 2, varies) * rng.choice([-1, 1], varies), name="before")
    y = einsum(g, equation, x, rng.normal(size=sized(weight)))
    if data.draw(st.booleans()):
        y = g.op("Mul", y, np.float64(rng.uniform(0.5, 2)), name="behind")
    g.output(y)
    feeds = g.feeds(rng, **{letter.upper(): SIZES[letter] for letter in letters})
    result = fold_proto(g).agree(feeds, TOLERANCES[dtype])
    assert result.ops == left_in(left, dtype)
    assert set(result.actions) == {"folded"}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_a_norm_on_each_side_goes_into_a_convolution_spelled_as_an_einsum(dtype, seed, turned):
    rng = np.random.default_rng(seed)
    g = GraphBuilder(dtype=dtype)
    x = g.batch_norm(g.input("x", ["B", 5, "H", "W"]), 5, rng)
    w = rng.normal(size=(2, 5))
    y = g.op("Einsum", *((w, x) if turned else (x, w)), equation="oc,bchw->bohw" if turned else "bchw,oc->bohw")
    g.output(g.batch_norm(y, 2, rng))
    result = fold_proto(g).folded(2).agree(g.feeds(rng, B=2, H=3, W=4), TOLERANCES[dtype])
    bias = {"Add": 1} if dtype is np.float64 else {}  # a convolution has it inside
    assert result.ops == left_in({"Conv": 1}, dtype) | bias


def test_a_file_of_float64_that_runs_still_runs(tmp_path):
    """A convolution of float64 would be no file that onnxruntime loads."""
    g = GraphBuilder(dtype=np.float64)
    w = np.random.default_rng(0).normal(size=(2, 3))
    g.output(g.op("Einsum", g.input("x", ["B", 3, "H", "W"]), w, equation="bchw,oc->bohw"))
    path = tmp_path / "net.onnx"
    onnx.save(g.proto(), path)
    assert nd.fold(path, tmp_path / "out.onnx").verdict.status == "pass"
    x = np.random.default_rng(1).normal(size=(2, 3, 4, 5))
    session = ort.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.einsum("bchw,oc->bohw", x, w), rtol=0, atol=1e-12)


def test_what_stands_on_the_data_alone_moves_through():
    """Tokens scaled one by one: the scale is not the weight's, and leaves in front of the Einsum."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    x = g.op("MatMul", rng.normal(size=(3, 3)), g.input("x", ["B", 3, 6]))
    y = g.op("Einsum", x, rng.normal(size=(6, 4)), equation="bnd,dk->bkn")
    g.output(g.op("Mul", y, rng.uniform(0.5, 2, 3), name="tokens"))
    result = fold_proto(g).folded().agree(g.feeds(rng, B=2))
    assert result.ops == {"MatMul": 2, "Transpose": 1}


@pytest.mark.parametrize("behind", [np.float64(2.0), None])
def test_what_is_added_behind_an_einsum_is_its_bias(behind):
    """The bias alone is no map that would make several operators of it; another map does, and takes the bias along."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    y = g.op("Einsum", g.input("x", ["B", 6, "N"]), rng.normal(size=(6, 4)), equation="bdn,dk->bnk")
    y = g.op("Add", y, rng.normal(size=4), name="bias")
    g.output(y if behind is None else g.op("Mul", y, behind, name="map"))
    result = fold_proto(g).agree(g.feeds(rng, B=2, N=3))
    assert result.ops == ({"Einsum": 1, "Add": 1} if behind is None else {"Transpose": 1, "MatMul": 1, "Add": 1})
    assert result.actions == ([] if behind is None else ["folded"])


@pytest.mark.parametrize(
    ("equation", "weight", "shape", "left"),
    [
        ("...c,...cd->...d", (5, 4), (4,), {"MatMul": 1}),
        ("...cd,...c->...d", (5, 4), (4,), {"MatMul": 1}),
        ("...nc,...cd->...nd", (2, 5, 4), (4,), {"MatMul": 1}),
        ("...nc,...c->...nc", (5,), (5,), {}),
        ("...nc,...nc->...nc", (2, 3, 5), (5,), {"Mul": 1}),
        ("...nc,...c->...n", (2, 5), (), {"MatMul": 1, "Squeeze": 1}),
    ],
)
def test_an_ellipsis_stands_for_axes_counted_from_the_end(equation, weight, shape, left):
    """The weight's may stand for fewer axes than the data's, or for none."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    x = g.op("Mul", g.input("x", ["B", 2, 3, 5]), rng.uniform(0.5, 2, 5), name="scale")
    w = rng.normal(size=weight)
    read = (w, x) if equation.startswith("...cd") else (x, w)
    y = g.known(g.op("Einsum", *read, equation=equation), *("B", 2, 3, *shape))  # onnx infers none of two ellipses
    g.output(y if left else g.op("MatMul", y, rng.normal(size=(5, 5))), shape=["B", 2, 3, *shape])
    result = fold_proto(g).folded().agree(g.feeds(rng, B=2))
    assert result.ops == (left or {"MatMul": 1})


def test_an_equation_without_sums_is_a_map():
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    y = g.op("Einsum", g.input("x", ["B", "N", 6]), rng.normal(size=6), equation="bnd,d->nbd")
    g.output(g.op("MatMul", y, rng.normal(size=(6, 4))))
    assert fold_proto(g).folded().agree(g.feeds(rng, B=2, N=3)).ops == {"Transpose": 1, "MatMul": 1}


@pytest.mark.parametrize(
    ("equation", "shape", "weight"),
    [
        ("bnd,dk->bnk", ["B", "N", "D"], (6, 4)),  # at D = 1 the Einsum repeats x
        ("bnd,dk->bnk", ["B", "N", 6], (1, 4)),
        ("bnd,dk->bk", ["B", 3, 6], (6, 4)),
        ("bnd,dk->bn", ["B", 3, 6], (6, 4)),
        ("bnn,nk->bk", ["B", 6, 6], (6, 4)),
        ("bnd,k->bndk", ["B", 3, 6], (4,)),
        ("hd,hdk->hk", [3, 6], (3, 6, 4)),
        ("bn...,...k->bk", ["B", 1, 6], (6, 4)),
    ],
)
def test_what_is_no_product_with_a_matrix_stays(equation, shape, weight):
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    g.output(g.op("Einsum", g.input("x", shape), rng.normal(size=weight), equation=equation))
    assert fold_proto(g).agree(g.feeds(rng, B=2, N=3, D=6)).ops == {"Einsum": 1}


def test_a_product_of_two_computed_values_stays():
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    g.output(g.op("Einsum", g.input("x", ["B", 3, 6]), g.input("y", ["B", 4, 6]), equation="bnd,bmd->bnm"))
    assert fold_proto(g).agree(g.feeds(rng, B=2)).ops == {"Einsum": 1}


def test_an_axis_without_elements_has_a_result_without_elements():
    """Points of a cloud, none of them: a convolution would refuse them."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    g.output(g.op("Einsum", g.input("x", ["B", 6, "N"]), rng.normal(size=(4, 6)), equation="bcn,oc->bon"))
    assert fold_proto(g).agree(g.feeds(rng, B=2, N=0)).ops == {"MatMul": 1}


@pytest.mark.parametrize("between", [None, "Relu"])
@pytest.mark.parametrize(("equation", "bias"), [("bd,edh->ebh", (3, 1, 5)), ("bd,edh->beh", (3, 5))])
def test_a_shift_goes_into_what_is_added_later(equation, bias, between):
    """No Add of its own stands behind the product then, unless something between does not let the shift pass."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    x = g.op(
        "BatchNormalization", g.input("x", ["B", 8]), *rng.normal(size=(3, 8)), rng.uniform(0.5, 2, 8), name="norm"
    )
    y = g.op("Einsum", x, rng.normal(size=(3, 8, 5)), equation=equation)
    y = y if between is None else g.op(between, y)
    g.output(g.op("Add", y, rng.normal(size=bias), name="bias"))
    result = fold_proto(g).folded().agree(g.feeds(rng, B=4))
    turned = {"Transpose": 1} if equation == "bd,edh->ebh" else {}
    relu = {} if between is None else {between: 1}
    assert result.ops == {"MatMul": 1, "Reshape": 1, **turned, **relu, "Add": 1 if between is None else 2}


def test_what_is_shown_of_a_product_gets_its_shift_there():
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    x = g.op(
        "BatchNormalization", g.input("x", ["B", 8]), *rng.normal(size=(3, 8)), rng.uniform(0.5, 2, 8), name="norm"
    )
    y = g.op("MatMul", x, rng.normal(size=(8, 6)))
    g.output(y)
    g.output(g.op("Add", g.op("Reshape", y, np.array([-1, 2, 3])), rng.normal(size=(2, 3)), name="bias"))
    assert fold_proto(g).folded().agree(g.feeds(rng, B=4)).ops == {"MatMul": 1, "Add": 2, "Reshape": 1}
