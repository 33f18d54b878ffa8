"""Plain objects that hold tensors, as decoders' caches do, are arguments and results of forward like any container."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.errors import InputError, ModelError
from normdeploy.exporting.module.forward import flatten_arguments, flatten_outputs
from normdeploy.exporting.module.plain_objects import held_tensors, renewed


class Layer:
    """Keys and values of one layer; a number and a tensor of its own are no data."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.length, self.dtype = 0, torch.float32
        self._limit = torch.tensor(64)

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 1)
        self.values = values if self.values is None else torch.cat([self.values, values], 1)
        self.length += 1
        return self.keys, self.values


class Cache:
    """What a decoder has computed so far; it holds itself, as such objects do."""

    def __init__(self, layers: int = 2) -> None:
        self.layers = [Layer() for _ in range(layers)]
        self.owner = self


class Decoder(nn.Module):
    """Attention over all that came before, a BatchNorm behind each layer; its cache is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm1d(8) for _ in range(2))
        self.last = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor, past: Cache | None = None) -> dict[str, object]:
        past = Cache() if past is None else past
        for layer, projection, norm, last in zip(past.layers, self.projections, self.norms, self.last, strict=True):
            q, k, v = projection(x).chunk(3, -1)
            k, v = layer.update(k, v)
            y = (q @ k.mT * 8**-0.5).softmax(-1) @ v
            x = x + norm(last(y).mT).mT.tanh()
        return {"y": x, "cache": past}


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(0)
    model = Decoder()
    for _ in range(3):
        model(torch.randn(8, 5, 8) * 2 + 1)
    return model.eval()


CACHED = [f"cache_layers_{i}_{kind}" for i in range(2) for kind in ("keys", "values")]


def test_a_cache_is_returned_as_its_tensors(decoder: Decoder, tmp_path: Path):
    x = torch.randn(2, 5, 8)
    result = nd.export(decoder, x, tmp_path / "net.onnx", verify="quick")
    assert result.verdict.passed
    assert [value.name for value in onnx.load(str(tmp_path / "net.onnx")).graph.output] == ["y", *CACHED]
    with torch.no_grad():
        eager = decoder(x)
    found = nd.load(tmp_path / "net.onnx")(x.numpy())
    assert np.allclose(found["cache_layers_1_values"], eager["cache"].layers[1].values, atol=1e-5)


def test_a_step_takes_the_cache_as_inputs_and_leaves_the_example_as_it_was(decoder: Decoder, tmp_path: Path):
    with torch.no_grad():
        whole = torch.randn(2, 6, 8)
        past = decoder(whole[:, :5])["cache"]
        shapes = {"x": {0: "batch"}, "past": {"layers": [{k: {0: "batch", 1: "seen"} for k in ("keys", "values")}] * 2}}
        path = tmp_path / "step.onnx"
        result = nd.export(decoder, whole[:, 5:], path, kwargs={"past": past}, dynamic_shapes=shapes, verify="quick")
        assert result.verdict.passed
        assert [layer.length for layer in past.layers] == [1, 1]
        assert past.layers[0].keys.shape == (2, 5, 8)
        inputs = [value.name for value in onnx.load(str(path)).graph.input]
        assert inputs == ["x", *(name.replace("cache", "past") for name in CACHED)]
        step, known = nd.load(path), {name: np.zeros((2, 0, 8), np.float32) for name in inputs[1:]}
        for at in range(6):  # from nothing on, one by one
            found = step({"x": whole[:, at : at + 1].numpy(), **known})
            known = {name: found[name.replace("past", "cache")] for name in known}
        alone = decoder(whole[:, :1])
        for at in range(1, 6):
            alone = decoder(whole[:, at : at + 1], alone["cache"])
    assert np.allclose(found["y"], alone["y"], atol=1e-5)


def test_an_empty_cache_is_empty_in_every_run(decoder: Decoder, tmp_path: Path):
    empty = Cache()
    result = nd.export(decoder, torch.randn(2, 5, 8), tmp_path / "net.onnx", kwargs={"past": empty}, verify="quick")
    assert result.verdict.passed
    assert empty.layers[0].keys is None
    assert [value.name for value in onnx.load(str(tmp_path / "net.onnx")).graph.input] == ["x"]


def test_what_an_object_keeps_for_itself_is_neither_input_nor_output():
    layer = Layer()
    layer.update(torch.ones(1, 2, 3), torch.zeros(1, 2, 3))
    assert [path for path, _ in held_tensors(layer)] == [("keys",), ("values",)]
    assert [path for path, _ in held_tensors(layer, private=True)] == [("keys",), ("values",), ("_limit",)]
    assert flatten_outputs(layer).names == ["keys", "values"]


def test_a_renewed_object_holds_the_other_tensors_and_none_of_the_first_ones_state():
    cache = Cache()
    for layer in cache.layers:
        layer.update(torch.ones(1, 2, 3), torch.zeros(1, 2, 3))
    shared = cache.layers[0].keys
    cache.layers[1].keys = shared  # one tensor in two places stays one
    other = renewed(cache, {id(shared): torch.full((1, 2, 3), 7.0)})
    assert other.owner is other
    assert other.layers[0].keys is other.layers[1].keys
    assert float(other.layers[0].keys[0, 0, 0]) == 7
    assert other.layers[0]._limit is cache.layers[0]._limit
    other.layers[0].length = 9
    assert cache.layers[0].length == 1


def test_one_tensor_in_two_places_is_one_input(decoder: Decoder):
    cache = Cache()
    for layer in cache.layers:
        layer.update(torch.ones(1, 2, 8), torch.zeros(1, 2, 8))
    cache.layers[1].keys = cache.layers[0].keys
    found = flatten_arguments(decoder, (torch.zeros(1, 1, 8), cache), {})
    assert found.names == ["x", "past_layers_0_keys", "past_layers_0_values", "past_layers_1_values"]
    assert found.paths[1] == ("past", "layers", 0, "keys")


def test_an_object_that_cannot_be_copied_is_told(decoder: Decoder, tmp_path: Path):
    past = Cache()
    past.lock = threading.Lock()  # type: ignore[attr-defined] # what a user's class may hold
    with pytest.raises(InputError, match="a Cache, which cannot be copied"):
        nd.export(decoder, torch.randn(2, 5, 8), tmp_path / "net.onnx", kwargs={"past": past})


def test_a_result_without_tensors_is_told():
    with pytest.raises(ModelError, match="a Cache at cache"):
        flatten_outputs({"y": torch.zeros(1), "cache": Cache()})
