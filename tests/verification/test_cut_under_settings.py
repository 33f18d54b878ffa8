"""A graph that is fed at a site runs once under each setting, and where no optimizer runs if its quantizers flip."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from normdeploy.verification.mutation import probes
from normdeploy.verification.sides.sessions import Setting


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return what judges a cut whose quantizers flip under some levels, with the settings that were run."""
    runs: list[Setting] = []

    def judge(flipping: set[str], kernels: list[str]) -> tuple[list[str], list[Setting]]:
        def outputs(context: Any, case: Any, found: Any, setting: Setting, *, part: Any, **_: Any) -> Any:
            assert len(runs) < 10, "it does not end"
            if setting.level in flipping:
                part.found.append("a flip")
            return [], 0.0

        def run(_: Any, setting: Setting) -> list[Any]:
            runs.append(setting)
            return []

        monkeypatch.setattr(probes, "logic_problems", lambda *_: ([], 0.0))
        monkeypatch.setattr(probes, "FlipRecord", lambda _: SimpleNamespace(found=[]))
        monkeypatch.setattr(probes, "judge_outputs", outputs)
        monkeypatch.setattr(probes, "rounding_themselves", lambda _: kernels)
        file = SimpleNamespace(model=None, logic=lambda _: [], run=run)
        context = SimpleNamespace(settings=[Setting(level="all")], level=SimpleNamespace(optimization=["all"]))
        case = SimpleNamespace(family=SimpleNamespace(name="normal", feeds={}))
        return probes.judged_cut(context, SimpleNamespace(file=file), case)[0], runs  # type: ignore[arg-type] # as little

    return judge


def test_kernels_that_round_otherwise_flip_at_every_level_and_it_ends(judged) -> None:
    problems, runs = judged({"all", "disable"}, ["QLinearAdd"])
    assert problems == []
    assert [setting.level for setting in runs] == ["all", "disable"]


def test_flips_where_no_optimizer_runs_are_the_files_own(judged) -> None:
    problems, runs = judged({"all", "disable"}, [])
    assert len(problems) == 1
    assert "off where no optimizer runs" in problems[0]
    assert [setting.level for setting in runs] == ["all", "disable"]


def test_flips_of_an_optimizer_alone_are_explained(judged) -> None:
    problems, runs = judged({"all"}, [])
    assert problems == []
    assert [setting.level for setting in runs] == ["all", "disable"]


def test_without_flips_nothing_else_runs(judged) -> None:
    problems, runs = judged(set(), [])
    assert problems == []
    assert [setting.level for setting in runs] == ["all"]
