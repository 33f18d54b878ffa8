"""A few bytes of a graph may ask for terabytes or years: an error of ours, before anything is asked of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

import normdeploy as nd
from normdeploy.errors import GraphError, InputError, NormdeployError
from normdeploy.graph import Evaluator, load_graph
from normdeploy.graph.operators.evaluation_limits import MOST_ELEMENTS, TooMuchError

HUGE = "1000000000000"
BODY = "body (int64 i, bool c, float[n,4] v) => (bool c2, float[n,4] v2) { c2 = Identity(c)\n v2 = Identity(v) }"
GRAPHS = {
    "Loop": f"t = Constant<value = int64 {{{HUGE}}}>()\n y = Loop<body = {BODY}>(t, , x)",
    "Range": (
        f"a = Constant<value = int64 {{0}}>()\n b = Constant<value = int64 {{{HUGE}}}>()\n"
        "d = Constant<value = int64 {1}>()\n r = Range(a, b, d)\n s = ReduceMax<keepdims = 0>(r)\n"
        "f = Cast<to = 1>(s)\n y = Add(x, f)"
    ),
    "ConstantOfShape": (
        f"n = Constant<value = int64[1] {{{HUGE}}}>()\n z = ConstantOfShape(n)\n"
        "s = ReduceMax<keepdims = 0>(z)\n y = Add(x, s)"
    ),
    "Tile": (
        f"n = Constant<value = int64[2] {{{HUGE}, 1}}>()\n z = Tile(x, n)\n"
        "s = ReduceMax<keepdims = 0>(z)\n y = Add(x, s)"
    ),
}


def write(path: Path, body: str) -> Path:
    header = '<ir_version: 9, opset_import: ["" : 17]> g (float[n,4] x) => (float[n,4] y)'
    onnx.save(parser.parse_model(f"{header} {{ {body} }}"), path)
    return path


@pytest.mark.parametrize("name", GRAPHS)
def test_what_asks_for_too_much_is_refused_by_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    # turns of a loop are done before it is refused
    monkeypatch.setattr("normdeploy.graph.operators.evaluation_limits.MOST_TURNS", 100)
    huge, plain = write(tmp_path / "huge.onnx", GRAPHS[name]), write(tmp_path / "plain.onnx", "y = Identity(x)")
    with pytest.raises(GraphError, match=rf"operator {name} .* expected .*: correct"):
        Evaluator(load_graph(huge)).run({"x": np.ones((2, 4), np.float32)})
    for reference, file in ((huge, huge), (plain, huge), (huge, plain)):
        verdict = nd.verify(reference, file, level="quick")
        assert verdict.status in ("error", "fail")
        assert f"operator {name} " in verdict.summary()
    with pytest.raises(NormdeployError):
        nd.fold(huge, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


RESULTS = {
    "Multinomial": ((2, 4), f"y = Multinomial<sample_size = {HUGE}>(x)"),
    "Col2Im": (
        (1, 4, 9),
        f"i = Constant<value = int64[2] {{{HUGE}, 3}}>()\n b = Constant<value = int64[2] {{2, 2}}>()\n"
        "y = Col2Im(x, i, b)",
    ),
    "MaxRoiPool": (
        (1, 2, 4, 4),
        "r = Constant<value = float[1,5] {0, 0, 0, 3, 3}>()\n y = MaxRoiPool<pooled_shape = [1000000, 1000000]>(x, r)",
    ),
    "RoiAlign": (  # a grid of samples, one for each pixel of the region
        (1, 2, 4, 4),
        "r = Constant<value = float[1,4] {0, 0, 1000000000, 1000000000}>()\n"
        "b = Constant<value = int64[1] {0}>()\n y = RoiAlign(x, r, b)",
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_or_samples_beyond_all_memory_are_refused_by_the_operators_name(name: str):
    shape, body = RESULTS[name]
    sizes = ",".join(map(str, shape))
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g (float[{sizes}] x) => (y) {{ {body} }}')
    with pytest.raises(GraphError, match=rf"operator {name} .* expected .*: correct"):
        Evaluator(ir.from_proto(model)).run({"x": np.ones(shape, np.float32)})


def test_a_loop_with_the_largest_trip_count_that_ends_by_its_condition_is_evaluated():
    body = (
        "body (int64 i, bool c, float[n,4] v) => (bool c2, float[n,4] v2) { l = Constant<value = int64 {3}>()\n "
        "c2 = Less(i, l)\n one = Constant<value = float {1.0}>()\n v2 = Add(v, one) }"
    )
    text = f"t = Constant<value = int64 {{9223372036854775807}}>()\n y = Loop<body = {body}>(t, , x)"
    header = '<ir_version: 9, opset_import: ["" : 17]> g (float[n,4] x) => (float[n,4] y)'
    model = parser.parse_model(f"{header} {{ {text} }}")

    found = Evaluator(ir.from_proto(model)).run({"x": np.zeros((2, 4), np.float32)})["y"]
    assert np.array_equal(found.numpy(), np.full((2, 4), 4.0))


WIDE = {"x": np.zeros((2, 4), np.float32), "c": np.zeros((1, 1, 1 << 15), np.float32)}
SIZED = {
    "Expand": "n = Constant<value = int64[2] {BIG, 4}>()\n y = Expand(x, n)",
    "Resize by sizes": "n = Constant<value = int64[2] {BIG, 4}>()\n y = Resize(x, , , n)",
    "Resize by scales": "s = Constant<value = float[2] {1e12, 1.0}>()\n y = Resize(x, , s)",
    "OneHot": (
        "n = Constant<value = int64 {BIG}>()\n v = Constant<value = float[2] {0.0, 1.0}>()\n"
        "i = Cast<to = 7>(x)\n y = OneHot(i, n, v)"
    ),
    "HannWindow": "n = Constant<value = int64 {BIG}>()\n y = HannWindow(n)",
    "RandomNormal": "y = RandomNormal<shape = [1000000, 1000000]>()",
    "DFT": ("n = Constant<value = int64 {BIG}>()\n y = DFT<axis = 1>(c, n)"),
    "Conv": "w = Constant<value = float[1, 1, 1] {1.0}>()\n y = Conv<pads = [1000000000000, 0]>(c, w)",
    "MaxPool": "y = MaxPool<kernel_shape = [1], pads = [1000000000000, 0]>(c)",
    "ConvTranspose": "w = Constant<value = float[1, 1, 1] {1.0}>()\n y = ConvTranspose<strides = [100000000]>(c, w)",
    "MatMul": "t = Transpose<perm = [0, 2, 1]>(c)\n y = MatMul(t, c)",
    "Add": "t = Transpose<perm = [0, 2, 1]>(c)\n y = Add(t, c)",
    "Gather": "i = Cast<to = 7>(c)\n z = Gather<axis = 0>(c, i)\n y = Identity(z)",
    "CenterCropPad": "n = Constant<value = int64[2] {BIG, 4}>()\n y = CenterCropPad(x, n)",
}


@pytest.mark.parametrize("case", SIZED)
def test_a_result_is_counted_before_it_is_computed(case: str) -> None:
    """Each of these would have more than 8 GB."""
    body = SIZED[case].replace("BIG", HUGE)
    header = '<ir_version: 9, opset_import: ["" : 18]> g (float[2,4] x, float[1,1,32768] c) => (float[a,b] y)'
    model = ir.from_proto(parser.parse_model(f"{header} {{ {body} }}"))
    with pytest.raises(TooMuchError, match=f"expected at most {MOST_ELEMENTS}"):
        Evaluator(model).run(WIDE)


@pytest.mark.parametrize(
    ("body", "depth", "shape"),
    [
        ("y = MatMul(x, w)", (1, 25088), (25088, 64)),
        ("y = Gemm<transB = 1>(x, w)", (1, 25088), (64, 25088)),
        ("y = Gemm<transA = 1>(x, w)", (25088, 1), (25088, 64)),
    ],
)
def test_a_long_sum_is_no_large_result(body: str, depth: tuple[int, int], shape: tuple[int, int]) -> None:
    """A classifier behind 25,088 features has a result of 64 numbers, however large its operands are."""
    header = (
        f'<ir_version: 9, opset_import: ["" : 18]> g (float[{depth[0]},{depth[1]}] x, float[{shape[0]},{shape[1]}] w)'
    )
    model = ir.from_proto(parser.parse_model(f"{header} => (float[a,b] y) {{ {body} }}"))
    found = Evaluator(model).run({"x": np.ones(depth, np.float32), "w": np.ones(shape, np.float32)})["y"]
    assert found.shape == (1, 64)
    assert (found == 25088).all()


SPELLED = (
    "m = ReduceMean<axes = [-1]>(x)\n c = Sub(x, m)\n s = Mul(c, c)\n v = ReduceMean<axes = [-1]>(s)\n"
    "e = Constant<value = float {0.00001}>()\n a = Add(v, e)\n d = Sqrt(a)\n y = Div(c, d)"
)


def test_a_declared_size_is_not_believed_by_recognition(tmp_path: Path) -> None:
    """The norm of 2**31 rows of four stays spelled out, and the ledger says why; nothing is asked of the machine."""
    header = '<ir_version: 9, opset_import: ["" : 17]> g (float[ROWS,4] x) => (float[ROWS,4] y)'
    for rows, taken in (("3", True), ("2147483648", False)):
        path = tmp_path / f"{rows}.onnx"
        onnx.save(parser.parse_model(f"{header} {{ {SPELLED} }}".replace("ROWS", rows)), path)
        result = nd.fold(path, tmp_path / f"{rows}.out.onnx", verify=False)
        assert any("asks for 8589934592 elements" in str(row) for row in result.ledger) != taken
        kinds = {node.op_type for node in load_graph(tmp_path / f"{rows}.out.onnx").graph}
        assert ("LayerNormalization" in kinds) == taken


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_inputs_made_up_from_declared_sizes_leave_room(command: str, tmp_path: Path) -> None:
    """Of what fits the machine an eighth: judging takes several times as much."""
    path = tmp_path / "wide.onnx"
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8 // 4  # in float64: a quarter
    header = f'<ir_version: 9, opset_import: ["" : 17]> g (float[1,{size}] x, float[2,1] z) => (float[2,{size}] y)'
    onnx.save(parser.parse_model(f"{header} {{ y = Add(x, z) }}"), path)
    with pytest.raises(InputError, match="an eighth of this machine's memory"):
        nd.inspect(path) if command == "inspect" else nd.verify(path, path, level="quick")
