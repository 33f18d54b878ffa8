"""Attention rows whose keys are all masked: what eager torch gives there, the exported graph gives."""

import itertools

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnxruntime_outputs import run_onnxruntime
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import normdeploy as nd
from normdeploy.exporting.trace import trace

SHAPES = {
    "[L, S]": (5, 6),
    "[S] padding": (2, 1, 1, 6),
    "per sample": (2, 1, 5, 6),
    "per head": (2, 3, 5, 6),
    "one for all": (1, 1, 1, 1),
}


def mask_of(shape, kind):
    """A random mask whose first row (or sample) leaves nothing, and whose last leaves everything but the left half."""
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6
    flat = drawn.reshape(-1, shape[-1])
    flat[0] = False
    if len(flat) > 1:
        flat[-1] = torch.arange(shape[-1]) >= shape[-1] // 2
    if kind == "bool":
        return drawn
    added = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    return added.masked_fill(~drawn, float("-inf"))


class Attend(nn.Module):
    """scaled_dot_product_attention with a mask given at run time."""

    def forward(self, q, k, v, mask):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def run(traced, feeds):
    return run_onnxruntime(traced.model, {name: tensor.numpy() for name, tensor in feeds.items()})


class AttendUnderEach(nn.Module):
    """The same attention under each of several masks: one trace for all of them."""

    def forward(self, q, k, v, masks):
        return tuple(scaled_dot_product_attention(q, k, v, attn_mask=mask) for mask in masks)


@pytest.mark.parametrize("opset", [None, 23])
def test_rows_without_a_key_are_what_torch_makes_of_them(opset):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6, 7)
    names = list(itertools.product(SHAPES, ("bool", "float")))
    masks = tuple(mask_of(SHAPES[shape], kind) for shape, kind in names)
    traced = trace(AttendUnderEach(), (q, k, v, masks), dynamic_shapes={}, opset_version=opset)
    session = onnxruntime.InferenceSession(ir.to_proto(traced.model).SerializeToString(), None)

    def both(q, k, v):
        given = zip(session.get_inputs(), (q, k, v, *masks), strict=True)
        found = session.run(None, {value.name: tensor.numpy() for value, tensor in given})
        return zip(names, found, AttendUnderEach()(q, k, v, masks), strict=True)

    for name, found, expected in both(q, k, v):
        assert (expected == 0).any(), f"{name}: the mask leaves some row nothing"
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6, err_msg=str(name))
    # what is not a number stays none, in rows with and without a key
    for broken, value in (("q", np.nan), ("k", np.nan), ("v", np.nan), ("v", np.inf)):
        given = {"q": q, "k": k, "v": v}
        given[broken] = given[broken].clone()
        given[broken][0, 0, 0, 0] = value
        for name, found, expected in both(**given):
            np.testing.assert_array_equal(np.isnan(found), expected.isnan(), err_msg=f"{name} {broken}")


@pytest.mark.parametrize("axes", [3, 5])
def test_over_other_than_four_axes(axes):
    torch.manual_seed(0)
    lead = (2,) if axes == 3 else (2, 2, 3)
    q, k = torch.randn(*lead, 5, 4), torch.randn(*lead, 6, 4)
    mask = mask_of((*lead, 5, 6), "bool")
    feeds = {"q": q, "k": k, "v": k, "mask": mask}
    found = run(trace(Attend(), tuple(feeds.values())), feeds)[0]
    expected = Attend()(*feeds.values())
    assert (expected[(0,) * len(lead)][0] == 0).all()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_grouped_queries():
    class Grouped(nn.Module):
        def forward(self, q, k, mask):
            return scaled_dot_product_attention(q, k, k, attn_mask=mask, enable_gqa=True)

    torch.manual_seed(0)
    feeds = {"q": torch.randn(2, 4, 5, 4), "k": torch.randn(2, 2, 6, 4), "mask": mask_of((2, 4, 5, 6), "float")}
    found = run(trace(Grouped(), tuple(feeds.values())), feeds)[0]
    np.testing.assert_allclose(found, Grouped()(*feeds.values()), rtol=1e-4, atol=1e-6)


class SelfAttention(nn.Module):
    """nn.MultiheadAttention with padding, and a causal mask where asked."""

    def __init__(self, weights, causal):
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.weights, self.causal = weights, causal

    def forward(self, x, padding):
        length = x.shape[1]
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1) if self.causal else None
        y, weights = self.attend(x, x, x, key_padding_mask=padding, attn_mask=mask, need_weights=self.weights)
        return (y, weights) if self.weights else y


@pytest.mark.parametrize(("weights", "causal"), [(False, True), (True, False)])
def test_multihead_attention_with_left_padding(tmp_path, weights, causal):
    """Without weights torch gives 0 (and the output bias), with weights its softmax gives NaN: as the layer's code."""
    torch.manual_seed(0)
    module = SelfAttention(weights, causal).eval()
    nn.init.normal_(module.attend.out_proj.bias)
    x = torch.randn(3, 4, 8)
    padding = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    result = nd.export(module, (x, padding), tmp_path / "net.onnx", verify=False)
    expected = module(x, padding)  # with gradients: not by way of the fast path
    expected = expected if weights else (expected,)
    assert bool(expected[0][0].isnan().all()) is weights
    found = nd.load(tmp_path / "net.onnx").backend.run({"x": x.numpy(), "padding": padding.numpy()})
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-4, atol=1e-5)
    # the fast path gives NaN for a row without a key, and so do the layers where they return weights
    assert any("fast path" in note for note in result.notes) is not weights


def test_an_encoder_is_its_layers_whatever_the_fast_path(tmp_path):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.inner = nn.TransformerEncoder(layer, 1)

        def forward(self, x, padding):
            return self.inner(x, src_key_padding_mask=padding)

    torch.manual_seed(0)
    module = Encoder().eval()
    x = torch.randn(2, 4, 8)
    padding = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1]]).bool()
    result = nd.export(module, (x, padding), tmp_path / "net.onnx", verify="quick")
    assert result.verdict.status == "pass"
    assert any("fast path" in note for note in result.notes)
    assert torch.backends.mha.get_fastpath_enabled()
    found = nd.load(tmp_path / "net.onnx")({"x": x.numpy(), "padding": padding.numpy()})
    np.testing.assert_allclose(found["output"], module(x, padding).detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float"])
def test_nothing_is_paid_where_no_row_can_be_empty(tmp_path, kind):
    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            seen = torch.ones(5, 5).tril()
            self.register_buffer("mask", seen.bool() if kind == "bool" else seen.log())

        def forward(self, q):
            if kind in ("none", "causal"):
                return scaled_dot_product_attention(q, q, q, is_causal=kind == "causal")
            return scaled_dot_product_attention(q, q, q, attn_mask=self.mask)

    q = torch.randn(2, 3, 5, 4)
    result = nd.export(Causal(), q, tmp_path / "net.onnx", verify=False)
    kinds = [node.op_type for node in result.program.graph]
    assert kinds[-1] == "MatMul", "nothing behind the product with the values"
    assert not {"Where", "ReduceMax", "Not", "Cast"} & set(kinds) or kind == "causal"
    np.testing.assert_allclose(nd.load(tmp_path / "net.onnx")(q.numpy()), Causal()(q), rtol=1e-4, atol=1e-6)
