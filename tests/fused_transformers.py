"""A BERT-like and a GPT-like network, written and exported as onnxruntime's transformer fusions expect them."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

WORDS, PLACES, HIDDEN, HEADS = 30, 16, 16, 2


def by_heads(x: Tensor) -> Tensor:
    return x.view(x.size(0), x.size(1), HEADS, HIDDEN // HEADS).permute(0, 2, 1, 3)


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.after, self.last = nn.LayerNorm(HIDDEN, eps=1e-12), nn.LayerNorm(HIDDEN, eps=1e-12)
        self.wide, self.narrow = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = by_heads(self.query(x)), by_heads(self.key(x)), by_heads(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(HIDDEN // HEADS) + hidden
        mixed = torch.matmul(torch.softmax(scores, dim=-1), v).permute(0, 2, 1, 3).contiguous()
        x = self.after(self.out(mixed.view(mixed.size(0), mixed.size(1), HIDDEN)) + x)
        return self.last(self.narrow(nn.functional.gelu(self.wide(x))) + x)


class BertLike(nn.Module):
    """Embeddings and a layer; ids, mask and segments go in."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(WORDS, HIDDEN), nn.Embedding(2, HIDDEN)
        self.positions = nn.Embedding(PLACES, HIDDEN)
        self.first = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.layers = nn.ModuleList([BertLayer()])
        self.register_buffer("places", torch.arange(PLACES).expand(1, -1), persistent=False)

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
        hidden = (1.0 - mask[:, None, None, :].to(torch.float32)) * -10000.0
        x = self.words(ids) + self.kinds(segments) + self.positions(self.places[:, : ids.size(1)])
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, hidden)
        return x


class GptLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.middle = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.all = nn.Parameter(torch.randn(HIDDEN, 3 * HIDDEN) * 0.3)
        self.all_bias = nn.Parameter(torch.randn(3 * HIDDEN) * 0.3)
        self.out, self.wide, self.narrow = (
            nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN),
        )  # fmt: skip
        self.register_buffer("seen", torch.tril(torch.ones(PLACES, PLACES)).bool().view(1, 1, PLACES, PLACES))

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        q, k, v = (torch.matmul(y, self.all) + self.all_bias).split(HIDDEN, dim=2)
        scores = torch.matmul(by_heads(q), by_heads(k).transpose(-1, -2)) / math.sqrt(HIDDEN // HEADS)
        scores = torch.where(self.seen[:, :, : x.size(1), : x.size(1)], scores, torch.tensor(-10000.0))
        mixed = torch.matmul(torch.softmax(scores, dim=-1), by_heads(v)).permute(0, 2, 1, 3).contiguous()
        x = x + self.out(mixed.view(mixed.size(0), mixed.size(1), HIDDEN))
        return x + self.narrow(nn.functional.gelu(self.wide(self.middle(x)), approximate="tanh"))


class GptLike(nn.Module):
    """Embeddings and a layer that looks back only; ids go in."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, HIDDEN), nn.Embedding(PLACES, HIDDEN)
        self.layers = nn.ModuleList([GptLayer()])
        self.last = nn.LayerNorm(HIDDEN)
        self.register_buffer("places", torch.arange(PLACES).expand(1, -1), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(self.places[:, : ids.size(1)])
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def written(kind: str, path: Path) -> Path:
    """Export one of the networks by TorchScript, whose graphs the fusions know."""
    torch.manual_seed(0)
    model = {"bert": BertLike, "gpt2": GptLike}[kind]().eval()
    for norm in model.modules():
        if isinstance(norm, nn.LayerNorm):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias)
    ids = torch.randint(0, WORDS, (2, 6))
    args = {"ids": ids} | ({"mask": torch.ones_like(ids), "segments": torch.zeros_like(ids)} if kind == "bert" else {})
    axes = {name: {0: "batch", 1: "length"} for name in (*args, "y")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of this exporter's age
        torch.onnx.export(
            model, tuple(args.values()), str(path), input_names=list(args), output_names=["y"], dynamic_axes=axes,
            opset_version=17, dynamo=False,
        )  # fmt: skip
    return path


def fused(kind: str, source: Path, target: Path, *, raw_mask: bool = True) -> onnx.ModelProto:
    """Fuse a file by onnxruntime.transformers.

    Args:
        raw_mask: keep the mask as it is; the default of its BERT fusion counts the ones and takes them for the first.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnxruntime.transformers import optimizer
        from onnxruntime.transformers.fusion_options import FusionOptions

        options = FusionOptions(kind)
        options.use_raw_attention_mask(raw_mask)
        found = optimizer.optimize_model(
            str(source), model_type=kind, num_heads=HEADS, hidden_size=HIDDEN, optimization_options=options, opt_level=0
        )
        found.save_model_to_file(str(target))
    return onnx.load(str(target))
