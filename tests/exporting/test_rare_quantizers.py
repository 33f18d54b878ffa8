"""Quantizers off the beaten track: PT2E's operators, a step per channel of activations, 16 bits, float zero points."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator

pytestmark = pytest.mark.filterwarnings("ignore:.*(is|are) deprecated.*")
D = torch.ops.quantized_decomposed


def rows(seed: int = 0, count: int = 8) -> Tensor:
    return torch.randn(count, 2, 7, 7, generator=torch.Generator().manual_seed(seed))


class Converted(nn.Module):
    """What PT2E makes of a convolution: integers in, integers stored; one step for all, or one per channel."""

    def __init__(self, *, channels: bool, tensors: bool) -> None:
        super().__init__()
        self.channels, self.tensors = channels, tensors
        generator = torch.Generator().manual_seed(2)
        self.register_buffer("w", torch.randint(-127, 128, (6, 2, 3, 3), generator=generator, dtype=torch.int8))
        self.register_buffer("steps", torch.linspace(0.002, 0.009, 6))
        self.register_buffer("zeros", torch.zeros(6, dtype=torch.int64))
        self.register_buffer("step", torch.tensor(0.03))
        self.register_buffer("zero", torch.tensor(4))
        self.bn = nn.BatchNorm2d(6)
        with torch.no_grad():
            self.bn.weight.copy_(torch.tensor([1.0, -2.0, 0.5, 1.5, -0.3, 0.9]))
            self.bn.bias.normal_(generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        if self.tensors:
            q = D.quantize_per_tensor.tensor(x, self.step, self.zero, -128, 127, torch.int8)
            x = D.dequantize_per_tensor.tensor(q, self.step, self.zero, -128, 127, torch.int8)
        else:
            q = D.quantize_per_tensor.default(x, 0.03, 4, -128, 127, torch.int8)
            x = D.dequantize_per_tensor.default(q, 0.03, 4, -128, 127, torch.int8)
        if self.channels:
            w = D.dequantize_per_channel.default(self.w, self.steps, self.zeros, 0, -127, 127, torch.int8)
        else:
            w = D.dequantize_per_tensor.default(self.w, 0.006, 0, -127, 127, torch.int8)
        return self.bn(torch.conv2d(x, w))


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("channels", [False, True])
def test_a_converted_pt2e_layer_has_a_truth_in_float64_and_folds(tmp_path, channels: bool, tensors: bool) -> None:
    model = Converted(channels=channels, tensors=tensors).eval()
    result = nd.export(model, rows(0, 4), tmp_path / "q.onnx")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()
    assert not list(result.ledger.kept)
    assert "BatchNormalization" not in {node.op_type for node in result.program.graph}
    stored = [t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if list(t.dims) == [6, 2, 3, 3]]
    signs = np.where(channels, np.sign(model.bn.weight.detach().numpy()), 1).reshape(-1, 1, 1, 1)
    [integers] = [onnx.numpy_helper.to_array(tensor) for tensor in stored]
    assert integers.dtype == np.int8
    np.testing.assert_array_equal(np.abs(integers), np.abs(model.w.numpy()))
    if channels:
        np.testing.assert_array_equal(integers * signs, model.w.numpy())


class Activation(nn.Module):
    """A quantizer with one step per channel of its input."""

    def __init__(self, low: int, high: int, zero: Tensor) -> None:
        super().__init__()
        self.low, self.high = low, high
        self.register_buffer("steps", torch.tensor([0.02, 0.05]) * (255 / (high - low)))
        self.register_buffer("zero", zero)
        self.conv, self.bn = nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        q = torch.fake_quantize_per_channel_affine(x, self.steps, self.zero, 1, self.low, self.high)
        return self.bn(self.conv(q))


def agrees(model: nn.Module, **options: object) -> list[str]:
    """Hold the traced graph in float32 against torch; return its kinds of operators."""
    program = trace(model, rows(0, 4), **options).model
    x = rows(5, 3) * 4
    with torch.no_grad():
        found = Evaluator(program, dtype=torch.float32).run({"x": x})["output"]
        torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
    return [node.op_type for node in program.graph]


@pytest.mark.parametrize(("low", "high"), [(0, 255), (-128, 127), (-7, 7)])
def test_a_step_per_channel_of_an_activation(tmp_path, low: int, high: int) -> None:
    middle = (low + high) // 2
    model = Activation(low, high, torch.tensor([middle, middle + 1], dtype=torch.int32)).eval()
    kinds = agrees(model)
    assert kinds.count("QuantizeLinear") == 1
    assert ("Clip" in kinds) == (high == 7)
    result = nd.export(model, rows(0, 4), tmp_path / "q.onnx")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()
    assert not list(result.ledger.kept)


@pytest.mark.parametrize("opset", [20, 21])
def test_sixteen_bits_have_a_type_from_operator_set_21_on_and_arithmetic_below(opset: int) -> None:
    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fake_quantize_per_tensor_affine(x, 0.0003, 1000, -32768, 32767) * 2

    kinds = agrees(Wide().eval(), opset_version=opset)
    assert ("QuantizeLinear" in kinds) == (opset >= 21)
    assert ("Round" in kinds) == (opset < 21)


@pytest.mark.parametrize("opset", [20, 21])
def test_sixteen_bits_per_channel(opset: int) -> None:
    model = Activation(0, 65535, torch.tensor([30000, 20000], dtype=torch.int32)).eval()
    assert ("QuantizeLinear" in agrees(model, opset_version=opset)) == (opset >= 21)


def test_float_zero_points_are_kept_in_arithmetic(tmp_path) -> None:
    model = Activation(0, 255, torch.tensor([101.5, 88.25])).eval()
    kinds = agrees(model)
    assert "QuantizeLinear" not in kinds
    assert "Round" in kinds
    result = nd.export(model, rows(0, 4), tmp_path / "q.onnx")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()


class OneStepPerChannel(nn.Module):
    """What torch has of quantizers with a step per channel, beside fake_quantize_per_channel_affine."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.register_buffer("steps", torch.tensor([0.02, 0.05]))
        self.register_buffer("zeros", torch.tensor([3, -4]))

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "learnable":
            return torch._fake_quantize_learnable_per_channel_affine(
                x, self.steps, self.zeros.float(), 1, -128, 127, 1.0
            )
        if self.way == "integers":
            return torch.dequantize(torch.quantize_per_channel(x, self.steps, self.zeros, 1, torch.qint8))
        q = D.quantize_per_channel.default(x, self.steps, self.zeros, 1, -128, 127, torch.int8)
        return D.dequantize_per_channel.default(q, self.steps, self.zeros, 1, -128, 127, torch.int8)


@pytest.mark.parametrize("way", ["learnable", "integers", "pt2e"])
def test_every_way_to_write_a_step_per_channel_is_one_quantizer(way: str) -> None:
    assert agrees(OneStepPerChannel(way).eval()).count("QuantizeLinear") == 1
