"""Graphs that drawings of many operators found to come out wrong, not at all, or as a file that does not load."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from node_kinds import kinds
from onnx import parser
from onnx.reference import ReferenceEvaluator

from normdeploy.rewrite import rewrite

HEAD = '<ir_version: 8, opset_import: ["": 18]>'


def rewritten(text: str, *feeds: dict[str, np.ndarray], rtol: float = 1e-9) -> onnx.ModelProto:
    """Rewrite a graph in float64; hold it against the source in onnx's reference."""
    source = parser.parse_model(HEAD + text)
    found = ir.to_proto(rewrite(ir.from_proto(source)).model)
    onnx.checker.check_model(found, full_check=True)
    for given in feeds:
        pairs = zip(
            ReferenceEvaluator(source).run(None, given), ReferenceEvaluator(found).run(None, given), strict=True
        )
        for expected, got in pairs:
            np.testing.assert_allclose(got, expected, rtol=rtol, atol=1e-12)
    return found


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def test_a_product_by_a_vector_is_an_average_whose_result_is_asked() -> None:
    """What a vector sums up is no layer's result, free of what is in front: its scale is that of what it reads."""
    found = rewritten(
        """net (double[2, 5, 4] u) => (double[2, 5, 4] a, double[2, 1, 5] y)
        <double[5] g = {2, 3, 1, 2, 1}, double[5] b = {0.5, -1.6, 3.2, 0.9, -0.7}, double[4] q = {0.5, 0.25, 2, 1},
         double[4] w = {1, -2, 3, 1}, int64[1] ax = {1}> {
          v = InstanceNormalization (u, g, b)  v5 = Unsqueeze (v, ax)  a = Mul (q, v)  y = MatMul (v5, w) }""",
        {"u": drawn(2, 5, 4)},
    )
    assert kinds(found).count("MatMul") == 1


@pytest.mark.parametrize("choice", ["ArgMax <axis = -1>", "ArgMin <axis = -1>", "Hardmax <axis = -1>"])
def test_of_values_that_are_scaled_by_zero_none_is_the_largest(choice: str) -> None:
    """A channel that is switched off is constant: the first place is chosen, whatever is in front."""
    kind = "double" if choice.startswith("Hardmax") else "int64"
    sizes = "2, 3, 6" if choice.startswith("Hardmax") else "2, 3, 1"
    found = rewritten(
        f"""net (double[2, 3, 6] x) => ({kind}[{sizes}] y)
        <double[3, 3, 1] w = {{1, 2, -1, 0.5, 1, 1, 2, 2, 1}}, double[3, 1] s = {{1, 0, 2}}> {{
          c = Conv (x, w)  m = Mul (c, s)  y = {choice} (m) }}""",
        {"x": drawn(2, 3, 6)},
    )
    assert len(kinds(found)) == 3


@pytest.mark.parametrize("gamma", [1e-7, -1e-7, 1e-4])
def test_a_norm_that_is_switched_off_everywhere_is_no_unit_of_a_stream(gamma: float) -> None:
    """Its results are its beta, and what reads the stream beside it would lose the stream in them, in float32."""
    text = f"""net (float[N, 2, H] x) => (float[N, 3, H] y, float[N, 2, H] z)
        <float[2, 2, 1] w = {{1, 2, -1, 0.5}}, float[3, 2, 1] k = {{1, -1, 2, 1, 0.5, 1}},
         float[2] g = {{{gamma}, {gamma}}}, float[2] b = {{0.5, -0.3}}, float[2] m = {{0.1, 0.2}},
         float[2] v = {{1, 2}}> {{
          c = Conv (x, w)  z = BatchNormalization (c, g, b, m, v)  y = Conv (c, k) }}"""
    source = parser.parse_model(HEAD + text)
    result = rewrite(ir.from_proto(source))
    (row,) = result.ledger
    assert row.action == "kept"
    assert "what others read in front of it would have to carry" in row.reason
    feeds = {"x": drawn(2, 2, 7).astype(np.float32)}
    for expected, got in zip(_run(source, feeds), _run(ir.to_proto(result.model), feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("off", ["1", "0"])
def test_a_norm_behind_a_concat_is_too_much_to_carry_for_what_reads_a_part_of_it(off: str) -> None:
    """DenseNet: the stream in front of a norm has more channels than each value that is joined in it."""
    text = f"""net (float[N, 2, H] x) => (float[N, 4, H] y, float[N, 3, H] z)
        <float[2, 2, 1] w = {{1, 2, -1, 0.5}}, float[3, 2, 1] k = {{1, -1, 2, 1, 0.5, 1}},
         float[4] g = {{1, {off}, 1, 1}}, float[4] b = {{30, 40, 50, 60}},
         float[4] m = {{0.1, 0.2, 0, 0}}, float[4] v = {{1, 2, 1, 1}}> {{
          c = Conv (x, w)  d = Conv (c, w)  j = Concat <axis = 1> (c, d)
          n = BatchNormalization (j, g, b, m, v)  y = Relu (n)  z = Conv (c, k) }}"""
    source = parser.parse_model(HEAD + text)
    result = rewrite(ir.from_proto(source))
    (row,) = result.ledger
    assert row.action == "kept"
    assert ("is scaled by 0" if off == "0" else "times the size of its values") in row.reason
    feeds = {"x": drawn(2, 2, 7).astype(np.float32)}
    for expected, got in zip(_run(source, feeds), _run(ir.to_proto(result.model), feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("between", ["Transpose <perm = [0, 2, 1]> (c)", "Neg (c)", "Identity (c)"])
def test_a_far_shift_is_not_carried_by_what_others_read_in_front_of_a_move(between: str) -> None:
    """What a map takes off at its own place it would add to all of the stream, whatever moves elements on the way."""
    sizes = "N, H, 2" if between.startswith("T") else "N, 2, H"
    text = f"""net (float[N, 2, H] x) => (float[{sizes}] y, float[N, 3, H] z)
        <float[2, 2, 1] w = {{1, 2, -1, 0.5}}, float[3, 2, 1] k = {{1, -1, 2, 1, 0.5, 1}}, float far = {{3e4}}> {{
          c = Conv (x, w)  m = {between}  y = Sub (far, m)  z = Conv (c, k) }}"""
    source = parser.parse_model(HEAD + text)
    result = rewrite(ir.from_proto(source))
    (row,) = result.ledger
    assert row.action == "kept"
    feeds = {"x": drawn(2, 2, 7).astype(np.float32)}
    for expected, got in zip(_run(source, feeds), _run(ir.to_proto(result.model), feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, feeds)]


def test_a_body_computes_what_it_returns() -> None:
    """A map by one in a body leaves; what is outside of the body may not be its result by its own name."""
    found = rewritten(
        """net (double[2, 3] x, bool flag) => (double[2, 3] y) <double one = {1}, double half = {0.5}> {
          a = Sigmoid (x)
          y = If (flag) <then_branch = t () => (double[2, 3] p) { p = Mul (a, one) },
                         else_branch = e () => (double[2, 3] q) { q = Mul (a, half) }> }""",
        *({"x": drawn(2, 3), "flag": np.array(flag)} for flag in (True, False)),
    )
    ort.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])
    (choice,) = (node for node in found.graph.node if node.op_type == "If")
    for body in choice.attribute:
        made = {name for node in body.g.node for name in node.output}
        assert {output.name for output in body.g.output} <= made


def test_branches_without_an_element_stay_branches() -> None:
    """A convolution over fewer places than its window has writes nothing, and two of nothing are not merged."""
    rewritten(
        """net (double[2, 3, 4, 1] x) => (double[2, 6, 3, 0] y)
        <double[6, 1, 2, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}> {
          c = Conv <group = 3> (x, w)  y = Add (c, c) }""",
    )


def test_a_pad_whose_result_others_see_too_stays_where_it_is() -> None:
    """Elements are written back where they were, so that the chain is a Pad; what is cut out of it is read as well."""
    found = rewritten(
        """net (double[2, 2, 4, 6] x) => (double[1, 2, 5, 6] y, double[2, 4, 4, 6] z)
        <double[1, 1] s = {0.5}, int64[8] p = {0, 0, 1, 0, 0, 0, 0, 0}, int64[1] first = {0}, int64[1, 1] at = {0},
         double[4, 2, 2, 1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}> {
          m = Mul (x, s)  q = Pad (m, p)  g = Gather <axis = 0> (q, first)  y = Mish (g)
          r = ScatterND (q, at, g)  z = Conv (r, w) }""",
        {"x": drawn(2, 2, 4, 6)},
    )
    assert kinds(found).count("Pad") == 1


def test_a_constant_of_equal_numbers_is_added_to_a_sum_of_maps() -> None:
    """It is one number then, and has its own size all the same where the sum is checked before and after."""
    rewritten(
        """net (double[2, 3, 4, 5] x) => (double[2, 3, 4, 5] y, double[2, 3, 4, 5] z)
        <double[1, 3, 1, 1] a = {1, 2, 3}, double[5] one = {1, 1, 1, 1, 1}> {
          c = Sigmoid (x)  b = Add (c, a)  y = Sum (b, c, one)  z = Tanh (c) }""",
        {"x": drawn(2, 3, 4, 5)},
    )


@pytest.mark.parametrize(
    "graph",
    [
        """net (double[2, 3, 4, 5] x) => (double[2, 3, 4, 5] y)
        <double[3, 1, 1] s = {2, 0, 1}, double[3, 1, 1] o = {1, -2, 3}, double[3, 1, 1] k = {2, 3, 1},
         double[4, 4] w = {1, 2, 3, 4, -1, 0.5, 2, 1, 1, 1, 2, 0.5, 3, 1, 1, 2}> {
          a = Mul (x, s)  n = Add (a, o)  p = MatMul (w, n)  q = Mul (p, k)  y = Sigmoid (q) }""",
        """net (double[2, 3, 4, 5] x) => (double[2, 3, 4, 5] y, double[2, 3, 4, 5] z)
        <double zero = {0}, double[3, 1, 1] k = {2, 3, 1}, double[3, 3, 1, 1] w = {1, 2, 3, 4, -1, 0.5, 2, 1, 1}> {
          c = Conv (x, w)  y = Mul (zero, c)  f = Cast <to = 1> (c)  d = Cast <to = 11> (f)  z = Mul (d, k) }""",
    ],
    ids=["bias", "map"],
)
def test_float64_holds_what_stands_for_infinity_and_no_zero_is_undone(graph: str) -> None:
    """A scale of 0 that was undone by its inverse would fit float64, and be wrong; a Cast to float32 rounds."""
    rewritten(graph, {"x": drawn(2, 3, 4, 5)}, rtol=1e-6)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_each_part_of_what_a_map_reads_is_asked_what_it_carries(place: int) -> None:
    """Of three streams that a Concat joins for a norm one has a channel that the norm has almost switched off."""
    gamma = [1.0] * 6
    gamma[2 * place] = 1e-6
    norms = [f"n{at} = BatchNormalization (c{at}, o, z, z, o)  r{at} = Relu (n{at})" for at in range(3)]
    text = f"""net (float[N, 2, H] x) => (float[N, 2, H] y, float[N, 2, H] r0, float[N, 2, H] r1, float[N, 2, H] r2)
        <float[2, 2, 1] w = {{1, 2, -1, 0.5}}, float[2, 6, 1] k = {{1, -1, 2, 1, 0.5, 1, 2, 1, -1, 1, 0.5, 3}},
         float[2] o = {{1, 2}}, float[2] z = {{0.5, 0.2}}, float[6] g = {{{", ".join(map(str, gamma))}}},
         float[6] b = {{0.5, 0.3, 0.2, 0.4, 0.6, 0.1}}, float[6] v = {{1, 1, 1, 1, 1, 1}}> {{
          c0 = Conv (x, w)  c1 = Conv (x, w)  c2 = Conv (x, w)  {"  ".join(norms)}
          j = Concat <axis = 1> (c0, c1, c2)  n = BatchNormalization (j, g, b, b, v)
          r = Relu (n)  y = Conv (r, k) }}"""
    source = parser.parse_model(HEAD + text)
    result = rewrite(ir.from_proto(source))
    (row,) = (row for row in result.ledger.kept if row.where == "n")
    assert "what others read in front of it would have to carry" in row.reason


@pytest.mark.parametrize(
    ("less", "whole"), [("Sub (c, m)", "Add (d, m)"), ("Sub (m, c)", "Sub (m, d)"), ("Add (m, c)", "Sub (d, m)")]
)
def test_what_cancels_leaves_its_half_of_a_map_in_front(less: str, whole: str) -> None:
    """A scale of 0 went into the convolution, its shift along another axis stayed: called a bug of ours, by a check."""
    found = rewritten(
        f"""net (double[2, 3, 3] x) => (double[2, 4, 3] y)
        <double[1, 1, 3] c = {{1, -2, 3}}, double[4, 1] a = {{2, 3, 0.5, -1}},
         double[4, 3, 1] w = {{2, 3, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 9}}> {{
          k = Conv (x, w)  m = Mul (k, a)  d = {less}  y = {whole} }}""",
        {"x": drawn(2, 3, 3)},
    )
    assert kinds(found) == ["Conv", "Add"]
    (weight,) = (item for item in found.graph.initializer if len(item.dims) == 3 and item.dims[0] == 4)
    assert not onnx.numpy_helper.to_array(weight).any()
