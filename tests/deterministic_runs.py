"""Networks of each kind that tests export in processes of their own, to compare what they write byte by byte."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import normdeploy as nd


class Convolutional(nn.Module):
    """(N, 3, 8, 8) -> (N, 5), with a branch, a BatchNorm and a GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.two, self.side = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.groups, self.head = nn.GroupNorm(2, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.one(x)).relu()
        return self.head(self.groups(self.two(y) + self.side(y)).relu().mean((2, 3)))


class Transformer(nn.Module):
    """(N, 6, 16) -> (N, 6, 16), one block with LayerNorms in front."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.narrow(nn.functional.gelu(self.wide(self.behind(x))))


class Quantized(nn.Module):
    """(N, 4) -> (N, 3): two layers of a quantizer's simulation, as training with it leaves them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.fake_quantize_per_tensor_affine(x, 0.05, 3, -128, 127)
        w = torch.fake_quantize_per_tensor_affine(self.one.weight, 0.01, 0, -127, 127)
        y = self.norm(nn.functional.linear(x, w, self.one.bias)).relu()
        y = torch.fake_quantize_per_tensor_affine(y, 0.04, 0, 0, 255)
        v = torch.fake_quantize_per_tensor_affine(self.two.weight, 0.01, 0, -127, 127)
        return nn.functional.linear(y, v, self.two.bias)


NETWORKS: dict[str, tuple[type[nn.Module], tuple[int, ...], bool]] = {
    "convolution": (Convolutional, (2, 3, 8, 8), False),
    "transformer": (Transformer, (2, 6, 16), False),
    "quantized": (Quantized, (2, 4), False),
    "integer": (Quantized, (2, 4), True),
}


def main(folder: Path) -> None:
    """Export every network, fold what was exported plainly, and write the ledgers beside them."""
    for name, (kind, sizes, integer) in NETWORKS.items():
        torch.manual_seed(0)
        model = kind().eval()
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.is_floating_point():
                    tensor.copy_(torch.rand(tensor.shape) + 0.5 if tensor.dim() == 1 else torch.randn(tensor.shape) / 4)
        x = torch.randn(sizes)
        result = nd.export(model, (x,), folder / f"{name}.onnx", integer=integer, verify="quick")
        (folder / f"{name}.ledger.json").write_text(result.ledger.to_json())
        plain = folder / f"{name}.plain.onnx"
        nd.export(model, (x,), plain, fold=False, verify=False)
        folded = nd.fold(plain, folder / f"{name}.folded.onnx", integer=integer, verify="quick")
        (folder / f"{name}.folded.ledger.json").write_text(folded.ledger.to_json())


if __name__ == "__main__":
    if len(sys.argv) > 2:
        torch.set_num_threads(int(sys.argv[2]))
    main(Path(sys.argv[1]))
