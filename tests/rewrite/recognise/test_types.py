"""Norms in float64, float16 and bfloat16 become operators that the runtime has kernels for, in their own type."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as ort_state
import pytest
import torch
from onnxruntime_outputs import run_onnxruntime
from torch import nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

C = 8
ROWS, IMAGE = (3, 5, C), (2, C, 4, 6)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function, self.g = function, nn.Parameter(torch.rand(C) + 0.5)

    def forward(self, x):
        return self.function(x, self.g)


def instance(x, g):
    return (x - x.mean((2, 3), keepdim=True)) / (x.var((2, 3), keepdim=True) + 1e-5).sqrt() * g[:, None, None]


def annotated(x, g):
    return g * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3)


def in_float64(x, g):
    """Computed in more digits than it is given in, as careful authors do."""
    h = x.double()
    return ((h - h.mean(-1, keepdim=True)) / (h.var(-1, keepdim=True) + 1e-5).sqrt()).to(x.dtype) * g


LN, RMS, IN = "LayerNormalization", "RMSNormalization", "InstanceNormalization"
SHORT = [LN, "Add", "Reciprocal", "Mul"]
# model, input, operators in float64, float16 and bfloat16
CASES = {
    "LayerNorm": (lambda: nn.LayerNorm(C), ROWS, [LN], [LN], [LN]),
    "RMSNorm": (lambda: nn.RMSNorm(C), ROWS, [RMS], [RMS], ["Cast", RMS, "Cast"]),
    "InstanceNorm": (lambda: nn.InstanceNorm2d(C), IMAGE, [LN], [IN], ["Cast", IN, "Cast"]),
    "GroupNorm": (
        lambda: nn.GroupNorm(4, C),
        IMAGE,
        ["Reshape", LN, "Reshape"],
        ["Reshape", IN, "Reshape"],
        ["Cast", "Reshape", IN, "Reshape", "Cast"],
    ),
    "instance by hand": (lambda: Function(instance), IMAGE, [LN, "Mul"], [IN], ["Cast", IN, "Cast"]),
    "epsilon outside the root": (
        lambda: Function(annotated),
        ROWS,
        ["ReduceMean", "Sub", "Mul", "ReduceMean", "Sqrt", "Add", "Div", "Mul"],
        ["Cast", *SHORT, "Cast"],
        ["Cast", *SHORT, "Cast"],
    ),
}


def narrow_layer_norm() -> bool:
    """Tell whether this onnxruntime has a LayerNormalization of bfloat16: 1.29 has none."""
    kernels = (item for item in ort_state.get_all_opkernel_def() if item.provider == "CPUExecutionProvider")
    return any("tensor(bfloat16)" in item.type_constraints["T"] for item in kernels if item.op_name == LN)


TYPES = {torch.float64: 2, torch.float16: 3, torch.bfloat16: 4}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_norms_of_other_types_run_in_the_runtime(name, dtype):
    case = CASES[name]
    model = case[0]().to(dtype).eval()
    torch.manual_seed(1)
    x = torch.randn(case[1])
    traced = trace(model, x.to(dtype))
    result = rewrite(traced.model)
    proto = ir.to_proto(result.model)
    onnx.checker.check_model(proto, full_check=True)
    assert [node.op_type for node in result.model.graph] == case[TYPES[dtype]]
    wide = copy.deepcopy(model).double()  # the graph's constants are the model's own until it is saved
    with torch.no_grad():
        expected = wide(x.to(dtype).double())
    (got,) = Evaluator(result.model).run({traced.input_names[0]: x.to(dtype).double()}).values()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    if dtype is torch.bfloat16 and LN in case[TYPES[dtype]] and not narrow_layer_norm():
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no LayerNormalization of bfloat16")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    if dtype is not torch.bfloat16:  # numpy has no such type to feed
        (run,) = session.run(None, {traced.input_names[0]: x.to(dtype).numpy()})
        tolerance = 2e-2 if dtype is torch.float16 else 1e-5  # epsilon is a float32 attribute
        np.testing.assert_allclose(run.astype(np.float64), expected.numpy(), rtol=tolerance, atol=tolerance)


def test_what_is_computed_in_float64_stays_so():
    """Between its casts it is one operator of the wide type, and the casts stay."""
    result = rewrite(trace(Function(in_float64), torch.randn(ROWS)).model)
    nodes = list(result.model.graph)
    assert [node.op_type for node in nodes] == ["Cast", LN, "Cast"]
    assert nodes[1].outputs[0].dtype == ir.DataType.DOUBLE
    (row,) = [row for row in result.ledger if row.kind == LN]
    assert (row.action, row.into) == ("fused", LN)
    x = np.random.default_rng(0).standard_normal(ROWS).astype(np.float32) + 1e4
    (run,) = run_onnxruntime(result.model, {"x": x})
    with torch.no_grad():
        expected = Function(in_float64).double()(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(run, expected, rtol=1e-5, atol=1e-5)  # float32 statistics would lose three digits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("place", ["in front of it", "in it", "behind it"])
def test_what_is_rounded_on_purpose_stays_rounded(place, dtype):
    """A float32 network that rounds to half as many bits computes something else than one that does not."""

    def rounded(x, g):
        x = x.to(dtype).float() if place == "in front of it" else x
        d = x - x.mean(-1, keepdim=True)
        d = d.to(dtype).float() if place == "in it" else d
        y = d / (d.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return (y.to(dtype).float() if place == "behind it" else y) + g

    model = Function(rounded)
    x = torch.randint(-(2**17), 2**17, ROWS, generator=torch.Generator().manual_seed(1)) / 2**16  # means are exact
    result = rewrite(trace(model, x).model)
    assert Counter(node.op_type for node in result.model.graph)["Cast"] == 2
    (run,) = run_onnxruntime(result.model, {"x": x.numpy()})
    with torch.no_grad():
        expected = model(x)
        plain = torch.nn.functional.layer_norm(x.double(), (C,)) + model.g
    np.testing.assert_allclose(run, expected.numpy(), rtol=0, atol=1e-5)
    assert (plain - expected).abs().max() > 1e-4  # without the casts
