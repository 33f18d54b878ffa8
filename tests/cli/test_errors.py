"""Bad input: one clear message, the right exit code, nothing half-written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import Result

from normdeploy.cli import group

Run = Callable[..., Result]
INPUT = ("--input", "x=float32:batchx3x6x6")


def refused(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.output
    assert result.stderr.count("error: ") == 1
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr


def export(run: Run, home: Path, tmp_path: Path, *words: object, source: str = "net.py:Net") -> Result:
    result = run("export", f"{home}/{source}", "-o", tmp_path / "out.onnx", *words)
    assert list(tmp_path.glob("*out*")) == [], "something was left behind"
    return result


def test_missing_files(run: Run, home: Path, tmp_path: Path) -> None:
    refused(export(run, home, tmp_path, *INPUT, source="none.py:Net"), 4, "none.py", "does not exist")
    refused(export(run, home, tmp_path, *INPUT, "--weights", tmp_path / "none.pt"), 4, "none.pt", "does not exist")
    refused(run("verify", home / "net.onnx", tmp_path / "none.onnx"), 4, "none.onnx", "does not exist")
    refused(run("fold", tmp_path / "none.onnx", "-o", tmp_path / "out.onnx"), 4, "none.onnx", "does not exist")
    refused(run("run", tmp_path / "none.onnx", "--input", home / "x.npy"), 4, "none.onnx", "does not exist")
    refused(run("run", home / "net.onnx", "--input", tmp_path / "none.npy"), 4, "none.npy", "does not exist")
    refused(run("bench", tmp_path / "none.onnx"), 4, "none.onnx", "does not exist")
    refused(run("build", tmp_path / "none.toml"), 2, "none.toml", "does not exist")
    refused(run("train", tmp_path / "none.toml"), 2, "none.toml", "does not exist")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_something_else(run: Run, home: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.onnx"
    text.write_text("hello")
    refused(run("inspect", text), 4, "text.onnx")
    refused(run("fold", text, "-o", tmp_path / "out.onnx"), 4, "text.onnx")
    refused(run("run", text, "--input", home / "x.npy"), 4, "text.onnx")
    refused(run("run", home / "net.onnx", "--input", text), 4, "text.onnx", ".npy")


def test_weights_that_do_not_fit_name_the_keys(run: Run, home: Path, tmp_path: Path) -> None:
    state = torch.load(home / "net.pt", weights_only=True)
    del state["head.bias"]
    state["head.surplus"] = torch.zeros(1)
    state["conv.weight"] = torch.zeros(5, 3, 1, 1)
    torch.save(state, tmp_path / "wrong.pt")
    result = export(run, home, tmp_path, *INPUT, "--weights", tmp_path / "wrong.pt")
    refused(result, 4, "head.bias", "head.surplus", "conv.weight", "[5, 3, 1, 1]", "[5, 3, 3, 3]")


def test_a_pickle_of_objects_needs_a_word(run: Run, home: Path, tmp_path: Path) -> None:
    torch.save(
        {"state_dict": torch.load(home / "net.pt", weights_only=True), "path": Path("x")}, tmp_path / "objects.pt"
    )
    words = (*INPUT, "--no-verify", "--weights", tmp_path / "objects.pt")
    refused(export(run, home, tmp_path, *words), 4, "objects.pt", "--unsafe-pickle")
    trusted = run("export", f"{home}/net.py:Net", "-o", tmp_path / "trusted.onnx", *words, "--unsafe-pickle")
    assert trusted.exit_code == 0, trusted.output


def test_inputs_the_model_does_not_take(run: Run, home: Path, tmp_path: Path) -> None:
    refused(export(run, home, tmp_path, "--input", "x=float32:batchx4x6x6"), 4, "float32[2, 4, 6, 6]")
    refused(export(run, home, tmp_path, "--input", "x=int64:batchx3x6x6"), 4, "int64[2, 3, 6, 6]")
    refused(export(run, home, tmp_path, "--input", "x=float:batchx3x6x6"), 2, "'float'", "float32")
    (tmp_path / "any.py").write_text("from torch import nn\ndef net():\n    return nn.ReLU()\n")
    unknown = run("export", f"{tmp_path}/any.py:net", "-o", tmp_path / "out.onnx")
    refused(unknown, 4, "ReLU", "cannot be guessed", "--input NAME=DTYPE:SHAPE")
    (tmp_path / "any.py").unlink()
    refused(export(run, home, tmp_path, *INPUT, "--arg", "widht=3"), 4, "widht", "width")
    refused(export(run, home, tmp_path, *INPUT, "--arg", "width"), 2, "KEY=VALUE")
    refused(export(run, home, tmp_path, *INPUT, "--quick", "--thorough"), 2, "--quick", "--thorough")


def test_arrays_the_file_does_not_take(run: Run, home: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((2, 3, 6, 7), np.float32))
    np.save(tmp_path / "double.npy", np.zeros((2, 3, 6, 6)))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    model = home / "net.onnx"
    refused(run("run", model, "--input", tmp_path / "wide.npy"), 4, "[2, 3, 6, 7]", "float32[batch, 3, 6, 6]")
    refused(run("run", model, "--input", tmp_path / "double.npy"), 4, "float64", "float32")
    refused(run("run", model, "--input", f"y={home}/x.npy"), 4, "'y'", "'x'")
    refused(run("run", model, "--input", tmp_path / "objects.npy"), 4, "objects.npy")
    refused(run("run", model, "--input", home / "x.npy", "--input", f"x={home}/x.npy"), 2, "x is given twice")
    refused(run("run", model, "--input", home / "x.npy", "-o", tmp_path / "y.txt"), 2, ".npy or .npz")
    assert not (tmp_path / "y.txt").exists()


def test_existing_outputs_are_left_as_they_are(run: Run, home: Path, tmp_path: Path) -> None:
    for name in ("there.onnx", "there.npy", "there.html"):
        (tmp_path / name).write_text("mine")
    words = ("export", f"{home}/net.py:Net", *INPUT, "--no-verify", "-o")
    refused(run(*words, tmp_path / "there.onnx"), 2, "there.onnx", "exists", "--overwrite")
    refused(run(*words, tmp_path / "none" / "x.onnx"), 2, "none", "does not exist")
    refused(run("fold", home / "net.onnx", "-o", tmp_path / "there.onnx"), 2, "there.onnx", "exists")
    refused(run("run", home / "net.onnx", "--input", home / "x.npy", "-o", tmp_path / "there.npy"), 2, "exists")
    refused(run("verify", home / "net.onnx", home / "net.onnx", "--html", tmp_path / "there.html"), 2, "exists")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("there.onnx", "there.npy", "there.html"), "mine"
    )
    replaced = run(*words, tmp_path / "there.onnx", "--overwrite")
    assert replaced.exit_code == 0, replaced.output
    assert (tmp_path / "there.onnx").stat().st_size > 100


@pytest.mark.parametrize(
    "words",
    [
        ("exprot",),
        ("export",),
        ("run",),
        ("export", "net.py:Net", "-o", "x.onnx", "--nothing"),
        ("predict", "net.onnx", "x.npy", "-o", "y.npy", "--batch", "0"),
    ],
)
def test_usage_errors_exit_with_2(run: Run, words: tuple[str, ...]) -> None:
    assert run(*words).exit_code == 2


def test_debug_shows_the_traceback_from_anywhere_on_the_line(run: Run, tmp_path: Path) -> None:
    words = ("build", tmp_path / "none.toml")
    plain = run(*words)
    refused(plain, 2, f"error: {tmp_path}/none.toml does not exist")
    assert plain.stdout == ""
    for traced in (run(*words, "--debug"), run("--debug", *words), run(words[0], "--debug", words[1])):
        assert traced.exit_code == plain.exit_code
        assert "RecipeError" in traced.stderr
        assert "Traceback" in traced.stderr


def test_what_nobody_expected_is_one_message_too(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(path: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr("normdeploy.parsing.recipe.load_recipe", broken)
    refused(run("build", tmp_path / "x.toml"), group.UNUSABLE, "ZeroDivisionError", "surprise", "--debug")


def test_words_that_were_taken_for_others(run: Run, home: Path, tmp_path: Path) -> None:
    refused(export(run, home, tmp_path, "--input", "y=float32:batchx3x6x6"), 4, "input y", "x", "Net.forward")
    refused(export(run, home, tmp_path, "--input", "X=float32:batchx3x6x6"), 4, "input X", "did you mean x?")
    refused(export(run, home, tmp_path, "--input", "x=float32:maxbatchx3x6x6"), 2, "'max'", "commas")
    refused(export(run, home, tmp_path, "--input", "x=fp32:batchx3x6x6"), 2, "'fp32'", "did you mean float32?")
    refused(run("export", f"{home}/net.py:Net", *INPUT, "-o", tmp_path / "out.txt"), 2, "out.txt", "out.onnx")
    for version in ("17", "99"):
        refused(export(run, home, tmp_path, *INPUT, "--opset", version), 2, version, "18")
    refused(run("verify", f"{home}/net.py:Net"), 2, "net.py:Net", "MODEL.onnx")
    refused(run("verify", "nets:CNN"), 2, "nets:CNN", "MODEL.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_several_models(run: Run, home: Path, tmp_path: Path) -> None:
    state = torch.load(home / "net.pt", weights_only=True)
    prefixed = {f"model.{key}": value for key, value in state.items()}
    del prefixed["model.head.bias"]
    torch.save({"model": state, "model_ema": prefixed}, tmp_path / "last.pt")
    words = ["export", f"{home}/net.py:Net", *INPUT, "--weights", tmp_path / "last.pt", "--no-verify", "--overwrite"]
    words += ["-o", tmp_path / "net.onnx"]
    first = run(*words)
    assert first.exit_code == 0, first.output
    assert "'model' is loaded" in first.stderr
    refused(run(*words, "--weights-key", "ema"), 4, "'ema'", "model_ema")
    refused(run(*words, "--weights-key", "model_ema"), 4, "head.bias")
    allowed = run(*words, "--weights-key", "model_ema", "--allow-missing", "head")
    assert allowed.exit_code == 0, allowed.output
    assert "prefix 'model.'" in allowed.stderr
    assert "head.bias" in allowed.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a folder that is used cannot be deleted there")
def test_a_working_folder_that_was_deleted_is_told(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").touch()
    program = (
        "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); "
        "from normdeploy.cli import main; sys.argv = ['normdeploy', *sys.argv[1:]]; main()"
    )
    words = [sys.executable, "-c", program, "inspect", str(tmp_path / "net.onnx")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done
    assert "the working folder cannot be used" in done.stderr
    assert "change to another folder" in done.stderr
