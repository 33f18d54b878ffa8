"""Networks as people publish them, configured small, random weights: every norm is one operator or folded away.

Run with ``-m zoo`` (extra ``zoo``: transformers). Nothing is downloaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

from normdeploy.export.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

transformers = pytest.importorskip("transformers", reason="the zoo needs transformers: install normdeploy[zoo]")
pytestmark = [
    pytest.mark.zoo,
    # the library's own deprecations are not ours
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

Case = tuple[Callable[[], nn.Module], dict[str, torch.Tensor]]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def words() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.arange(12).reshape(2, 6) * 7 % 90}


def pixels(size: int = 32) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))}


def build(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return a maker of ``<name>Model`` from ``<name>Config``."""
    return lambda: getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**options))


def t5() -> nn.Module:
    config = transformers.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    return transformers.T5EncoderModel(config)


def whisper() -> nn.Module:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(
        vocab_size=99,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=48,
        max_source_positions=20,
    )
    return WhisperEncoder(config)


STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}
LEVIT = {"hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8]}
SEGFORMER = {
    "num_encoder_blocks": 2,
    "sr_ratios": [2, 1],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
    "hidden_sizes": [16, 32],
    "depths": [1, 1],
}
POOLFORMER = {"num_encoder_blocks": 2, "patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1], "mlp_ratio": 2.0}
WAV2VEC = {
    "vocab_size": 32,
    "conv_dim": (8, 8),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}

ZOO: dict[str, Case] = {
    "BERT": (build("Bert", vocab_size=99, **SMALL), words()),
    "GPT-2": (build("GPT2", vocab_size=99, n_embd=32, n_layer=2, n_head=4, use_cache=False), words()),
    "T5": (t5, words()),
    "LLaMA": (build("Llama", vocab_size=99, num_key_value_heads=2, use_cache=False, **SMALL), words()),
    "ViT": (build("ViT", image_size=32, patch_size=8, **SMALL), pixels()),
    "Swin": (
        build("Swin", image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4),
        pixels(),
    ),
    "ConvNeXt": (build("ConvNext", num_stages=2, **STAGES), pixels()),
    "ConvNeXtV2": (build("ConvNextV2", num_stages=2, **STAGES), pixels()),
    "SegFormer": (build("Segformer", **SEGFORMER), pixels()),
    "ResNet": (build("ResNet", embedding_size=8, layer_type="basic", **STAGES), pixels()),
    "RegNet": (build("RegNet", embedding_size=8, groups_width=4, **STAGES), pixels()),
    "MobileNetV1": (build("MobileNetV1", depth_multiplier=0.25, image_size=32), pixels()),
    "MobileNetV2": (build("MobileNetV2", depth_multiplier=0.35, image_size=32), pixels()),
    "EfficientNet": (
        build("EfficientNet", width_coefficient=0.25, depth_coefficient=0.2, image_size=32, hidden_dim=320),
        pixels(),
    ),
    "LeViT": (build("Levit", image_size=64, **LEVIT), pixels(64)),
    "PoolFormer": (build("PoolFormer", **POOLFORMER, **STAGES), pixels()),
    "Wav2Vec2": (
        build("Wav2Vec2", **WAV2VEC, **SMALL),
        {"input_values": torch.randn(2, 400, generator=torch.Generator().manual_seed(1))},
    ),
    "Whisper encoder": (whisper, {"input_features": torch.randn(2, 8, 40, generator=torch.Generator().manual_seed(1))}),
}

STATISTICS = {"LayerNormalization", "RMSNormalization", "InstanceNormalization"}


def shake(model: nn.Module) -> nn.Module:
    """Give norms scales, shifts and statistics that a wrong fold would show."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if "norm" not in type(module).__name__.lower():
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 1:
                noise = 0.2 * torch.randn(parameter.shape, generator=generator)
                parameter.data = noise + (1.0 if "weight" in name else 0.0)
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                drawn = torch.rand(buffer.shape, generator=generator)
                buffer.data = drawn + 0.5 if "var" in name else drawn - 0.5
    return model.eval()


def norms_run(model: nn.Module, inputs: dict[str, torch.Tensor]) -> Counter[str]:
    """Count the calls of normalization modules: what the graph has to account for."""
    calls: Counter[str] = Counter()

    def count(module: nn.Module, *_: object) -> None:
        calls["batch" if isinstance(module, nn.modules.batchnorm._BatchNorm) else "statistics"] += 1

    hooks = [
        module.register_forward_hook(count)
        for module in model.modules()
        if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm))
        or type(module).__name__.endswith(("RMSNorm", "T5LayerNorm"))
    ]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return calls


@pytest.mark.parametrize("name", ZOO)
def test_every_norm_is_one_operator_or_folded(name: str) -> None:
    make, inputs = ZOO[name]
    torch.manual_seed(0)
    model = shake(make())
    calls = norms_run(model, inputs)
    program = trace(model, (), kwargs=inputs)
    result = rewrite(program.model)
    onnx.checker.check_model(ir.to_proto(result.model))
    kinds = Counter(node.op_type for node in result.canonical.graph)
    assert sum(kinds[kind] for kind in STATISTICS) == calls["statistics"]
    rows = [row for row in result.ledger if row.into in STATISTICS]
    assert len(rows) == calls["statistics"]
    assert all(row.action == "fused" for row in rows)
    assert not [row for row in result.ledger.kept if row.kind in ("normalization", "batch statistics")]
    assert all(row.where for row in result.ledger)
    feeds = {key: torch.from_numpy(value) for key, value in program.feeds.items()}
    canonical, final = (Evaluator(graph).run(feeds) for graph in (result.canonical, result.model))
    for key, expected in canonical.items():
        assert distance(final[key], expected) <= 1e-9, key
    with torch.no_grad():
        wide = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
        eager = next(iter(model.double()(**wide).values()))
    # some norms of the library cast to float32 whatever the model's type
    assert distance(next(iter(final.values())), eager.double()) <= 2e-5


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    assert bool(torch.isfinite(found).all())
    return float((found - expected).abs().max()) / max(1e-12, float(expected.abs().max()))
