"""Training with fake quantization: observers follow training data alone, the weights move, what cannot be is said."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from normdeploy.errors import ModelError
from normdeploy.parsing.recipe import QuantizeSection, TrainSection
from normdeploy.train.data import Split, Splits
from normdeploy.train.fake_quantized import train_quantized

pytestmark = pytest.mark.filterwarnings("ignore:.*(is|are) deprecated.*")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bn(self.conv(x)).relu().mean((2, 3)))


def splits(*, far: float = 1.0) -> Splits:
    """Return data whose validation and test inputs are ``far`` times as large as those of training."""
    x = torch.randn(96, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    y = (x.mean((1, 2, 3)) > 0).long()
    parts = [Split(x[:64], y[:64]), Split(far * x[64:80], y[64:80]), Split(far * x[80:], y[80:])]
    return Splits(*parts)


def trained(data: Splits, **keys: float) -> nn.Module:
    torch.manual_seed(0)
    return train_quantized(
        Net(),
        data,
        TrainSection(batch_size=16),
        QuantizeSection(**keys),
        device="cpu",
        show=False,  # type: ignore[arg-type]
    )


def steps(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.named_buffers() if name.endswith("scale") and tensor.numel() == 1}


def test_what_validation_and_test_feed_moves_no_step() -> None:
    plain, shifted = steps(trained(splits(), epochs=1)), steps(trained(splits(far=100.0), epochs=1))
    assert plain
    for name, step in plain.items():
        assert torch.equal(step, shifted[name]), name


def test_the_steps_are_those_of_the_data_and_eight_bits_in_full() -> None:
    model = trained(splits(), epochs=2)
    first = next(module for module in model.modules() if hasattr(module, "fake_quant_enabled"))
    x = splits().train.inputs
    spread = float((x.max() - x.min()) / 255)
    assert 0.7 * spread < float(first.scale) < 1.05 * spread  # a running mean of the batches' ranges
    assert (first.activation_post_process.quant_min, first.activation_post_process.quant_max) == (0, 255)
    assert not any(bool(m.observer_enabled) for m in model.modules() if hasattr(m, "observer_enabled"))
    assert not model.training


def test_channels_whose_weights_have_one_sign_have_a_symmetric_step_too() -> None:
    """Zero points of 0 for all: onnxruntime's fast depthwise convolution wants one number for them."""
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        net.conv.weight[0].abs_()
        net.conv.weight[1].abs_().neg_()
    settings = TrainSection(batch_size=16)
    model = train_quantized(net, splits(), settings, QuantizeSection(epochs=1, lr=1e-6), device="cpu", show=False)
    [weight] = [p for path, p in model.named_parameters() if path.endswith("conv.weight")]
    assert (weight[0] > 0).all()
    assert (weight[1] < 0).all()
    points = [module for module in model.modules() if getattr(module, "zero_point", torch.zeros(())).numel() == 4]
    assert [module.zero_point.tolist() for module in points] == [[0, 0, 0, 0]]
    assert points[0].scale.unique().numel() == 4  # a step for each


def test_it_trains() -> None:
    fast, slow = trained(splits(), epochs=2, lr=0.05), trained(splits(), epochs=2, lr=1e-6)
    torch.manual_seed(0)
    before = Net().conv.weight
    moved = {}
    for name, model in (("fast", fast), ("slow", slow)):
        moved[name] = next(p for path, p in model.named_parameters() if path.endswith("conv.weight"))
    assert (moved["slow"] - before).abs().max() < 1e-3 < (moved["fast"] - before).abs().max()


def test_no_warning_of_torchs_reaches_the_user() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(splits(), epochs=1)


def test_a_network_that_branches_on_data_is_refused_with_the_remedy() -> None:
    class Branching(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    with pytest.raises(ModelError, match=r"Branching cannot be prepared .*leave \[quantize\] out"):
        train_quantized(Branching(), splits(), TrainSection(batch_size=16), QuantizeSection(), device="cpu", show=False)
