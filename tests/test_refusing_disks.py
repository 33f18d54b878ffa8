"""A full or read-only disk ends every command that writes in an error of ours, and leaves what was there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import disk_runs
import pytest
from forked_python import ForkedPython

_PROGRAM = "import disk_runs, sys; disk_runs.all_of_them(sys.argv[1])"


def own_mounts() -> bool:
    """Tell whether a process of this user may mount a tmpfs in a namespace of its own."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    words = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, forked: ForkedPython) -> dict[str, Any]:
    if not own_mounts():
        pytest.skip("needs a user who may mount in a namespace of its own (Linux, root)")
    place = tmp_path_factory.mktemp("disks")
    done = forked.run(_PROGRAM, str(place), folder=place, environment={"COLUMNS": "400"}, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("disk", disk_runs.DISKS)
@pytest.mark.parametrize("command", disk_runs.COMMANDS)
def test_a_disk_that_refuses(command: str, disk: str, ended: dict[str, Any]) -> None:
    found = ended[f"{command} {disk}"]
    assert found["code"] == 4, found["said"]
    assert "cannot be written" in found["said"]
    assert "expected" in found["said"]
    assert "Traceback" not in found["said"]
    assert "This is a bug" not in found["said"]
    (line,) = (line for line in found["said"].splitlines() if line.startswith("error:"))
    assert "in.onnx" not in line  # what refuses is the disk of the outputs
    assert found["gone"] == []
    assert found["new"] == []
    if disk == "read-only":  # told before the work
        assert "loss" not in found["said"]
