"""Modes under other names than ``training`` are switched and given back; one that nothing can switch is named."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import torch
from torch import nn

from normdeploy.errors import ModeError
from normdeploy.exporting.module import mode_flags
from normdeploy.exporting.module.mode import evaluation_mode
from normdeploy.exporting.module.mode_flags import training_flags
from normdeploy.exporting.trace import trace
from normdeploy.inspection import inspect
from normdeploy.rewrite import rewrite


class ByHand:
    """BatchNorm of a plain class; ``in_training`` says whether it uses the batch."""

    def __init__(self, size=4):
        self.running_mean, self.running_var = torch.full((size,), 0.5), torch.full((size,), 2.0)

    def in_training_now(self):
        raise NotImplementedError

    def __call__(self, x):
        if self.in_training_now():
            mean, var = x.mean(0), x.var(0)
            self.running_mean = 0.9 * self.running_mean + 0.1 * mean.detach()
            self.running_var = 0.9 * self.running_var + 0.1 * var.detach()
        else:
            mean, var = self.running_mean, self.running_var
        return (x - mean) / torch.sqrt(var + 1e-5)


class ByRunning(ByHand):
    """Always in evaluation."""

    def in_training_now(self):
        return False


def flagged(name, value, now):
    """Return a class that keeps its mode in one attribute."""

    class Layer(ByHand):
        def __init__(self):
            super().__init__()
            setattr(self, name, value)

        in_training_now = now

    return Layer()


class Word(ByHand):
    """Accepts two words only, the second unusual."""

    def __init__(self):
        super().__init__()
        self.mode = "TRAIN"

    def in_training_now(self):
        if self.mode == "TRAIN":
            return True
        if self.mode == "TEST":
            return False
        raise ValueError(self.mode)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.phase, self.layer = "train", ByRunning()

    def forward(self, x):
        return self.layer(x) if self.phase == "eval" else x - x.mean(0)


class Slots:
    __slots__ = ("is_training", "layer")

    def __init__(self):
        self.is_training, self.layer = True, ByRunning()

    def __call__(self, x):
        return x - x.mean(0) if self.is_training else self.layer(x)


class Host(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 4), norm

    def forward(self, x):
        return self.norm(self.linear(x))


SWITCHED = {
    "is_training": (lambda: flagged("is_training", True, lambda self: self.is_training), "is_training"),
    "train_mode": (lambda: flagged("train_mode", True, lambda self: self.train_mode), "train_mode"),
    "training_mode": (lambda: flagged("training_mode", True, lambda self: self.training_mode), "training_mode"),
    "is_eval": (lambda: flagged("is_eval", False, lambda self: not self.is_eval), "is_eval"),
    "mode": (lambda: flagged("mode", "train", lambda self: self.mode == "train"), "mode"),
    "phase": (lambda: flagged("phase", "training", lambda self: self.phase != "evaluation"), "phase"),
    "words of its own": (Word, "mode"),
    "a module's word": (Module, "phase"),
    "a slot": (Slots, "is_training"),
}


@pytest.mark.parametrize("name", SWITCHED)
def test_a_mode_under_another_name_is_switched_and_given_back(name):
    make, attribute = SWITCHED[name]
    torch.manual_seed(0)
    model = Host(make())
    before = getattr(model.norm, attribute)
    x = torch.randn(5, 3)
    traced = trace(model, x)
    assert any(f"{attribute} = {before!r}, now" in note for note in traced.notes)
    assert getattr(model.norm, attribute) == before
    result = rewrite(traced.model)
    assert [node.op_type for node in result.model.graph] == ["Gemm"]  # running statistics, folded
    (row,) = inspect(model, x).of_kind("outside-eval")
    assert (row.where, row.severity) == ("norm", "warning")
    assert f"`{attribute}`" in row.what
    setattr(model.norm, attribute, next(iter(_evaluation(model, attribute))))
    assert not inspect(model, x).of_kind("outside-eval")


def _evaluation(model, attribute):
    with evaluation_mode(model):
        yield getattr(model.norm, attribute)


class ReadOnly(ByHand):
    is_training = property(lambda _: True)

    def in_training_now(self):
        return self.is_training


def test_a_flag_that_cannot_be_switched_is_an_error_that_names_it():
    model = Host(ReadOnly())
    with pytest.raises(ModeError, match=r"norm \(ReadOnly, is_training = True\)") as caught:
        trace(model, torch.randn(5, 3))
    assert caught.value.places == ("norm",)


class Phase(enum.Enum):
    FIT = 1
    USE = 2


def test_a_mode_nothing_can_switch_is_an_error_because_statistics_move():
    layer = flagged("what", Phase.FIT, lambda self: self.what is Phase.FIT)
    model = Host(layer)
    held = layer.running_mean
    with pytest.raises(ModeError, match=r"updated its running statistics.*norm \(Layer\)") as caught:
        trace(model, torch.randn(5, 3))
    assert caught.value.places == ("norm",)
    assert layer.running_mean is held
    (row,) = inspect(model, torch.randn(5, 3)).errors
    assert (row.kind, row.where) == ("stuck-in-training", "norm")
    layer.what = Phase.USE
    assert trace(model.eval(), torch.randn(5, 3)).notes == []


class Replacing(nn.Module):
    """MobileOne's block: ``inference_mode`` says that the branches have been merged; until then their heir is none."""

    def __init__(self):
        super().__init__()
        self.inference_mode, self.merged = False, nn.Identity()
        self.scale, self.branch = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.merged(x) if self.inference_mode else self.scale(x) + self.branch(x)

    def reparameterize(self):
        pairs = zip(self.scale.parameters(), self.branch.parameters(), strict=True)
        self.merged, self.inference_mode = nn.Linear(3, 3), True
        self.merged.weight.data, self.merged.bias.data = (a.data + b.data for a, b in pairs)


class Deleting(Replacing):
    def reparameterize(self):
        self.inference_mode = True
        self.__delattr__("branch")


@pytest.mark.parametrize("kind", [Replacing, Deleting])
def test_a_flag_that_goes_with_layers_is_no_mode(kind):
    """Set alone, it would have the block return what it was given."""
    model, x = nn.Sequential(kind()).eval(), torch.randn(5, 3)
    with evaluation_mode(model) as report:
        assert torch.equal(model(x), model[0].scale(x) + model[0].branch(x))
    assert not report.switched
    assert not inspect(model, x).of_kind("outside-eval")


class Answers(nn.Module):
    """Answers for what it does not hold."""

    def __getattr__(self, name: str) -> Any:
        return True if name == "is_training" else super().__getattr__(name)


class AnswersFirst(nn.Module):
    """Is asked before anything is looked up."""

    def __getattribute__(self, name: str) -> Any:
        return True if name == "is_training" else super().__getattribute__(name)


class OfTheClass(nn.Module):
    is_training = True


class Computed(nn.Module):
    @property
    def mode(self) -> str:
        return "train"


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Answers, "is_training"), (AnswersFirst, "is_training"), (OfTheClass, "is_training"), (Computed, "mode")],
)
def test_a_flag_is_seen_wherever_a_module_has_it_from(kind: type[nn.Module], name: str):
    assert [flag.name for flag in training_flags(kind())] == [name]


def test_torch_is_not_asked_for_flags_that_a_module_does_not_have(monkeypatch: pytest.MonkeyPatch):
    """To be told that there is none took longer than all else that is asked of a module."""
    asked: list[str] = []

    def missing(self: nn.Module, name: str) -> Any:
        asked.append(name)
        raise AttributeError(name)

    module = nn.LayerNorm(4)
    module.in_training = True
    monkeypatch.setattr(nn.Module, "__getattr__", missing)
    monkeypatch.setitem(mode_flags._LOOKED_UP, "__getattr__", missing)
    assert [flag.name for flag in training_flags(module)] == ["in_training"]
    assert asked == []
