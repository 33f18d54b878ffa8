"""The likeliest mistakes: each message has the value, what was expected and a remedy, and the exit code of its kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from typer.testing import Result

Run = Callable[..., Result]
INPUT = "--input x=float32:batchx3x6x6"
EXPORT = "export {home}/net.py:Net -o {out}/new.onnx"

# the command line, its exit code, the value that was given, what was expected, the remedy
MISTAKES: dict[str, tuple[str, int, str, str, str]] = {
    "a model's file that is not there": (
        "export {out}/none.py:Net -o {out}/new.onnx",
        4,
        "none.py",
        "a Python file",
        "check the path",
    ),
    "a class that is not there": (
        "export {home}/net.py:Nett -o {out}/new.onnx",
        4,
        "'Nett'",
        "expected one of: Net",
        "Net",
    ),
    "no class named": ("export {home}/net.py -o {out}/new.onnx", 4, "net.py", "SOURCE", "after a colon"),
    "weights as the source": ("export {home}/net.pt -o {out}/new.onnx", 4, "net.pt", "SOURCE", "by --weights"),
    "a graph as the source": ("export {home}/net.onnx -o {out}/new.onnx", 4, "net.onnx", "SOURCE", "normdeploy fold"),
    "an unknown argument": (EXPORT + " --arg widht=3", 4, "widht", "width", "--arg KEY=VALUE"),
    "an argument without a value": (EXPORT + " --arg width", 2, "'width'", "KEY=VALUE", "width=32"),
    "weights that are not there": (
        EXPORT + " --weights {out}/none.pt",
        4,
        "none.pt",
        "expected trained weights",
        "correct the path",
    ),
    "weights of another model": (
        EXPORT + " --weights {out}/other.pt",
        4,
        "other.pt",
        "exactly the keys",
        "--allow-missing",
    ),
    "weights that are none": (EXPORT + " --weights {home}/net.py", 4, "net.py", "expected", "save model.state_dict()"),
    "a pickle of objects": (
        EXPORT + " --weights {out}/objects.pt",
        4,
        "objects.pt",
        "tensors by name",
        "--unsafe-pickle",
    ),
    "a key that a checkpoint has not": (
        EXPORT + " --weights {home}/net.pt --weights-key ema",
        4,
        "'ema'",
        "expected a key",
        "leave the key out",
    ),
    "a wrong dtype word": (
        EXPORT + " --input x=float:batchx3x6x6",
        2,
        "'float'",
        "expected one of float32",
        "did you mean float32?",
    ),
    "a wrong shape": (
        EXPORT + " --input x=float32:batchx4x6x6",
        4,
        "float32[2, 4, 6, 6]",
        "expected",
        "correct their shapes",
    ),
    "a shape with a hole": (
        EXPORT + " --input x=float32:batchxx6",
        2,
        "''",
        "sizes or words joined by x",
        "batchx3x224x224",
    ),
    "a wrong input name": (EXPORT + " --input y=float32:batchx3x6x6", 4, "input y", "names among x", "name"),
    "an input name that is nearly one": (
        "export {out}/pair.py:Pair --input ids=float32:nx3 --input msk=float32:nx3 -o {out}/pair.onnx",
        4,
        "input msk",
        "names among ids, mask",
        "did you mean mask?",
    ),
    "an input given twice": (EXPORT + f" {INPUT} {INPUT}", 2, "x is given 2 times", "each name once", "once"),
    "an output that exists": (
        f"export {{home}}/net.py:Net {INPUT} -o {{home}}/net.onnx",
        2,
        "net.onnx exists",
        "expected",
        "--overwrite",
    ),
    "an output with another suffix": (
        f"export {{home}}/net.py:Net {INPUT} -o {{out}}/net.pt",
        2,
        "net.pt",
        "ends in .onnx",
        "net.onnx",
    ),
    "a new head of another name": (
        EXPORT + " --weights {home}/net.pt --allow-missing hed",
        4,
        "'hed'",
        "expected one with weights",
        "did you mean head?",
    ),
    "an output that is a folder": (
        f"export {{home}}/net.py:Net {INPUT} -o .",
        2,
        "output is .;",
        ".onnx",
        "model.onnx",
    ),
    "a folded output with another suffix": (
        "fold {home}/net.onnx -o {out}/folded.txt",
        2,
        "folded.txt",
        "ends in .onnx",
        "folded.onnx",
    ),
    "an output in no folder": (
        f"export {{home}}/net.py:Net {INPUT} -o {{out}}/no/net.onnx",
        2,
        "no",
        "expected",
        "folder",
    ),
    "an operator set that is too old": (EXPORT + f" {INPUT} --opset 11", 2, "11", "18", "expected"),
    "two levels": (EXPORT + " --quick --thorough", 2, "--quick and --thorough", "expected one", "one of them"),
    "two forms of the result": (
        EXPORT + " --json --markdown",
        2,
        "--markdown and --json",
        "expected one",
        "one result",
    ),
    "a precision that is none": (EXPORT + f" {INPUT} --dtype int4", 2, "'int4'", "float32, float16", "computes in"),
    "a file that is no ONNX": ("inspect {home}/net.pt", 4, "net.pt", "expected", "ONNX"),
    "an ONNX file that is not there": (
        "run {out}/none.onnx",
        4,
        "none.onnx",
        "expected an ONNX file",
        "check the path",
    ),
    "arrays that are none": ("run {home}/net.onnx --input {home}/net.py", 4, "net.py", "expected", ".npy"),
    "an array of another type": (
        "run {home}/net.onnx --input {out}/wide.npy",
        4,
        "float64",
        "expected float32",
        ".astype('float32')",
    ),
    "an array of another shape": (
        "run {home}/net.onnx --input {out}/flat.npy",
        4,
        "[3, 6, 6]",
        "expected",
        "add the batch dimension",
    ),
    "an input without its name": (
        "run {out}/two.onnx --input {home}/x.npy",
        2,
        "x.npy",
        "expected NAME=FILE",
        "NAME=FILE",
    ),
    "a size that is missing": ("run {out}/sized.onnx", 2, "'h'", "expected", "give one"),
    "a recipe that is not there": ("build {out}/none.toml", 2, "none.toml", "expected a recipe", "check the path"),
    "a recipe's unknown key": ("build {out}/typo.toml", 2, "train.epoch ", "expected one of", "did you mean 'epochs'"),
    "a recipe's wrong value": ("build {out}/wrong.toml", 2, "0", "at least 1", "epochs"),
    "a recipe without weights and data": ("build {out}/bare.toml", 2, "none.pt", "[data]", "put the weights there"),
    "a command that is none": ("exprot net.py:Net", 2, "exprot", "", ""),
    "verify without a file": ("verify {home}/net.py:Net", 2, "net.py:Net", "normdeploy verify", "MODEL.onnx"),
    "verify with its files the other way round": (
        "verify {home}/net.onnx {home}/net.py:Net",
        2,
        "net.py:Net",
        "the reference first",
        "normdeploy verify",
    ),
    "a table of semicolons": (
        "predict {home}/net.onnx {out}/semicolons.csv -o {out}/result.csv",
        4,
        "semicolons.csv",
        "expected 108",
        "semicolons stand between the cells there: write commas",
    ),
    "a budget that is none": ("tune {home}/net.onnx --budget half", 2, "'half'", "expected", "rel=1e-2"),
    "a plan that is none": ("run {home}/net.onnx --plan {home}/net.py", 2, "net.py", "expected", "plan"),
    "a folder as the recipe": ("build {home}", 2, "is a folder", "expected a recipe (a .toml file)", "check the path"),
    "labels that are not there": (
        "package {home}/net.onnx --triton {out}/repo --labels {out}/none.txt",
        4,
        "none.txt cannot be read (No such file or directory)",
        "expected one class name per line",
        "check the path (--labels)",
    ),
    "data that is no array": (
        "bench {home}/net.onnx --data {home}/net.py",
        4,
        "net.py cannot be read as .npy or .npz: it is no file that numpy.save or numpy.savez writes",
        "expected plain arrays",
        "saved by numpy",
    ),
    "results in the place of the data": (
        "predict {home}/net.onnx {home}/x.npy -o {home}/x.npy --overwrite",
        2,
        "x.npy is among the data that is read",
        "expected another path",
        "",
    ),
    "a size that the model does not take": (
        "package {home}/net.onnx --web -o {out}/web --image-size 9x6",
        2,
        "size=(9, 6)",
        "float32[batch, 3, 6, 6]; expected its size",
        "leave it out (--image-size)",
    ),
    "means of another number of channels": (
        "package {home}/net.onnx --web -o {out}/web --image-mean 0.1,0.2",
        2,
        "means=[0.1, 0.2], deviations=[1.0]",
        "expected one of each, or one for each of 3 channels",
        "(--image-mean, --image-std)",
    ),
    "a loss that is measured on data, and none": (
        "tune {home}/net.onnx --budget top1=0.5%",
        2,
        "budget top1=0.5% is measured on your data and none was given",
        "expected data",
        "(--data FILE)",
    ),
    "a runtime of the web that is no archive": (
        "package {home}/net.onnx --web -o {out}/web --web-runtime {home}/net.py",
        4,
        "net.py is not the package onnxruntime-web (no archive)",
        "install npm, or give the package",
        "--web-runtime",
    ),
    "a package of no kind": ("package {home}/net.onnx", 2, "no package", "expected one of --triton", "--web"),
    "two packages at once": ("package {home}/net.onnx --web --mobile", 2, "--web and --mobile", "expected one", ""),
    "an option of another package": (
        "package {home}/net.onnx --web -o {out}/web --max-batch 3",
        2,
        "--max-batch",
        "expected it with --triton",
        "leave it out",
    ),
    "a browser that is not asked for": (
        "verify {home}/net.onnx {home}/net.onnx --browser x",
        2,
        "'cpu'",
        "expected --runtime web",
        "",
    ),
    "a browser that is not there, told before the reference is built": (
        "verify {out}/slow.py:Net {home}/net.onnx --runtime web --browser {out}/none",
        4,
        "none is no program",
        "expected Chromium",
        "--browser",
    ),
    "a GPU that is not there, likewise": (
        "verify {out}/slow.py:Net {home}/net.onnx --runtime cuda",
        4,
        "cuda is not usable here",
        "expected a GPU",
        "normdeploy sys",
    ),
    "a runtime that is none": ("verify {home}/net.onnx {home}/net.onnx --runtime gpu", 2, "'gpu'", "cpu, cuda", ""),
    "a runtime for a certificate alone": ("verify {home}/net.onnx --runtime web", 2, "'web'", "expected two", ""),
    "a name that leads elsewhere": ("package {home}/net.onnx --triton {out}/r --name ..", 2, "..", "expected", "name"),
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the mistakes are made with."""
    folder = tmp_path_factory.mktemp("mistakes")
    torch.save({"other.weight": torch.zeros(2)}, folder / "other.pt")
    torch.save({"state_dict": {"a": torch.zeros(1)}, "path": Path("x")}, folder / "objects.pt")
    np.save(folder / "wide.npy", np.zeros((2, 3, 6, 6)))
    np.save(folder / "flat.npy", np.zeros((3, 6, 6), np.float32))
    (folder / "semicolons.csv").write_text("a;b\n1;2\n")
    two = '<ir_version: 10, opset_import: ["" : 20]> g (float[n, 3] a, float[n, 3] b) => (float[n, 3] y)'
    two += "{ y = Add(a, b) }"
    onnx.save(onnx.parser.parse_model(two), folder / "two.onnx")
    sized = '<ir_version: 10, opset_import: ["" : 20]> g (float[n, h] a) => (float[n, h] y) { y = Relu(a) }'
    onnx.save(onnx.parser.parse_model(sized), folder / "sized.onnx")
    (folder / "pair.py").write_text(
        "from torch import nn\nclass Pair(nn.Module):\n    def forward(self, ids, mask):\n        return ids * mask\n"
    )
    (folder / "slow.py").write_text("raise AssertionError('the reference was built first')\n")
    model = '[model]\nsource = "net.py:Net"\nweights = "none.pt"\n'
    (folder / "typo.toml").write_text(model + "[train]\nepoch = 3\n")
    (folder / "wrong.toml").write_text(model + "[train]\nepochs = 0\n")
    (folder / "bare.toml").write_text(model)
    return folder


def _content(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != "__pycache__")  # Python's own, of a user's module


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message_that_helps(run: Run, home: Path, out: Path, mistake: str) -> None:
    line, code, value, expected, remedy = MISTAKES[mistake]
    before = {folder: _content(folder) for folder in (home, out)}
    result = run(*line.format(home=home, out=out).split())
    assert result.exit_code == code, result.output
    said = " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert "This is a bug" not in said
    for words in (value, expected, remedy):
        assert words in said, said
    assert before == {folder: _content(folder) for folder in (home, out)}, "something was left behind"


def test_there_are_thirty() -> None:
    assert len(MISTAKES) >= 30
