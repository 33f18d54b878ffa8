"""A busy machine gives the verdict of an idle one, check by check."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import graph_damage
import onnx
import pytest

from normdeploy.verification import Verdict, verify


@contextmanager
def burning(count: int) -> Iterator[None]:
    """Keep some cores busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def answers(verdict: Verdict) -> dict[str, Any]:
    """All that a verdict says, but how long it took."""
    return {name: value for name, value in verdict.to_dict().items() if name not in ("seconds", "environment")}


WRITTEN = """g (float[N,4] x) => (float[N,3] y)
    <float[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -2, -3}, float[3] s = {1, 2, 3}, float[3] b = {0, 0.5, %s}> {
        a = MatMul(x, w) n = LayerNormalization(a, s, b) y = Tanh(n) }"""


@pytest.mark.parametrize("shift", [0.25, 0.75])
def test_load_changes_no_answer_on_a_small_file(shift: float, write: Callable[..., Path]):
    """A right file and a wrong one: every check, its words and its numbers, with two processes at work beside it."""
    right, other = write(WRITTEN % 0.25, "right"), write(WRITTEN % shift, "other")
    idle = answers(verify(right, other))
    with burning(2):
        busy = answers(verify(right, other))
    assert idle["status"] == ("pass" if shift == 0.25 else "fail")
    assert {check["name"] for check in idle["checks"]} >= {"logic", "rounding", "companions", "dynamic"}
    assert busy == idle


@pytest.mark.slow
@pytest.mark.parametrize("level", ["quick", "default"])
def test_load_changes_no_answer(small: Any, level: str, tmp_path: Path) -> None:
    damage = next(graph_damage.damages(onnx.load(str(small.folded)), kinds=("bias dropped",), first_only=True))
    onnx.save(damage.model, str(tmp_path / "damaged.onnx"))
    files = [small.folded, small.plain, tmp_path / "damaged.onnx"]
    idle = [answers(small.verdict(path, level=level)) for path in files]
    with burning(2 * (os.cpu_count() or 1)):
        busy = [answers(small.verdict(path, level=level)) for path in files]
    assert [answer["status"] for answer in idle] == ["pass", "pass", "fail"]
    for before, after in zip(idle, busy, strict=True):
        assert after == before
