"""timm without a torchvision that fits: its networks are made, and nothing of the stand-in is left behind."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torchvision":
            raise {error}

sys.meta_path.insert(0, Absent())
from timm_library import load_timm
timm = load_timm()
assert load_timm() is timm
model = timm.create_model("resnet18", pretrained=False)
assert sum(p.numel() for p in model.parameters()) == 11689512
assert not [name for name in sys.modules if name.partition(".")[0] == "torchvision"]
"""


@pytest.mark.zoo
@pytest.mark.parametrize("error", ["ModuleNotFoundError(name)", "RuntimeError('operator nms does not exist')"])
def test_a_network_of_timm_needs_no_torchvision(error: str):
    if find_spec("timm") is None:
        pytest.skip("needs timm")
    command = [sys.executable, "-c", SCRIPT.format(error=error), str(Path(__file__).parent)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
