"""Tensors and modes that nn.Module does not see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normdeploy.conformance import by_hand
from normdeploy.errors import ModelError, WeightsError
from normdeploy.nn.object_walk import unregistered_tensors
from normdeploy.nn.unregistered import full_state, load_full_state, move, set_mode, trainable


class Net(nn.Module):
    """Hand-written normalizations in every place they are kept in."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.norm = by_hand.B1(3)
        self.more = [by_hand.L1(3), {"deep": by_hand.B1(3)}]
        self.loose = [nn.Linear(3, 3)]  # a plain list: not registered
        self.registered = by_hand.B4(3, 2)
        self.itself = [self]  # a cycle

    def forward(self, x: Tensor) -> Tensor:
        x = self.more[0](self.norm(self.first(x)))  # type: ignore[operator]
        return self.registered(self.loose[0](self.more[1]["deep"](x)))  # type: ignore[index]


HIDDEN = {
    "norm.gain",
    "norm.shift",
    "norm.seen_mean",
    "norm.seen_var",
    "more.0.gain",
    "more.0.shift",
    "more.1.deep.gain",
    "more.1.deep.shift",
    "more.1.deep.seen_mean",
    "more.1.deep.seen_var",
    "loose.0.weight",
    "loose.0.bias",
    "registered.moving_mean",
    "registered.moving_var",
}


def test_every_unregistered_tensor_is_found_once() -> None:
    found = unregistered_tensors(Net())
    assert sorted(found) == sorted(HIDDEN)
    assert len({id(tensor) for tensor in found.values()}) == len(found)


def test_an_ordinary_network_has_none() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.MultiheadAttention(4, 2), nn.LSTM(3, 3))
    assert unregistered_tensors(model) == {}


def test_everything_with_gradient_is_trainable() -> None:
    names = {name for name, _ in trainable(Net())}
    assert names == {"first.weight", "first.bias", "registered.gamma", "registered.beta"} | {
        name for name in HIDDEN if name.rpartition(".")[2] in ("gain", "shift", "weight", "bias")
    }


def test_state_there_and_back_even_where_shapes_grow() -> None:
    trained, fresh = Net(), Net()
    set_mode(trained, training=True)
    trained(torch.randn(6, 4)).sum().backward()
    assert trained.norm.seen_mean.shape == (1, 3)
    assert fresh.norm.seen_mean.shape == (3,)
    leaf = fresh.norm.gain
    load_full_state(fresh, full_state(trained))
    assert fresh.norm.gain is leaf
    for model in (trained, fresh):
        set_mode(model, training=False)
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(fresh(x), trained(x), rtol=0, atol=0)


def test_wrong_state_names_the_keys() -> None:
    state = full_state(Net())
    state["stranger"] = torch.zeros(1)
    del state["norm.seen_var"]
    state["first.bias"] = torch.zeros(7)
    with pytest.raises(WeightsError) as raised:
        load_full_state(Net(), state)
    message = str(raised.value)
    assert "missing: norm.seen_var" in message
    assert "unexpected: stranger" in message
    assert "first.bias (7,) instead of (3,)" in message
    state = full_state(Net())
    state["norm.gain"] = torch.ones(4)
    with pytest.raises(WeightsError, match=r"norm\.gain"):
        load_full_state(Net(), state)


def test_move_takes_unregistered_tensors_along() -> None:
    model = Net()
    move(model, dtype=torch.float64)
    assert {t.dtype for t in full_state(model).values()} == {torch.float64}
    assert model(torch.randn(3, 4, dtype=torch.float64)).dtype == torch.float64


def test_mode_reaches_plain_objects_and_loose_modules() -> None:
    model = Net()
    set_mode(model, training=False)
    assert not model.norm.training
    assert not model.more[1]["deep"].training  # type: ignore[index]
    assert not model.loose[0].training
    set_mode(model, training=True)
    assert model.norm.training
    assert model.loose[0].training


def test_two_tensors_of_one_name_are_refused() -> None:
    class Clash(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = {"0": torch.zeros(1), "1": [torch.zeros(1)], "1.0": torch.zeros(1)}

    with pytest.raises(ModelError, match=r"parts\.1\.0"):
        full_state(Clash())
