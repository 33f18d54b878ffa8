"""Evaluation mode is certain inside the block, and everything is as before after it."""

import dataclasses
from collections import deque
from typing import NamedTuple

import pytest
import torch
from torch import nn

from normdeploy.errors import ModeError
from normdeploy.exporting.module.mode import evaluation_mode
from normdeploy.nn.object_walk import unregistered_tensors


class PlainNorm:
    """A plain Python class that keeps its mode, its parameters and its statistics in attributes."""

    def __init__(self, size):
        self.training = True
        self.gamma, self.beta = torch.ones(size), torch.zeros(size)
        self.running_mean, self.running_var = torch.zeros(size), torch.ones(size)

    def __call__(self, x):
        if not self.training:
            return self.gamma * (x - self.running_mean) / torch.sqrt(self.running_var + 1e-5) + self.beta
        mean, var = x.mean(0, keepdim=True), x.var(0, keepdim=True)
        self.running_mean = 0.9 * self.running_mean + 0.1 * mean
        self.running_var = 0.9 * self.running_var + 0.1 * var
        return self.gamma * (x - mean) / torch.sqrt(var + 1e-5) + self.beta


class Slotted:
    __slots__ = ("__weakref__", "peer", "training")

    def __init__(self):
        self.training, self.peer = True, self  # a cycle


class Protocol:
    """Follows train() and eval() without being a module, and keeps the mode elsewhere."""

    def __init__(self):
        self.phase = "train"

    def train(self):
        self.phase = "train"

    def eval(self):
        self.phase = "eval"


class ReadOnly:
    @property
    def training(self):
        return True


@dataclasses.dataclass(frozen=True)
class Frozen:
    training: bool = True


class Pair(NamedTuple):
    left: object
    training: bool


class Host(nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.norm(self.linear(x))


def test_module_flags_are_switched_and_each_given_back():
    model = Host()
    model.norm.eval()  # a frozen norm in a model that trains
    with evaluation_mode(model) as report:
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        assert report.was_training
        assert {row.where for row in report.switched} == {"", "linear"}
    assert model.training
    assert model.linear.training
    assert not model.norm.training
    assert torch.is_grad_enabled()


def test_a_model_in_evaluation_mode_gets_no_word():
    with evaluation_mode(Host().eval()) as report:
        assert report.switched == []
        assert report.notes == []


@pytest.mark.parametrize(
    ("held", "path"),
    [
        (lambda norm: norm, "extra"),
        (lambda norm: [0, [norm]], "extra.1.0"),
        (lambda norm: {"a": (norm,)}, "extra.a.0"),
        (lambda norm: deque([norm]), "extra.0"),
        (lambda norm: lambda x: norm(x), "extra.norm"),
        (lambda norm: norm.__call__, "extra.__self__"),
        (lambda norm: Pair(norm, False), "extra.left"),
    ],
    ids=["attribute", "list", "dict", "deque", "closure", "bound method", "named tuple"],
)
def test_plain_objects_are_found_wherever_they_are_held(held, path):
    norm = PlainNorm(3)
    model = Host(extra=held(norm))
    with evaluation_mode(model) as report:
        assert norm.training is False
        assert path in {row.where for row in report.switched}
    assert norm.training is True


def test_modules_in_plain_lists_follow():
    hidden = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3))
    model = Host(layers=[hidden]).eval()
    assert hidden[1].training
    with evaluation_mode(model) as report:
        assert not any(module.training for module in hidden.modules())
        assert "layers.0.1" in {row.where for row in report.switched}
        assert "layers.0.1" in report.notes[0]
    assert all(module.training for module in hidden.modules())


def test_slots_cycles_frozen_dataclasses_and_class_attributes():
    class ByClass:
        training = True

    slotted, frozen, by_class = Slotted(), Frozen(), ByClass()
    model = Host(a=slotted, b=frozen, c=by_class)
    model.itself = [model]
    with evaluation_mode(model):
        assert not slotted.training
        assert not frozen.training
        assert not by_class.training
    assert slotted.training
    assert frozen.training
    assert by_class.training
    assert vars(by_class) == {}


def test_the_module_protocol_without_a_module():
    part = Protocol()
    with evaluation_mode(Host(part=part)):
        assert part.phase == "eval"
    assert part.phase == "train"


@pytest.mark.parametrize(("extra", "name"), [(ReadOnly(), "extra"), (Pair(None, True), "extra")])
def test_what_cannot_be_switched_is_an_error_that_names_it(extra, name):
    model = Host(extra=extra)
    with pytest.raises(ModeError, match=f"{name} .{type(extra).__name__}"), evaluation_mode(model):
        pass
    assert model.training
    assert model.norm.training


def test_a_module_whose_flag_resets_itself():
    class TrainingOperator(nn.Module):
        training = property(lambda _: True, lambda _, __: None)  # a flag that resets itself

    model = Host(block=TrainingOperator())
    with pytest.raises(ModeError, match=r"block \(TrainingOperator\)"), evaluation_mode(model):
        pass
    assert model.linear.training


def test_state_assigned_in_forward_is_given_back():
    model = Host(norm2=PlainNorm(3), calls=[])
    held = dict(vars(model.norm2))
    with evaluation_mode(model):
        model.norm2.running_mean = torch.full((3,), 7.0)
        model.norm2.cache = torch.zeros(1)
        model.calls.append(1)
        model.linear.last = torch.zeros(2)
    assert vars(model.norm2) == held
    assert model.calls == []
    assert not hasattr(model.linear, "last")


def test_given_back_after_an_exception_too():
    model = Host(norm2=PlainNorm(3))
    with pytest.raises(ZeroDivisionError), evaluation_mode(model):
        raise ZeroDivisionError
    assert model.training
    assert model.norm2.training


def test_weights_merged_by_an_overridden_train_are_given_back_bit_for_bit():
    class Merging(nn.Module):
        """Adds a low-rank part to its weight in evaluation and subtracts it in training, as adapters do."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))
            self.down, self.up = nn.Parameter(torch.randn(4, 1)), nn.Parameter(torch.randn(1, 4))
            self.merged = False

        def train(self, mode=True):
            super().train(mode)
            if mode == self.merged:
                self.weight.data += (-1 if mode else 1) * (self.down @ self.up).data
                self.merged = not mode
            return self

    model = nn.Sequential(Merging())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with evaluation_mode(model):
        assert model[0].merged
        assert not torch.equal(model[0].weight, before["0.weight"])
    assert not model[0].merged
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_modules_exchanged_by_eval_are_given_back():
    class Fusing(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

        def train(self, mode=True):
            super().train(mode)
            if not mode:
                self.body = nn.Linear(2, 2)
            return self

    model = Fusing()
    body = model.body
    with evaluation_mode(model):
        assert isinstance(model.body, nn.Linear)
    assert model.body is body
    assert all(module.training for module in model.modules())


class Trainer:
    """What Lightning leaves on a module that it has trained: modes that only it sets, the data, the module itself."""

    __module__ = "lightning.pytorch.trainer.trainer"

    def __init__(self, model: nn.Module) -> None:
        self.model, self.data = model, torch.randn(1000, 4)

    @property
    def training(self) -> bool:
        return True

    @property
    def evaluating(self) -> bool:
        return False


def test_who_trained_a_model_is_no_part_of_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model._trainer = trainer = Trainer(model)
    with evaluation_mode(model) as report:
        assert not model[1].training
    assert "_trainer" not in str(report.switched)
    assert model._trainer is trainer
    assert unregistered_tensors(model) == {}
