"""torch's own transformers, called with a mask of which the caller does not say whether it is causal."""

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from onnxruntime_outputs import run_onnxruntime
from torch import nn

import normdeploy as nd
from normdeploy.exporting.torch_exporter.causal_hints import causal_hints_given


class Translator(nn.Module):
    """The transformer of Vaswani et al. 2017 as torch ships it; padding is token 0."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.both = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask, padded = nn.Transformer.generate_square_subsequent_mask(target.shape[1]), source == 0
        words = self.words(source), self.words(target)
        out: torch.Tensor = self.both(
            *words, tgt_mask=mask, src_key_padding_mask=padded, memory_key_padding_mask=padded
        )
        return out


class Encoder(nn.Module):
    """An encoder whose mask hides what is given, causal or not."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)
        self.inner = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x, self.mask)
        return out


def _float64(model: nn.Module, *inputs: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        wide = [x.double() if x.is_floating_point() else x for x in inputs]
        found: np.ndarray = model.double()(*wide).numpy()
    model.float()
    return found


def test_a_translator_with_a_causal_mask_is_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Translator().eval()
    source, target = torch.randint(1, 20, (2, 5)), torch.randint(1, 20, (2, 4))
    source[1, 3:] = 0
    result = nd.export(model, (source, target), tmp_path / "net.onnx", dynamic_shapes={}, verify="quick")
    assert result.verdict is not None
    assert result.verdict.passed, result.verdict.summary()
    (found,) = run_onnxruntime(tmp_path / "net.onnx", {"source": source.numpy(), "target": target.numpy()})
    mask = torch.triu(torch.full((4, 4), -torch.inf, dtype=torch.float64), 1)
    with torch.no_grad():
        wide = model.double()
        padded = source == 0
        want = wide.both(
            wide.words(source),
            wide.words(target),
            tgt_mask=mask,
            src_key_padding_mask=padded,
            memory_key_padding_mask=padded,
            tgt_is_causal=False,
        )
    np.testing.assert_allclose(found, want.numpy(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_the_mask_is_applied_whatever_it_hides(tmp_path: Path, *, causal: bool) -> None:
    torch.manual_seed(0)
    mask = torch.triu(torch.ones(6, 6, dtype=torch.bool), 1)
    model = Encoder(mask if causal else mask.flip(0, 1)).eval()
    x = torch.randn(2, 6, 16)
    nd.export(model, (x,), tmp_path / "net.onnx", verify="quick")
    np.testing.assert_allclose(
        run_onnxruntime(tmp_path / "net.onnx", {"x": x.numpy()})[0], _float64(model, x), rtol=0, atol=2e-5
    )


def test_what_the_caller_says_stays_and_the_hooks_go() -> None:
    model = Encoder(torch.zeros(6, 6, dtype=torch.bool)).eval()
    told: list[object] = []

    def hear(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], out: torch.Tensor) -> None:
        told.append(inspect.signature(module.forward).bind(*args, **kwargs).arguments.get("is_causal"))
        assert out.shape == (1, 6, 16)

    handle = model.inner.register_forward_hook(hear, with_kwargs=True)
    x = torch.randn(1, 6, 16)
    with causal_hints_given(model):
        model.inner(x, model.mask, is_causal=True)
        model.inner(x, model.mask)
    model.inner(x, model.mask)
    handle.remove()
    assert told == [True, False, None]
    assert not model.inner._forward_pre_hooks
