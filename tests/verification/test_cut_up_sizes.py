"""Sizes behind numbers that decide and behind parts whose sizes are fed: what is known of them, and what is not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.related.report import Report
from normdeploy.verification.hints import unchanged

HEAD = '<ir_version: 10, opset_import: ["": 20]> g '
RNG = np.random.default_rng(0)
MATRICES = {"p": RNG.standard_normal((4, 5)), "q": RNG.standard_normal((4, 5))}


def graph(text: str, constants: dict[str, np.ndarray]) -> ir.Model:
    proto = onnx.parser.parse_model(f"{HEAD}{text}")
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return ir.serde.deserialize_model(proto)


def parts(joined: str, second: str = "MatMul(b, q)", behind: str = "Mul(j, s)") -> ir.Model:
    """Return rows cut in two where an input says, each part times a matrix."""
    text = f"""(double[N,4] x, int64[1] end) => (double[N,5] y)
    {{ rows = Shape<start = 0, end = 1>(x) ends = Concat<axis = 0>(end, rows) begins = Concat<axis = 0>(nought, end)
       n = Sub(ends, begins) a, b = Split<axis = 0>(x, n) u = MatMul(a, p) v = {second} j = {joined} y = {behind} }}"""
    return graph(text, MATRICES | {"s": np.array(2.0), "nought": np.array([0])})


def report(source: ir.Model, file: ir.Model, hints: Derivation) -> Report:
    return check_derivation(source, file, hints, [{"x": (n, 4), "end": (1,)} for n in (2, 3, 5)])


SCALED = Derivation(tuple(Hint(name, name) for name in ("n", "a", "b", "u", "v", "j", "y")))


@pytest.mark.parametrize(
    ("joined", "second", "known"),
    [
        ("Concat<axis = 0>(u, v)", "MatMul(b, q)", True),
        ("Concat<axis = 0>(v, u)", "MatMul(b, q)", False),  # not one by one
        ("Concat<axis = 0>(u, u)", "MatMul(b, q)", False),  # twice the first part
        ("Concat<axis = 0>(u, u, v)", "MatMul(b, q)", False),
        ("Concat<axis = 0>(u, v)", "MatMul(a, q)", False),
    ],
)
def test_parts_that_are_joined_again_are_as_long_as_what_was_cut(joined: str, second: str, known: bool):
    """A product with itself instead of a square: shown at random points, which have sizes only if these are known."""
    source = parts(joined, second, "Pow(j, s)")
    file = parts(joined, second, "Mul(j, j)")
    assert report(source, source, unchanged(source)).confirmed
    assert report(source, file, SCALED).confirmed == known


def test_twice_a_value_is_its_sum_with_itself_whatever_its_size():
    joined = "Concat<axis = 0>(v, u)"
    assert report(parts(joined), parts(joined, behind="Add(j, j)"), SCALED).confirmed


def test_another_order_of_parts_is_not_confirmed():
    source, file = parts("Concat<axis = 0>(u, v)"), parts("Concat<axis = 0>(v, u)")
    assert not report(source, file, SCALED).confirmed


@pytest.mark.parametrize(("second", "known"), [(2.0, True), (3.0, False)])
def test_parts_of_fed_sizes_that_are_scaled_alike_are_scaled_so_when_joined(second: float, known: bool):
    """The source multiplies each part by its own matrix; the file's are half as large, and what it joins is doubled."""
    source, file = parts("Concat<axis = 0>(u, v)", behind="Identity(j)"), parts("Concat<axis = 0>(u, v)")
    for name, times in (("p", 2.0), ("q", second)):
        source.graph.initializers[name].const_value = ir.tensor(times * MATRICES[name])
    hints = [Hint(name, name, "", np.array(2.0), np.array(0.0)) for name in ("u", "v", "j")]
    assert report(source, file, Derivation((Hint("a", "a"), Hint("b", "b"), *hints, Hint("y", "y")))).confirmed == known


MASKED = """(double[N,4] x, double[M,4] z) => (double[N,4] y)
{ shape = Shape(x) n = Gather(shape, zero) places = Range(zero, n, one) seen = %s(places, far)
  mask = Cast<to = 11>(seen) column = Unsqueeze(mask, last) m = Add(x, column) %s }"""
NUMBERS = {"zero": np.array(0), "one": np.array(1), "far": np.array(1000), "last": np.array([-1])}


def masked(rest: str, compares: str = "Less") -> ir.Model:
    return graph(MASKED % (compares, rest), NUMBERS | {"begin": np.array([0]), "end": np.array([1000])})


@pytest.mark.parametrize(
    ("source", "file", "known"),
    [
        ("t = Max(m) s = Shape(t) y = Expand(m, s)", "y = Identity(m)", True),
        # cut at 1000, which no size that is tried reaches: what is expanded to may be shorter than m
        ("c = Slice(m, begin, end) s = Shape(c) y = Expand(m, s)", "y = Identity(m)", False),
    ],
)
def test_what_a_mask_decides_is_no_size(source: str, file: str, known: bool):
    """A mask of places below 1000 decides what is added, not how large the sum is."""
    graphs = masked(source), masked(file)
    found = check_derivation(
        *graphs, Derivation((Hint("m", "m"), Hint("y", "y"))), [{"x": (n, 4), "z": (n, 4)} for n in (2, 3, 5)]
    )
    assert found.confirmed == known


WINDOW = """(double[N,4] x) => (double[N,4] y)
{{ shape = Shape(x) n = Gather(shape, zero) rows = Range(zero, n, one) last = Sub(n, one) row = Unsqueeze(rows, end)
   {places} far_off = Greater(places, window) no = Where(far_off, least, nought) y = Add(x, no) }}"""
PLAIN = """(double[N,4] x) => (double[N,4] y) {{ shape = Shape(x) no = Expand(nought, shape) y = Add(x, no) }}"""
ROW = {"zero": np.array(0), "one": np.array(1), "end": np.array([-1]), "columns": np.array([[0, 1, 2, 3]])}


@pytest.mark.parametrize(
    ("places", "known"),
    [
        ("places = Expand(columns, shape)", True),  # of a fixed number of columns none is far off, for any batch
        ("grown = Expand(row, shape) places = Add(grown, columns)", False),  # the thousandth row would be
    ],
)
def test_a_window_wider_than_fixed_sizes_hides_nothing_whatever_the_batch(places: str, known: bool):
    numbers = {"window": np.array(1000), "least": np.array(-1e9), "nought": np.array(0.0)}
    source, file = graph(WINDOW.format(places=places), ROW | numbers), graph(PLAIN.format(), {"nought": np.array(0.0)})
    found = check_derivation(source, file, Derivation((Hint("y", "y"),)), [{"x": (n, 4)} for n in (2, 3, 5)])
    assert found.confirmed == known
