"""What holds for every test."""

import gc
import os
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import settings

# Tests run side by side (pytest -n auto), one core each: several threads apiece would wait for one another.
# Set before torch and onnxruntime are imported, here and in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The same draws in every run: what fails, fails for everybody. --hypothesis-profile=default draws anew.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


def pytest_collection() -> None:
    gc.disable()  # thousands of tests are made and none is dropped


def pytest_collection_finish() -> None:
    _keep_for_good()


def _keep_for_good() -> None:
    """Take what is there out of the garbage collector's rounds: libraries and tests, hundreds of thousands of objects.

    torch.export leaves enough behind for a round every few networks, and each walked them all.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Give every test the same random numbers, whatever ran before it."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - for code that draws from the global generator
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _torchlib() -> Iterator[Callable[[], None]]:
    """Let torch.onnx.export read its table of 1,500 operators once a process: two thirds of a small network's export.

    Every export gets a table of its own with the same rows, so that a translation of one is none of the next. Likewise
    each looks up every composite operator of torch, once for each of 28 libraries: once for all, while no library
    registers another.
    """
    import torch
    from torch._export import utils
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    look_up, looked_up = utils._materialize_cpp_cia_ops, []

    def look_up_once() -> None:
        registered = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        if registered != looked_up:
            look_up()
            looked_up[:] = registered

    read: dict[tuple[Any, ...], ONNXRegistry] = {}
    anew = ONNXRegistry.from_torchlib

    def once(cls: type[ONNXRegistry], *args: Any, **options: Any) -> ONNXRegistry:
        key = (*args, *sorted(options.items()))
        if key not in read:
            read[key] = anew(*args, **options)
            _keep_for_good()
        table = cls()
        vars(table).update(vars(read[key]))
        table.functions = {target: list(rows) for target, rows in read[key].functions.items()}
        return table

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_materialize_cpp_cia_ops", look_up_once)
        patch.setattr(ONNXRegistry, "from_torchlib", classmethod(once))
        yield read.clear


@pytest.fixture(scope="session", autouse=True)
def _commands() -> Iterator[None]:
    """Build typer's tree of commands and options once a process: nine tenths of a refused command's time."""
    from typer import testing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", cache(testing._get_command))
        yield


@pytest.fixture
def torchlib_read_anew(_torchlib: Callable[[], None]) -> None:
    """Let this test's first export read torch's operators again, with all that torch says while it does."""
    _torchlib()


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tuner take turns of 2 ms and no pauses between them: its tests ask what follows from times, not of them.

    Turns of 50 ms and pauses of 20 ms, fair to threads, are ten seconds a search; tests/runtime/test_latency.py asks
    of those.
    """
    for module in ("trials", "final_comparison", "opponent"):
        monkeypatch.setattr(f"normdeploy.runtime.tuning.{module}.STRETCH", 0.002)
        monkeypatch.setattr(f"normdeploy.runtime.tuning.{module}.PAUSE", 0.0)
