"""Counts and durations: what is none is refused, by every option and every function that takes one."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import normdeploy as nd
from normdeploy.cli.app import app
from normdeploy.errors import UsageError
from normdeploy.runtime import measure_latency, predict

NOT_AMOUNTS = {"--opset"}  # a version: it has a range of its own
NONE = {int: ["-1"], float: ["0", "-1", "nan", "inf"]}
NEEDED = {
    "bench": ["none.onnx"],
    "diff": ["none.onnx", "none.onnx"],
    "package": ["none.onnx", "--triton", "none"],
    "predict": ["none.onnx", "none.npy", "-o", "out.npy"],
    "run": ["none.onnx"],
    "tune": ["none.onnx"],
    "verify": ["none.onnx", "none.onnx"],
}


def _amounts() -> list[tuple[str, str, type]]:
    """Find every option that is a number, in the signatures of the commands."""
    found = []
    for command in app.registered_commands:
        assert command.callback is not None
        for hint in typing.get_type_hints(command.callback, include_extras=True).values():
            if typing.get_origin(hint) is not typing.Annotated:
                continue
            kind, info = typing.get_args(hint)
            kinds = {kind, *typing.get_args(kind)} & {int, float}
            option = next(
                (word for word in (info.default, *(info.param_decls or ())) if str(word).startswith("--")), ""
            )
            if kinds and option not in NOT_AMOUNTS:
                found.append((command.name or command.callback.__name__, str(option), kinds.pop()))
    return found


AMOUNTS = _amounts()


@pytest.mark.parametrize(("command", "option", "kind"), AMOUNTS, ids=str)
def test_every_option_refuses_what_is_no_amount_before_anything_is_read(command: str, option: str, kind: type) -> None:
    for value in NONE[kind]:
        result = CliRunner().invoke(app, [command, *NEEDED[command], option, value])
        said = " ".join(result.stderr.split())
        assert result.exit_code == 2, said
        assert option in said, said
        assert "; expected " in said, said
        assert ": give " in said, said
        assert "none" not in said, said


def test_the_options_are_found() -> None:
    assert {("bench", "--seconds", float), ("run", "--batch", int), ("verify", "--seed", int)} <= set(AMOUNTS)


@pytest.mark.parametrize("option", ["--batch", "--max-batch", "--workers", "--instances"])
def test_a_count_of_none_is_refused(option: str) -> None:
    takes = [name for name, found, _ in AMOUNTS if found == option]
    assert takes
    for name in takes:
        result = CliRunner().invoke(app, [name, *NEEDED[name], option, "0"])
        assert result.exit_code == 2
        assert "at least 1" in " ".join(result.stderr.split())


FUNCTIONS: dict[str, Callable[[Path], object]] = {
    "bench, no seconds": lambda path: nd.bench(path, seconds=0),
    "bench, nan seconds": lambda path: nd.bench(path, seconds=math.nan),
    "bench, no rounds": lambda path: nd.bench(path, rounds=0, memory=False),
    "bench, endless": lambda path: nd.bench(path, seconds=math.inf),
    "tune, nan seconds": lambda path: nd.tune(path, seconds=math.nan),
    "tune, no time": lambda path: nd.tune(path, time_limit=0),
    "tune, half a sample": lambda path: nd.tune(path, batch_size=1.5),  # type: ignore[arg-type]
    "diff, no samples": lambda path: nd.diff(path, path, batch=0),
    "diff, a negative seed": lambda path: nd.diff(path, path, seed=-1),
    "verify, a negative seed": lambda path: nd.verify(path, path, seed=-1),
    "load, no samples": lambda path: nd.load(path).batched(np.ones((2, 3), np.float32), batch_size=0),
    "predict, no workers": lambda path: predict(path, "x.npy", "y.npy", workers=0),
    "package, no batch": lambda path: nd.package(path, path.parent / "models", max_batch_size=0),
    "measure_latency": lambda _: measure_latency({"a": lambda: None}, seconds=-1),
}


@pytest.mark.parametrize("call", FUNCTIONS)
def test_every_function_refuses_what_is_no_amount(call: str, tmp_path: Path) -> None:
    path = tmp_path / "relu.onnx"
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[n, 3] a) => (float[n, 3] y) { y = Relu(a) }'
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(UsageError, match=r"; expected .*: give"):
        FUNCTIONS[call](path)
    assert sorted(tmp_path.iterdir()) == [path]
