"""Quantizers as torch spells them: traced as QuantizeLinear and DequantizeLinear, the weights' integers as they are."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normdeploy as nd
from normdeploy.exporting.module.mode import evaluation_mode
from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator

warnings.filterwarnings("ignore", message=".*torch.ao.quantization is deprecated.*")
import torch.ao.quantization as ao  # noqa: E402 - it warns of its own age

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*(must run observer|reduce_range|Please use quant_min).*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*(is|are) deprecated.*"),
]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.conv, self.bn, self.relu = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()
        self.conv2, self.bn2 = nn.Conv2d(6, 4, 3, bias=False), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.dequant(self.bn2(self.conv2(self.relu(self.bn(self.conv(self.quant(x)))))))


def rows(seed: int = 0, count: int = 8) -> torch.Tensor:
    return torch.randn(count, 2, 7, 7, generator=torch.Generator().manual_seed(seed))


def trained(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    for seed in range(5):
        model(rows(seed))
    return model.eval()


def prepared() -> nn.Module:
    torch.manual_seed(0)
    model = Small().train()
    model.qconfig = ao.get_default_qat_qconfig("x86")
    return trained(ao.prepare_qat(ao.fuse_modules_qat(model, [["conv", "bn", "relu"], ["conv2", "bn2"]])))


def fx_prepared() -> nn.Module:
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    torch.manual_seed(0)
    mapping = ao.get_default_qat_qconfig_mapping("x86")
    return trained(prepare_qat_fx(Small().train(), mapping, (rows(),)))


def fx_converted() -> nn.Module:
    from torch.ao.quantization.quantize_fx import convert_fx

    return convert_fx(fx_prepared())


def converted() -> nn.Module:
    return ao.convert(prepared())


@pytest.mark.parametrize("make", [prepared, converted, fx_prepared, fx_converted])
def test_what_torch_ao_makes_is_exported_with_nothing_left_and_passes(tmp_path, make):
    model = make()
    result = nd.export(model, rows(9, 4), tmp_path / "q.onnx")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()
    assert not list(result.ledger.kept)
    assert {"BatchNormalization", "Mul", "Div"}.isdisjoint(node.op_type for node in result.program.graph)
    if isinstance(model, torch.fx.GraphModule):
        assert result.verdict.status == "pass"


def stored(program, name: str) -> np.ndarray:
    return program.graph.initializers[name].const_value.numpy()


def test_integers_are_those_of_the_converted_layer_and_its_steps():
    model = converted()
    program = trace(model, rows(9, 4)).model
    for layer in ("conv", "conv2"):
        weight = getattr(model, layer).weight()
        np.testing.assert_array_equal(stored(program, f"{layer}.weight"), weight.int_repr().numpy())
        np.testing.assert_array_equal(
            stored(program, f"{layer}.weight_scale"), weight.q_per_channel_scales().float().numpy()
        )


def test_the_model_is_given_back_as_it_was():
    for make in (prepared, converted, fx_converted):
        model = make()
        before, buffers = model(rows(3)), [name for name, _ in model.named_buffers()]
        observed = {name: tensor.clone() for name, tensor in model.named_buffers()}
        trace(model, rows(9, 4))
        assert [name for name, _ in model.named_buffers()] == buffers
        if make is prepared:
            for name, tensor in model.named_buffers():
                assert name.endswith(("min_val", "max_val", "scale", "zero_point")) or torch.equal(
                    tensor, observed[name]
                )
        else:
            assert torch.equal(model(rows(3)), before)


def test_observers_are_off_for_the_file_and_on_again_behind_it():
    model = prepared()
    switches = [m.observer_enabled for m in model.modules() if hasattr(m, "observer_enabled")]
    scale = model.quant.activation_post_process.scale.clone()
    with evaluation_mode(model) as report:
        model(100 * rows())
        assert torch.equal(model.quant.activation_post_process.scale, scale)
    assert all(bool(switch) for switch in switches)
    assert any("still observe" in note for note in report.notes)


class ByFunction(nn.Module):
    """A convolution quantized by functions; the largest weight lies on a tie."""

    def __init__(self, low: int, high: int, *, channels: bool, x_range: tuple[int, int] = (0, 255)) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.bn = nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6)
        self.low, self.high, self.channels, self.x_range = low, high, channels, x_range
        weight = self.conv.weight.detach()
        size = weight.abs().flatten(1).amax(1) if channels else weight.abs().max().reshape(1)
        with torch.no_grad():
            self.bn.weight.copy_(torch.tensor([1.0, -2.0, 0.5, 1.5, -0.3, 0.9]))
            self.bn.running_mean.normal_()
            self.bn.running_var.uniform_(0.3, 2.0)
        self.register_buffer("step", size / ((high - low) / 2))
        self.register_buffer("zero", torch.zeros(len(size), dtype=torch.int32))

    def weight(self) -> torch.Tensor:
        w = self.conv.weight * 1.0001
        if self.channels:
            return torch.fake_quantize_per_channel_affine(w, self.step, self.zero, 0, self.low, self.high)
        return torch.fake_quantize_per_tensor_affine(w, self.step, self.zero, self.low, self.high)

    def forward(self, x):
        x = torch.fake_quantize_per_tensor_affine(x, 0.02, self.x_range[1] // 2, *self.x_range)
        return self.bn(F.conv2d(x, self.weight(), self.conv.bias))


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize(("low", "high"), [(-128, 127), (-127, 127), (-8, 7), (-1, 1), (0, 15)])
def test_any_range_is_kept_and_the_integers_are_torchs_own(low: int, high: int, channels: bool):
    model = ByFunction(low, high, channels=channels, x_range=(0, 127)).eval()
    program = trace(model, rows(0, 4)).model
    kinds = [node.op_type for node in program.graph]
    assert kinds.count("QuantizeLinear") == 1, kinds  # the weight's is evaluated
    [integers] = [v.const_value.numpy() for v in program.graph.initializers.values() if v.const_value.size == 108]
    with torch.no_grad():
        wanted = model.weight() / model.step.reshape(-1, 1, 1, 1)
    np.testing.assert_array_equal(integers.astype(np.int64), wanted.round().numpy().astype(np.int64))
    x = rows(5, 3) * 4
    with torch.no_grad():
        found = Evaluator(program, dtype=torch.float32).run({"x": x})["output"]
        torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)


def test_a_weight_on_a_tie_is_the_same_integer_in_the_file_the_module_and_the_truth(tmp_path):
    model = ByFunction(-8, 7, channels=True).eval()
    with torch.no_grad():  # 7.5 steps of either sign: half way between two integers, in float32 and not in float64
        model.conv.weight[:, 0, 0, 0] = -7.5 * model.step / 1.0001
        model.conv.weight[:, 0, 0, 1] = 4.5 * model.step / 1.0001
    result = nd.export(model, rows(0, 4), tmp_path / "q.onnx")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()
    assert not list(result.ledger.kept)


def test_learned_steps(tmp_path):
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6)
            self.scale, self.zero = nn.Parameter(torch.tensor([0.031])), nn.Parameter(torch.tensor([3.4]))

        def forward(self, x):
            x = torch._fake_quantize_learnable_per_tensor_affine(x, self.scale, self.zero, 0, 255, 1.0)
            return self.bn(self.conv(x))

    result = nd.export(Learned().eval(), rows(0, 4), tmp_path / "q.onnx")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()


def test_a_quantized_operator_that_is_not_known_is_named(tmp_path):
    class Odd(nn.Module):
        def forward(self, x):
            q = torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)
            return torch.ops.quantized.elu(q, 0.1, 3).dequantize()

    with pytest.raises(nd.errors.TraceError, match=r"torch\.ops\.quantized\.elu"):
        nd.export(Odd(), rows(0, 4), tmp_path / "q.onnx")
