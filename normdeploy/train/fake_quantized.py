"""Training with fake quantization: a trained network goes on with its quantizers in place, and learns around them.

The quantizers are torch.ao's (FX): weights int8 with a symmetric step per output channel, activations uint8 with the
running range of their values, BatchNorm and activation fused into the layer in front. 8 bits in full: on processors
whose 8-bit products saturate, verification says so.

torch's fused quantizer of weights is symmetric only where a channel has weights of both signs: any other gets the zero
point -128 or 127. onnxruntime has its fast depthwise convolution where all channels have one zero point, and a general
one, many times slower, else. So weights get the plain quantizer, which is symmetric always.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from normdeploy.errors import ModelError
from normdeploy.parsing.recipe import QuantizeSection, TrainSection
from normdeploy.train.data import Splits
from normdeploy.train.loop import fit


def train_quantized(
    model: nn.Module, splits: Splits, settings: TrainSection, quantize: QuantizeSection, *, device: str, show: bool
) -> nn.Module:
    """Train a copy of a trained model with fake quantization; keep the epoch with the lowest validation loss.

    Args:
        model: trained; it is changed.
        splits: the data.
        settings: those of the training it comes from.
        quantize: how many epochs, and at which rate.
        device: where.
        show: draw a progress bar.

    Returns:
        the network with its quantizers, in evaluation mode; observers are off.

    Raises:
        ModelError: torch.fx cannot trace the model, or the training diverges.
    """
    with _old_torch_ao():
        network = _Observing(_prepared(model, splits.train.head(2).inputs))
        again = replace(settings, epochs=quantize.epochs, lr=quantize.lr, patience=0, recalibrate=False)
        fit(network, splits, again, device=device, show=show)
        network.observe(on=False)
    return network.network.eval()


class _Observing(nn.Module):
    """Quantizers follow the ranges of training data alone: what validation feeds moves no step."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def observe(self, *, on: bool) -> None:
        """Switch all observers."""
        for module in self.network.modules():
            switch = module._buffers.get("observer_enabled")
            if switch is not None:
                switch.fill_(int(on))

    def forward(self, x: Tensor) -> Any:
        """Run the network, observing where it trains."""
        self.observe(on=self.training)
        return self.network(x)


def _prepared(model: nn.Module, example: Tensor) -> nn.Module:
    import torch.ao.quantization
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    ao: Any = torch.ao.quantization  # torch leaves much of it unannotated
    whole = ao.FusedMovingAvgObsFakeQuantize.with_args(
        observer=ao.MovingAverageMinMaxObserver, quant_min=0, quant_max=255, reduce_range=False
    )
    mapping = ao.get_default_qat_qconfig_mapping("x86")
    usual = mapping.global_qconfig.activation
    mapping.set_global(ao.QConfig(activation=whole, weight=ao.default_per_channel_weight_fake_quant))
    for kind, config in list(mapping.object_type_qconfigs.items()):
        if config is not None and config.activation is usual:  # others have a fixed range
            mapping.set_object_type(kind, ao.QConfig(activation=whole, weight=config.weight))
    try:
        return prepare_qat_fx(model.train(), mapping, (example,))
    except Exception as error:  # torch.fx raises many types where a forward branches on data
        words = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{type(model).__name__} cannot be prepared for training with fake quantization: {words}; expected a "
            "network that torch.fx traces, whose forward does not branch on data: leave [quantize] out"
        ) from error


@contextmanager
def _old_torch_ao() -> Iterator[None]:
    """Silence what torch.ao says of its own age and of observers without data."""
    with warnings.catch_warnings():
        for text in (".*deprecated.*", ".*must run observer.*", ".*quant_min.*", ".*reduce_range.*"):
            warnings.filterwarnings("ignore", message=text)
        yield
