"""Budgets: what is checked depends on the network, the level and the seed, and never on a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.graph import Evaluator
from normdeploy.verification import Verdict, verify
from normdeploy.verification.check_levels import LEVELS
from normdeploy.verification.evaluation_cost import PER_ELEMENT, PER_OPERATOR, Effort, counted

Write = Callable[..., Path]


def answers(verdict: Verdict) -> dict[str, Any]:
    data = verdict.to_dict()
    for name in ("seconds", "environment"):
        del data[name]
    return data


@pytest.mark.parametrize("level", ["quick", "default"])
def test_a_clock_that_runs_wild_changes_no_answer(small: Any, level: str, monkeypatch: pytest.MonkeyPatch):
    calm = answers(small.verdict(small.folded, level=level))
    for name in ("perf_counter", "process_time", "monotonic", "time"):
        clock = count(0.0, 1e4)
        monkeypatch.setattr(time, name, lambda clock=clock: next(clock))
    assert answers(small.verdict(small.folded, level=level)) == calm


def test_work_is_counted_from_sizes():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 20]> g (float[2,8] x, float[8,3] w) => (float[2,3] y) {
            a = MatMul(x, w) y = Relu(a) }"""
    )
    want = 2 * 3 * 8 + PER_ELEMENT * (6 + 6) + 2 * PER_OPERATOR
    found = counted(Evaluator(model), {"x": np.zeros((2, 8)), "w": np.zeros((8, 3))})
    assert found is not None
    assert found.work == pytest.approx(want / 1e9)
    assert found.operators == 2


def test_the_work_of_a_loop_is_that_of_its_turns():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 20]> g (float[4] x) => (float[4] y)
        <int64 turns = {5}, bool yes = {1}> {
            y = Loop (turns, yes, x) <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
                d = Identity(c) w = Add(v, v) }> }"""
    )
    found = counted(Evaluator(model), {"x": np.zeros(4, np.float32)})
    assert found is not None
    assert found.work == pytest.approx((PER_ELEMENT * (5 * (1 + 4) + 4) + 11 * PER_OPERATOR) / 1e9)


def test_larger_inputs_spend_in_proportion():
    budget = Effort(10.0, once=2.0, size=8)
    budget.spend(1)
    assert budget.spent == 2.0
    budget.spend(2, {"x": np.zeros((3, 8))})
    assert budget.spent == 2.0 + 2 * 2.0 * 3
    assert not budget.affords()
    assert budget.affords(2.0)


def test_work_that_decides_is_done_whatever_is_spent(small: Any, monkeypatch: pytest.MonkeyPatch):
    """With nothing to spend one family is left, every mutant is still answered, and one line says what is missing."""
    monkeypatch.setitem(LEVELS, "default", replace(LEVELS["default"], work=0.0))
    verdict = small.verdict(small.folded)
    assert verdict.status == "pass", verdict.summary()
    assert len(verdict.environment["families"]) == 2
    lines = [line for line in verdict.summary().splitlines() if "not checked" in line]
    assert len(lines) == 1
    for word in ("offset 1e3", "ones", "batch"):
        assert word in lines[0]


def test_what_decides_for_a_site_no_input_reaches_has_work_of_its_own(write: Write, monkeypatch: pytest.MonkeyPatch):
    """An epsilon that only rows fed at the site show: found where the level has none, named where that has none."""
    rng = np.random.default_rng(0)
    table = (10 * rng.standard_normal((7, 8))).astype(np.float32)
    known = {"table": table, "scale": np.ones(8, np.float32), "shift": np.zeros(8, np.float32)}
    body = "g (int64[N,3] ids) => (float[N,3,8] y) { x = Gather(table, ids) y = %s(x, scale, shift) }"
    one = write(body % "LayerNormalization<axis=-1, epsilon=1e-6>", "a", **known)
    split = """g (int64[N,3] ids) => (float[N,3,8] y) { x = Gather(table, ids)
        z = LayerNormalization<axis=-1, epsilon=1e-6>(x, scale)
        sign = Sign(z) size = Abs(z) again = Mul(sign, size) y = Add(again, shift) }"""  # no algebra explains it
    other = write(split, "b", **known)
    full = verify(one, other)
    monkeypatch.setitem(LEVELS, "default", replace(LEVELS["default"], work=0.0))
    empty = verify(one, other)
    assert full.status == empty.status == "pass", empty.summary()
    monkeypatch.setattr("normdeploy.verification.check_context.DECIDING", 0.0)
    bounded = verify(one, other)
    assert bounded.status == "not-exercised"
    for words in ("feeding 1 site directly", "the search for inputs that show"):
        assert any(words in line for line in bounded.not_checked)


def test_what_algebra_does_not_confirm_is_sampled_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One convolution: as it is, and behind a choice between it and itself, of which the checker knows no rule."""
    numbers = ", ".join(str(n / 81) for n in range(81))
    head = f"""<ir_version: 10, opset_import: ["": 20]> g (float[N,3,32,32] x) => (float[N,3,30,30] y)
        <float[3,3,3,3] w = {{{numbers}}}> """

    def written(body: str, name: str) -> Path:
        ir.save(ir.from_onnx_text(head + "{" + body + "}"), tmp_path / name)
        return tmp_path / name

    plain = written("y = Conv(x, w)", "plain.onnx")
    other = written("a = Conv(x, w) n = IsNaN(a) y = Where(n, a, a)", "other.onnx")
    monkeypatch.setitem(LEVELS, "default", replace(LEVELS["default"], work=0.003))

    def families(file: Path) -> int:
        verdict = verify(plain, file)
        status = next(check.status for check in verdict.checks if check.name == "derivation")
        assert status == ("pass" if file == plain else "note")
        return len({row.family for row in verdict.measurements})

    assert families(plain) < families(other)


@pytest.mark.parametrize(("fill", "families"), [(1.0, ["example"]), (0.0, ["example", "normal"])])
def test_a_lean_level_judges_the_example_alone_where_it_says_enough(
    fill: float, families: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setitem(LEVELS, "quick", replace(LEVELS["quick"], heavy=0.0, work=0.0))
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)).eval(), fill * torch.randn(3, 6)
    path = tmp_path / "net.onnx"
    nd.export(model, (x,), path, verify=False)
    verdict = verify(model, path, args=(x,), level="quick")
    assert verdict.environment["families"] == families
    assert verdict.status == "pass", verdict.summary()
    assert any("batch companions (level quick)" in text for text in verdict.not_checked)
    damaged = ir.load(path)
    name, tensor = next((n, t) for n, v in damaged.graph.initializers.items() if (t := v.const_value) and t.size == 4)
    damaged.graph.initializers[name].const_value = ir.tensor(tensor.numpy() + np.float32(1e-3), name=name)
    ir.save(damaged, tmp_path / "damaged.onnx")
    assert verify(model, tmp_path / "damaged.onnx", args=(x,), level="quick").status == "fail"
