"""Which variance a hand-written BatchNorm uses in training is measured, and the model given back bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.conformance import by_hand
from normdeploy.inspection import inspect
from normdeploy.nn import BatchNorm
from normdeploy.nn.unregistered import full_state

KIND = "training-variance"


class Holder(nn.Module):
    """A layer behind a projection, kept as its author keeps it."""

    def __init__(self, norm, image=False):
        super().__init__()
        self.image = image
        self.first = nn.Conv2d(3, 4, 3, bias=False) if image else nn.Linear(6, 4, bias=False)
        self.norm = norm

    def forward(self, x):
        return self.norm(self.first(x))


class Outside(nn.Module):
    """Stock conventions, epsilon added to the deviation."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(4))
        self.register_buffer("running_var", torch.ones(4))

    def forward(self, x):
        if self.training:
            mean, deviation = x.mean(0), x.std(0, correction=0)
            self.running_mean = 0.9 * self.running_mean + 0.1 * mean.detach()
            self.running_var = 0.9 * self.running_var + 0.1 * x.var(0).detach()
            return (x - mean) / (deviation + 1e-3)
        return (x - self.running_mean) / (self.running_var.sqrt() + 1e-3)


class ByWord(by_hand.B1):
    """B1 whose mode is a word, and which has no ``training``."""

    def __init__(self, width):
        super().__init__(width)
        del self.training
        self.mode = "train"

    def __call__(self, x):
        self.training = self.mode == "train"
        try:
            return super().__call__(x)
        finally:
            del self.training


CASES = {
    "a mode under another name": (lambda: Holder(ByWord(4)), (8, 6), (1, 1)),
    "B1": (lambda: Holder(by_hand.B1(4)), (8, 6), (1, 1)),
    "B2": (lambda: Holder(by_hand.B2(4)), (8, 6), (1, 1)),
    "B4": (lambda: Holder(by_hand.B4(4, 2)), (8, 6), (0, 0)),
    "B4, images": (lambda: Holder(by_hand.B4(4, 4), image=True), (2, 3, 9, 9), (0, 0)),
    "B5": (lambda: Holder(by_hand.B5(4), image=True), (2, 3, 9, 9), (0, 0)),
}
STOCK = {
    "BatchNorm1d": (lambda: Holder(nn.BatchNorm1d(4)), (8, 6)),
    "BatchNorm2d": (lambda: Holder(nn.BatchNorm2d(4), image=True), (2, 3, 9, 9)),
    "stock conventions by hand": (lambda: Holder(Outside()), (8, 6)),
    "chosen by name": (lambda: Holder(BatchNorm(4, correction=1)), (8, 6)),
    "L2, per row": (lambda: Holder(by_hand.L2(4)), (8, 6)),
    "none": (lambda: nn.Linear(6, 4), (8, 6)),
}


def trained(make, shape):
    torch.manual_seed(0)
    model = make().train()
    for _ in range(3):
        model(torch.randn(shape) + 1)
    return model


@pytest.mark.parametrize("name", CASES)
def test_the_variances_of_training_are_told(name):
    make, shape, (normalizing, kept) = CASES[name]
    model = trained(make, shape)
    before = {path: value.clone() for path, value in full_state(model).items()}
    modes = [module.training for module in model.modules()]
    (row,) = inspect(model, torch.randn(shape)).of_kind(KIND)
    assert (row.severity, row.where) == ("note", "norm")
    assert (row.detail["correction"], row.detail["running_correction"]) == (normalizing, kept)
    assert f"correction={normalizing}, running_correction={kept}" in row.remedy
    after = full_state(model)
    assert list(after) == list(before)
    for path, value in before.items():
        assert value.dtype == after[path].dtype
        assert torch.equal(value, after[path]), path
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("name", STOCK)
def test_stock_conventions_and_those_chosen_by_name_are_silent(name):
    make, shape = STOCK[name]
    assert not inspect(trained(make, shape), torch.randn(shape)).of_kind(KIND)


def test_the_remedy_trains_with_the_same_convention():
    """What the finding says to use computes what the hand-written layer computes."""
    model = trained(*CASES["B2"][:2])
    (row,) = nd.inspect(model, torch.randn(8, 6)).of_kind(KIND)
    ours = BatchNorm(4, eps=1e-6, **{key: row.detail[key] for key in ("correction", "running_correction")})
    theirs, x = by_hand.B2(4), torch.randn(8, 4)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.running_var, theirs.var_so_far.data)


def test_epsilon_outside_the_root_of_stored_statistics_is_told():
    findings = inspect(trained(lambda: Holder(Outside()), (8, 6)), torch.randn(8, 6))
    (row,) = findings.of_kind("outside-root")
    assert (row.severity, row.where) == ("note", "norm")
    assert row.detail["epsilon"] == pytest.approx(1e-3, rel=1e-6)
