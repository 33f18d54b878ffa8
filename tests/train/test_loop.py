"""The loop learns, is reproducible, keeps the best epoch, stops early, and trains what nn.Module does not see."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normdeploy.conformance import by_hand
from normdeploy.errors import ModelError, RecipeError, UsageError, WeightsError
from normdeploy.nn.unregistered import full_state
from normdeploy.train import Split, Splits, batches, fit, load_weights, read_metadata, score, train_settings
from normdeploy.train.world import choose_device, choose_precision


def blobs(seed: int = 0, count: int = 240) -> Splits:
    """Three overlapping clouds in four dimensions, far from the origin and in unlike units."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (count,), generator=generator)
    centres = torch.tensor([[0.0, 0, 0, 0], [3, 0, 3, 0], [0, 3, 0, 3]])
    x = (centres[y] + torch.randn(count, 4, generator=generator)) * torch.tensor([1.0, 10, 0.1, 1]) + 5
    cut = [slice(0, count // 2), slice(count // 2, 3 * count // 4), slice(3 * count // 4, None)]
    return Splits(*(Split(x[rows], y[rows]) for rows in cut))


class Net(nn.Module):
    def __init__(self, norm: Any = None) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = norm or nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


FAST = train_settings(epochs=8, batch_size=32, lr=0.02)


@pytest.mark.parametrize("norm", [lambda: nn.BatchNorm1d(8), lambda: by_hand.B1(8), lambda: by_hand.B4(8, 2)])
def test_it_learns_whatever_the_normalization(norm: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    result = fit(lambda: Net(norm()), blobs(), FAST, weights=path, show=False)
    assert result.test.accuracy > 0.8
    assert result.history.epochs[-1].train_loss < result.history.epochs[0].train_loss / 2
    assert not result.model.training
    fresh = Net(norm())
    metadata = load_weights(fresh, path)
    test = blobs().test
    assert score(fresh, test).accuracy == result.test.accuracy
    assert metadata["test_accuracy"] == f"{result.test.accuracy:.4f}"
    assert json.loads(metadata["settings"]) == dataclasses.asdict(FAST)
    assert read_metadata(path) == metadata


def test_a_hidden_scale_is_trained() -> None:
    norm = by_hand.B1(8)
    fit(Net(norm), blobs(), FAST, show=False)
    assert (norm.gain - 1).abs().max() > 0.01
    assert norm.gain.is_leaf
    assert norm.gain.grad is None


def test_same_seed_same_weights_other_seed_other_weights() -> None:
    def train(seed: int) -> Tensor:
        return fit(Net, blobs(), dataclasses.replace(FAST, epochs=2, seed=seed), show=False).model.first.weight.detach()  # type: ignore[union-attr]

    first, again, other = train(1), train(1), train(2)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.allclose(first, other)


def test_the_best_epoch_is_kept_and_training_stops_early() -> None:
    # a learning rate that destroys what was learnt: later epochs are worse
    settings = train_settings(epochs=60, batch_size=32, lr=0.3, patience=4, clip=0)
    result = fit(Net, blobs(), settings, show=False)
    losses = [epoch.valid_loss for epoch in result.history.epochs]
    assert len(losses) < 60
    assert len(losses) - result.history.best.number == 4
    assert result.valid.loss == pytest.approx(min(losses), rel=1e-5)


def test_clipping_bounds_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    step = torch.optim.AdamW.step

    def watched(self: torch.optim.AdamW, *args: Any) -> Any:
        norms.append(float(torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()))
        return step(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    fit(Net, blobs(), train_settings(epochs=1, batch_size=32, clip=0.05), show=False)
    assert max(norms) <= 0.05 * (1 + 1e-4)
    norms.clear()
    fit(Net, blobs(), train_settings(epochs=1, batch_size=32, clip=0), show=False)
    assert max(norms) > 0.05


def test_weight_decay_leaves_scales_and_shifts_alone() -> None:
    from normdeploy.train.optimizer import make_optimizer

    model = nn.Sequential(nn.Conv1d(2, 3, 1), by_hand.B4(3, 4), nn.Linear(3, 3))
    groups = make_optimizer(list(model.parameters()), train_settings(weight_decay=0.5)).param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert {name for name, p in model.named_parameters() if decays[id(p)]} == {"0.weight", "2.weight"}


def test_history_is_written_and_drawn(tmp_path: Path) -> None:
    from normdeploy.train import History

    result = fit(Net, blobs(), dataclasses.replace(FAST, epochs=3), history=tmp_path / "h.json", show=False)
    assert History.from_json((tmp_path / "h.json").read_text()) == result.history
    assert [epoch.number for epoch in result.history.epochs] == [1, 2, 3]
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")


def test_recalibration_at_the_end_gives_population_statistics() -> None:
    splits = blobs()
    model = fit(Net, splits, dataclasses.replace(FAST, epochs=2, recalibrate=True), show=False).model
    hidden = model.first(splits.train.inputs).detach().double()  # type: ignore[operator]
    norm: Any = model.norm
    torch.testing.assert_close(norm.running_mean.double(), hidden.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(norm.running_var.double(), hidden.var(0), rtol=1e-5, atol=1e-5)


def test_recalibration_sees_the_data_as_training_did() -> None:
    plain = blobs()
    splits = dataclasses.replace(plain, augment=lambda x, _: x + 100)
    model = fit(Net, splits, dataclasses.replace(FAST, epochs=1, recalibrate=True), show=False).model
    hidden = model.first(plain.train.inputs + 100).detach().double()  # type: ignore[operator]
    norm: Any = model.norm
    torch.testing.assert_close(norm.running_mean.double(), hidden.mean(0), rtol=1e-5, atol=1e-5)


def test_reconstruction_is_judged_by_explained_variance() -> None:
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    split = Split(x, x)
    assert score(nn.Identity(), split, "reconstruction").accuracy == 1
    mean = nn.Linear(4, 4, bias=False)
    nn.init.zeros_(mean.weight)
    reached = score(mean, split, "reconstruction")
    assert reached.loss == pytest.approx(float((x**2).mean()))
    assert reached.accuracy == pytest.approx(1 - float((x**2).mean() / x.var(correction=0)), rel=1e-5)


def test_sequences_are_scored_per_place() -> None:
    logits = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))

    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return logits[x]

    split = Split(torch.arange(3), torch.randint(0, 7, (3, 5), generator=torch.Generator().manual_seed(1)))
    reached = score(Fixed(), split, batch_size=2)
    assert reached.accuracy == pytest.approx(float((logits.argmax(-1) == split.targets).float().mean()))
    expected = -logits.log_softmax(-1).gather(-1, split.targets.unsqueeze(-1)).mean()
    assert reached.loss == pytest.approx(float(expected), rel=1e-5)


def test_bfloat16_learns_too() -> None:
    result = fit(Net, blobs(), dataclasses.replace(FAST, precision="bfloat16"), show=False)
    assert result.test.accuracy > 0.8
    assert {p.dtype for p in result.model.parameters()} == {torch.float32}


def test_divergence_is_said() -> None:
    splits = blobs()
    splits.train.inputs[3, 2] = float("nan")
    with pytest.raises(ModelError, match=r"loss is nan.*lower lr"):
        fit(Net, splits, FAST, show=False)


def test_nothing_to_train_is_said() -> None:
    with pytest.raises(ModelError, match="requires_grad"):
        fit(nn.Identity(), blobs(), FAST, show=False)


def test_devices_and_precisions_by_name() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_precision("auto", torch.device("cpu")) == torch.float32
    assert choose_precision("bfloat16", torch.device("cpu")) == torch.bfloat16
    with pytest.raises(UsageError, match="float16"):
        choose_precision("float16", torch.device("cpu"))
    for wrong in ("tpu", "cuda:x", "cuda:99", "cpu:a"):
        with pytest.raises(UsageError, match="expected"):
            choose_device(wrong)


def test_settings_are_validated() -> None:
    for wrong in ({"epochs": 0}, {"lr": 0}, {"warmup": 1.0}, {"precision": "int8"}, {"optimiser": "sgd"}):
        with pytest.raises(RecipeError):
            train_settings(**wrong)


def test_batches_cover_everything_once() -> None:
    split = Split(torch.arange(11), torch.arange(11))
    in_order = list(batches(split, 4))
    assert [len(part) for part in in_order] == [4, 4, 3]
    assert torch.cat([part.inputs for part in in_order]).tolist() == list(range(11))
    shuffled = list(batches(split, 5, torch.Generator().manual_seed(0), at_least=2))
    assert [len(part) for part in shuffled] == [5, 5]
    assert all(torch.equal(part.inputs, part.targets) for part in shuffled)
    assert len(set(torch.cat([part.inputs for part in shuffled]).tolist())) == 10


def test_weights_that_do_not_fit_or_exist(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="does not exist"):
        load_weights(Net(), tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"no tensors here")
    with pytest.raises(WeightsError, match="cannot be read"):
        load_weights(Net(), tmp_path / "bad.safetensors")
    fit(Net, blobs(), dataclasses.replace(FAST, epochs=1), weights=tmp_path / "net.safetensors", show=False)
    other = Net(by_hand.B1(8))
    before = {key: value.clone() for key, value in full_state(other).items()}
    with pytest.raises(WeightsError, match=r"missing: norm\.gain.*unexpected: norm\.bias"):
        load_weights(other, tmp_path / "net.safetensors")
    torch.testing.assert_close(full_state(other), before)
