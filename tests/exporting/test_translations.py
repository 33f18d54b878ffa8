"""Operators that torch's exporter translates wrongly: ours against eager torch, in onnxruntime."""

import itertools

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnxruntime_outputs import run_onnxruntime
from torch import nn
from torch.nn import functional

import normdeploy as nd
from normdeploy.errors import TraceError
from normdeploy.exporting.trace import trace


class Each(nn.Module):
    """Several modules on one input: an export takes seconds."""

    def __init__(self, modules):
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, x):
        return [part(x) for part in self.parts]


class Call(nn.Module):
    def __init__(self, function, **settings):
        super().__init__()
        self.function, self.settings = function, settings

    def forward(self, x):
        return self.function(x, **self.settings)


def same_as_eager(modules, x, sizes=()):
    """Export at x's size with every axis behind the channels dynamic, and run there and at other sizes."""
    model = Each(modules).eval()
    axes = range(2, x.dim()) if sizes else ()
    traced = trace(model, x, dynamic_shapes={"x": {0: "n", **{axis: f"d{axis}" for axis in axes}}})
    session = onnxruntime.InferenceSession(ir.to_proto(traced.model).SerializeToString(), None)
    for shape in ((), *sizes):
        fed = torch.randn(3, x.shape[1], *shape) if shape else x
        for part, expected, found in zip(modules, model(fed), session.run(None, {"x": fed.numpy()}), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=f"{part} at {list(fed.shape)}")


POOLS = [
    {"kernel_size": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil, "count_include_pad": counted}
    for kernel, stride, padding, ceil, counted in itertools.product(
        (2, (3, 2)), ((2, 3), 1), (0, 1), (False, True), (False, True)
    )
]


@pytest.mark.parametrize("divisor", [None, 1, 5])
def test_average_pooling_in_two_dimensions(divisor):
    torch.manual_seed(0)
    pools = [nn.AvgPool2d(**settings, divisor_override=divisor) for settings in POOLS]
    same_as_eager(pools, torch.randn(2, 3, 9, 7), sizes=[(8, 8), (11, 6), (5, 12)])


def test_average_pooling_in_three_dimensions_and_without_a_batch():
    torch.manual_seed(0)
    pools = [
        nn.AvgPool3d((3, 2, 2), stride=(2, 3, 1), padding=(1, 1, 0), ceil_mode=ceil, divisor_override=divisor)
        for ceil in (False, True)
        for divisor in (None, 3)
    ]
    same_as_eager(pools, torch.randn(2, 3, 6, 7, 5))
    pool, x = nn.AvgPool2d(3, 2, ceil_mode=True, divisor_override=4), torch.randn(3, 8, 7)
    traced = trace(pool, x, dynamic_shapes={})
    np.testing.assert_allclose(run_onnxruntime(traced.model, {"input": x.numpy()})[0], pool(x), rtol=1e-5, atol=1e-6)


def test_a_divisor_is_proven_and_folds_with_what_is_around(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.AvgPool2d(2, divisor_override=3), nn.Conv2d(4, 2, 1)
    )
    model[1].running_var.uniform_(0.5, 2)
    model[1].running_mean.uniform_(-1, 1)
    assert nd.export(model, torch.randn(2, 3, 8, 8), tmp_path / "net.onnx", verify="quick").verdict.status == "pass"


def test_log_sigmoid_where_the_sigmoid_is_zero():
    x = torch.tensor([[-1000.0, -200.0, -90.0, -1.0, 0.0, 1.0, 90.0, 200.0]])
    same_as_eager([nn.LogSigmoid()], x.repeat(2, 1))


def test_logarithms_of_a_sigmoid_and_of_a_softmax_written_out():
    x = torch.tensor([[-80.0, -18.0, -1.0, 0.0, 1.0, 90.0], [-85.0, -30.0, -17.5, 2.0, 0.5, 3.0]])
    same_as_eager([Call(lambda y: y.sigmoid().log()), Call(lambda y: torch.log(functional.softmax(y, 0)))], x)
    traced = trace(Call(lambda y: torch.log(y.relu())), x)
    assert [node.op_type for node in traced.model.graph] == ["Relu", "Log"]


def test_such_a_logarithm_is_judged_where_float64_would_lose_it(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), Call(lambda y: torch.log(torch.sigmoid(y))))
    model[0].weight.data.mul_(30)
    x = torch.tensor([[40.0, -40, 40, 40], [0, 1, 0, 0]])
    result = nd.export(model.eval(), x, tmp_path / "net.onnx", verify="quick")
    assert result.verdict.status == "pass"
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", None)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    exact = functional.logsigmoid(model[:2].double()(x.double())).detach().numpy()
    assert exact.min() < -800
    np.testing.assert_allclose(found, exact, rtol=1e-4)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_resizing_samples_by_the_scale_given(mode):
    torch.manual_seed(0)
    ways = [{"scale_factor": 1.7}, {"scale_factor": 0.6}, {"scale_factor": (0.45, 1.2)}, {"size": (7, 17)}]
    ways.append({"scale_factor": 0.45, "recompute_scale_factor": True})
    resizes = [Call(functional.interpolate, mode=mode, antialias=True, **way) for way in ways]
    same_as_eager(resizes, torch.randn(2, 3, 13, 11))


def test_what_has_no_form_is_refused_by_module():
    model = nn.Sequential(
        nn.Conv2d(3, 3, 1),
        Call(functional.interpolate, size=(9, 9), mode="bilinear", antialias=True, align_corners=True),
    )
    with pytest.raises(TraceError, match=r"module '1' \(Call\).*no ONNX form.*align_corners=False"):
        trace(model, torch.randn(2, 3, 5, 5))
    try:
        raise ValueError("prims.other has no ONNX form")
    except ValueError:  # what a caller is handling is no cause of ours
        with pytest.raises(TraceError, match="its control flow depends"):
            trace(Branching(), torch.randn(2, 3))


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x
