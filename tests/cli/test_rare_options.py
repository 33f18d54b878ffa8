"""Options, warnings and exits that the usual ways through a command do not meet."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from typer.testing import CliRunner, Result

from normdeploy import runtime
from normdeploy.building import recipe_build
from normdeploy.cli.app import app
from normdeploy.ort import installed
from normdeploy.parsing.sources import build

Run = Callable[..., Result]
HEADER = '<ir_version: 10, opset_import: ["": 20]> '
TWO = HEADER + "g (float[n, 2] x) => (float[n, 2] y, float[n, 2] z) { y = Neg(x) z = Abs(x) }"
OWN = '<ir_version: 10, opset_import: ["": 20, "own": 1]> g (float[n, 2] x) => (float[n, 2] y) { y = own.Strange(x) }'
LIES = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x):
        return self.layer(x) + (1.0 if torch.compiler.is_exporting() else 0.0)
"""


def saved(folder: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), folder / "g.onnx")
    return folder / "g.onnx"


@pytest.mark.usefixtures("known_footprints")
def test_a_benchmark_is_drawn(run: Run, home: Path, tmp_path: Path) -> None:
    words = ["bench", home / "net.onnx", "--batch", "2", "--threads", "1", "--seconds", "0.05", "--plot"]
    assert run(*words, tmp_path / "b.svg").exit_code == 0
    assert "<svg" in (tmp_path / "b.svg").read_text()


@pytest.mark.parametrize("form", ["--json", "--markdown"])
def test_an_export_that_is_not_proven_says_so_in_every_form(run: Run, tmp_path: Path, form: str) -> None:
    (tmp_path / "net.py").write_text(LIES)
    words = ["export", f"{tmp_path}/net.py:Net", "--input", "x=float32:batchx3", "--quick", form]
    result = run(*words, "-o", tmp_path / "net.onnx", "--html", tmp_path / "v.html")
    assert result.exit_code == 1
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == [".html", ".py"]
    assert "fail" in (tmp_path / "v.html").read_text().lower()
    if form == "--json":
        told = json.loads(result.stdout)
        assert told["path"] is None
        assert told["verdict"]["status"] == "fail"
    else:
        assert "FAIL" in result.stdout


def test_a_fold_that_cannot_be_judged_is_told_as_data(run: Run, tmp_path: Path) -> None:
    result = run("fold", saved(tmp_path, OWN), "-o", tmp_path / "o.onnx", "--json", "--quick")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["path"], told["verdict"]["status"]) == (None, "error")
    assert not (tmp_path / "o.onnx").exists()


def test_a_passing_export_is_kept_as_a_page_too(run: Run, home: Path, tmp_path: Path) -> None:
    words = [
        "export",
        f"{home}/net.py:Net",
        "--weights",
        home / "net.pt",
        "--input",
        "x=float32:batchx3x6x6",
        "--quick",
    ]
    assert run(*words, "-o", tmp_path / "n.onnx", "--html", tmp_path / "v.html").exit_code == 0
    assert "<svg" in (tmp_path / "v.html").read_text()


def test_a_reference_with_inputs_of_its_own_is_verified_and_its_certificate_told_as_data(run: Run, home: Path) -> None:
    words = ["verify", f"{home}/net.py:Net", home / "net.onnx", "--weights", home / "net.pt", "--quick"]
    result = run(*words, "--input", "x=float32:batchx3x6x6", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["status"] == "pass"
    told = run("verify", home / "net.onnx", "--json")
    assert told.exit_code == 0
    assert json.loads(told.stdout)["matches"] is True


def test_one_array_of_an_archive_is_an_input_and_npy_holds_one_output(run: Run, tmp_path: Path) -> None:
    path, x = saved(tmp_path, TWO), np.float32([[1, -2]])
    np.savez(tmp_path / "a.npz", x=x, other=x)
    refused = run("run", path, "--input", f"x={tmp_path}/a.npz", "-o", tmp_path / "o.npy")
    assert refused.exit_code == 2
    assert "has 2 outputs (y, z); expected .npz" in refused.stderr.replace("\n", " ")
    assert run("run", path, "--input", f"x={tmp_path}/a.npz", "-o", tmp_path / "o.npz").exit_code == 0
    with np.load(tmp_path / "o.npz") as found:
        np.testing.assert_array_equal(found["y"], -x)
        np.testing.assert_array_equal(found["z"], np.abs(x))


PADDED = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.LSTM(2, 3, batch_first=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.rows(packed)[1][0][-1]
"""


def test_values_that_have_to_fit_are_given_as_an_example(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(PADDED)
    np.savez("e.npz", lengths=np.array([5, 3]))
    inputs = ("--input", "x=float32:batch,5,2", "--input", "lengths=int64:batch")
    refused = run("export", "net.py:Net", *inputs, "-o", "net.onnx")
    assert refused.exit_code == 4
    assert "values (on the command line --input, --example)" in refused.stderr.replace("\n", " ")
    assert run("export", "net.py:Net", *inputs, "--example", "e.npz", "--quick", "-o", "net.onnx").exit_code == 0
    assert run("verify", "net.py:Net", "net.onnx", *inputs, "--example", "e.npz", "--quick").exit_code == 0
    assert run("inspect", "net.py:Net", *inputs, "--example", "e.npz").exit_code == 0
    whole = {"x": np.ones((2, 5, 2), np.float32), "lengths": np.array([5, 3])}
    np.savez("whole.npz", **whole)
    assert run("verify", "net.onnx", "net.onnx", "--example", "whole.npz", "--quick").exit_code == 0
    told = run("inspect", "net.onnx", "--example", "e.npz")
    assert (told.exit_code, "expected a model" in told.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "g.onnx", "--size", "n"), "--size is 'n'; expected WORD=N"),
        (("run", "g.onnx", "--size", "n=0"), "--size is 'n=0'; expected WORD=N"),
        (("run", "g.onnx", "--size", "n=²"), "--size is 'n=²'; expected WORD=N"),
        (
            ("run", "g.onnx", "--size", "m=3"),
            "a size is given for 'm'; expected one of the model's dynamic dimensions: n",
        ),
        (("bench", "g.onnx", "--batch", "1,a"), "--batch is '1,a'; expected positive integers joined by commas"),
        (("package", "g.onnx", "--triton", "r", "--gpus", "-1"), "--gpus is '-1'; expected integers from 0 on"),
        (("predict", "g.onnx", "x.npy", "-o", "o.npz", "--image-mean", "a"), "--image-mean is 'a'; expected numbers"),
    ],
)
def test_what_is_no_number_is_refused_with_what_was_expected(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    saved(tmp_path, TWO)
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert result.exit_code == 2
    assert told in result.stderr.replace("\n", " ")


def test_tensors_of_plain_attributes_that_the_weights_lack_are_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Linear):\n    def __init__(self):\n"
        "        super().__init__(3, 2)\n        self.gain = torch.full((2,), 2.0)\n\n    def forward(self, x):\n"
        "        return super().forward(x) * self.gain\n"
    )
    state = build(f"{tmp_path}/net.py:Net").state_dict()
    assert set(state) == {"weight", "bias"}
    torch.save(state, tmp_path / "net.pt")
    result = run("inspect", f"{tmp_path}/net.py:Net", "--weights", tmp_path / "net.pt")
    assert result.exit_code == 0, result.output
    assert "net.pt, used as the constructor leaves them: gain" in result.stderr.replace("\n", " ")


def test_the_module_that_a_plan_is_compared_with_has_its_weights(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def tune(path: Path, **options: Any) -> Any:
        given.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime, "tune", tune)
    words = ["tune", home / "net.onnx", "--against", f"{home}/net.py:Net", "--weights", home / "net.pt", "--overwrite"]
    assert run(*words).exit_code == 130
    expected = build(f"{home}/net.py:Net").eval()
    expected.load_state_dict(torch.load(home / "net.pt", weights_only=True))
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(given["opponent"](x), expected(x), rtol=0, atol=0)


def test_a_terminal_shows_how_far_a_prediction_is(home: Path, tmp_path: Path) -> None:
    words = ["predict", home / "net.onnx", home / "x.npy", "-o", tmp_path / "o.npy"]
    result = CliRunner().invoke(app, [str(word) for word in words], env={"FORCE_COLOR": "1", "TERM": "xterm"})
    assert result.exit_code == 0, result.output
    assert "rows" in result.stderr
    assert "predict [" not in result.stderr  # the lines of a log
    assert np.load(tmp_path / "o.npy").shape == (7, 4)


def test_two_builds_of_onnxruntime_are_a_problem(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "installed_builds", lambda: {"onnxruntime": "1", "onnxruntime-gpu": "2"})
    assert "problem: onnxruntime 1 and onnxruntime-gpu 2 are installed" in run("sys").stderr.replace("\n", " ")


def test_a_model_that_needs_more_memory_than_there_is_and_one_that_warns(run: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import warnings\nfrom torch import nn\n\n\ndef huge():\n    raise MemoryError\n\n\n"
        "def old():\n    warnings.warn('it is old', stacklevel=1)\n    return nn.Linear(3, 2)\n"
    )
    result = run("inspect", f"{tmp_path}/net.py:huge")
    assert result.exit_code == 4
    assert "not enough memory" in result.stderr
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert run("inspect", f"{tmp_path}/net.py:old").exit_code == 0
    assert "it is old" in {str(warning.message) for warning in seen}


@pytest.mark.parametrize(("status", "code"), [("pass", 0), ("weak", 3), ("not-exercised", 3)])
def test_a_build_ends_with_the_code_of_its_verdict(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, code: int
) -> None:
    (tmp_path / "net.toml").write_text('[model]\nsource = "net.py:Net"\nweights = "net.pt"\n')
    monkeypatch.setattr(recipe_build, "build", lambda *_, **__: {"status": status})
    assert run("build", tmp_path / "net.toml").exit_code == code


@pytest.mark.usefixtures("adapters_in_process")
def test_what_a_refusing_tool_said_stands_under_the_table(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    (tmp_path / "mine.py").write_text("def mine(source, target):\n    raise ValueError('no such operator')\n")
    result = run("conformance", "--adapter", f"{tmp_path}/mine.py:mine", "--case", "depthwise")
    assert result.exit_code == 0
    assert "What was said" in result.stdout
    assert "ValueError: no such operator" in result.stdout
