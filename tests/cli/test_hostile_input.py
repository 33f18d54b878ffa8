"""Code that leaves, names that command a terminal, disks that refuse: exit codes and words."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from normdeploy.cli.app import app
from normdeploy.report.text import Text, printable

ESCAPE = "\x1b[2J\x1b]0;owned\x07\u202e"

LEAVING = {
    "import": "import sys, torch\nsys.exit(0)\nclass Net(torch.nn.Linear):\n    pass\n",
    "constructor": ("import sys, torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        sys.exit(0)\n"),
    "forward": ("import sys, torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        sys.exit(0)\n"),
    "forward raises": (
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        raise SystemExit\n"
    ),
}


def run(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("where", LEAVING)
def test_code_that_leaves_is_no_success(where: str, debug: bool, tmp_path: Path) -> None:
    source = tmp_path / f"leaving_{where.replace(' ', '_')}.py"
    source.write_text(LEAVING[where])
    words = ["export", f"{source}:Net", "-o", tmp_path / "o.onnx", "--input", "x=float32:2x3"]
    result = run(*words, *(["--debug"] if debug else []))
    assert result.exit_code != 0
    assert debug or result.exit_code == 4
    assert debug or "SystemExit" in result.output or "sys.exit" in result.output
    assert "This is a bug" not in result.output
    assert not (tmp_path / "o.onnx").exists()


def named(path: Path, name: str) -> Path:
    """Write a BatchNormalization, of which there is much to say, whose node, values and metadata bear ``name``."""

    def vector(key: str, number: float) -> TensorProto:
        return numpy_helper.from_array(np.full(3, number, np.float32), key)

    nodes = [
        helper.make_node("Relu", ["x"], [f"a{name}"], name=f"first{name}"),
        helper.make_node("BatchNormalization", [f"a{name}", "s", "b", "m", "v"], [f"y{name}"], name=f"norm{name}"),
    ]
    graph = helper.make_graph(
        nodes, f"g{name}", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info(f"y{name}", TensorProto.FLOAT, ["n", 3])],
        [vector("s", 0), vector("b", float("nan")), vector("m", 1), vector("v", -1)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("command", ["inspect", "fold", "verify", "run", "missing"])
def test_names_do_not_command_the_terminal(command: str, tmp_path: Path) -> None:
    path = named(tmp_path / "net.onnx", ESCAPE)
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    words = {
        "inspect": ["inspect", path],
        "fold": ["fold", path, "-o", tmp_path / "o.onnx", "--quick"],
        "verify": ["verify", path, path, "--quick"],
        "run": ["run", path, "--input", tmp_path / "x.npy"],
        "missing": ["inspect", tmp_path / f"no{ESCAPE}.onnx"],
    }[command]
    result = run(*words)
    assert "\x1b" not in result.output
    assert "\x07" not in result.output
    assert "\u202e" not in result.output


def test_a_broken_models_name_does_not_command_the_terminal(tmp_path: Path) -> None:
    path = named(tmp_path / "net.onnx", ESCAPE)
    model = onnx.load(path)
    del model.graph.node[1].input[4]
    path.write_bytes(model.SerializeToString())
    result = run("inspect", path)
    assert result.exit_code == 4
    assert "\x1b" not in result.output
    assert r"\x1b" in result.output


def test_what_is_printable_stays() -> None:
    assert printable("ä 中 🙂 a\tb\nc") == "ä 中 🙂 a\tb\nc"
    assert printable("a\x1b[0m\x9b\u202e") == "a\\x1b[0m\\x9b\\u202e"
    assert Text("a\x1b").append("b\x1b").plain == "a\\x1bb\\x1b"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_refuses_is_no_bug(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.onnx"
    tensor = numpy_helper.from_array(np.ones(3, np.float32), "c")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "c"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])], [tensor],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    sync = os.fsync

    def refuse(handle: int) -> None:
        if "o." in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    before = sorted(tmp_path.iterdir())
    for words in (
        ["fold", path, "-o", tmp_path / "o.onnx", "--no-verify"],
        ["fold", path, "-o", tmp_path / "o.onnx", "--quick"],
        ["run", path, "--input", tmp_path / "x.npy", "-o", tmp_path / "o.npy"],
    ):
        result = run(*words)
        assert result.exit_code == 4, result.output
        assert os.strerror(number) in result.output
        assert "bug" not in result.output
        assert sorted(tmp_path.iterdir()) == before


_WAITING = """
import sys, time
import normdeploy.cli.app as module
from normdeploy.cli import main
from normdeploy.files import written_together

def wait():
    with written_together(sys.argv[1]) as folder:
        (folder / "half").write_text("x")
        print("ready", flush=True)
        time.sleep(60)

module.app = wait
main()
"""


def test_a_command_that_is_ended_leaves_nothing_half_made(tmp_path: Path) -> None:
    words = [sys.executable, "-c", _WAITING, str(tmp_path / "o.onnx")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
