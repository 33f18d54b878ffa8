"""Small networks, and the forms in which the field quantizes networks like them.

Each form makes, of a float network with BatchNorm whose statistics and parameters are far from trivial (negative
scales among them), what its tool hands to its user: a module or an ONNX file, BatchNorm still in it wherever the tool
leaves it in. :data:`FORMS` lists them; ``quantized_forms.py`` is the command.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
import torch.ao.quantization as ao
import torch.nn.functional as F
from torch import Tensor, nn
from torch.ao.nn.quantized import FloatFunctional


class Chain(nn.Module):
    """Convolution, BatchNorm, Relu, three times; a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.conv1, self.bn1, self.relu1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.conv2, self.bn2, self.relu2 = nn.Conv2d(8, 12, 3, padding=1, stride=2), nn.BatchNorm2d(12), nn.ReLU()
        self.conv3, self.bn3, self.relu3 = nn.Conv2d(12, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        self.head = nn.Linear(16, 10)
        self.fused = [["conv1", "bn1", "relu1"], ["conv2", "bn2", "relu2"], ["conv3", "bn3", "relu3"]]

    def forward(self, x: Tensor) -> Tensor:
        x = self.quant(x)
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.relu2(self.bn2(self.conv2(x)))
        x = self.relu3(self.bn3(self.conv3(x)))
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.dequant(self.head(x))


class Residual(nn.Module):
    """A block with a shortcut, BatchNorm in front of the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant, self.sum = ao.QuantStub(), ao.DeQuantStub(), FloatFunctional()
        self.conv1, self.bn1, self.relu1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.conv2, self.bn2, self.relu2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.conv3, self.bn3, self.relu3 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.fused = [["conv1", "bn1", "relu1"], ["conv2", "bn2", "relu2"], ["conv3", "bn3"]]

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.bn1(self.conv1(self.quant(x))))
        y = self.bn3(self.conv3(self.relu2(self.bn2(self.conv2(x)))))
        return self.dequant(self.relu3(self.sum.add(x, y)))


class Depthwise(nn.Module):
    """Depthwise and pointwise convolutions, a BatchNorm behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.stem, self.bn0, self.relu0 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.deep, self.bn1 = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8)
        self.relu1 = nn.ReLU()
        self.point, self.bn2 = nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.fused = [["stem", "bn0", "relu0"], ["deep", "bn1", "relu1"], ["point", "bn2"]]

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu0(self.bn0(self.stem(self.quant(x))))
        x = self.relu1(self.bn1(self.deep(x)))
        return self.dequant(self.bn2(self.point(x)))


class Dense(nn.Module):
    """Linear layers with BatchNorm1d."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.first, self.bn1, self.relu1 = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU()
        self.second, self.bn2, self.relu2 = nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU()
        self.head = nn.Linear(32, 10)
        self.fused = [["first", "bn1"], ["second", "bn2"]]

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.bn1(self.first(self.quant(x))))
        x = self.relu2(self.bn2(self.second(x)))
        return self.dequant(self.head(x))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "chain": Chain,
    "residual": Residual,
    "depthwise": Depthwise,
    "dense": Dense,
}


def rows(name: str, count: int, seed: int = 0) -> Tensor:
    """Return inputs of a network."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, 16) if name == "dense" else (count, 3, 9, 9)
    return torch.randn(shape, generator=generator)


def float_network(name: str) -> nn.Module:
    """Return a network in training mode, its normalizations with parameters and statistics as training leaves them."""
    torch.manual_seed(0)
    model = NETWORKS[name]()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0.0, 0.3)
            with torch.no_grad():
                module.weight[::3] *= -1
    model.train()
    with torch.no_grad():
        for seed in range(20):
            model(rows(name, 32, seed))
    return model


def trained(model: nn.Module, name: str, steps: int = 8) -> nn.Module:
    """Train a little: observers see data, statistics and weights move."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        model(rows(name, 32, step)).square().mean().backward()
        optimizer.step()
    return model


# -- torch.ao, eager


def _qconfig() -> Any:
    return ao.get_default_qat_qconfig("x86")


def eager_prepared(name: str, _: Path) -> nn.Module:
    model = float_network(name)
    model.qconfig = _qconfig()
    model = ao.fuse_modules_qat(model, [group for group in model.fused if "bn" in group[1]])
    return trained(ao.prepare_qat(model), name).eval()


def eager_unfused(name: str, _: Path) -> nn.Module:
    model = float_network(name)
    model.qconfig = _qconfig()
    return trained(ao.prepare_qat(model), name).eval()


def eager_converted(name: str, folder: Path) -> nn.Module:
    return ao.convert(eager_prepared(name, folder))


# -- torch.ao, FX


def fx_prepared(name: str, _: Path) -> nn.Module:
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    mapping = ao.get_default_qat_qconfig_mapping("x86")
    return trained(prepare_qat_fx(float_network(name), mapping, (rows(name, 2),)), name).eval()


def fx_converted(name: str, folder: Path) -> nn.Module:
    from torch.ao.quantization.quantize_fx import convert_fx

    return convert_fx(fx_prepared(name, folder))


# -- PT2E, torchao


def _pt2e(name: str) -> nn.Module:
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True, is_qat=True))
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(float_network(name), (rows(name, 4),), dynamic_shapes=(batch,))
    model = trained(prepare_qat_pt2e(program.module(), quantizer), name)
    return move_exported_model_to_eval(model)


def pt2e_prepared(name: str, _: Path) -> nn.Module:
    return _pt2e(name)


def pt2e_converted(name: str, _: Path) -> nn.Module:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    return convert_pt2e(_pt2e(name))


# -- torch.fake_quantize_* by hand


class ByHand(nn.Module):
    """A layer whose weight and input are quantized by the functions themselves.

    Args:
        layer: a convolution or linear layer.
        per_channel: one step per output channel of the weight.
        scale, zero: of the input.
    """

    def __init__(self, layer: nn.Module, per_channel: bool, scale: float, zero: int) -> None:
        super().__init__()
        self.layer, self.per_channel, self.scale, self.zero = layer, per_channel, scale, zero
        weight = layer.weight.detach()
        if per_channel:
            self.register_buffer("step", weight.abs().flatten(1).amax(1) / 127)
            self.register_buffer("origin", torch.zeros(len(weight), dtype=torch.int32))
        else:
            self.step = float(weight.abs().max() / 127)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.fake_quantize_per_tensor_affine(x, self.scale, self.zero, 0, 255)
        weight = self.layer.weight
        if self.per_channel:
            weight = torch.fake_quantize_per_channel_affine(weight, self.step, self.origin, 0, -127, 127)
        else:
            weight = torch.fake_quantize_per_tensor_affine(weight, self.step, 0, -128, 127)
        layer = self.layer
        if isinstance(layer, nn.Conv2d):
            return F.conv2d(x, weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)
        return F.linear(x, weight, layer.bias)


def _by_hand(name: str, per_channel: bool) -> nn.Module:
    model = float_network(name).eval()
    first = True
    for path, module in list(model.named_modules()):
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            setattr(model, path, ByHand(module, per_channel, 0.04 if first else 0.03, 128 if first else 0))
            first = False
    return model


def hand_per_tensor(name: str, _: Path) -> nn.Module:
    return _by_hand(name, False)


def hand_per_channel(name: str, _: Path) -> nn.Module:
    return _by_hand(name, True)


# -- ONNX files


def float_file(name: str, folder: Path, opset: int = 21) -> Path:
    """Write a float network as traced, its BatchNorms kept."""
    import normdeploy as nd

    path = folder / "float.onnx"
    nd.export(float_network(name).eval(), rows(name, 4), path, fold=False, verify=False, opset_version=opset)
    return path


def _reader(name: str, path: Path) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    entry = onnx.load(path).graph.input[0].name

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = iter([{entry: rows(name, 16, seed).numpy()} for seed in range(4)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    return Reader()


def _static(name: str, folder: Path, **options: Any) -> Path:
    from onnxruntime.quantization import quantize_static

    source, target = float_file(name, folder), folder / "quantized.onnx"
    quantize_static(source, target, _reader(name, source), **options)
    return target


def ort_qdq(name: str, folder: Path) -> Path:
    return _static(name, folder, per_channel=False)


def ort_qdq_per_channel(name: str, folder: Path) -> Path:
    return _static(name, folder, per_channel=True)


def ort_qoperator(name: str, folder: Path) -> Path:
    from onnxruntime.quantization import QuantFormat

    return _static(name, folder, quant_format=QuantFormat.QOperator, per_channel=True)


def ort_dynamic(name: str, folder: Path) -> Path:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    source, target = float_file(name, folder), folder / "quantized.onnx"
    quantize_dynamic(source, target, weight_type=QuantType.QUInt8, op_types_to_quantize=["Conv", "MatMul", "Gemm"])
    return target


def torch_onnx(name: str, folder: Path) -> Path:
    """Fake quantization as torch.onnx.export writes it, its optimizer included, of one batch size (docs/upstream)."""
    target = folder / "quantized.onnx"
    torch.onnx.export(_by_hand(name, False), (rows(name, 4),), target, dynamo=True, verbose=False)
    return target


_DOMAIN = "qonnx.custom_op.general"


def _quant(x: str, y: str, scale: str, bits: str, *, signed: int, zero: str = "zero") -> onnx.NodeProto:
    return onnx.helper.make_node(
        "Quant", [x, scale, zero, bits], [y], domain=_DOMAIN, signed=signed, narrow=signed, rounding_mode="ROUND"
    )


def _weight_step(weight: np.ndarray, levels: int, *, per_channel: bool) -> np.ndarray:
    axes = tuple(range(1, weight.ndim)) if per_channel else None
    return (np.abs(weight).max(axis=axes, keepdims=per_channel) / levels).astype(np.float32)


def _quantized_around(name: str, folder: Path, *, before: bool, bits: int, standard: bool) -> Path:
    """Put quantizers on weights and activations: before the norm too, or behind the activation alone."""
    model = onnx.load(float_file(name, folder))
    graph = model.graph
    weights = {item.name: item for item in graph.initializer}
    levels, nodes, extra = 2 ** (bits - 1) - 1, [], []
    extra += [onnx.numpy_helper.from_array(np.float32(value), key) for key, value in (("zero", 0), ("bits", bits))]

    def quantizer(x: str, y: str, step: np.ndarray, *, signed: int, axis: int = 0) -> list[onnx.NodeProto]:
        if not standard:
            extra.append(onnx.numpy_helper.from_array(step, f"{y}.step"))
            return [_quant(x, y, f"{y}.step", "bits", signed=signed)]
        kind = np.int8 if signed else np.uint8
        low, high = (-levels, levels) if signed else (0, 2**bits - 1)
        flat = step.reshape(-1) if step.size > 1 else step.reshape(())
        extra.append(onnx.numpy_helper.from_array(np.asarray(flat), f"{y}.step"))
        extra.append(onnx.numpy_helper.from_array(np.zeros(flat.shape, kind), f"{y}.origin"))
        extra.extend(onnx.numpy_helper.from_array(kind(v), f"{y}.{n}") for n, v in (("low", low), ("high", high)))
        make = onnx.helper.make_node
        return [
            make("QuantizeLinear", [x, f"{y}.step", f"{y}.origin"], [f"{y}.integers"], axis=axis),
            make("Clip", [f"{y}.integers", f"{y}.low", f"{y}.high"], [f"{y}.clipped"]),
            make("DequantizeLinear", [f"{y}.clipped", f"{y}.step", f"{y}.origin"], [y], axis=axis),
        ]

    outputs = {item.name for item in graph.output}
    renamed: dict[str, str] = {}
    for node in graph.node:
        for index, item in enumerate(node.input):
            node.input[index] = renamed.get(item, item)
        linear = node.op_type in ("Conv", "Gemm", "MatMul")
        if linear and node.input[1] in weights:
            array = onnx.numpy_helper.to_array(weights[node.input[1]])
            step = _weight_step(array, levels, per_channel=node.op_type != "MatMul")
            nodes += quantizer(node.input[1], f"{node.input[1]}.quantized", step, signed=1)
            node.input[1] += ".quantized"
        nodes.append(node)
        activation = node.op_type == "Relu"
        if (activation or (before and linear)) and node.output[0] not in outputs:
            step = np.float32(4.0 / (2**bits - 1) if activation else 6.0 / levels)
            nodes += quantizer(node.output[0], f"{node.output[0]}.quantized", step, signed=int(not activation))
            renamed[node.output[0]] = f"{node.output[0]}.quantized"
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(extra)
    if not standard:
        model.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    del graph.value_info[:]
    target = folder / "quantized.onnx"
    onnx.save(model, target)
    return target


def qcdq(name: str, folder: Path) -> Path:
    return _quantized_around(name, folder, before=False, bits=8, standard=True)


def qcdq_before(name: str, folder: Path) -> Path:
    return _quantized_around(name, folder, before=True, bits=8, standard=True)


def qonnx(name: str, folder: Path) -> Path:
    return _quantized_around(name, folder, before=False, bits=4, standard=False)


def qonnx_before(name: str, folder: Path) -> Path:
    return _quantized_around(name, folder, before=True, bits=4, standard=False)


def _weight_only(name: str, folder: Path, *, blocks: bool) -> Path:
    """Store weights in integers with steps: int8 per output channel, or int4 in blocks along the inputs."""
    path = float_file(name, folder)
    model = ir.load(path)
    graph = model.graph
    for node in list(graph):
        if node.op_type not in ("Conv", "Gemm") or node.inputs[1] is None or node.inputs[1].const_value is None:
            continue
        value = node.inputs[1]
        weight = value.const_value.numpy()
        rows_, block = weight.reshape(len(weight), -1), 0
        dtype, levels = ir.DataType.INT8, 127
        if blocks and weight.shape[1] % 4 == 0:
            dtype, levels, block = ir.DataType.INT4, 7, 4
        if block:
            cut = np.moveaxis(weight, 1, -1)
            cut = cut.reshape(*cut.shape[:-1], -1, block)
            steps = np.moveaxis(np.abs(cut).max(-1) / levels, -1, 1).astype(np.float32)
            spread = np.repeat(steps, block, axis=1)
        else:
            steps = (np.abs(rows_).max(1) / levels).astype(np.float32)
            spread = steps.reshape(-1, *(1,) * (weight.ndim - 1))
        whole = np.clip(np.round(weight / spread), -levels, levels).astype(np.int8)
        if dtype == ir.DataType.INT4:
            stored = ir.tensor(whole.astype(dtype.numpy()), dtype=dtype, name=f"{value.name}.integers")
        else:
            stored = ir.tensor(whole, name=f"{value.name}.integers")
        constants = [
            ir.Value(
                name=tensor.name, shape=ir.Shape(tensor.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
            )
            for tensor in (stored, ir.tensor(steps, name=f"{value.name}.steps"))
        ]
        for constant in constants:
            graph.register_initializer(constant)
        made = ir.node("DequantizeLinear", constants, {"axis": 1 if block else 0, "block_size": block})
        graph.insert_before(node, made)
        node.replace_input_with(1, made.outputs[0])
        if not value.uses():
            graph.initializers.pop(value.name)
    target = folder / "quantized.onnx"
    ir.save(model, target)
    return target


def weight_only_int8(name: str, folder: Path) -> Path:
    return _weight_only(name, folder, blocks=False)


def weight_only_int4(name: str, folder: Path) -> Path:
    return _weight_only(name, folder, blocks=True)


@dataclass(frozen=True)
class Form:
    """A form in which quantized networks come.

    Args:
        what: its name in the table.
        make: writes it: (network, folder) -> module, or the path of a file.
    """

    what: str
    make: Callable[[str, Path], nn.Module | Path]


FORMS: dict[str, Form] = {
    "eager-prepared": Form("torch.ao eager QAT, fused and prepared", eager_prepared),
    "eager-unfused": Form("torch.ao eager QAT, prepared without fusing", eager_unfused),
    "eager-converted": Form("torch.ao eager QAT, converted", eager_converted),
    "fx-prepared": Form("torch.ao FX, `prepare_qat_fx`", fx_prepared),
    "fx-converted": Form("torch.ao FX, `convert_fx`", fx_converted),
    "pt2e-prepared": Form("torchao PT2E, `prepare_qat_pt2e`", pt2e_prepared),
    "pt2e-converted": Form("torchao PT2E, `convert_pt2e`", pt2e_converted),
    "hand-per-tensor": Form("`torch.fake_quantize_per_tensor_affine` by hand", hand_per_tensor),
    "hand-per-channel": Form("`torch.fake_quantize_per_channel_affine` by hand", hand_per_channel),
    "ort-qdq": Form("onnxruntime `quantize_static`, QDQ, per tensor", ort_qdq),
    "ort-qdq-per-channel": Form("onnxruntime `quantize_static`, QDQ, per channel", ort_qdq_per_channel),
    "torch-onnx": Form("`torch.onnx.export` of fake quantization", torch_onnx),
    "qcdq": Form("Brevitas QCDQ, quantizers behind the activation", qcdq),
    "qcdq-before": Form("Brevitas QCDQ, quantizers before the norm too", qcdq_before),
    "qonnx": Form("QONNX `Quant`, 4 bits, behind the activation", qonnx),
    "qonnx-before": Form("QONNX `Quant`, 4 bits, before the norm too", qonnx_before),
    "int8-weights": Form("weights alone, int8 per channel", weight_only_int8),
    "int4-weights": Form("weights alone, int4 in blocks of 4", weight_only_int4),
    "qoperator": Form("onnxruntime QOperator (QLinearConv)", ort_qoperator),
    "dynamic": Form("onnxruntime dynamic (ConvInteger, MatMulInteger)", ort_dynamic),
}


def make(form: str, network: str, folder: Path) -> nn.Module | Path:
    """Make a network in a form; what its tool warns of is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FORMS[form].make(network, folder)
