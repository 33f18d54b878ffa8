"""A stop that arrives where Python cannot raise it still ends the command."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from stopped_commands import normdeploy_that_listens

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
def test_a_stop_inside_a_destructor_is_not_lost(tmp_path: Path, number: int, code: int) -> None:
    (tmp_path / "net.py").write_text(SOURCE.format(number=int(number)))
    words = [*normdeploy_that_listens(), "export", "net.py:net", "-o", "net.onnx", "--input", "x=float32:2x4"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, done.stderr
    assert "stopped: nothing was written" in " ".join(done.stderr.split())
    assert "Exception ignored" not in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["net.py"]
