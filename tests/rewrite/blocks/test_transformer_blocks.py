"""Transformer and MLP blocks: norms become one operator, scales and shifts go into the linears around them."""

from __future__ import annotations

import torch
from torch import nn


class LinearNorm(nn.Sequential):
    """LeViT (arXiv 2104.01136): a BatchNorm over the channels of a (batch, tokens, channels) linear."""

    def __init__(self, ins, outs):
        super().__init__(nn.Linear(ins, outs, bias=False), nn.BatchNorm1d(outs))

    def forward(self, x):
        x = self[0](x)
        return self[1](x.flatten(0, 1)).reshape_as(x)


class LeViTAttention(nn.Module):
    def __init__(self, dim, heads=2, key=4):
        super().__init__()
        self.heads, self.key = heads, key
        self.qkv = LinearNorm(dim, heads * (2 * key + 2 * key))
        self.proj = nn.Sequential(nn.Hardswish(), LinearNorm(heads * 2 * key, dim))
        self.register_buffer("bias", torch.randn(heads, 9, 9))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, self.heads, -1).split([self.key, self.key, 2 * self.key], 3)
        q, k, v = q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1), v.permute(0, 2, 1, 3)
        weights = (q @ k * self.key**-0.5 + self.bias).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, -1))


class LeViT(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attention = LeViTAttention(dim)
        self.mlp = nn.Sequential(LinearNorm(dim, 2 * dim), nn.Hardswish(), LinearNorm(2 * dim, dim))

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.mlp(x)


class LeViTNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.block = LeViT(8)
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.block(self.stem(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x.mean(1)))


def test_levit(fold):
    folded = fold(LeViTNet(), torch.randn(2, 3, 6, 6))
    assert set(folded.actions().values()) == {"folded"}
    # the attention bias of a position pair is data of the model, added to what is computed at run time
    assert len(folded.passes) <= 1
    assert folded.operators["BatchNormalization"] == 0


class ConvNeXt(nn.Module):
    """A ConvNet for the 2020s (arXiv 2201.03545)."""

    def __init__(self, dim):
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(dim, dim, 7, padding=3, groups=dim), nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        out = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        out = self.gamma * self.pwconv2(nn.functional.gelu(self.pwconv1(out)))
        return x + out.permute(0, 3, 1, 2)


def test_convnext(fold):
    folded = fold(nn.Sequential(ConvNeXt(8), ConvNeXt(8)), torch.randn(2, 8, 9, 9))
    assert folded.actions()["0.norm"] == "fused"
    assert folded.operators["LayerNormalization"] == 2
    assert not folded.passes


class Visformer(nn.Module):
    """Visformer (arXiv 2104.12533): pre-norm BatchNorms before 1x1 convolutions, attention on maps."""

    def __init__(self, dim, attention):
        super().__init__()
        self.attention = attention
        self.norm1 = nn.BatchNorm2d(dim)
        self.qkv, self.proj = nn.Conv2d(dim, 3 * dim, 1, bias=False), nn.Conv2d(dim, dim, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(dim)
        self.conv1, self.conv2 = nn.Conv2d(dim, 2 * dim, 1, bias=False), nn.Conv2d(2 * dim, 2 * dim, 3, 1, 1, groups=4)
        self.conv3 = nn.Conv2d(2 * dim, dim, 1, bias=False)

    def forward(self, x):
        if self.attention:
            b, c, h, w = x.shape
            q, k, v = self.qkv(self.norm1(x)).reshape(b, 3, 2, c // 2, h * w).unbind(1)
            weights = (q.transpose(-2, -1) @ k * 0.5).softmax(-1)
            x = x + self.proj((v @ weights.transpose(-2, -1)).reshape(b, c, h, w))
        gelu = nn.functional.gelu
        return x + self.conv3(gelu(self.conv2(gelu(self.conv1(self.norm2(x))))))


class VisformerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8)
        self.position = nn.Parameter(torch.randn(1, 8, 3, 3))
        self.blocks = nn.Sequential(Visformer(8, False), Visformer(8, True))
        self.last, self.head = nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.blocks(self.norm(self.patch(x)) + self.position)
        return self.head(self.last(x).mean((2, 3)))


def test_visformer(fold):
    net = VisformerNet()
    del net.blocks[0].norm1, net.blocks[0].qkv, net.blocks[0].proj
    folded = fold(net, torch.randn(2, 3, 12, 12))
    norms = [row for row in folded.ledger if row.kind == "BatchNormalization"]
    assert {row.action for row in norms} == {"folded"}
    assert len(folded.passes) <= 1  # the position embedding, added to what is computed at run time


class LayerScaleBlock(nn.Module):
    """Going deeper with image transformers (arXiv 2103.17239): a per-channel scale after each branch."""

    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.proj_l, self.proj_w = nn.Linear(heads, heads), nn.Linear(heads, heads)
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.gamma_1, self.gamma_2 = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.ones(dim))

    def attention(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = q * 0.5 @ k.transpose(-2, -1)
        weights = self.proj_l(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(-1)
        weights = self.proj_w(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))

    def forward(self, x):
        x = x + self.gamma_1 * self.attention(self.norm1(x))
        return x + self.gamma_2 * self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


def test_cait(fold):
    folded = fold(LayerScaleBlock(8), torch.randn(2, 5, 8))
    assert folded.operators["LayerNormalization"] == 2
    assert not folded.passes
    assert [row.action for row in folded.ledger if row.kind != "LayerNormalization"].count("kept") == 0


class Affine(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.ones(1, 1, dim)), nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, x):
        return self.alpha * x + self.beta


class ResMLP(nn.Module):
    """ResMLP (arXiv 2105.03404): affine layers in place of norms, a linear over tokens, one over channels."""

    def __init__(self, dim, tokens):
        super().__init__()
        self.norm1, self.tokens, self.gamma_1 = Affine(dim), nn.Linear(tokens, tokens), nn.Parameter(torch.ones(dim))
        self.norm2, self.fc1, self.fc2 = Affine(dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.gamma_2 = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        x = x + self.gamma_1 * self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.gamma_2 * self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class ResMLPNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(ResMLP(8, 6), ResMLP(8, 6))
        self.norm, self.head = Affine(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.norm(self.blocks(x)).mean(1))


def test_resmlp_keeps_one_map_per_linear_over_tokens(fold):
    # a scale of the channels cannot go into a matrix over tokens, and the residual stream on both sides is read twice:
    # norm1, the bias of the linear and gamma_1 become one map, whose scale must stay
    folded = fold(ResMLPNet(), torch.randn(2, 6, 8), kept={"blocks.0", "blocks.1"})
    rows = [(row.where, row.action) for row in folded.ledger]
    for block in ("blocks.0", "blocks.1"):
        assert (f"{block}.norm1", "folded") in rows
        assert (f"{block}.norm2", "folded") in rows
        assert sorted(action for where, action in rows if where == block) == ["folded", "kept"]
    assert ("norm", "folded") in rows
    assert all("its scale cannot leave" in row.reason for row in folded.ledger.kept)
    # per block one scale: no shift came to it, since those of the norms went into the linears beside it
    assert len(folded.passes) == 2


class ChannelNorm(nn.Module):
    """A linear over the last axis, a BatchNorm over another one through transposes, and one over its own."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.second, self.other = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x):
        x = self.norm(self.first(x).transpose(1, 2)).transpose(1, 2)
        return torch.relu(self.other(self.second(torch.relu(x))))


def test_norms_follow_the_channel_through_transposes_even_where_sizes_coincide(fold):
    # the second norms the tokens: their axis is a row axis of the product, which no weight of it has
    folded = fold(ChannelNorm(), torch.randn(2, 6, 6), kept={"other"})
    assert folded.actions()["norm"] == "folded"


class PreNorm(nn.Module):
    """A BatchNorm before a linear on both sides of a transpose, with a residual."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(5), nn.Linear(5, 5)

    def forward(self, x):
        return x + self.linear(self.norm(x.transpose(1, 2)).transpose(1, 2))


def test_a_norm_before_a_linear(fold):
    folded = fold(PreNorm(), torch.randn(2, 4, 5))
    assert folded.actions() == {"norm": "folded", "node_add": "merged"}  # x + W x = (1 + W) x
    assert not folded.passes
