"""Attention over any number of axes, with masks, scales and grouped queries, is exported as it is defined."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime_outputs import run_onnxruntime
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import normdeploy as nd
from normdeploy.errors import ModeError
from normdeploy.exporting.trace import trace


def written_out(query, key, value, mask=None, causal=False, scale=None):
    """Attention by its definition, in float64: softmax(q k^T scale + mask) v."""
    q, k, v = (tensor.double().numpy() for tensor in (query, key, value))
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    if mask is not None:
        seen = mask.numpy()
        scores = np.where(seen, scores, -np.inf) if seen.dtype == bool else scores + seen
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


class Attend(nn.Module):
    """One call with the settings given."""

    def __init__(self, **settings):
        super().__init__()
        self.settings = settings

    def forward(self, q, k, v, mask=None):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.settings)


@settings(deadline=None, max_examples=10)
@given(st.data())
def test_it_is_attention(data):
    lead = data.draw(st.sampled_from([(), (3,), (2, 3), (2, 3, 4), (2, 1, 3, 2)]))
    queries, keys, width, values = (data.draw(st.integers(1, 5)) for _ in range(4))
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    narrow = tuple(data.draw(st.sampled_from([1, size])) for size in lead)

    def random(*shape):
        return torch.randn(*shape, generator=draw)

    q, k, v = random(*lead, queries, width), random(*narrow, keys, width), random(*lead, keys, values)
    kind = data.draw(st.sampled_from(["none", "bool", "float", "float with leading axes", "causal"]))
    mask = None
    if kind == "bool":
        mask = torch.rand(queries, keys, generator=draw) < 0.7
        mask[:, 0] = True
    elif kind.startswith("float"):
        mask = random(*(narrow if "axes" in kind else ()), queries, keys)
    scale = data.draw(st.sampled_from([None, 0.3, -0.3]))
    module = Attend(is_causal=kind == "causal", scale=scale)
    feeds = {"q": q, "k": k, "v": v} | ({} if mask is None else {"mask": mask})
    traced = trace(module, tuple(feeds.values()), dynamic_shapes={}, opset_version=data.draw(st.sampled_from([18, 23])))
    (found,) = run_onnxruntime(traced.model, {name: tensor.numpy() for name, tensor in feeds.items()})
    expected = written_out(q, k, v, mask, kind == "causal", scale)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


class Heads(nn.Module):
    """Attention as people write it: one head without an axis for it, or windows beside the heads (Hiera, NesT)."""

    def __init__(self, axes, masked=False):
        super().__init__()
        self.axes, self.masked = axes, masked
        self.norm, self.qkv = nn.LayerNorm(8), nn.Linear(8, 24)

    def forward(self, x):
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        if self.axes == 5:  # batch, heads, windows, tokens in a window, width of a head
            parts = [part.unflatten(1, (3, 4)).unflatten(-1, (2, 4)).permute(0, 3, 1, 2, 4) for part in parts]
        mask = torch.ones(parts[0].shape[-2], parts[0].shape[-2]).tril().log() if self.masked else None
        return scaled_dot_product_attention(*parts, attn_mask=mask)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("axes", [3, 5])
def test_export_with_a_dynamic_batch(tmp_path, axes, masked):
    torch.manual_seed(0)
    module = Heads(axes, masked)
    result = nd.export(module, torch.randn(2, 12, 8), tmp_path / "net.onnx", verify=False)
    assert [row.action for row in result.ledger if row.kind == "LayerNormalization"] == ["fused"]
    predictor = nd.load(tmp_path / "net.onnx")
    for batch in (1, 3):
        x = torch.randn(batch, 12, 8)
        parts = [part.detach() for part in module.qkv(module.norm(x)).chunk(3, -1)]
        if axes == 5:
            parts = [part.reshape(batch, 3, 4, 2, 4).permute(0, 3, 1, 2, 4) for part in parts]
        mask = torch.ones(parts[0].shape[-2], parts[0].shape[-2]).tril().bool() if masked else None
        np.testing.assert_allclose(predictor(x.numpy()), written_out(*parts, mask), rtol=1e-4, atol=1e-5)


def test_grouped_queries(tmp_path):
    class Grouped(nn.Module):
        def forward(self, q, k):
            return scaled_dot_product_attention(q, k, k, enable_gqa=True)

    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8)
    nd.export(Grouped(), (q, k), tmp_path / "net.onnx", verify=False)
    found = nd.load(tmp_path / "net.onnx")({"q": q.numpy(), "k": k.numpy()})
    repeated = k.repeat_interleave(2, dim=1)
    np.testing.assert_allclose(next(iter(found.values())), written_out(q, repeated, repeated), rtol=1e-4, atol=1e-5)


def test_dropout_of_attention_does_not_follow_eval(tmp_path):
    with pytest.raises(ModeError, match="dropout"):
        trace(Attend(dropout_p=0.2).eval(), (torch.randn(2, 3, 4, 5),) * 3)
