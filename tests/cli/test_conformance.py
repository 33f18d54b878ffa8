"""``normdeploy conformance`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from normdeploy.cli.app import app
from normdeploy.conformance import adapters

COPY = "import shutil\n\n\ndef copy(source, target):\n    shutil.copy(source, target)\n"
LOSE = """import onnx


def lose(source, target):
    model = onnx.load(source)
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            node.CopyFrom(onnx.helper.make_node("Identity", [node.input[0]], [node.output[0]]))
    onnx.save(model, target)
"""


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["conformance", *arguments])
    return result.exit_code, result.output


@pytest.mark.usefixtures("adapters_in_process")
def test_an_adapter_of_ones_own_ends_in_a_table(tmp_path: Path):
    (tmp_path / "mine.py").write_text(COPY, encoding="utf-8")
    name = f"{tmp_path / 'mine.py'}:copy"
    code, text = run(
        "--adapter", name, "--case", "depthwise", "--case", "zero padding", "--markdown", str(tmp_path / "t.md")
    )
    assert code == 0, text
    table = (tmp_path / "t.md").read_text(encoding="utf-8")
    assert "| depthwise multiplier | left |" in table
    assert "| zero padding | right |" in table
    assert f"| {name} | 1 right, 1 left |" in table
    code, text = run("--adapter", name, "--case", "depthwise", "--markdown", str(tmp_path / "t.md"))
    assert code == 2, text  # nothing is overwritten unasked


@pytest.mark.usefixtures("adapters_in_process")
def test_a_wrong_one_is_exit_code_1_and_its_error_is_shown(tmp_path: Path):
    (tmp_path / "mine.py").write_text(LOSE, encoding="utf-8")
    code, text = run("--adapter", f"{tmp_path / 'mine.py'}:lose", "--case", "depthwise", "--json")
    assert code == 1
    data = json.loads(text[text.index("{") :])
    [found] = data["outcomes"]
    assert found["result"] == "wrong"
    assert found["error"] > 0.1


def test_one_that_is_not_installed_is_named_and_is_no_crash(monkeypatch: pytest.MonkeyPatch):
    absent = adapters.Adapter("onnxslim", "optimizer", adapters.onnxslim, needs=("no_such_module_here",))
    monkeypatch.setitem(adapters.BUILT_IN, "onnxslim", absent)
    code, text = run("--adapter", "onnxslim", "--case", "depthwise")
    assert code == 3
    assert "Not installed" in text
    assert "no_such_module_here" in text


def test_the_list_runs_nothing():
    code, text = run("--list", "--json")
    assert code == 0
    data = json.loads(text)
    assert "traps/zero padding" in data["cases"]
    assert "normdeploy verify" in data["adapters"]


def test_what_is_mistyped_is_a_usage_error():
    assert run("--adapter", "nothing")[0] == 2
    assert run("--case", "nothing")[0] == 2
