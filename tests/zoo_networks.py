"""Networks as people publish them (transformers), configured small, random weights; nothing is downloaded.

What the tests of the zoo and the calibration of the verifier share. Needs the extra ``zoo``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Case = tuple[Callable[[], nn.Module], dict[str, torch.Tensor]]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def words() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.arange(12).reshape(2, 6) * 7 % 90}


def pixels(size: int = 32) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))}


def build(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return a maker of ``<name>Model`` from ``<name>Config``."""

    def make() -> nn.Module:
        import transformers

        model: nn.Module = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**options))
        return model

    return make


def t5() -> nn.Module:
    import transformers

    config = transformers.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    return transformers.T5EncoderModel(config)


def whisper() -> nn.Module:
    import transformers
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
    # 64 pixels would leave one position in the last stage: attention over it is 1, whatever the queries and keys
    "LeViT": (build("Levit", image_size=128, **LEVIT), pixels(128)),
    "PoolFormer": (build("PoolFormer", **POOLFORMER, **STAGES), pixels()),
    "Wav2Vec2": (
        build("Wav2Vec2", **WAV2VEC, **SMALL),
        {"input_values": torch.randn(2, 400, generator=torch.Generator().manual_seed(1))},
    ),
    "Whisper encoder": (whisper, {"input_features": torch.randn(2, 8, 40, generator=torch.Generator().manual_seed(1))}),
}


def shake(model: nn.Module) -> nn.Module:
    """Give norms scales, shifts and statistics that a wrong fold would show."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        response = type(module).__name__.endswith("GRN")  # global response normalization starts as the identity
        if "norm" not in type(module).__name__.lower() and not response:
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 1 or response:
                noise = 0.2 * torch.randn(parameter.shape, generator=generator)
                parameter.data = noise + (1.0 if "weight" in name else 0.0)
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                drawn = torch.rand(buffer.shape, generator=generator)
                buffer.data = drawn + 0.5 if "var" in name else drawn - 0.5
    return model.eval()
