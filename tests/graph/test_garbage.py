"""Rounds of the garbage collector become rarer, and the caller's thresholds come back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.graph.garbage import rarely_collected


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_they_are_rarer_meanwhile_and_nothing_else_changes(thresholds: tuple[int, int, int]) -> None:
    enabled = gc.isenabled()

    @rarely_collected()
    def fails() -> None:
        with rarely_collected():
            young, middle, old = gc.get_threshold()
        assert young > thresholds[0]
        assert middle == thresholds[1]
        assert old > thresholds[2]
        assert gc.isenabled() == enabled
        raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize("own", [(0, 10, 10), (1_000_000, 5, 1_000)])
def test_what_collects_more_rarely_stays(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with rarely_collected():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_of_two_threads_the_last_gives_them_back(thresholds: tuple[int, int, int]) -> None:
    entered, leave = Event(), Event()

    def other() -> None:
        with rarely_collected():
            entered.set()
            leave.wait()

    with rarely_collected():
        thread = Thread(target=other)
        thread.start()
        entered.wait()
    assert gc.get_threshold() != thresholds
    leave.set()
    thread.join()
    assert gc.get_threshold() == thresholds


def test_an_export_leaves_them_as_they_were(tmp_path: Path, thresholds: tuple[int, int, int]) -> None:
    nd.export(nn.Linear(2, 2).eval(), torch.randn(2, 2), tmp_path / "net.onnx")
    assert gc.get_threshold() == thresholds
