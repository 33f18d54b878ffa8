"""Every standard operator at every operator set from 7 on: the old file and the raised file compute the same.

Cases are onnx's own node tests declared as of each older definition in which they are valid, and the old forms
(attributes that became inputs, other defaults) of ``old_forms``. The old file is run as it is.
"""

from __future__ import annotations

import re

import onnx
import onnx_ir as ir
import onnxruntime.capi.onnxruntime_pybind11_state as ort_state
import pytest
import torch
from old_forms import written
from old_operators import (
    RANDOM,
    Case,
    NotRunnable,
    definitions,
    differences,
    opset,
    published,
    redefined,
    run,
    run_by,
    side_by_side,
)

from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite
from normdeploy.rewrite.opset import RaiseOpset, raise_opset
from normdeploy.rewrite.opset.raising import WITHOUT_KERNEL

REFUSED = {
    ("Scan", 8): "is of opset 8, where it runs over a batch; expected .*: export the model again",
    ("Upsample", 9): "computes its scales; expected constant ones",
    ("GlobalLpPool", 21): "no kernel for its definition of opset 22",
    ("MaxRoiPool", 21): "no kernel for its definition of opset 22",
    **{(name, at): "no kernel of opset 23 or newer" for name in ("If", "Loop") for at in range(16, 23)},
    ("RoiAlign", 21): "no kernel for its definition of opset 22",
}
"""What no newer operator set says, or no runtime runs there: refused by name."""


def raised(case: Case) -> onnx.ModelProto:
    model = ir.from_proto(case.model)
    RaiseOpset()(model)
    raise_opset(model, case.target)
    return ir.to_proto(model)


def cases(op_type: str) -> list[Case]:
    return [*written(op_type), *published(op_type)]


def agree(case: Case) -> bool:
    """Whether onnxruntime runs the old and the raised file, and both give the same."""
    try:
        ran = [run_by(case.model, case.feeds), run_by(raised(case), case.feeds)]
    except (NotRunnable, GraphError):
        return False
    return {by for by, _ in ran} == {"onnxruntime"} and not differences(ran[0][1], ran[1][1], 1e-5)


def problem(case: Case) -> str:
    """Return what is wrong about a case; empty if nothing is.

    Raises:
        NotRunnable: the old file is run by nothing.
    """
    runner, expected = run_by(case.model, case.feeds)
    try:
        model = raised(case)
    except GraphError as error:
        words = REFUSED.get((case.model.graph.node[0].op_type, case.opset))
        return "" if words is not None and re.search(words, str(error)) else f"{case.name}: refused: {error}"
    assert opset(model) == case.target
    again, found = run_by(model, case.feeds)
    difference = differences(expected, found, 1e-5)
    if difference or (runner, again) == ("onnxruntime", "onnx"):
        return f"{case.name}: by {runner}, then {again}: {difference}"
    return ""


@pytest.mark.parametrize("op_type", [name for name in redefined() if name not in RANDOM])
def test_old_and_raised_file_compute_the_same(op_type: str):
    together: dict[tuple[int, int], list[Case]] = {}
    for case in cases(op_type):
        together.setdefault((case.opset, case.model.ir_version), []).append(case)
    covered, problems = set[int](), list[str]()
    for (version, _), group in together.items():
        if len(group) > 1 and agree(side_by_side(group)):
            covered.add(version)
            continue
        for case in group:  # one by one, for those that nothing runs, or that are refused or wrong
            try:
                problems += filter(None, [problem(case)])
            except NotRunnable:
                continue
            covered.add(version)
    assert not problems, "\n".join(problems)
    assert covered == set(definitions(op_type)), "an old definition without a case: write one in old_forms"


def test_operators_said_to_have_no_kernel_have_none_and_all_others_do():
    kernels: dict[str, list[tuple[int, int]]] = {}
    for item in ort_state.get_all_opkernel_def():
        if item.domain in ("", "ai.onnx") and item.provider == "CPUExecutionProvider":
            kernels.setdefault(item.op_name, []).append(tuple(item.version_range))
    lost = set()
    for name, ranges in kernels.items():
        for version in range(18, 23):
            if not onnx.defs.has(name, version, "") or not onnx.defs.has(name, 23, ""):
                continue
            before, after = (onnx.defs.get_schema(name, at, "").since_version for at in (version, 23))
            composed = onnx.defs.get_schema(name, 23, "").has_function
            ran = any(_takes(item, before) for item in ranges)
            if before != after and ran and not composed and not any(_takes(item, after) for item in ranges):
                lost.add((name, after))
    assert lost == set(WITHOUT_KERNEL.items())


def _takes(versions: tuple[int, int], since: int) -> bool:
    """A kernel without a last version is for the definition that it was written for."""
    first, last = versions
    return first == since if last == 2**31 - 1 else first <= since <= last


RMS = """
  q = Mul(a, a)
  m = ReduceMean <axes = [-1]> (q)
  v = Add(m, e)
  s = Sqrt(v)
  b = Div(a, s)
"""
BESIDE = {
    "reads a Cast": ("float16[2,3,4,6] x", "a = Cast <to = 1> (x)", "", "b"),
    "feeds a Cast": ("float[2,3,4,6] x", "a = Relu(x)", "y = Cast <to = 10> (b)", "y"),
    "reads a pool": ("float[2,3,4,6] x", "a = AveragePool <kernel_shape = [2, 2]> (x)", "", "b"),
    "feeds a pool": ("float[2,3,4,6] x", "a = Relu(x)", "y = AveragePool <kernel_shape = [2, 2]> (b)", "y"),
    "reads a dequantized value": (
        "uint8[2,3,4,6] x",
        "t = Constant <value = float {0.1}> ()\n z = Constant <value = uint8 {3}> ()\n a = DequantizeLinear(x, t, z)",
        "",
        "b",
    ),
    "feeds a quantizer": (
        "float[2,3,4,6] x",
        "a = Relu(x)",
        "t = Constant <value = float {0.1}> ()\n z = Constant <value = uint8 {3}> ()\n y = QuantizeLinear(b, t, z)",
        "y",
    ),
    "reads a sampled grid": ("float[2,3,4,6] x, float[2,5,6,2] grid", "a = GridSample(x, grid)", "", "b"),
    "feeds a sampled grid": ("float[2,3,4,6] x, float[2,5,6,2] grid", "a = Relu(x)", "y = GridSample(b, grid)", "y"),
    "feeds a norm by groups": (
        "float[2,4,4,6] x",
        "a = Relu(x)",
        "g = Constant <value = float[2] {0.5, 2.0}> ()\n y = GroupNormalization <num_groups = 2> (b, g, g)",
        "y",
    ),
    "feeds a pool without a newer kernel": ("float[2,3,4,6] x", "a = Relu(x)", "y = GlobalLpPool <p = 3> (b)", "y"),
    "casts on both sides": ("float16[2,3,4,6] x", "a = Cast <to = 1> (x)", "y = Cast <to = 10> (b)", "y"),
}


@pytest.mark.parametrize("version", [16, 17, 18])
@pytest.mark.parametrize("name", BESIDE)
def test_an_rms_norm_beside_an_operator_whose_form_changes(name: str, version: int):
    """What recognition holds of the graph stays valid while the graph is raised under it."""
    inputs, before, after, output = BESIDE[name]
    if "GroupNormalization" in after and version < 18:
        pytest.skip("the operator came with opset 18")
    norm = RMS if version < 18 else RMS.replace("<axes = [-1]> (q)", "(q, last)")
    model = ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["" : {version}]>
        net ({inputs}) => (float {output}) <float e = {{0.001}}, int64[1] last = {{-1}}>
        {{ {before}\n {norm} {after} }}"""
    )
    proto = ir.to_proto(model)
    proto.graph.output[0].ClearField("type")
    proto = onnx.shape_inference.infer_shapes(proto)
    result = rewrite(ir.from_proto(proto))
    (row,) = [row for row in result.ledger if row.kind == "RMSNormalization"]
    assert row.action == "fused"
    feeds = {}
    for value in model.graph.inputs:
        drawn = torch.randn(value.shape.numpy(), dtype=torch.float64)
        drawn = drawn.clamp(-0.9, 0.9) if value.name == "grid" else drawn
        feeds[str(value.name)] = (drawn.abs() * 9).to(torch.uint8) if value.dtype == ir.DataType.UINT8 else drawn
    expected = Evaluator(ir.from_proto(proto)).run(feeds)[output]
    torch.testing.assert_close(Evaluator(result.model).run(feeds)[output], expected, rtol=1e-6, atol=1e-6)
    stored = {
        str(v.name): feeds[str(v.name)].numpy().astype(v.dtype.numpy())
        for v in model.graph.inputs
        if v.dtype is not None
    }
    (native,) = run(ir.to_proto(result.model), stored)
    close = 0.3 if "Cast" in before + after or "Quantize" in after else 1e-4
    assert native.shape == tuple(expected.shape)
    torch.testing.assert_close(
        torch.from_numpy(native.astype("float64")), expected.to(torch.float64), rtol=close, atol=close
    )


def test_a_graph_that_cannot_be_raised_spells_its_rms_norm_and_says_why():
    inputs, before, after, output = BESIDE["feeds a pool without a newer kernel"]
    model = ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net ({inputs}) => (float[2,3,1,1] {output}) <float e = {{0.001}}, int64[1] last = {{-1}}>
        {{ {before}\n {RMS.replace("<axes = [-1]> (q)", "(q, last)")} {after} }}"""
    )
    result = rewrite(model)
    (row,) = result.ledger
    assert result.model.opset_imports[""] == 18
    assert row.action == "fused"
    assert "onnxruntime has no kernel" in row.reason
    assert "GlobalLpPool" in row.reason


def test_nothing_is_changed_where_something_cannot_be_raised():
    text = """<ir_version: 4, opset_import: ["" : 9]>
    agraph (float[2,4,3,3] x, float[4] s) => (float[2,4,h,w] y) {
        c = Clip <min = 0.0> (x)
        y = Upsample (c, s)
    }"""
    model = ir.from_onnx_text(text)
    before = ir.to_proto(model).SerializeToString()
    with pytest.raises(GraphError, match="Upsample"):
        raise_opset(model, 18)
    assert ir.to_proto(model).SerializeToString() == before
