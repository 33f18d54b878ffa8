"""Folders of packages: what a killed command left of one goes with the next; names that may stand in one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from normdeploy.runtime.folders import folder_written, plain_name

_KILLED = """
import os, signal, sys
from pathlib import Path
from normdeploy.runtime.folders import folder_written
with folder_written(Path(sys.argv[1]), overwrite=False, choose="--out") as made:
    (made / "half").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_command_left_of_a_folder_goes_with_the_next(tmp_path: Path) -> None:
    target = tmp_path / "net-web"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", _KILLED, str(target)], check=False, env=environment)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    assert len(list(tmp_path.iterdir())) == 1
    with folder_written(target, overwrite=False, choose="--out") as made:
        (made / "whole").write_bytes(b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["net-web"]
    assert [path.name for path in target.iterdir()] == ["whole"]


@pytest.mark.parametrize("name", ["a", "a.b-c_d", "ä", "a b", "...", "-x"])
def test_plain_names(name: str) -> None:
    assert plain_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "/", "a\0", "a\n", "a\x1b", "c:", "\u202ea"])
def test_names_that_are_not_plain(name: str) -> None:
    assert not plain_name(name)
