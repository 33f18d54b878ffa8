"""A mutant that cancels behind its site is harmless; one whose path is dead is not shown to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from normdeploy.verification import check_context, verify
from normdeploy.verification.check_levels import LEVELS

Write = Callable[..., Path]

NORM = "h = LayerNormalization<axis=-1>(x, scale, shift)"
MIXED = f"""g (float[N,6,8] x) => (float[N,6,8] y) {{
    {NORM}
    mean = ReduceMean<keepdims=1>(h, axes) token = Sub(mean, h) y = Add(x, token) }}"""
DEAD = f"""g (float[N,6,8] x) => (float[N,6,8] y) {{
    {NORM}
    low = Sub(h, far) none = Relu(low) y = Add(x, none) }}"""


def constants(**more: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    scale, shift = rng.uniform(0.5, 2, 8).astype(np.float32), rng.standard_normal(8).astype(np.float32)
    return {"scale": scale, "shift": shift, **more}


def survivors(path: Path) -> dict[str, str]:
    verdict = verify(path, path)
    return {m.name: m.note for s in verdict.sites for m in s.mutants if not m.killed and not m.harmless}


def test_a_shift_that_is_subtracted_again_is_harmless_and_says_so(write: Write):
    path = write(MIXED, axes=np.asarray([1], np.int64), **constants())
    verdict = verify(path, path, level="thorough")
    assert verdict.status == "pass", verdict.summary()
    dropped = next(m for m in verdict.sites[0].mutants if m.name == "shift dropped")
    assert dropped.harmless
    assert "cancels behind the site" in dropped.note
    assert next(m for m in verdict.sites[0].mutants if m.name == "scale dropped").killed


@pytest.mark.parametrize(("guard", "cancels"), [(1e-12, True), (1.0, False)])
def test_a_scale_in_front_of_unit_length_is_harmless(write: Write, guard: float, cancels: bool):
    """x / max(|x|, 1e-12) shows a scale of x where |x| is below: of these numbers float32 has denormal ones alone.

    With a guard of 1 it shows it, and the mutant is killed.
    """
    body = """g (float[N,6,8] x) => (float[N,6,8] y) {
        h = Sigmoid(x) part = Mul(h, factor) a = Add(part, nought) n = ReduceL2<keepdims=1>(a, axes) m = Max(n, guard)
        d = Div(a, m) z = Relu(d) y = Add(d, z) }"""
    factor, nought = np.linspace(0.2, 0.4, 8, dtype=np.float32), np.zeros(8, np.float32)
    extra = {"factor": factor, "nought": nought, "guard": np.asarray(guard, np.float32)}
    path = write(body, axes=np.asarray([-1], np.int64), **extra)
    verdict = verify(path, path, level="thorough")
    assert verdict.status == "pass", verdict.summary()
    (off,) = [m for s in verdict.sites for m in s.mutants if m.name == "scale off by one in 1000"]
    assert (off.harmless, off.killed) == (cancels, not cancels)
    assert ("cancels behind the site" in off.note) == cancels


def test_a_dead_path_is_not_taken_for_one_that_cancels(write: Write):
    """Behind Relu(h - 1e4) nothing moves for any row seen, in whatever direction: that shows nothing."""
    path = write(DEAD, far=np.asarray(1e4, np.float32), **constants())
    verdict = verify(path, path)
    assert verdict.status == "not-exercised", verdict.summary()
    assert {"shift dropped", "scale dropped"} <= set(survivors(path))


@pytest.mark.parametrize("factor", [1.0, 1.0001])
def test_what_nearly_cancels_does_not(write: Write, factor: float):
    """With 1.0001 h subtracted a part of the shift is left: far below one rounding of x, far above float64's."""
    body = MIXED.replace("token = Sub(mean, h)", "more = Mul(h, factor) token = Sub(mean, more)")
    big = body.replace("y = Add(x, token)", "large = Mul(x, size) y = Add(large, token)")
    extra = {"factor": np.asarray(factor, np.float32), "size": np.asarray(1e7, np.float32)}
    path = write(big, axes=np.asarray([1], np.int64), **constants(), **extra)
    notes = [m.note for s in verify(path, path, level="thorough").sites for m in s.mutants if m.name == "shift dropped"]
    assert any("cancels" in note for note in notes) == (factor == 1.0)


@pytest.mark.parametrize("afforded", [0.0, 1e-9, 1.0])
def test_what_it_takes_is_counted_and_bounded(write: Write, monkeypatch: pytest.MonkeyPatch, afforded: float):
    """Two norms whose shifts cancel: with no work left neither is looked at, with the least work one is."""
    again = MIXED.replace("y = Add(x, token) }", "z = Add(x, token) ")
    again += """k = LayerNormalization<axis=-1>(z, scale, shift) among = ReduceMean<keepdims=1>(k, axes)
        other = Sub(among, k) y = Add(z, other) }"""
    path = write(again, axes=np.asarray([1], np.int64), **constants())
    monkeypatch.setitem(LEVELS, "thorough", replace(LEVELS["thorough"], work=10.0))
    monkeypatch.setattr(check_context, "DECIDING", afforded)
    verdict = verify(path, path, level="thorough")
    shown = sum("cancels behind" in m.note for s in verdict.sites for m in s.mutants if m.name == "shift dropped")
    assert shown == {0.0: 0, 1e-9: 1, 1.0: 2}[afforded]
    left = [text for text in verdict.not_checked if "cancels behind" in text]
    named = {0: "2 sites", 1: "1 site", 2: ""}[shown]
    assert left == ([f"whether what is changed at {named} cancels behind it (level thorough)"] if named else [])
    assert (verdict.status == "pass") == (shown == 2)
