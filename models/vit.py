"""A small vision transformer with torch's LayerNorm (convention L5) and LayerScale.

Shows: LayerNorm cannot fold away, it depends on the input; but it is one operator, and its scale and shift are
absorbed by the linear layers behind it where that pays. LayerScale, a learnt constant per channel behind attention and
behind the feed-forward part, is absorbed by the linear layer in front of it and is gone.

Data: scikit-learn's 1,797 handwritten digits, 8x8, in 16 patches of 2x2. Result and time: see the metadata of
vit.safetensors (``normdeploy train export/vit.toml`` makes it).

Source: A. Dosovitskiy et al., An Image is Worth 16x16 Words, 2021; H. Touvron et al., Going Deeper with Image
Transformers, 2021, equation 4 (LayerScale).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from normdeploy.train.data import Splits
from normdeploy.train.digits import digits


class LayerScale(nn.Module):
    def __init__(self, width: int, start: float = 0.1) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        qkv = self.qkv(x).view(rows, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        return self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention, self.scale1 = nn.LayerNorm(width), Attention(width, heads), LayerScale(width)
        self.norm2, self.scale2 = nn.LayerNorm(width), LayerScale(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale1(self.attention(self.norm1(x)))
        return x + self.scale2(self.feed_forward(self.norm2(x)))


class ViT(nn.Module):
    """(N, 1, 8, 8) pixels in [0, 1] -> (N, 10) logits."""

    def __init__(self, width: int = 64, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.positions = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def data() -> Splits:
    """Return the digits, shifted by up to a pixel in training."""
    return digits()
