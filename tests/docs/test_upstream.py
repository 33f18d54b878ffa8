"""Each reproduction in docs/upstream shows the error it reports, on the versions that its page names."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "upstream").glob("*.md"))
SLOW = {"torch-onnx"}  # thirty exports, 11 s; what they show changes with the versions alone


def named(text: str, libraries: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, version) for name in libraries for version in re.findall(rf"\b{name} (\d+\.\d+\.\d+)", text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_of_the_versions_that_are_tested(page: Path) -> None:
    """Whoever raises a version in constraints.txt runs the reproductions again, with ``-m slow`` as well."""
    tested = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    for name, version in named(page.read_text(encoding="utf-8"), ("torch", "onnx", "onnxruntime", "onnxscript")):
        assert version == tested[name], f"{page.name} was written for {name} {version}"


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page.stem in SLOW), id=page.stem) for page in PAGES]
)
def test_reproductions(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    installed = {"torch": torch.__version__.partition("+")[0], "onnxruntime": onnxruntime.__version__}
    if page.stem == "onnx":
        installed["onnx"] = onnx.__version__
    if page.stem == "openvino":
        openvino = pytest.importorskip("openvino")
        installed["OpenVINO"] = openvino.__version__.partition("-")[0]
    if page.stem in ("onnxscript", "onnxslim"):
        installed[page.stem] = pytest.importorskip(page.stem).__version__
    for name, version in named(text, installed):
        if version != installed[name]:
            pytest.skip(f"{page.name} was written for {name} {version}; this is {installed[name]}: look again")
    room: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's and onnxruntime's own
            if "# raises" in block:
                with pytest.raises(Exception):  # noqa: B017 - whatever the library raises
                    exec(block, room)
            else:
                exec(block, room)


@pytest.mark.slow  # inductor compiles C++ for a minute
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_a_reproduction_that_compiles() -> None:
    (page,) = [page for page in PAGES if page.stem == "torch"]
    (block,) = re.findall(r"^```py\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(f"import torch\nfrom torch import nn\n{block}", {})
