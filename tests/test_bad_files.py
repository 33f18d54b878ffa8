"""Files that are odd rather than broken, and the page that says of every kind of bad file what happens to it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import external_models
import numpy as np
import onnx
import pytest
from external_models import FEATURES
from forked_python import ForkedPython
from onnx import helper, numpy_helper, parser
from onnxruntime_outputs import run_onnxruntime
from pages import ROOT
from test_broken_onnx import X, all_refuse, every_call, whole

import normdeploy as nd
from normdeploy.errors import GraphError, InputError, NormdeployError, VerificationError
from normdeploy.graph import load_graph

PAGE = ROOT / "docs" / "robustness.md"


def _model(nodes: str, x: str = "float[n,8] x", y: str = "float[n,8] y") -> onnx.ModelProto:
    """Return a MatMul and a BatchNormalization around what ``nodes`` spell: ``x``, the constants, ``y``."""
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18, "com.example" : 1]> g ({x}) => ({y}) {{ {nodes} }}'
    )
    model.graph.initializer.extend(external_models.initializers(external_models.inside).graph.initializer)
    return model


_NORM = "BatchNormalization(p, scale, shift, mean, variance)"


def _renamed() -> onnx.ModelProto:
    model = whole()
    for node in model.graph.node:
        node.name = f"層 🙂 {node.op_type}"
        node.input[:] = [f"значение/{name}" for name in node.input]
        node.output[:] = [f"значение/{name}" for name in node.output]
    for named in (*model.graph.initializer, *model.graph.input, *model.graph.output):
        named.name = f"значение/{named.name}"
    return model


def _nothing_joined() -> onnx.ModelProto:
    model = whole()
    model.graph.node.insert(0, helper.make_node("Concat", ["x", "none"], ["all"], axis=0))
    model.graph.node[1].input[0] = "all"
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((0, FEATURES), np.float32), "none"))
    return model


def _of_ir(version: int) -> onnx.ModelProto:
    model = whole()
    model.ClearField("ir_version")
    if version:
        model.ir_version = version
    return model


def _twice(kind: str) -> onnx.ModelProto:
    model = whole()
    if kind == "nodes":
        for node in model.graph.node:
            node.name = "same"
    elif kind == "initializers":
        model.graph.initializer.append(numpy_helper.from_array(np.ones((FEATURES, FEATURES), np.float32), "w"))
    else:
        held = getattr(model.graph, kind)
        held.add().CopyFrom(held[0])
    return model


RIGHT = {
    "sequence": lambda: _model(
        f"p = MatMul(x, w)\n q = {_NORM}\n s = SequenceConstruct(q, x)\n"
        "at = Constant<value = int64 {0}>()\n y = SequenceAt(s, at)"
    ),
    "optional": lambda: _model(f"p = MatMul(x, w)\n q = {_NORM}\n o = Optional(q)\n y = OptionalGetElement(o)"),
    "Unicode names": _renamed,
    "a tensor of no elements": _nothing_joined,
    "one output twice": lambda: _twice("output"),
}
UNPROVEN = {
    "another's operator": lambda: _model(f"p = MatMul(x, w)\n q = {_NORM}\n y = com.example.Own(q)"),
    "nodes of one name": lambda: _twice("nodes"),
    "a sequence goes in": lambda: _model(
        f"at = Constant<value = int64 {{0}}>()\n a = SequenceAt(x, at)\n p = MatMul(a, w)\n y = {_NORM}",
        x="seq(float[n,8]) x",
    ),
    "a sequence comes out": lambda: _model(
        f"p = MatMul(x, w)\n q = {_NORM}\n y = SequenceConstruct(q, x)", y="seq(float[n,8]) y"
    ),
}
REFUSED = {
    "IR 99": lambda: _of_ir(99),
    "no IR": lambda: _of_ir(0),
    "one input twice": lambda: _twice("input"),
}


@pytest.mark.parametrize("what", RIGHT)
def test_odd_and_right_is_folded_and_proven(what: str, tmp_path: Path) -> None:
    path, out = tmp_path / "net.onnx", tmp_path / "out.onnx"
    path.write_bytes(RIGHT[what]().SerializeToString())
    calls = every_call(path, tmp_path)
    for name in ("inspect", "verify", "reference", "diff", "package"):
        calls[name]()
    verdict = nd.fold(path, out, verify="quick").verdict
    assert verdict is not None
    assert verdict.status not in ("fail", "error")
    assert "BatchNormalization" not in {node.op_type for node in load_graph(out).graph}
    found = nd.load(out)(X)
    first = next(iter(found.values())) if isinstance(found, dict) else found
    np.testing.assert_allclose(first, external_models.expected(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("what", UNPROVEN)
def test_what_cannot_be_run_here_is_not_written_with_a_verdict(what: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(UNPROVEN[what]().SerializeToString())
    calls = every_call(path, tmp_path)
    calls["inspect"]()
    with pytest.raises(VerificationError):
        calls["fold"]()
    assert not (tmp_path / "out.onnx").exists()
    for name in ("run", "diff", "package"):
        with pytest.raises(NormdeployError):
            calls[name]()
    calls["fold unverified"]()
    kept = [node.op_type for node in load_graph(tmp_path / "out.onnx").graph]
    assert [kind for kind in kept if kind in ("Own", "SequenceConstruct", "SequenceAt")] == [
        node.op_type for node in UNPROVEN[what]().graph.node
        if node.op_type in ("Own", "SequenceConstruct", "SequenceAt")
    ]  # fmt: skip


@pytest.mark.parametrize("level", ["quick", False])
def test_an_optional_that_goes_in_stays_one(level: Literal["quick", False], tmp_path: Path) -> None:
    path, out = tmp_path / "net.onnx", tmp_path / "out.onnx"
    nodes = f"a = OptionalGetElement(x)\n p = MatMul(a, w)\n y = {_NORM}"
    path.write_bytes(_model(nodes, x="optional(float[n,8]) x").SerializeToString())
    nd.fold(path, out, verify=level)
    assert "OptionalGetElement" in {node.op_type for node in load_graph(out).graph}
    found = run_onnxruntime(out, {"x": X})[0]
    np.testing.assert_allclose(found, external_models.expected(X), rtol=1e-4, atol=1e-5)
    with pytest.raises(GraphError, match="expected a tensor"):
        nd.load(path)(X)


@pytest.mark.parametrize("what", REFUSED)
def test_a_contradiction_is_refused_by_every_function(what: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(REFUSED[what]().SerializeToString())
    all_refuse(path, tmp_path)


def _of_two_values() -> onnx.ModelProto:
    return _model(f"c = Constant<value_float = 2.0, value_int = 3>()\n a = Mul(x, c)\n p = MatMul(a, w)\n y = {_NORM}")


def _standard_function(domain: str) -> onnx.ModelProto:
    """A function that is named as an operator is: of two meanings, Relu and Neg."""
    model = _model(f"p = MatMul(x, w)\n q = {_NORM}\n y = Relu(q)")
    inside = [helper.make_node("Neg", ["a"], ["b"])]
    model.functions.append(helper.make_function(domain, "Relu", ["a"], ["b"], inside, model.opset_import[:1]))
    return model


TWO_MEANINGS = {
    "constants of one name": (lambda: _twice("initializers"), "w initializer name is not unique"),
    "a constant of two values": (_of_two_values, "says 2 values; expected one"),
    "a function named as an operator": (lambda: _standard_function(""), "function named 'Relu', as a standard"),
    "the same by the long name": (lambda: _standard_function("ai.onnx"), "function named 'Relu', as a standard"),
}


@pytest.mark.parametrize("what", TWO_MEANINGS)
def test_what_has_two_meanings_is_refused_by_all_that_read_the_graph(what: str, tmp_path: Path) -> None:
    """onnxruntime takes one of the two, so that the file can be run."""
    path, (make, message) = tmp_path / "net.onnx", TWO_MEANINGS[what]
    path.write_bytes(make().SerializeToString())
    for name, call in every_call(path, tmp_path).items():
        if name not in ("run", "package"):
            with pytest.raises(GraphError, match=message):
                call()


def test_a_folder_is_refused_by_every_function(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").mkdir()
    for call in every_call(tmp_path / "net.onnx", tmp_path).values():
        with pytest.raises(GraphError, match="is a folder; expected an ONNX file"):
            call()


def test_inputs_of_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    nodes = f"p = MatMul(x, w)\n y = {_NORM}"
    path.write_bytes(_model(nodes, "float[0,8] x", "float[0,8] y").SerializeToString())
    assert nd.fold(path, tmp_path / "out.onnx", verify="quick").verdict is not None
    assert nd.load(tmp_path / "out.onnx")(X[:0]).shape == (0, FEATURES)
    with pytest.raises(InputError, match=r"expected x: float32\[0, 8\]"):
        nd.load(path)(X)


_AS_ANOTHER = """
import os, shutil, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import torch
from test_broken_onnx import every_call
import normdeploy as nd
from normdeploy.errors import NormdeployError
from normdeploy.nn.weight_files import read_weights
from normdeploy.parsing.recipe import load_recipe
from normdeploy.parsing.sources import load_source
from normdeploy.runtime import predict

def every_other(good, place):
    return {
        "fold to": lambda: nd.fold(good, place / "out.onnx", verify=False),
        "export to": lambda: nd.export(torch.nn.ReLU(), (torch.zeros(1, 2),), place / "out.onnx", verify=False),
        "weights": lambda: read_weights(place / "w.safetensors"),
        "recipe": lambda: load_recipe(place / "net.toml"),
        "source": lambda: load_source(f"{place / 'net.py'}:make"),
        "rows": lambda: predict(good, place / "x.npy", folder / "rows.npy"),
        "rows to": lambda: predict(good, folder / "x.npy", place / "rows.npy"),
    }

def attempts(calls):
    for name, call in calls.items():
        try:
            call()
        except NormdeployError as error:
            yield name, str(error)
        else:
            raise SystemExit(f"{name} read or wrote it")

folder = Path(sys.argv[1])
for call in every_call(folder / "whole.onnx", folder).values():
    call()  # what is imported on the way cannot be imported by the other user
    for made in folder.glob("out*"):
        made.unlink()
shutil.rmtree(folder / "repository")
list(attempts(every_other(folder / "whole.onnx", folder / "nowhere")))  # and these
unreadable, closed = every_call(folder / "net.onnx", folder), every_other(folder / "whole.onnx", folder / "closed")
os.setuid(65534)
for name, words in (*attempts(unreadable), *attempts(closed)):
    assert any(part in words for part in ("cannot be read", "cannot be written", "cannot load")), (name, words)
    assert "ermission" in words, (name, words)
print("refused")
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to become another user")
def test_a_file_without_permission_is_refused_by_every_function(forked: ForkedPython) -> None:
    with TemporaryDirectory() as name:  # pytest's own folders are closed to others, by each session that starts
        folder = Path(name)
        folder.chmod(0o755)
        os.chown(folder, 65534, 65534)
        for stem in ("net", "whole", "reference"):
            external_models.write_whole(folder / f"{stem}.onnx").chmod(0o666)  # the reference is written again
        (folder / "net.onnx").chmod(0)
        (folder / "closed").mkdir(mode=0o700)
        words = str(folder), str(Path(__file__).parent)
        ended = forked.run(_AS_ANOTHER, *words, folder=folder, timeout=300)
    assert ended.stdout.endswith("refused\n"), ended.stderr


def test_every_test_that_the_page_names_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("## Bad files, word by word") :].split("\n## ")[0]
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", table)
    assert len({name for _, name in named}) >= 15
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), (file, name)
