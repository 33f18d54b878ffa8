"""Weights as other programs leave them: in several files, under names of wrappers, or in files that hold none."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from normdeploy.errors import WeightsError
from normdeploy.exporting.module.load_weights import load_weights
from normdeploy.nn.weight_files import read_metadata, read_weights
from normdeploy.nn.weight_shards import weights_sha256


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
        self.head = nn.Linear(3, 2)


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {
            name: torch.rand(value.shape) if value.is_floating_point() else torch.tensor(5)
            for name, value in Net().state_dict().items()
        }


def holds(model: nn.Module, expected: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def written_in_parts(folder: Path, suffix: str = ".safetensors") -> Path:
    names = list(state())
    parts = {f"net-0000{k}-of-00002{suffix}": names[k - 1 :: 2] for k in (1, 2)}
    for file, held in parts.items():
        tensors = {name: state()[name] for name in held}
        save_file(tensors, folder / file) if suffix == ".safetensors" else torch.save(tensors, folder / file)
    index = folder / f"net{suffix}.index.json"
    places = {name: file for file, held in parts.items() for name in held}
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return index


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_weights_in_several_files(suffix: str, tmp_path: Path) -> None:
    index, target = written_in_parts(tmp_path, suffix), Net()
    load_weights(target, index)
    assert holds(target, state())
    assert read_metadata(index) == {}


def test_the_digest_of_an_index_is_of_all_its_files(tmp_path: Path) -> None:
    index = written_in_parts(tmp_path)
    before = weights_sha256(index)
    held = {name: tensor + 1 for name, tensor in read_weights(tmp_path / "net-00002-of-00002.safetensors").items()}
    save_file(held, tmp_path / "net-00002-of-00002.safetensors")
    after = weights_sha256(index)
    assert len(before) == len(after) == 3
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, True, False]


def test_one_file_of_several_says_so(tmp_path: Path) -> None:
    written_in_parts(tmp_path)
    with pytest.raises(WeightsError, match=r"part 1 of 2: give the file that ends in \.index\.json"):
        load_weights(Net(), tmp_path / "net-00001-of-00002.safetensors")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "cannot be read"),
        ('{"weight_map": []}', "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"weight_map": {"a": 3}}', "a file of weights beside it"),
        ('{"weight_map": {"a": "net.safetensors.index.json"}}', "a file of weights beside it"),
        ('{"weight_map": {"a": "../other.safetensors"}}', "a file of weights beside it"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "a file of weights beside it"),
        ('{"weight_map": {"a": "absent.safetensors"}}', "names absent.safetensors, which is not beside it"),
        ('{"weight_map": {"a": ".."}}', "not beside it"),
    ],
)
def test_a_damaged_index(text: str, said: str, tmp_path: Path) -> None:
    index = tmp_path / "net.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(WeightsError, match=said):
        read_weights(index)


def test_an_index_that_does_not_fit_its_files(tmp_path: Path) -> None:
    index = written_in_parts(tmp_path)
    save_file({"other": torch.ones(1)}, tmp_path / "net-00001-of-00002.safetensors")
    with pytest.raises(WeightsError, match=r"does not hold 'body\.0\.weight', and the index beside it says so"):
        read_weights(index)


def test_safetensors_under_another_name(tmp_path: Path) -> None:
    save_file(state(), tmp_path / "net.bin", {"epoch": "3"})
    assert read_weights(tmp_path / "net.bin").keys() == state().keys()
    assert read_metadata(tmp_path / "net.bin") == {"epoch": "3"}


@pytest.mark.parametrize(
    ("rename", "said"),
    [
        (lambda name: f"encoder.{name}", "the prefix 'encoder.' is taken off"),
        (lambda name: f"_forward_module.module.{name}", "the prefix '_forward_module.module.' is taken off"),
        (
            lambda name: name.replace("body.", "body._orig_mod."),
            "wrappers around its modules are taken out: [_orig_mod]",
        ),
        (
            lambda name: f"module.{name.replace('head.', 'head._fsdp_wrapped_module.')}",
            "wrappers around its modules are taken out: [_fsdp_wrapped_module]",
        ),
    ],
)
def test_names_that_wrappers_leave(rename, said: str) -> None:
    target, notes = Net(), []
    load_weights(target, {rename(name): value for name, value in state().items()}, notes=notes)
    assert holds(target, state())
    assert any(said in note for note in notes)


def test_two_prefixes_that_fit_are_not_chosen_between(tmp_path: Path) -> None:
    query = {f"encoder_q.{name}": value for name, value in state(0).items()}
    key = {f"encoder_k.{name}": value for name, value in state(1).items()}
    path = tmp_path / "moco.safetensors"
    save_file(query | key, path)
    with pytest.raises(WeightsError, match=r"\[encoder_k, encoder_q\]; expected one: choose it by --weights-key"):
        load_weights(Net(), path)
    target = Net()
    load_weights(target, read_weights(path, key="encoder_k"))
    assert holds(target, state(1))
    torch.save({"state_dict": query | key}, tmp_path / "moco.pt")
    load_weights(target := Net(), read_weights(tmp_path / "moco.pt", key="encoder_q"))
    assert holds(target, state(0))
    with pytest.raises(WeightsError, match=r"nothing under 'decoder'.*state_dict, encoder_q, encoder_k"):
        read_weights(tmp_path / "moco.pt", key="decoder")
    with pytest.raises(WeightsError, match=r"nothing under 'decoder'.*encoder_k, encoder_q|encoder_q, encoder_k"):
        read_weights(path, key="decoder")


def test_a_name_of_the_authors_own(tmp_path: Path) -> None:
    path, target, notes = tmp_path / "last.pt", Net(), []
    torch.save({"my_best": state(), "optimizer": {"state": {}, "param_groups": []}, "epoch": 3}, path)
    load_weights(target, read_weights(path, notes=notes))
    assert holds(target, state())
    assert notes == ["what it holds under 'my_best' is loaded"]
    torch.save({"generator": state(), "critic": state(1)}, path)
    with pytest.raises(
        WeightsError, match="'generator', 'critic'; expected one state dict: choose it by --weights-key"
    ):
        read_weights(path)
    torch.save(state() | {"epoch": 3}, path)
    with pytest.raises(WeightsError, match="whose 'epoch' is a int, not tensors by name"):
        read_weights(path)


def test_a_file_that_holds_itself_or_numbers_for_names(tmp_path: Path) -> None:
    path, circle = tmp_path / "last.pt", {"epoch": 3}
    circle["model"] = circle  # type: ignore[assignment]
    torch.save(circle, path)
    with pytest.raises(WeightsError, match="whose 'epoch' is a int, not tensors by name"):
        read_weights(path)
    torch.save({0: torch.ones(2)}, path)
    with pytest.raises(WeightsError, match="expected no key, and 'ema' was asked for"):
        read_weights(path, key="ema")


@pytest.mark.parametrize("counter", [None, torch.tensor(5.0)])
def test_counters_of_batches_may_be_missing_or_converted(counter: torch.Tensor | None) -> None:
    given, target, notes = state(), Net(), []
    del given["body.1.num_batches_tracked"]
    if counter is not None:
        given["body.1.num_batches_tracked"] = counter
    load_weights(target, given, notes=notes)
    assert holds(target, state() | {"body.1.num_batches_tracked": torch.tensor(0)})
    assert notes == ["counters of batches stay as they are, evaluation does not use them: [body.1.num_batches_tracked]"]


def test_a_counter_of_somebodys_own_module_is_a_tensor_like_others() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("num_batches_tracked", torch.tensor(0))

    with pytest.raises(WeightsError, match=r"missing \[num_batches_tracked\]"):
        load_weights(Own(), {"weight": torch.zeros(2)})


def test_hooks_of_modules_rename_what_they_load() -> None:
    model, old = Net(), state()
    nn.utils.parametrizations.weight_norm(model.head)
    length, direction = torch.rand(2, 1), torch.rand(2, 3)
    old = {name: value for name, value in old.items() if name != "head.weight"}
    load_weights(model, old | {"head.weight_g": length, "head.weight_v": direction})  # as older torch calls them
    expected = direction * (length / direction.norm(dim=1, keepdim=True))
    assert torch.allclose(model.head.weight, expected, rtol=1e-6)
    with pytest.raises(WeightsError, match=r"missing \[.*original0"):
        load_weights(model, old | {"head.weight_g": length})


@pytest.mark.parametrize(
    "names", [("weight_g", "weight_v"), tuple(f"parametrizations.weight.original{k}" for k in "01")]
)
def test_a_weight_normalized_file_for_a_model_without(names: tuple[str, str]) -> None:
    given = state()
    del given["head.weight"]
    given |= {f"head.{name}": torch.ones(2, 3) for name in names}
    with pytest.raises(WeightsError, match=r"weight_norm: call torch\.nn\.utils\.parametrizations\.weight_norm"):
        load_weights(Net(), given)


def test_files_that_are_something_else(tmp_path: Path) -> None:
    net = nn.Linear(2, 2).eval()
    path = tmp_path / "net.pt"
    kinds = {
        "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "a web page": b"<!DOCTYPE html><html></html>",
        "is empty": b"",
    }
    for said, content in kinds.items():
        for name in ("net.pt", "net.safetensors"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(WeightsError, match=said):
                read_weights(tmp_path / name)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weight.npy", b"")
    with pytest.raises(WeightsError, match="an archive of NumPy arrays"):
        read_weights(path)
    torch.export.save(torch.export.export(net, (torch.zeros(1, 2),)), path.with_suffix(".pt2"))
    with pytest.raises(WeightsError, match="an exported program"):
        read_weights(path.with_suffix(".pt2"))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_torchscript_archive(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.jit.script(nn.Linear(2, 2)).save(str(path))
    with pytest.raises(WeightsError, match=r"a TorchScript archive.*torch\.jit\.load\(FILE\)\.state_dict\(\)"):
        read_weights(path)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="is a folder; expected a file of trained weights: give one that lies in it"):
        read_weights(tmp_path)
    save_file(state(), tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"give .*model\.safetensors"):
        read_weights(tmp_path)
    (tmp_path / ".metadata").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"a distributed checkpoint.*dcp_to_torch"):
        read_weights(tmp_path)
