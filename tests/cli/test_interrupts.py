"""A stop that arrives where Python cannot raise it still ends the command."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from forked_python import ForkedPython
from onnx import parser
from stopped_commands import MAIN

SOURCE = """
import os, time
from torch import nn

class Last:
    def __del__(self):
        os.kill(os.getpid(), {number})
        for _ in range(1000):  # the handler runs between two of these, inside the destructor
            pass

def net():
    last = Last()
    del last
    time.sleep(120)
    return nn.Linear(4, 3)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_inside_a_destructor_is_not_lost(tmp_path: Path, number: int, code: int, forked: ForkedPython) -> None:
    (tmp_path / "net.py").write_text(SOURCE.format(number=int(number)))
    words = ["export", "net.py:net", "-o", "net.onnx", "--input", "x=float32:2x4"]
    done = forked.run(MAIN, *words, folder=tmp_path, own_end=True)
    assert done.returncode == code, done.stderr
    assert "stopped: nothing was written" in " ".join(done.stderr.split())
    assert "Exception ignored" not in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["net.py"]


ENDLESS = """<ir_version: 9, opset_import: ["" : 18]> g (float[n,8] x) => (float[n,8] y)
    <int64 most = {9223372036854775807}, bool yes = {1}> { y = Loop (most, yes, x)
    <body = b (int64 i, bool go, float[n,8] a) => (bool on, float[n,8] c) { on = Or(go, go) c = Relu(a) }> }"""
STOPPED_INSIDE = """
import signal, sys, threading, time

def stop_it():  # as soon as the main thread stands in a run of onnxruntime
    while True:
        time.sleep(0.02)
        frame, names = sys._current_frames()[threading.main_thread().ident], []
        while frame is not None:
            names.append((frame.f_code.co_name, frame.f_code.co_filename.replace("\\\\", "/")))
            frame = frame.f_back
        if names[0][0] == "run" and "onnxruntime/" in names[0][1]:
            break
    time.sleep(0.1)
    signal.pthread_kill(threading.main_thread().ident, {number})

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=stop_it, daemon=True).start()
from normdeploy.cli import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no signal is sent to a thread there")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("words", ["run net.onnx --input x.npy -o y.npy", "diff net.onnx net.onnx", "bench net.onnx"])
def test_a_network_that_never_ends_is_stopped(
    tmp_path: Path, words: str, number: int, code: int, forked: ForkedPython
) -> None:
    onnx.save(parser.parse_model(ENDLESS), tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", np.ones((2, 8), np.float32))
    program = STOPPED_INSIDE.replace("{number}", str(int(number)))
    done = forked.run(program, *words.split(), folder=tmp_path, own_end=words.startswith("run"))
    assert done.returncode == code, done.stderr
    assert "stopped: nothing was written" in " ".join(done.stderr.split())
    assert "terminate flag" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx", "x.npy"]
