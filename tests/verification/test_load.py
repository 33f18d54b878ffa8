"""A busy machine gives the verdict of an idle one, check by check."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import graph_damage
import onnx
import pytest

from normdeploy.verification import Verdict


@contextmanager
def burning() -> Iterator[None]:
    """Keep every core busy, twice over."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def answers(verdict: Verdict) -> dict[str, Any]:
    """All that a verdict says, but how long it took."""
    return {name: value for name, value in verdict.to_dict().items() if name not in ("seconds", "environment")}


@pytest.mark.slow
@pytest.mark.parametrize("level", ["quick", "default"])
def test_load_changes_no_answer(small: Any, level: str, tmp_path: Path) -> None:
    damage = next(graph_damage.damages(onnx.load(str(small.folded)), kinds=("bias dropped",), first_only=True))
    onnx.save(damage.model, str(tmp_path / "damaged.onnx"))
    files = [small.folded, small.plain, tmp_path / "damaged.onnx"]
    idle = [answers(small.verdict(path, level=level)) for path in files]
    with burning():
        busy = [answers(small.verdict(path, level=level)) for path in files]
    assert [answer["status"] for answer in idle] == ["pass", "pass", "fail"]
    for before, after in zip(idle, busy, strict=True):
        assert after == before
