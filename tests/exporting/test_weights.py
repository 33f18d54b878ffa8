"""Weights files: whole into the model, or a message that names what does not fit."""

import pickle
import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from normdeploy.conformance import by_hand
from normdeploy.errors import WeightsError
from normdeploy.exporting.module.load_weights import load_weights
from normdeploy.nn.unregistered import full_state, load_full_state
from normdeploy.nn.weight_files import read_weights


def network():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.extra = [by_hand.B1(4)]
    return model


def trained():
    model = network()
    with torch.no_grad():
        for tensor in full_state(model).values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand(tensor.shape) + 1)
    model.extra[0].seen_mean = model.extra[0].seen_mean[None]  # grew a dimension, as it does in training
    return model


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_hidden_tensors_are_loaded_with_the_others(tmp_path, suffix):
    source, target = trained(), network()
    state = {key: value.contiguous() for key, value in full_state(source).items()}
    path = tmp_path / f"net{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save({"state_dict": state}, path)
    assert load_weights(target, path) == []
    loaded = full_state(target)
    assert all(torch.equal(loaded[key], state[key]) for key in state)


def test_a_plain_state_dict_loads_and_what_it_misses_is_returned():
    source, target = trained(), network()
    prefixed = {f"module.{key}": value for key, value in source.state_dict().items()}
    missed = load_weights(target, prefixed)
    assert set(missed) == {f"extra.0.{name}" for name in ("gain", "shift", "seen_mean", "seen_var")}
    assert torch.equal(target[0].weight, source[0].weight)


def test_missing_unexpected_and_misshapen_keys_are_named_and_nothing_is_loaded():
    source, target = trained(), network()
    state = dict(source.state_dict())
    del state["1.running_var"]
    state["head.weight"] = torch.zeros(1)
    state["0.bias"] = torch.zeros(7)
    before = {key: value.clone() for key, value in target.state_dict().items()}
    with pytest.raises(WeightsError) as error:
        load_weights(target, state)
    for part in ("missing [1.running_var]", "unexpected [head.weight]", "0.bias [7] instead of [4]"):
        assert part in str(error.value)
    assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())


def test_files_that_hold_no_weights_are_refused(tmp_path):
    with pytest.raises(WeightsError, match="does not exist"):
        read_weights(tmp_path / "none.pt")
    damaged = tmp_path / "net.safetensors"
    damaged.write_bytes(b"not a file")
    with pytest.raises(WeightsError, match="cannot be read"):
        read_weights(damaged)
    whole = tmp_path / "model.pt"
    torch.save(nn.Linear(2, 2), whole)  # a pickled module would run code when read
    with pytest.raises(WeightsError, match="state_dict"):
        read_weights(whole)
    number = tmp_path / "number.pt"
    torch.save(3, number)
    with pytest.raises(WeightsError, match="holds a int"):
        read_weights(number)


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("weight", torch.ones(2, 3, dtype=torch.int32), "int32 for float32"),
        ("weight", torch.ones(2, 3, dtype=torch.bool), "bool for float32"),
        ("weight", torch.ones(2, 3, dtype=torch.uint8), "uint8 for float32"),
        ("weight", torch.ones(2, 3, dtype=torch.complex64), "complex64 for float32"),
        ("weight", torch.ones(2, 3).to_sparse(), "sparse_coo"),
        ("count", torch.tensor(1.5), "float32 for int32"),
        ("count", torch.tensor(2**40), "does not hold"),
        ("flag", torch.tensor(2), "int64 for bool"),
        ("phase", torch.ones(2), "float32 for complex64"),
    ],
)
def test_numbers_of_another_kind_are_refused_and_change_nothing(key: str, value: torch.Tensor, word: str) -> None:
    class Net(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.register_buffer("count", torch.tensor(7, dtype=torch.int32))
            self.register_buffer("flag", torch.tensor(True))
            self.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))

    model = Net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    given = {name: tensor.clone() for name, tensor in Net().state_dict().items()} | {key: value}
    for load in (load_weights, load_full_state):
        with pytest.raises(WeightsError, match=word):
            load(model, given)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_another_width_of_the_same_kind_is_taken() -> None:
    model = nn.BatchNorm1d(3)
    given = {name: tensor.half() if tensor.is_floating_point() else tensor.int()
             for name, tensor in nn.BatchNorm1d(3).state_dict().items()}  # fmt: skip
    load_weights(model, given)
    assert model.weight.dtype == torch.float32


def wrapped(prefix, **more):
    return {f"{prefix}{key}": value for key, value in trained().state_dict().items()} | more


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "model._orig_mod.", "net."])
def test_prefixes_of_wrappers_are_taken_off_and_said(prefix):
    target, notes = network(), []
    load_weights(target, wrapped(prefix), notes=notes)
    assert torch.equal(target[0].weight, trained()[0].weight)
    assert notes == [f"the prefix {prefix!r} is taken off its keys"]


def test_a_models_own_prefix_stays():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(2, 2)

    state, notes = Own().state_dict(), []
    target = Own()
    load_weights(target, state, notes=notes)
    assert torch.equal(target.model.weight, state["model.weight"])
    assert notes == []


def test_what_the_wrapper_holds_besides_is_left_out_aloud():
    target, notes = network(), []
    load_weights(target, wrapped("model.", **{"loss.weight": torch.ones(3)}), notes=notes)
    assert torch.equal(target[0].weight, trained()[0].weight)
    assert any("loss.weight" in note for note in notes)


def test_a_checkpoint_with_several_models(tmp_path):
    path, average = tmp_path / "last.pt", {key: value + 1 for key, value in trained().state_dict().items()}
    torch.save({"model": trained().state_dict(), "model_ema": average, "epoch": 3, "optimizer": {"lr": 1}}, path)
    target, notes = network(), []
    load_weights(target, read_weights(path, notes=notes))
    assert torch.equal(target[0].weight, trained()[0].weight)
    (note,) = notes
    assert "'model', 'model_ema'" in note
    assert "'model' is loaded" in note
    load_weights(target, read_weights(path, key="model_ema"))
    assert torch.equal(target[0].weight, average["0.weight"])
    with pytest.raises(WeightsError, match=r"nothing under 'ema'.*model_ema"):
        read_weights(path, key="ema")


def test_a_new_head_may_be_missing():
    state = trained().state_dict()
    del state["0.bias"]
    state["0.weight"] = torch.zeros(7, 3)  # trained for seven classes
    target, notes = network(), []
    before = target[0].weight.clone()
    with pytest.raises(WeightsError, match="allow-missing"):
        load_weights(target, state)
    load_weights(target, state, allow_missing=["0"], notes=notes)
    assert torch.equal(target[0].weight, before)
    assert torch.equal(target[1].weight, state["1.weight"])
    assert notes == ["not loaded, as allowed: [0.weight, 0.bias]"]
    with pytest.raises(WeightsError, match="missing"):
        load_weights(target, {"1.weight": state["1.weight"]}, allow_missing=["0"])


def test_a_pickle_that_torch_did_not_write_is_refused_in_our_words_alone(tmp_path):
    path = tmp_path / "own.pt"
    path.write_bytes(pickle.dumps({"a": network()}, protocol=4))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(WeightsError, match="holds Python objects"):
            read_weights(path)
    assert not said
