"""BatchNorm in quantized networks as users of other tools asked about it: what becomes of each here.

It prints a table of docs/quantization.md. Every network is that of the thread, small; quantizers are torch's own
functions where the thread used a tool of its own (pytorch_quantization, AIMET, NNI), at the places where that tool puts
them. ``tests/exporting/test_quantized_situations.py`` holds the table.

    python benchmarks/quantized_situations.py
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.ao.quantization as ao
import torch.nn.functional as F
from torch import Tensor, nn

import normdeploy as nd


def rows(*shape: int, seed: int = 0) -> Tensor:
    """Return inputs."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def settled(model: nn.Module, x: Tensor) -> nn.Module:
    """Return a network with statistics and parameters as training leaves them, negative scales among them."""
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0.0, 0.3)
            with torch.no_grad():
                module.weight[::3] *= -1
    model.train()
    with torch.no_grad():
        for seed in range(10):
            model(rows(*x.shape, seed=seed))
    return model.eval()


class Quantized(nn.Module):
    """A layer whose input and weight are quantized; the weight with a step per channel, or with one.

    Args:
        layer: a convolution or linear layer. zero: of the input's uint8. per_channel: of the weight's steps.
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear, zero: int = 128, *, per_channel: bool = True) -> None:
        super().__init__()
        self.layer, self.zero, self.per_channel = layer, zero, per_channel
        largest = layer.weight.detach().abs().flatten(1).amax(1)
        self.register_buffer("step", (largest if per_channel else largest.amax(0, keepdim=True)) / 127)
        self.register_buffer("origin", torch.zeros(len(self.step), dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.fake_quantize_per_tensor_affine(x, 0.04, self.zero, 0, 255)
        weight = self.layer.weight
        if self.per_channel:
            weight = torch.fake_quantize_per_channel_affine(weight, self.step, self.origin, 0, -127, 127)
        else:
            weight = torch.fake_quantize_per_tensor_affine(weight, self.step, self.origin, -127, 127)
        if isinstance(self.layer, nn.Linear):
            return F.linear(x, weight, self.layer.bias)
        return F.conv2d(x, weight, self.layer.bias, padding=self.layer.padding)


class PreBN(nn.Module):
    """A BatchNorm behind a convolution, and one in front of another."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = Quantized(nn.Conv2d(4, 4, 3, padding=1, bias=False)), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = Quantized(nn.Conv2d(4, 4, 3, padding=1, bias=False)), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x + self.bn1(self.conv1(x)))
        return F.relu(self.conv2(self.bn2(x)))


class StaticGrid(nn.Module):
    """Weights with one fixed step for the tensor; a BatchNorm that took part in the training."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = Quantized(nn.Conv2d(3, 6, 3), per_channel=False), nn.BatchNorm2d(6)
        self.head = Quantized(nn.Conv2d(6, 2, 1), zero=0, per_channel=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.bn(self.conv(x))))


class LinearNorm(nn.Module):
    """A linear layer whose result is quantized, then normalized and quantized again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bn = Quantized(nn.Linear(8, 12)), nn.BatchNorm1d(12)
        self.head = Quantized(nn.Linear(12, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.fake_quantize_per_tensor_affine(self.first(x), 0.05, 0, -128, 127)
        return self.head(self.bn(x))


class Passing(nn.Module):
    """Stands where a norm stood and returns its input; it still holds the norm."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return x


class Wrapped(nn.Module):
    """A wrapper holds the convolution and the norm, and quantizes the input; the norm's old place passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.bn_module, self.bn = norm, Passing(norm)
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn_module(self.conv(torch.fake_quantize_per_tensor_affine(x, 0.04, 128, 0, 255)))
        return self.head(F.relu(self.bn(x)))


class Stubs(nn.Module):
    """Convolution, BatchNorm, Relu between the stubs of torch.ao."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu1 = nn.Conv2d(3, 6, 5), nn.BatchNorm2d(6), nn.ReLU()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        return self.dequant(self.relu1(self.bn1(self.conv1(self.quant(x)))))


def prepared(*, fused: bool, engine: str) -> nn.Module:
    """Return the network of the stubs prepared for QAT, its observers and statistics fed."""
    model = Stubs().train()
    model.qconfig = ao.get_default_qat_qconfig(engine)
    if fused:
        model = ao.fuse_modules_qat(model, [["conv1", "bn1", "relu1"]])
    return settled(ao.prepare_qat(model), rows(8, 3, 12, 12))


@dataclass(frozen=True)
class Situation:
    """What was asked.

    Args:
        thread: where. asked: what, in a clause. make: returns the network. shape: of its input.
    """

    thread: str
    asked: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def export(self, target: Path, *, integer: bool = False) -> nd.ExportResult:
        """Export the network."""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return nd.export(
                settled(self.make(), rows(*self.shape)), rows(*self.shape, seed=99), target, integer=integer
            )


SITUATIONS: dict[str, Situation] = {
    "pre-bn": Situation(
        "onnxsim 297, TensorRT 3104",
        "fold a norm behind, and one in front of, a convolution with quantizers in front of each convolution",
        PreBN,
        (4, 4, 8, 8),
    ),
    "static-grid": Situation(
        "aimet 3060",
        "fold after QAT into weights with one step for the tensor",
        StaticGrid,
        (4, 3, 8, 8),
    ),
    "fused-qat": Situation(
        "nncf 88",
        "train with the norm folded into the weight in front of its quantizer, then deploy",
        lambda: prepared(fused=True, engine="x86"),
        (4, 3, 12, 12),
    ),
    "linear": Situation(
        "ao 4463",
        "a linear layer and BatchNorm1d, its result quantized in between",
        LinearNorm,
        (4, 8),
    ),
    "wrapped": Situation(
        "nni 5232",
        "a wrapper of the quantizer adds the norm to the convolution and leaves its old place",
        Wrapped,
        (4, 3, 8, 8),
    ),
    "observers": Situation(
        "pytorch 108828",
        "export what `prepare_qat` made, observers in it, not fused",
        lambda: prepared(fused=False, engine="qnnpack"),
        (4, 3, 12, 12),
    ),
}


def main() -> None:
    print("| asked in | what | verdict | norms | with `--integer` |\n|---|---|---|---|---|")
    reasons: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        for key, situation in SITUATIONS.items():
            cells = []
            for integer in (False, True):
                result = situation.export(Path(name) / f"{key}.{integer}.onnx", integer=integer)
                norms = [row for row in result.ledger if "BatchNorm" in row.kind or "ormalization" in row.kind]
                kept = [row for row in norms if row.action == "kept"]
                for row in kept:
                    if row.reason not in reasons:
                        reasons.append(row.reason)
                marks = "".join(f" [{reasons.index(row.reason) + 1}]" for row in kept)
                cells.append((str(result.verdict.status), f"{len(norms) - len(kept)} folded, {len(kept)} left{marks}"))
            (verdict, norms_), (verdict_, norms__) = cells
            print(
                f"| {situation.thread} | {situation.asked} | {verdict} | {norms_} | {verdict_}, {norms__} |", flush=True
            )
    print("\n" + "\n".join(f"- [{number}] {reason}" for number, reason in enumerate(reasons, 1)))


if __name__ == "__main__":
    main()
