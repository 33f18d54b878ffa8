"""What long commands say while they work, and what they leave when they are stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from forked_python import ForkedPython
from stopped_commands import MAIN
from typer.testing import Result

from normdeploy.cli import progress
from normdeploy.errors import kept_when_stopped

Run = Callable[..., Result]
INPUT = ("--input", "x=float32:batchx3x6x6")


def until(found: Callable[[], bool]) -> None:
    """Wait for something that comes by itself; what never comes fails."""
    end = time.monotonic() + 60
    while not found():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def test_a_long_step_is_named_in_a_log_and_named_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_SILENT", 0.01)
    monkeypatch.setattr(progress, "_AGAIN", 0.05)
    said: list[str] = []

    def told(words: str, times: int) -> bool:
        said.append(capsys.readouterr().err)
        return "".join(said).count(words) >= times

    with progress.working("export", "building net.py:Net") as tell:
        until(lambda: told("export [0:00] building net.py:Net\n", 2))
        tell("tracing")
        until(lambda: told("tracing\n", 1))


def test_what_is_quick_says_nothing_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.working("export", "building") as tell:
        tell("tracing")
    assert capsys.readouterr() == ("", "")


def test_every_step_of_a_search_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.working("tuning", every_step=True) as tell:
        tell("a\x1b[31m")
        tell("b")
    assert capsys.readouterr().err == "tuning [0:00] a\\x1b[31m\ntuning [0:00] b\n"


def test_a_terminal_shows_the_step_and_standard_output_stays_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress.working("export", "building") as tell:
        tell("tracing the model")
        print("a result")
    shown = capsys.readouterr()
    assert "export: tracing the model" in shown.err
    assert shown.out == "a result\n"


def test_stages_carry_their_share() -> None:
    told: list[str] = []
    report = progress.verifying(told.append)
    report("tracing", 0.0)
    report("rounding", 0.5)
    assert told == ["tracing", "rounding (50%)"]


_BEFORE_TORCH = """
import os, sys
import normdeploy.cli.app  # once for all forks
from normdeploy.cli import bench, build, diff, export, fold, init, inspect, main, progress, train, tune, verify

def say(title, first="", **_):
    os._exit(8 if {"torch", "matplotlib"} & set(sys.modules) else 7)

for module in (bench, build, diff, export, fold, init, inspect, train, tune, verify):
    assert module.working is progress.working
    module.working = say
lines, sys.argv[1:] = sys.argv[1:], ["fold", "--help"]
try:
    main()  # what reads words is loaded as well
except SystemExit as end:
    assert end.code == 0
for line in lines:
    if not (child := os.fork()):
        sys.argv[1:] = line.split()
        main()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 7, (line, code)
"""
_LONG = (
    "bench {home}/net.onnx --against {home}/net.py:Net",
    "build {out}/net.toml",
    "diff {home}/net.onnx {home}/net.onnx",
    "export {home}/net.py:Net -o {out}/new.onnx",
    "fold {home}/net.onnx -o {out}/new.onnx",
    "init {home}/net.py:Net -o {out}/new.toml",
    "inspect {home}/net.py:Net",
    "train {out}/net.toml",
    "tune {home}/net.onnx --against {home}/net.py:Net",
    "verify {home}/net.py:Net {home}/net.onnx",
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_command_says_what_it_is_at_before_anything_heavy_is_loaded(home: Path, tmp_path: Path) -> None:
    """Loading torch takes two seconds and more on a machine that is busy, matplotlib half a second."""
    (tmp_path / "net.toml").write_text('[model]\nsource = "net.py:Net"\nweights = "net.pt"\n')
    lines = [line.format(home=home, out=tmp_path) for line in _LONG]
    done = subprocess.run([sys.executable, "-c", _BEFORE_TORCH, *lines], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_kept_is_noted_on_what_stops_the_work_and_on_nothing_else() -> None:
    with pytest.raises(KeyboardInterrupt) as stop, kept_when_stopped(lambda: "2 of 3 epochs"):
        raise KeyboardInterrupt
    assert stop.value.__notes__ == ["2 of 3 epochs"]
    with pytest.raises(ValueError, match="wrong") as error, kept_when_stopped(lambda: "2 of 3 epochs"):
        raise ValueError("wrong")
    assert not hasattr(error.value, "__notes__")


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (("export", "{home}/net.py:Net", *INPUT, "-o", "{out}/new.onnx"), "normdeploy.exporting.trace.trace"),
        (("export", "{home}/net.py:Net", *INPUT, "-o", "{out}/new.onnx"), "normdeploy.verification.verify"),
        (("fold", "{home}/net.onnx", "-o", "{out}/new.onnx"), "normdeploy.verification.verify"),
        (("verify", "{home}/net.onnx", "{home}/net.onnx", "--html", "{out}/v.html"), "normdeploy.verification.verify"),
        (("inspect", "{home}/net.onnx"), "normdeploy.api.inspect"),
        (("run", "{home}/net.onnx", "--input", "{home}/x.npy", "-o", "{out}/y.npy"), "numpy.save"),
        (("tune", "{home}/net.onnx"), "normdeploy.runtime.tune"),
        (("bench", "{home}/net.onnx", "--plot", "{out}/b.svg"), "normdeploy.runtime.bench"),
        (("package", "{home}/net.onnx", "--triton", "{out}/repository"), "normdeploy.runtime.package_triton"),
        (("package", "{home}/net.onnx", "--web", "--out", "{out}/page"), "normdeploy.runtime.package_web"),
        (("predict", "{home}/net.onnx", "{home}/x.npy", "-o", "{out}/y.npy"), "normdeploy.runtime.predict"),
    ],
)  # fmt: skip
def test_ctrl_c_leaves_nothing_and_exits_with_130(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], place: str
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    before = sorted(home.iterdir())
    monkeypatch.setattr(place, stop)
    result = run(*(word.format(home=home, out=tmp_path) for word in command))
    assert result.exit_code == 130, result.output
    assert result.stderr.splitlines()[-1] == "stopped: nothing was written"
    assert list(tmp_path.iterdir()) == []
    assert sorted(home.iterdir()) == before


def test_a_stopped_prediction_says_how_far_it_came(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from normdeploy.runtime.bulk import predict_files as bulk

    first = bulk.run_here

    def one_part(*given: object) -> object:
        reports = first(*given)  # type: ignore[arg-type]  # handed on
        yield next(reports)
        next(reports)  # done, and not yet told when the work stops
        raise KeyboardInterrupt

    monkeypatch.setattr(bulk, "part_rows", lambda *_: 2)
    monkeypatch.setattr(bulk, "run_here", one_part)
    words = ("predict", home / "net.onnx", home / "x.npy", "-o", tmp_path / "y.npy", "--batch", "2")
    stopped = run(*words)
    assert stopped.exit_code == 130, stopped.output
    assert "y.npy.partial keeps 4 finished rows; the same command goes on from there" in stopped.stderr
    assert not (tmp_path / "y.npy").exists()
    monkeypatch.setattr(bulk, "run_here", first)
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert "4 rows were already done" in done.stdout


TRAINING = """
import torch
from torch import nn
from normdeploy.train import Split, Splits

def net():
    return nn.Sequential(nn.Linear(4, 3))

def data():
    part = Split(torch.randn(64, 4), torch.zeros(64, dtype=torch.int64))
    return Splits(part, part, part)
"""


_STOPPED = """
import os, signal, threading, time

def stop_it():
    while not os.path.isfile("net.checkpoint"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=stop_it, daemon=True).start()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no signal is sent to a process there")
def test_a_stopped_training_keeps_its_epochs(tmp_path: Path, forked: ForkedPython) -> None:
    (tmp_path / "net.py").write_text(TRAINING)
    recipe = '[model]\nsource = "net.py:net"\nweights = "net.pt"\n[data]\nsource = "net.py:data"\n[train]\n'
    (tmp_path / "net.toml").write_text(recipe + "epochs = 1000000\n")
    done = forked.run(_STOPPED + MAIN, "train", "net.toml", folder=tmp_path)
    said = done.stderr
    assert done.returncode == 130, said
    assert "Traceback" not in said
    line = " ".join(said.split()).rpartition("stopped: ")[2]
    assert line.endswith("of 1000000 epochs; the same command goes on from there")
    assert "net.checkpoint keeps" in line
    assert not (tmp_path / "net.pt").exists()
