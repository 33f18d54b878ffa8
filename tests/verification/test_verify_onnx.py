"""ONNX against ONNX: no torch source, structure that common verifiers let pass, scales, ties, integers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime_outputs import run_onnxruntime

from normdeploy.errors import GraphError, InputError, UsageError
from normdeploy.graph.operators import OPERATORS
from normdeploy.verification import verify
from normdeploy.verification.sides.sessions import Setting, open_session, run_session

Write = Callable[..., Path]

NORM = """g (float[N,C] x) => (float[N,C] y) {
    y = LayerNormalization<axis=-1, epsilon=%s>(x, scale, shift) }"""


def affine(width: int = 16, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.5, 2, width).astype(np.float32)
    return {"scale": scale, "shift": rng.standard_normal(width).astype(np.float32)}


def norm(write: Write, epsilon: str = "1e-5", name: str = "a", **change: np.ndarray) -> Path:
    return write((NORM % epsilon).replace("[N,C]", "[N,16]"), name, **(affine() | change))


def test_a_file_equals_itself(write: Write):
    verdict = verify(norm(write), norm(write))
    assert verdict.status == "pass", verdict.summary()
    assert verdict.sites[0].kind == "LayerNormalization"
    assert all(m.killed for m in verdict.sites[0].mutants)


def test_a_layernorm_epsilon_of_1e_6_for_1e_5_is_caught_and_named(write: Write):
    verdict = verify(norm(write), norm(write, "1e-6", "b"))
    assert verdict.status == "fail"
    assert verdict.localization is not None
    assert verdict.localization.side == "export"
    assert "epsilon 1e-06; the module says 1e-05" in verdict.localization.summary


def test_that_epsilon_passes_the_common_tolerances_on_normal_inputs(write: Write):
    """Why families exist: the mistake above is invisible to rtol=1e-3, atol=1e-5 on N(0, 1)."""

    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    a, b = (run_onnxruntime(path, {"x": x})[0] for path in (norm(write), norm(write, "1e-6", "b")))
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("exponent", [-6, -3, 0, 3, 6])
def test_no_false_failure_over_output_scales(write: Write, exponent: int):
    body = """g (float[N,12] x) => (float[N,9] y) {
        h = MatMul(x, w) t = Tanh(h) m = MatMul(t, v) y = Mul(m, s) }"""
    folded = """g (float[N,12] x) => (float[N,9] y) { h = MatMul(x, w) t = Tanh(h) y = MatMul(t, v) }"""
    rng = np.random.default_rng(1)
    w, v = rng.standard_normal((12, 33)), rng.standard_normal((33, 9))
    s = np.float64(np.float32(10.0**exponent))
    one = write(body, "a", w=w.astype(np.float32), v=v.astype(np.float32), s=np.float32(s))
    two = write(folded, "b", w=w.astype(np.float32), v=(v.astype(np.float32).astype(np.float64) * s).astype(np.float32))
    verdict = verify(one, two)
    assert verdict.check("rounding").status == "pass", verdict.summary()
    assert verdict.check("logic").status == "pass", verdict.summary()


def test_one_weight_wrong_by_a_thousandth_fails_at_every_scale(write: Write):
    body = "g (float[N,12] x) => (float[N,9] y) { y = MatMul(x, w) }"
    w = np.random.default_rng(1).standard_normal((12, 9)) * 1e-6
    wrong = w.copy()
    wrong[3, 4] *= 1.001
    verdict = verify(write(body, "a", w=w.astype(np.float32)), write(body, "b", w=wrong.astype(np.float32)))
    assert verdict.status == "fail"


@pytest.mark.parametrize(
    ("got", "word"),
    [
        ("g (float[4] x) => (float[4,1] y) { y = Unsqueeze(x, one) }", "shape"),
        ("g (float[4] x) => (double[4] y) { y = Cast<to=11>(x) }", "dtype"),
        ("g (float[4] x) => (float[4] y, float[4] z) { y = Identity(x) z = Identity(x) }", "returns"),
    ],
)
def test_shapes_dtypes_and_output_counts_are_exact(write: Write, got: str, word: str):
    reference = write("g (float[4] x) => (float[4] y) { y = Identity(x) }", "a")
    constants = {"one": np.array([1])} if "one" in got else {}
    verdict = verify(reference, write(got, "b", **constants))
    assert verdict.status == "fail"
    assert word in " ".join(verdict.reasons)


def test_outputs_in_another_order_fail(write: Write):
    body = "g (float[4] x) => (float[4] y, float[4] z) { y = Neg(x) z = Exp(x) }"
    swapped = "g (float[4] x) => (float[4] y, float[4] z) { z = Neg(x) y = Exp(x) }"
    assert verify(write(body, "a"), write(swapped, "b"), level="quick").status == "fail"


def test_weights_that_are_not_numbers_are_no_pass(write: Write):
    """NaN equals NaN everywhere: nothing was compared, and the verdict says which weight it is."""
    body = "g (float[N,4] x) => (float[N,4] y) { y = MatMul(x, w) }"
    for w in (np.full((4, 4), np.nan, np.float32), np.diag(np.float32([1, np.nan, 1, 1]))):
        path = write(body, "a", w=w)
        verdict = verify(path, path, level="quick")
        assert verdict.status == "not-exercised", verdict.summary()
        assert "weight 'w' is NaN" in verdict.reasons[0]


def test_an_operator_of_the_file_without_float64_meaning_is_weak_and_no_failure(
    write: Write, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delitem(OPERATORS, ("com.microsoft", "Trilu"))
    known = affine(8)
    one = write(
        """g (float[8,8] x) => (float[8,8] y) {
            t = Trilu(x) y = LayerNormalization<axis=-1, epsilon=1e-5>(t, scale, shift) }""",
        "a",
        **known,
    )
    proto = onnx.load(str(one))
    proto.graph.node[0].domain = "com.microsoft"
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    other = one.with_name("b.onnx")
    onnx.save(proto, str(other))
    verdict = verify(one, other, level="quick")
    assert verdict.check("rounding").status == "pass", verdict.summary()
    assert verdict.status == "weak", verdict.summary()


def test_nan_on_one_side_fails(write: Write):
    clean = write("g (float[N,3] x) => (float[N,3] y) { a = Abs(x) y = Sqrt(a) }", "a")
    nan = write("g (float[N,3] x) => (float[N,3] y) { a = Sqrt(x) b = Abs(x) c = Sqrt(b) y = Add(a, c) }", "b")
    verdict = verify(clean, nan)
    assert verdict.status == "fail"
    assert "nan" in " ".join(verdict.reasons)


def test_nan_on_both_sides_is_agreement(write: Write):
    body = "g (float[N,3] x) => (float[N,3] y) { y = Sqrt(x) }"
    verdict = verify(write(body, "a"), write(body, "b"))
    assert verdict.check("rounding").status == "pass"


def test_uint8_outputs_do_not_wrap(write: Write):
    body = "g (uint8[4] x) => (uint8[4] y) { y = %s }"
    ones = {"one": np.uint8(1)}
    reference = write(body % "Identity(x)", "a")
    # 255 + 1 wraps to 0: an error of 1 in every element, seen as 255 by a subtraction of unsigned integers
    verdict = verify(reference, write(body % "Add(x, one)", "b", **ones))
    assert verdict.status == "fail"
    assert verify(reference, write(body % "Identity(x)", "c")).status == "pass"


def test_no_float_output_at_all(write: Write):
    body = """g (float[N,6] x) => (int64[N] y, bool[N,6] m) {
        n = LayerNormalization(x, s) y = ArgMax<axis=-1, keepdims=0>(n) m = Greater(n, zero) }"""
    constants = {"s": np.ones(6, np.float32), "zero": np.float32(0)}
    reference = write(body, "a", **constants)
    same = verify(reference, write(body, "b", **constants))
    assert same.status in ("pass", "not-exercised"), same.summary()
    assert verify(reference, write(body.replace("ArgMax", "ArgMin"), "c", **constants)).status == "fail"


def test_ties_in_a_top_k_are_counted_not_failed(write: Write):
    # scores that differ by less than rounding: which of them comes first is nobody's mistake
    body = """g (float[N,8] x) => (float[N,3] v, int64[N,3] i) {
        a = MatMul(x, w) b = MatMul(a, u) v, i = TopK<axis=-1>(b, k) }"""
    rng = np.random.default_rng(0)
    column = rng.standard_normal((8, 1))
    w = np.repeat(column, 8, axis=1) + 0.0
    once = (w @ np.eye(8)).astype(np.float32)
    half = (np.eye(8) * 0.1).astype(np.float32)
    k = np.array([3])
    one = write(body, "a", w=once, u=half, k=k)
    two = write(
        """g (float[N,8] x) => (float[N,3] v, int64[N,3] i) { b = MatMul(x, w) v, i = TopK<axis=-1>(b, k) }""",
        "b",
        w=(once.astype(np.float64) @ half.astype(np.float64)).astype(np.float32),
        k=k,
    )
    verdict = verify(one, two)
    assert verdict.check("rounding").status == "pass", verdict.summary()


def test_a_wrong_top_k_is_still_a_failure(write: Write):
    body = "g (float[N,8] x) => (float[N,3] v, int64[N,3] i) { v, i = TopK<axis=-1, largest=%d>(x, k) }"
    k = np.array([3])
    assert verify(write(body % 1, "a", k=k), write(body % 0, "b", k=k), level="quick").status == "fail"


def test_integer_ids_masks_and_dynamic_sequences(write: Write):
    body = """g (int64[B,S] ids, bool[B,S] mask) => (float[B,S,6] y) {
        e = Gather(table, ids) m = Cast<to=1>(mask) u = Unsqueeze(m, last) h = Mul(e, u)
        y = LayerNormalization<axis=-1>(h, scale, shift) }"""
    table = np.random.default_rng(0).standard_normal((11, 6)).astype(np.float32)
    constants = {"table": table, "last": np.array([-1])} | affine(6)
    reference = write(body, "a", **constants)
    verdict = verify(reference, write(body, "b", **constants))
    assert verdict.status == "pass", verdict.summary()
    assert set(verdict.check("dynamic").measured.sizes) == {"B", "S"}
    names = verdict.environment["families"]
    assert {"lowest ids", "highest ids", "masks all true"} <= set(names)
    wrong = table.copy()
    wrong[10] = wrong[9]  # one row, the last of the vocabulary
    verdict = verify(reference, write(body, "c", **(constants | {"table": wrong})))
    assert verdict.status == "fail"


HEAD = "g (float[N,4] x) => (float[N,4] y) "


def test_a_batch_size_baked_in_is_found(write: Write):
    reference = write(HEAD + "{ y = Identity(x) }", "a")
    # right for a batch of 3 only
    constants = {"s": np.array([3, 4]), "n": np.array([-1, 4])}
    baked = write(HEAD + "{ r = Reshape(x, s) y = Reshape(r, n) }", "b", **constants)
    assert verify(reference, baked, level="quick").status == "fail"


def test_a_file_that_mixes_its_batch_is_found(write: Write):
    reference = write(HEAD + "{ y = Identity(x) }", "a")
    zero = {"zero": np.array([0])}
    harmless = "{ m = ReduceMax<keepdims=1>(x, zero) d = Sub(m, m) y = Add(x, d) }"
    assert verify(reference, write(HEAD + harmless, "b", **zero)).status == "pass"
    mixing = "{ m = ReduceMax<keepdims=1>(x, zero) s = Mul(m, small) y = Add(x, s) }"
    verdict = verify(reference, write(HEAD + mixing, "c", small=np.float32(1e-4), **zero))
    assert verdict.status == "fail"
    assert verdict.check("companions").status == "fail"


def test_batch_statistics_of_the_reference_itself_are_a_note(write: Write):
    body = "g (float[N,4] x) => (float[N,4] y) { m = ReduceMean<keepdims=1>(x, zero) y = Sub(x, m) }"
    verdict = verify(write(body, "a", zero=np.array([0])), write(body, "b", zero=np.array([0])))
    assert verdict.check("companions").status == "note"


def test_the_users_data_joins_the_families(write: Write):
    reference = norm(write)
    data = np.random.default_rng(3).standard_normal((5, 16)).astype(np.float32)
    verdict = verify(reference, norm(write, name="b"), data={"x": data})
    assert "your data" in verdict.environment["families"]
    assert not any("your own data" in text for text in verdict.not_checked)
    with pytest.raises(InputError, match="shape"):
        verify(reference, norm(write, name="b"), data=data[:, :5])
    with pytest.raises(InputError, match="no input 'x'"):
        verify(reference, norm(write, name="b"), data={"z": data})


def test_usage_errors(write: Write, tmp_path: Path):
    path = norm(write)
    with pytest.raises(UsageError, match="level is 'fast'"):
        verify(path, path, level="fast")
    with pytest.raises(GraphError, match="does not exist"):
        verify(path, tmp_path / "no.onnx")


def test_progress_is_told(write: Write):
    seen: list[tuple[str, float]] = []
    verify(norm(write), norm(write), level="quick", progress=lambda stage, share: seen.append((stage, share)))
    assert {"structure", "reference", "logic", "rounding", "sensitivity"} <= {stage for stage, _ in seen}
    assert all(0 <= share <= 1 for _, share in seen)


def test_what_quick_leaves_out_is_listed(write: Write):
    verdict = verify(norm(write), norm(write), level="quick")
    assert any("level quick" in text for text in verdict.not_checked)


def test_an_input_without_axes_reaches_the_runtime_without_axes(write: Write):
    """numpy.ascontiguousarray would make it a vector of one."""
    path = write("g (float factor) => (float y) { y = Neg(factor) }")
    (y,) = run_session(open_session(path, Setting()), {"factor": np.float32(2)}, ["y"])
    assert y.shape == ()


def test_a_node_that_reads_a_scalar_is_not_blamed_for_another_shape(write: Write):
    """The error is in the second Cast; the CastLike before it reads a number without axes."""
    body = """g (float[N,16] x) => (float[N,16] y) {
        h = LayerNormalization<axis=-1>(x, scale, shift)
        count = Size(scale) many = CastLike(count, h) m = Mul(h, many)%s }"""
    good = write(body % " y = Identity(m)", "good", **affine())
    low = " low = Cast<to=16>(m) y = Cast<to=1>(low)"
    bad = write(body % low, "bad", **affine())
    verdict = verify(good, bad)
    assert verdict.status == "fail"
    assert verdict.localization is not None
    assert verdict.localization.op == "Cast+Cast"
    assert "keeps about 9 bits of mantissa" in verdict.localization.summary
