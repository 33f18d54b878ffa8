"""What the package knows, it knows in one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import normdeploy

PACKAGE = Path(normdeploy.__file__).parent

PLACES = {
    "handing over who reads a value": (r"\.replace_all_uses_with\(", "graph/edit.py"),
    "names of values that are free": (r"^def free_name\b", "graph/edit.py"),
    "the long spelling of the standard domain": (r"\"ai\.onnx\"", "onnxfile/stored.py"),
    "what a conversion may cost": (r"^class \w*Budget\b", "budget.py"),
    "onnxruntime's names of optimization levels": (r"ORT_(?:DISABLE|ENABLE)_", "ort/levels.py"),
    "inputs made from declared shapes": (r"^def make_inputs\b", "ort/made_inputs.py"),
    "processor and cores": (r"/proc/cpuinfo|cpu_count\(|sched_getaffinity", "ort/machine.py"),
    "a file put in the place of another": (r"os\.replace\(", "files.py"),
}


@pytest.mark.parametrize("what", PLACES)
def test_it_is_in_one_file(what: str) -> None:
    pattern, place = PLACES[what]
    found = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert found == [place]
