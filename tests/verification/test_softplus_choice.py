"""A choice between a Softplus and its operand, as torch's export writes it, where both are one number to float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from normdeploy.verification import Verdict, verify

HEAD = '<ir_version: 8, opset_import: ["" : 18]> agraph (float[N, 4] x) => (float[N, 4] y)'


def written(body: str, path: Path) -> Path:
    """Write a graph whose Softplus reads a norm, so that no sample is beyond a bound of 20."""
    text = f"""{HEAD} <float[4] scale = {{1, 2, 0.5, 1.5}}, float[4] shift = {{0.1, 0.2, -0.3, 0.4}}> {{
        h = LayerNormalization(x, scale, shift)
        {body}
        y = LayerNormalization(s, scale, shift)
    }}"""
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(rng.uniform(0.5, 2, 4).astype(np.float32), tensor.name))
    onnx.save(proto, path)
    return path


def choosing(bound: float, factor: float = 1, divided: float | None = None) -> str:
    """Return a softplus as torch's export writes it, its numbers by CastLike."""
    return f"""
        c = Constant <value_float = {float(bound)}> ()
        k = Constant <value_float = {float(factor)}> ()
        d = Constant <value_float = {float(factor if divided is None else divided)}> ()
        kl = CastLike(k, h)
        a = Mul(h, kl)
        p = Softplus(a)
        dl = CastLike(d, p)
        q = Div(p, dl)
        cl = CastLike(c, a)
        m = Greater(a, cl)
        s = Where(m, h, q)"""


def alone(factor: float = 1) -> str:
    """Return the same without the choice, as other exporters write it."""
    if factor == 1:
        return "s = Softplus(h)"
    return f"""
        k = Constant <value_float = {float(factor)}> ()
        a = Mul(h, k)
        p = Softplus(a)
        s = Div(p, k)"""


def judged(reference: str, file: str, folder: Path) -> Verdict:
    return verify(written(reference, folder / "a.onnx"), written(file, folder / "b.onnx"), level="quick")


@pytest.mark.parametrize("factor", [1, 2, 0.5])
@pytest.mark.parametrize("lost", [True, False])
def test_a_softplus_without_its_choice_is_the_same_for_every_input(factor: float, lost: bool, tmp_path: Path) -> None:
    texts = choosing(20, factor), alone(factor)
    verdict = judged(*(texts if lost else texts[::-1]), tmp_path)
    assert verdict.status == "pass", verdict.summary()
    assert verdict.check("derivation").status == "pass", verdict.summary()


@pytest.mark.parametrize(
    ("reference", "file"),
    [
        (choosing(12), alone()),  # log(1 + exp(-12)) is 6 units of 12's last digit
        (choosing(20, divided=1.0001), alone()),
        (choosing(20).replace("Greater", "Less"), alone()),
        (choosing(20).replace("Where(m, h, q)", "Where(m, x, q)"), alone()),
        (choosing(20, -2), alone(-2)),
        (choosing(20), alone(1.0001)),
        (choosing(20), "s = Relu(h)"),
    ],
)
def test_another_choice_is_no_softplus(reference: str, file: str, tmp_path: Path) -> None:
    """Neither bound is reached behind the norm: where nothing but the choice differs, samples show nothing."""
    for texts in ((reference, file), (file, reference)):
        verdict = judged(*texts, tmp_path)
        assert verdict.status in ("fail", "not-exercised"), verdict.summary()


def test_the_bound_is_where_float32_shows_nothing_of_the_choice() -> None:
    """log(1 + exp(-c)) against half of a float32's last digit, in float64 by NumPy."""
    unit = 2.0**-24
    for bound, shown in ((20.0, False), (18.0, False), (12.0, True)):
        assert (np.log1p(np.exp(-bound)) / bound > unit / 2) is np.bool_(shown)
