"""OpenVINO's own runtime reads inputs where they lie: whatever their layout, results are the same and our own."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from normdeploy.ort.providers import float32_options
from normdeploy.ort.settings import OPENVINO_RUNTIME, Settings
from normdeploy.runtime.backend import open_backend

pytest.importorskip("openvino", reason="the extra 'peers' is not installed")


@pytest.fixture
def opened(write_model):
    """Return a function that opens a graph whose second input has the rank given; one output is an input passed on."""

    def opens(rank: int):
        path = write_model(
            f"""n (float[batch, 4] x, float{"[one]" * rank} s) => (float[batch, 4] y, float[batch, 4] same) {{
                y = Mul(x, s)
                same = Identity(x)
            }}"""
        )
        options = float32_options(OPENVINO_RUNTIME)
        return open_backend(path, Settings(provider=OPENVINO_RUNTIME, options=options, threads=1))

    return opens


def _layouts() -> dict[str, np.ndarray]:
    whole = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    locked = whole[:, :4].copy()
    locked.flags.writeable = False
    return {
        "in place": whole[:, :4].copy(),
        "read only": locked,
        "strided": whole[::2, ::2],
        "columns first": np.asfortranarray(whole[:, :4]),
        "no rows": whole[:0, :4].copy(),
    }


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("layout", _layouts())
def test_every_layout_gives_the_same(opened, layout, rank):
    x, s = _layouts()[layout], np.full((1,) * rank, 3.0, np.float32)
    before = x.copy()
    y, same = opened(rank).run({"x": x, "s": s})
    np.testing.assert_array_equal(y, 3 * before)
    np.testing.assert_array_equal(same, before)
    assert not any(np.shares_memory(out, x) for out in (y, same))
    np.testing.assert_array_equal(x, before)


def test_results_outlive_the_next_call_and_the_inputs(opened):
    backend, s = opened(1), np.ones(1, np.float32)
    first, kept = backend.run({"x": np.full((2, 4), 5.0, np.float32), "s": s})
    other = np.full((2, 4), 7.0, np.float32)
    backend.run({"x": other, "s": s})
    other[:] = 9.0
    np.testing.assert_array_equal(first, np.full((2, 4), 5.0))
    np.testing.assert_array_equal(kept, np.full((2, 4), 5.0))


_TWO_IN_TURN = """
import gc, os, signal, sys
from normdeploy.ort.settings import OPENVINO_RUNTIME, Settings
from normdeploy.runtime.backend import open_backend

signal.signal(signal.SIGINT, lambda *_: print("handled"))
first, second = (open_backend(sys.argv[1], Settings(provider=OPENVINO_RUNTIME, threads=1)) for _ in range(2))
del first
gc.collect()
del second
gc.collect()
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.skipif(os.name != "posix", reason="signal stacks are POSIX's")
def test_a_signal_is_handled_after_models_are_deleted_in_the_order_in_which_they_were_made(write_model):
    path = write_model("n (float[batch, 4] x) => (float[batch, 4] y) { y = Relu(x) }")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", _TWO_IN_TURN, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr
