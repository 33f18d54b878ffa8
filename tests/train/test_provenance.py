"""What decides a training's result: whatever is changed is noticed, named, and what does not decide is not."""

from __future__ import annotations

import functools
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normdeploy.errors import SourceError
from normdeploy.parsing.recipe import parse_recipe
from normdeploy.train import Split, Splits, provenance
from normdeploy.train.data import tensor_digest
from normdeploy.train.provenance import Parts, changes, of_data, of_network

DATA: dict[str, Any] = {
    "model": {"source": "m.py:Net", "weights": "m.safetensors", "arguments": {"width": 2}},
    "data": {"source": "d.py:data"},
}


def some_splits(seed: int = 0) -> Splits:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
    split = Split(x, torch.arange(6) % 2)
    return Splits(split, split, split)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.py").write_text("import nd_helper\nclass Net: ...\n")
    (tmp_path / "nd_helper.py").write_text("slope = 1\n")
    (tmp_path / "d.py").write_text("def data(): ...\n")
    return tmp_path


def parts(folder: Path, splits: Splits | None = None, **tables: dict[str, Any]) -> Parts:
    data = {**DATA, **{name: {**DATA.get(name, {}), **table} for name, table in tables.items()}}
    return provenance.of_recipe(parse_recipe(data, folder / "net.toml"), splits or some_splits())


def test_a_recipe_is_the_same_twice_and_whatever_does_not_decide_is_left_out(folder: Path) -> None:
    first = parts(folder)
    assert first == parts(folder)
    assert first == parts(folder, export={"fold": False}, verify={"seed": 3}, bench={"repeats": 5})
    assert first == parts(folder, model={"weights": "other.safetensors"})
    assert not any(str(folder) in text for pair in first.items() for text in pair)  # no place of this machine


def test_what_changed_is_named(folder: Path) -> None:
    first = parts(folder)
    assert changes(first, parts(folder, train={"lr": 0.5})) == ["train.lr is 0.5, was 0.003"]
    assert changes(first, parts(folder, model={"arguments": {"width": 3}})) == ["model.arguments.width is 3, was 2"]
    assert changes(first, parts(folder, some_splits(seed=1)))[0] == "data of test, inputs changed"
    for name in ("m.py", "nd_helper.py", "d.py"):
        before = (folder / name).read_text()
        (folder / name).write_text(before + "x = 1\n")
        assert changes(first, parts(folder)) == [f"code of {name.replace('nd_helper.py', 'nd_helper')} changed"]
        (folder / name).write_text(before)
    assert first == parts(folder)
    (folder / "m.py").unlink()
    with pytest.raises(SourceError, match="does not exist"):
        parts(folder)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_one_label_is_enough(split: str) -> None:
    splits, other = some_splits(), some_splits()
    labels = other.train.targets.clone()
    labels[3] = 1 - labels[3]
    changed = {name: getattr(other, name) for name in ("train", "valid", "test")}
    changed[split] = Split(other.train.inputs, labels)
    assert changes(of_data(splits), of_data(Splits(**changed))) == [f"data of {split}, targets changed"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_a_digest_sees_dtype_shape_order_and_content_not_how_it_lies(dtype: torch.dtype) -> None:
    x = (torch.arange(12).view(3, 4) % 5).to(dtype)
    digest = tensor_digest(x)
    assert digest == tensor_digest(x.t().contiguous().t()) == tensor_digest(torch.cat([x, x])[3:])
    wider = x.to(torch.complex128 if dtype.is_complex else torch.float64)
    assert len({digest, tensor_digest(x.view(4, 3)), tensor_digest(x.flip(0)), tensor_digest(wider)}) == 4


class Scaled(nn.Module):
    def __init__(self, slope: float = 0.1, act: Callable[[Tensor], Tensor] = torch.relu, eps: float = 1e-5) -> None:
        super().__init__()
        self.slope, self.act = slope, act
        self.norm = nn.BatchNorm1d(4, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(x)) * self.slope


class Plain:
    def __init__(self, power: int) -> None:
        self.power = power
        self.training = True


class Holder(nn.Module):
    def __init__(self, power: int) -> None:
        super().__init__()
        self.plain = [Plain(power)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.Sequential(nn.Linear(4, 2), nn.ReLU()), nn.Sequential(nn.Linear(4, 2), nn.Tanh())),
        (Scaled(), Scaled(slope=0.2)),
        (Scaled(), Scaled(act=torch.tanh)),
        (Scaled(), Scaled(act=functools.partial(nn.functional.leaky_relu, negative_slope=0.3))),
        (Scaled(), Scaled(eps=1e-3)),
        (Holder(1), Holder(2)),
        (nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")),
    ],
)
def test_networks_that_only_attributes_tell_apart(one: nn.Module, other: nn.Module) -> None:
    splits = some_splits()
    assert changes(of_network(one, one, splits), of_network(other, other, splits))


def test_values_of_tensors_and_modes_are_not_what_a_network_is() -> None:
    one, other, splits = Scaled(), Scaled(), some_splits()
    nn.init.ones_(other.norm.bias)
    other.eval()
    assert of_network(one, one, splits) == of_network(other, other, splits)


def test_the_builders_file_counts_and_code_without_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = some_splits()
    net = nn.Sequential(nn.Linear(4, 2))
    built_here = of_network(net, lambda: net, splits)
    assert [
        name for name in built_here if name.startswith("code of")
    ]  # this file, though torch's classes alone are used
    seen = []
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))  # under `python -m pytest` it has a file
    for slope in ("0.1", "0.2"):  # a class typed into an interpreter
        space: dict[str, Any] = {"__name__": "__main__"}
        text = f"""
            from torch import nn
            class Typed(nn.Module):
                def forward(self, x):
                    return x * {slope}
        """
        exec(textwrap.dedent(text), space)
        typed = space["Typed"]()
        seen.append(of_network(typed, typed, splits))
    assert changes(*seen)
