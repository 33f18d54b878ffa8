"""Loops and calls that the file itself says have no end are refused before a runtime opens it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from normdeploy.errors import GraphError
from normdeploy.onnxfile.endless import MOST_TURNS, check_ends
from normdeploy.ort.settings import OPENVINO_RUNTIME, Settings
from normdeploy.runtime.backend import open_backend

HEAD = '<ir_version: 10, opset_import: ["" : 18, "own" : 1]>'
FUNCTION = '<domain: "own", opset_import: ["" : 18, "own" : 1]>'
HUGE = 2**60


def body(condition: str = "on = Identity (go)", step: str = "c = Relu (a)", name: str = "b") -> str:
    """Return a Loop's attribute; what it declares ends in its own number, as no name may stand twice."""
    text = f"<body = {name} (int64 i, bool go, float[n] a) => (bool on, float[n] c) {{ {condition} {step} }}>"
    return text if name == "b" else re.sub(r"\b(i|go|on)\b", rf"\1_{name}", text)


def loop(count: str = "m", first: str = "yes", inside: str = "", x: str = "x", y: str = "y") -> str:
    return f"{y} = Loop ({count}, {first}, {x}) {inside or body()}"


def model(
    nodes: str, constants: str = f"int64 m = {{{HUGE}}}, bool yes = {{1}}", functions: str = ""
) -> onnx.ModelProto:
    text = f"{HEAD} g (float[n] x, bool given, int64 asked) => (float[n] y) <{constants}> {{ {nodes} }} {functions}"
    return parser.parse_model(text)


MANY = "int64 m = {1048576}, bool yes = {1}"  # 2**20
INNER = loop(inside=body(step="d = Relu (h)", name="inner").replace(" a)", " h)").replace(" c)", " d)"), x="a", y="c")
ENDLESS = {
    "a count": (model(loop()), HUGE),
    "a count in a Constant": (model(f"k = Constant <value_int = {HUGE}> () {loop('k')}"), HUGE),
    "no count": (model(loop('""')), MOST_TURNS + 1),
    "no condition at first": (model(loop(first='""')), HUGE),
    "a condition that is given": (model(loop(first="given")), HUGE),
    "a condition from outside": (model(loop(inside=body("on = Identity (yes)"))), HUGE),
    "a condition of its own": (model(loop(inside=body("t = Constant <value = bool {1}> () on = Identity (t)"))), HUGE),
    "a loop in a loop": (model(loop(inside=body(step=INNER)), MANY), 2**40),
    "a loop in a branch": (
        model(f"y = If (given) <then_branch = t () => (float[n] z) {{ {loop(y='z')} }}, else_branch = e () => "
              "(float[n] w) { w = Relu (x) }>"),
        HUGE,
    ),
}  # fmt: skip
ENDING = {
    "few turns": model(loop(), MANY),
    "a count that is asked for": model(loop("asked")),
    "a condition that is false at first": model(loop(), f"int64 m = {{{HUGE}}}, bool yes = {{0}}"),
    "a condition that is computed": model(loop(inside=body("s = ReduceMax (a) z = Sub (s, s) on = Greater (s, z)"))),
    "a loop beside a loop": model(f"{loop(y='h')} {loop(x='h', inside=body(name='two'))}", MANY),
}


def opened(proto: onnx.ModelProto, folder: Path) -> None:
    onnx.save(proto, folder / "net.onnx")
    check_ends(folder / "net.onnx")


@pytest.mark.parametrize("what", ENDLESS)
def test_what_never_ends_is_refused_by_name(what: str, tmp_path: Path) -> None:
    proto, turns = ENDLESS[what]
    onnx.checker.check_model(proto)
    with pytest.raises(GraphError, match=rf"Loop \['[yz]'\] comes to {turns} turns.*at most {MOST_TURNS}"):
        opened(proto, tmp_path)
    for settings in (Settings(), Settings(provider=OPENVINO_RUNTIME)):
        with pytest.raises(GraphError, match=f"comes to {turns} turns"):
            open_backend(tmp_path / "net.onnx", settings)


@pytest.mark.parametrize("what", ENDING)
def test_what_may_end_is_opened(what: str, tmp_path: Path) -> None:
    opened(ENDING[what], tmp_path)


def test_loops_in_functions_multiply_with_those_around_the_call(tmp_path: Path) -> None:
    counted = "k = Constant <value_int = 1048576> () t = Constant <value = bool {1}> ()"
    functions = f"{FUNCTION} F (a) => (c) {{ {counted} {loop('k', 't', body(name='inner'), 'a', 'c')} }}"
    opened(model("y = own.F (x)", MANY, functions), tmp_path)
    with pytest.raises(GraphError, match=f"comes to {2**40} turns"):
        opened(model(loop(inside=body(step="c = own.F (a)")), MANY, functions), tmp_path)


def test_a_count_beside_the_file_is_read(tmp_path: Path) -> None:
    proto = ENDLESS["a count"][0]
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(proto, tmp_path / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    assert (tmp_path / "net.data").stat().st_size > 0
    with pytest.raises(GraphError, match=f"comes to {HUGE} turns"):
        check_ends(tmp_path / "net.onnx")


def test_a_chain_of_many_functions_is_counted_in_time_that_grows_with_it(tmp_path: Path) -> None:
    names = [f"F{number}" for number in range(3000)]
    proto = model("y = own.F0 (x)")
    for name, following in zip(names, [*names[1:], ""], strict=True):
        function = proto.functions.add(name=name, domain="own", input=["a"], output=["b"])
        function.opset_import.extend(proto.opset_import)
        function.node.append(
            onnx.helper.make_node(following or "Relu", ["a"], ["b"], domain="own" if following else "")
        )
    opened(proto, tmp_path)
    proto.functions[-1].node[0].CopyFrom(onnx.helper.make_node("F0", ["a"], ["b"], domain="own"))
    with pytest.raises(GraphError, match="calls itself"):
        opened(proto, tmp_path)


def test_what_ends_runs_as_it_did(tmp_path: Path) -> None:
    onnx.save(model(loop(), "int64 m = {3}, bool yes = {1}"), tmp_path / "net.onnx")
    feeds = {"x": np.float32([-1, 2]), "given": np.array(True), "asked": np.array(1)}
    (y,) = open_backend(tmp_path / "net.onnx", Settings()).run(feeds)
    np.testing.assert_array_equal(y, [0, 2])
