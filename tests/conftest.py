"""What holds for every test."""

import gc
import logging
import os
import random
import shutil
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest import logging as pytest_logging
from _pytest.assertion import rewrite
from hypothesis import settings
from hypothesis.internal import reflection
from hypothesis.internal.conjecture import providers
from short_turns import SHORT

gc.disable()  # until tests are collected: importing libraries and making thousands of tests leaves no garbage behind

# Tests run side by side (pytest -n auto), one core each: several threads apiece would wait for one another.
# Set before torch and onnxruntime are imported, here and in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# One worker more than there are cores: a ninth of a worker's time is waiting, for processes that tests start and end.
os.environ.setdefault("PYTEST_XDIST_AUTO_NUM_WORKERS", str((os.cpu_count() or 1) + 1))

# torch's compiler believes the processor: it would compile and run a program for each set of instructions, 10 s in all
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# It compiles here: processes that would compile beside it import torch first, 8 s for one function
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Tests make some ten thousand folders. On a disk they wait for its journal, a quarter of the time of those that write
# much; in memory they do not. A container's memory may be too small for them, or forbid that programs in it run.
_MEMORY = Path("/dev/shm")
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 8 << 30 and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# Bytecode is kept, also where a container's environment says that it is not: each process would compile some thousand
# modules again, ours and those that pytest rewrites, which is half of collecting the tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same draws in every run: what fails, fails for everybody. --hypothesis-profile=default draws anew. And whatever is
# imported: Hypothesis reads all our sources for constants to draw, 1.2 s in each process of a fresh checkout.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
providers._get_local_constants = lambda: providers._local_constants
# Python 3.11 gathers a protocol's attributes anew for each isinstance, 50 us, which onnx_ir asks of tensors.
if sys.version_info < (3, 12):
    typing._get_protocol_attrs = cache(typing._get_protocol_attrs)
# It takes a function's source apart twice for each case of a parametrized test, 4 ms, to seed it.
reflection._clean_source = cache(reflection._clean_source)


class _OfRoot(pytest_logging.catching_logs[logging.Handler]):
    """Hear what reaches the root logger: six handlers a test on each of torch's sixty others take 0.4 ms."""

    def __enter__(self) -> logging.Handler:
        root = logging.getLogger()
        root.addHandler(self.handler)
        self.attached_loggers.append(root)
        if self.level is not None:
            self.handler.setLevel(self.level)
            self.orig_level = root.level
            root.setLevel(min(root.level, self.level))
        return self.handler


pytest_logging.catching_logs = _OfRoot  # type: ignore[misc]

_READ_ANEW = pytest.StashKey[Callable[[], None]]()
_WAITS = pytest.StashKey[Callable[[int], None]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let each worker of a fresh checkout rewrite a part of the tests; else all of them rewrite all, 5 s each."""
    given = getattr(session.config, "workerinput", None)
    if given is None:
        return
    tests = sorted(Path(__file__).parent.rglob("test_*.py"))
    for path in tests[int(given["workerid"].removeprefix("gw")) :: given["workercount"]]:
        kept = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
        if not kept.exists() and rewrite.try_makedirs(kept.parent):
            digest, code = rewrite._rewrite_test(path, session.config)
            rewrite._write_pyc(session.config.stash[rewrite.assertstate_key], code, digest, kept)


def pytest_collection_finish() -> None:
    _keep_for_good()
    gc.set_threshold(50_000, 20, 100)  # a twelfth of an export's time at the usual 700
    gc.enable()


def _keep_for_good() -> None:
    """Take what is there out of the garbage collector's rounds: libraries and tests, hundreds of thousands of objects.

    torch.export leaves enough behind for a round every few networks, and each walked them all. What is garbage by now,
    one object of thirty, is kept with them: to find it takes 0.4 s and more.
    """
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Give every test the same random numbers, whatever ran before it."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - for code that draws from the global generator
    if torch.backends.cuda.is_built():
        torch.manual_seed(0)
    else:  # without the stack that torch.manual_seed keeps for GPUs to come: 0.8 ms, for each of 8,000 tests
        torch.default_generator.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[Any]:
    """Put in force what holds for all tests of a process: a fixture of theirs would be asked for by each, 0.1 ms."""
    if not session.items:  # the process that hands out tests to others
        return (yield)
    from torch_tables import made_once

    with pytest.MonkeyPatch.context() as patch, made_once(_keep_for_good) as read_anew:
        session.config.stash[_READ_ANEW], session.config.stash[_WAITS] = read_anew, os.fsync
        # No file waits until the disk holds it, 3 ms for each of some ten thousand: no test cuts the power. A handle
        # that is none is refused as before; processes that tests start wait.
        patch.setattr(os, "fsync", os.fstat)
        _let_threads_sleep(patch)
        _build_commands_once(patch)
        return (yield)


def _let_threads_sleep(patch: pytest.MonkeyPatch) -> None:
    """Let onnxruntime's threads sleep where they would spin: beside the other workers' tests they are half of a search.

    A fresh session's second thread spins for 2.5 ms. Their number is as asked for, and with it each result.
    """
    import onnxruntime

    options, session = onnxruntime.SessionOptions, onnxruntime.InferenceSession
    kinds = [f"session.{pool}.allow_spinning" for pool in ("intra_op", "inter_op")]
    adds, opens = options.add_session_config_entry, session.__init__

    def add(self: Any, key: str, value: str) -> None:
        adds(self, key, "0" if key in kinds else value)

    def opened(self: Any, model: Any, sess_options: Any = None, *args: Any, **named: Any) -> None:
        given = sess_options or options()
        for kind in kinds:
            try:
                given.get_session_config_entry(kind)
            except RuntimeError:  # nothing is said
                given.add_session_config_entry(kind, "0")
        opens(self, model, given, *args, **named)

    patch.setattr(options, "add_session_config_entry", add)
    patch.setattr(session, "__init__", opened)


def _build_commands_once(patch: pytest.MonkeyPatch) -> None:
    """Build typer's tree of commands once a process: nine tenths of a refused command's time (typer 0.29)."""
    from typer import testing

    patch.setattr(testing, "_get_command", cache(testing._get_command))


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Run programs as forks of one process that has imported everything: a :class:`forked_python.ForkedPython`."""
    from forked_python import ForkedPython

    if not hasattr(os, "memfd_create"):
        pytest.skip("forks are made on Linux alone")
    folder = tmp_path_factory.getbasetemp()
    process = ForkedPython(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
    yield process
    process.end()


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Hear torch's loggers as well, which hand nothing on to the root."""
    for logger in logging.getLogger().manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            monkeypatch.setattr(logger, "propagate", True)
    return caplog


@pytest.fixture
def torchlib_read_anew(pytestconfig: pytest.Config) -> None:
    """Let this test's first export read torch's operators again, with all that torch says while it does."""
    pytestconfig.stash[_READ_ANEW]()


@pytest.fixture
def waiting_disk(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files wait until the disk holds them, as outside of tests."""
    monkeypatch.setattr(os, "fsync", pytestconfig.stash[_WAITS])


@pytest.fixture
def adapters_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let adapters work here, not in processes of their own, 2 s each; tests/conformance/test_adapters.py has both."""
    from normdeploy.conformance import run_cases
    from normdeploy.conformance.case_outcome import judge

    @contextmanager
    def here(adapter: Any, sources: str) -> Iterator[Callable[[Any], tuple[Any, bool]]]:
        yield lambda case: (judge(case, adapter, Path(sources)), False)

    monkeypatch.setattr(run_cases, "_worker", here)


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is timed take turns of half a millisecond, no pauses between them, and 10 rounds at most."""
    for name, seconds in SHORT.items():
        monkeypatch.setattr(name, seconds)
