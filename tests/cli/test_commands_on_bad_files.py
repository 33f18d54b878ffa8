"""Every command that takes an ONNX file, on every kind of bad file: an error of ours, an exit code, nothing written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import external_models
import numpy as np
import onnx
import pytest
import test_bad_files
import test_broken_onnx
import test_external_data
from external_models import FEATURES
from onnx import helper, numpy_helper, parser
from typer.testing import CliRunner, Result

from normdeploy.cli.app import app

COMMANDS = {
    "inspect": "inspect {}",
    "fold": "fold {} -o made.onnx --quick",
    "fold without a verdict": "fold {} -o made.onnx --no-verify",
    "verify": "verify whole.onnx {} --quick --certify",
    "verify, as the reference": "verify {} whole.onnx --quick --certify",
    "diff": "diff whole.onnx {}",
    "tune": "tune {} --seconds 0.1 --time-limit 1 --batch 1",
    "bench": "bench {} --seconds 0.1 --batch 1 --threads 1",
    "run": "run {} --input x.npy -o made.npy",
    "predict": "predict {} x.npy -o made.npy",
    "package for Triton": "package {} --triton repository",
    "package for a browser": "package {} --web",
    "package for a phone": "package {} --mobile",
}
Write = Callable[[Path], Path]


def _bytes(content: Callable[[], bytes]) -> Write:
    def write(folder: Path) -> Path:
        (folder / "net.onnx").write_bytes(content())
        return folder / "net.onnx"

    return write


def _folder(folder: Path) -> Path:
    (folder / "net.onnx").mkdir()
    return folder / "net.onnx"


def _flipped() -> bytes:
    """Every seventh byte of the first 200 with its highest bit exchanged: what holds the graph together."""
    content = bytearray(test_broken_onnx.whole().SerializeToString())
    for at in range(0, 200, 7):
        content[at] ^= 0x80
    return bytes(content)


def _nested(depth: int = 3000) -> bytes:
    """Branches in branches, deeper than protobuf reads; written by hand, for it writes none either."""

    def field(number: int, content: bytes) -> bytes:
        length, size = len(content), b""
        while length > 127:
            size, length = size + bytes([length & 127 | 128]), length >> 7
        return bytes([number << 3 | 2]) + size + bytes([length]) + content

    graph = field(1, field(4, b"Relu"))
    for _ in range(depth):
        graph = field(1, field(5, field(6, graph)) + field(4, b"If"))
    head = onnx.ModelProto(ir_version=9, opset_import=[helper.make_opsetid("", 18)])
    return head.SerializeToString() + field(7, graph)


def _calls(functions: str, call: str) -> Callable[[], bytes]:
    def made() -> bytes:
        text = f'<ir_version: 9, opset_import: ["" : 18, "own" : 1]> g (float[n,8] x) => (float[n,8] y) {{ {call} }}'
        return parser.parse_model(f"{text} {functions}").SerializeToString()

    return made


_FUNCTION = '<domain: "own", opset_import: ["" : 18, "own" : 1]> '
FUNCTIONS = {
    "functions that call each other": _calls(
        f"{_FUNCTION} A (a) => (b) {{ b = own.B(a) }} {_FUNCTION} B (a) => (b) {{ b = own.A(a) }}", "y = own.A(x)"
    ),
    "a function with a value that nobody makes": _calls(f"{_FUNCTION} A (a) => (b) {{ b = Relu(c) }}", "y = own.A(x)"),
    "a function called with too much": _calls(f"{_FUNCTION} A (a) => (b) {{ b = Relu(a) }}", "y = own.A(x, x)"),
}
_DOUBLING = " ".join(f"{_FUNCTION} F{i} (a) => (b) {{ c = own.F{i + 1}(a)\n b = own.F{i + 1}(c) }}" for i in range(40))
_ABSENT = {"missing": lambda folder: folder / "net.onnx", "a folder": _folder}
REFUSED: dict[str, Write] = {
    **{
        name.strip("_"): _bytes(lambda make=make: make(test_broken_onnx.whole()))
        for name, make in test_broken_onnx.BROKEN.items()
    },
    **{name: _bytes(lambda content=content: content) for name, content in test_broken_onnx.CONTENTS.items()},
    **{name: _bytes(lambda make=make: make().SerializeToString()) for name, make in test_bad_files.REFUSED.items()},
    **{name: _bytes(make) for name, make in FUNCTIONS.items()},
    **{f"data {make.__name__}": make for make in test_external_data.REFUSED},
    "bits exchanged": _bytes(_flipped),
    "3,000 branches in each other": _bytes(_nested),
    **_ABSENT,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    external_models.write_whole(tmp_path / "whole.onnx")
    np.save(tmp_path / "x.npy", test_broken_onnx.X)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(line: str, path: Path) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CliRunner().invoke(app, [word.format(path) for word in line.split()])


def _seen(folder: Path) -> dict[str, tuple[int, int, int]]:
    found = {str(path): path.lstat() for path in folder.rglob("*")}
    return {path: (stat.st_mode, stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_model_is_refused_by_every_command(what: str, folder: Path) -> None:
    path = REFUSED[what](folder)
    before = _seen(folder)
    for command, line in COMMANDS.items():
        result = _run(line, path)
        assert result.exit_code == 4, (command, result.output)
        assert "error: " in result.output, command
        assert "Traceback" not in result.output, command
        assert "This is a bug" not in result.output, command
        assert _seen(folder) == before, command
    result = _run("verify {}", path)  # asks for the certificate beside it, of whatever file
    assert result.exit_code == (1 if path.is_file() else 4), result.output
    assert "no valid certificate" in result.output or not path.is_file()
    assert "This is a bug" not in result.output
    assert _seen(folder) == before


_LOOP = """m = Constant <value_int = 1152921504606846976> () t = Constant <value = bool {1}> () y = Loop (m, t, x)
    <body = b (int64 i, bool go, float[n,8] a) => (bool on, float[n,8] c) { on = Identity (go) c = Relu (a) }>"""
ENDLESS = {
    f"come to {2**40} nodes": _calls(f"{_DOUBLING} {_FUNCTION} F40 (a) => (b) {{ b = Relu(a) }}", "y = own.F0(x)"),
    f"comes to {2**60} turns": _calls("", _LOOP),
}


@pytest.mark.parametrize("said", ENDLESS)
def test_calls_and_turns_without_an_end_are_counted_first(said: str, folder: Path) -> None:
    (folder / "net.onnx").write_bytes(ENDLESS[said]())
    before = _seen(folder)
    for command, line in COMMANDS.items():
        if "turns" in said and command.split()[0] in ("inspect", "fold", "verify,", "verify"):
            continue  # they run nothing, or count turns as they make them (tests/graph/test_limits.py)
        result = _run(line, folder / "net.onnx")
        assert result.exit_code == 4, (command, result.output)
        assert said in result.output, (command, result.output)
        assert _seen(folder) == before, command


def test_a_functions_attribute_outside_of_functions_is_refused(folder: Path) -> None:
    model = test_broken_onnx.whole()
    model.graph.node[1].attribute.add(name="epsilon", ref_attr_name="eps", type=onnx.AttributeProto.FLOAT)
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    for command in ("inspect", "fold", "fold without a verdict", "verify", "verify, as the reference", "diff"):
        result = _run(COMMANDS[command], folder / "net.onnx")
        assert result.exit_code == 4, (command, result.output)
        assert "attribute 'epsilon' of BatchNormalization norm is one of a function's" in result.output, command


def _many_axes(model: onnx.ModelProto) -> str:
    for _ in range(70):
        model.graph.input[0].type.tensor_type.shape.dim.add(dim_value=1)
    return "input 'x' has 72 axes; expected at most 64"


def _words(model: onnx.ModelProto) -> str:
    shape = [FEATURES, FEATURES]
    model.graph.initializer[0].CopyFrom(
        helper.make_tensor("w", onnx.TensorProto.STRING, shape, [b"a"] * FEATURES * FEATURES)
    )
    return "constant 'w' holds words; expected numbers"


@pytest.mark.parametrize("damage", [_many_axes, _words])
def test_what_no_array_holds_is_named(damage: Callable[[onnx.ModelProto], str], folder: Path) -> None:
    model = test_broken_onnx.whole()
    said = damage(model)
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    for command in ("inspect", "fold", "verify, as the reference"):
        result = _run(COMMANDS[command], folder / "net.onnx")
        assert result.exit_code != 0, (command, result.output)
        assert "This is a bug" not in result.output, (command, result.output)
        assert said in result.output, (command, result.output)


def _grouped(operator: str, groups: int) -> bytes:
    text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[1,8,4] x) => (float[a,b,c] y)
    <float[8,8,1] w, float[8] s>
    {{ c = {operator} <group = {groups}> (x, w)  y = BatchNormalization (c, s, s, s, s) }}"""
    model = parser.parse_model(text)
    del model.graph.initializer[:]
    kept = {"w": np.ones((8, 8, 1), np.float32), "s": np.ones(8, np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in kept.items())
    return model.SerializeToString()


@pytest.mark.parametrize("groups", [0, -1, 3])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_groups_that_cut_no_weight_are_refused(operator: str, groups: int, folder: Path) -> None:
    path = folder / "net.onnx"
    path.write_bytes(_grouped(operator, groups))
    for command in ("inspect", "fold", "fold without a verdict", "verify", "verify, as the reference", "diff"):
        result = _run(COMMANDS[command], path)
        assert result.exit_code == 4, (command, result.output)
        assert f"has {groups} groups over a weight of shape [8, 8, 1]" in result.output, command


def test_outputs_of_no_elements_are_predicted_and_folded(folder: Path) -> None:
    """LpPool, whose window is larger than what it reads: no row has a number."""
    model = test_bad_files._model(
        "p = MatMul(x, w)\n q = BatchNormalization(p, scale, shift, mean, variance)\n u = Unsqueeze(q, one)\n"
        "c = LpPool<kernel_shape = [9]>(u)\n y = Squeeze(c, one)",
        y="float[n,0] y",
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "one"))
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    for command in ("predict", "fold"):
        result = _run(COMMANDS[command], folder / "net.onnx")
        assert "This is a bug" not in result.output, command
        assert "Traceback" not in result.output, command


SEQUENCE = "a sequence comes out"
UNPROVEN = {
    "another's operator": {
        "inspect": 0,
        "fold": 1,
        "fold without a verdict": 0,
        "verify": 1,
        "verify, as the reference": 1,
    },
    "nodes of one name": {
        "inspect": 0,
        "fold": 1,
        "fold without a verdict": 0,
        "verify": 1,
        "verify, as the reference": 1,
    },
    SEQUENCE: {
        "inspect": 0,
        "fold": 1,
        "fold without a verdict": 0,
        "verify": 1,
        "verify, as the reference": 1,
        "package for a phone": 1,
    },
    "a sequence goes in": {
        "inspect": 0,
        "fold": 1,
        "fold without a verdict": 0,
        "verify": 1,
        "verify, as the reference": 1,
        "package for a phone": 1,
    },
}


@pytest.mark.parametrize("what", UNPROVEN)
def test_what_cannot_be_run_here_passes_nowhere(what: str, folder: Path) -> None:
    """1: judged, and not proven; 4: refused; 0 where nothing is run."""
    path = folder / "net.onnx"
    path.write_bytes(test_bad_files.UNPROVEN[what]().SerializeToString())
    before = _seen(folder)
    for command, line in COMMANDS.items():
        result = _run(line, path)
        assert result.exit_code == UNPROVEN[what].get(command, 4), (command, result.output)
        assert "Traceback" not in result.output, command
        assert "This is a bug" not in result.output, command
        if command == "fold without a verdict":
            (folder / "made.onnx").unlink()
        assert _seen(folder) == before, command


def test_an_output_that_is_no_tensor_is_named(folder: Path) -> None:
    path = folder / "net.onnx"
    path.write_bytes(test_bad_files.UNPROVEN[SEQUENCE]().SerializeToString())
    for line in ("verify whole.onnx {} --quick", "verify {} whole.onnx --quick"):
        assert "output 'y' is a sequence, a map or nothing; expected a tensor" in _run(line, path).output


def test_bench_says_what_the_model_refuses(folder: Path) -> None:
    """A Gather far outside its table, which onnxruntime finds in the call."""
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[n,8] x) => (float[n,1] y) <int64[1] at = {99}>'
    (folder / "net.onnx").write_bytes(
        parser.parse_model(f"{text} {{ y = Gather <axis = 1> (x, at) }}").SerializeToString()
    )
    result = _run(COMMANDS["bench"], folder / "net.onnx")
    assert result.exit_code == 4, result.output
    assert "the model cannot run on x [1, 8]" in result.output
    assert "This is a bug" not in result.output


def test_a_scalar_that_takes_a_map_is_folded_around(folder: Path) -> None:
    """The sum of what is too large to be computed is a value without axes: its scale and shift are numbers."""
    model = test_bad_files._model(
        "p = MatMul(x, w)\n q = BatchNormalization(p, scale, shift, mean, variance)\n big = Expand(scale, many)\n"
        "r = ReduceSum<keepdims = 0>(big)\n y = Add(q, r)"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([10**12, FEATURES], np.int64), "many"))
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    result = _run(COMMANDS["fold without a verdict"], folder / "net.onnx")
    assert result.exit_code == 0, result.output
    assert "BatchNormalization" not in {node.op_type for node in onnx.load(folder / "made.onnx").graph.node}
