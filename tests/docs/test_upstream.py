"""Each reproduction in docs/upstream shows the error it reports, on the versions that its page names."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch

PAGES = sorted((Path(__file__).parents[2] / "docs" / "upstream").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
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
    for name, version in installed.items():
        for named in re.findall(rf"\b{name} (\d+\.\d+\.\d+)", text):
            if named != version:
                pytest.skip(f"{page.name} was written for {name} {named}; this is {version}: look again")
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
