"""Every key of a recipe decides something: changed, something that can be seen changes."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import load_file

from normdeploy import writing
from normdeploy.building import build_files, measure_step
from normdeploy.building import recipe_build as builder
from normdeploy.building.recipe_model import load_trained
from normdeploy.errors import UsageError, WeightsError
from normdeploy.parsing.recipe import Recipe, parse_recipe
from normdeploy.parsing.sources import build as build_model
from normdeploy.train.from_recipe import train

SCHEMA = Path(__file__).parents[2] / "docs" / "recipe.schema.json"
MODEL = """
import torch
from torch import nn
from normdeploy.train import Split, Splits


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 3)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


class Wide(Net):
    def __init__(self, width=4):
        super().__init__(width + 1)


def data(shift=0.0):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) + shift
    y = x[:, :3].argmax(1)
    return Splits(Split(x[:40], y[:40]), Split(x[40:50], y[40:50]), Split(x[50:], y[50:]))


def other_data(shift=0.0):
    return data(shift + 1)
"""
RECIPE = """
[model]
source = "net.py:Net"
weights = "net.safetensors"
[data]
source = "net.py:data"
[train]
epochs = 3
batch_size = 16
warmup = 0.0
[export]
inputs = ["x=float32:batchx4"]
[verify]
level = "quick"
[tune]
budget = "exact"
"""
WEIGHTS: dict[str, Any] = {
    "model.source": "net.py:Wide",
    "model.arguments": {"width": 6},
    "data.source": "net.py:other_data",
    "data.arguments": {"shift": 0.5},
    "train.epochs": 2,
    "train.batch_size": 8,
    "train.lr": 1e-2,
    "train.weight_decay": 5.0,
    "train.warmup": 0.5,
    "train.clip": 0.05,
    "train.label_smoothing": 0.3,
    "train.precision": "bfloat16",
    "train.recalibrate": True,
    "train.seed": 1,
}


def recipe(folder: Path, **changed: Any) -> Recipe:
    data = tomllib.loads(RECIPE)
    for name, value in changed.items():
        table, key = name.split(".")
        data.setdefault(table, {})[key] = value
    (folder / "net.py").write_text(MODEL)
    return parse_recipe(data, folder / "net.toml")


def trained(folder: Path, **changed: Any) -> dict[str, torch.Tensor]:
    one = recipe(folder, **changed)
    train(one, device="cpu", show=False)
    return load_file(one.weights_path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return trained(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("key", WEIGHTS)
def test_it_changes_the_weights(key: str, plain: dict[str, torch.Tensor], tmp_path: Path) -> None:
    other = trained(tmp_path, **{key: WEIGHTS[key]})
    assert any(other[name].shape != plain[name].shape or not torch.equal(other[name], plain[name]) for name in plain)


def test_weights_go_where_they_are_told(tmp_path: Path) -> None:
    trained(tmp_path, **{"model.weights": "elsewhere.safetensors"})
    assert (tmp_path / "elsewhere.safetensors").is_file()
    assert not (tmp_path / "net.safetensors").exists()


OWN = {"model.weights_key": "model_ema", "model.allow_missing": ["last"], "model.unsafe_pickle": True}


@pytest.mark.parametrize("key", OWN)
def test_it_changes_which_weights_are_loaded(key: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    one = recipe(tmp_path, **{"model.weights": "own.pt"})
    state = build_model("net.py:Net", folder=tmp_path).state_dict()
    other = {name: value + 1 for name, value in state.items()}
    content: dict[str, Any] = {"model": state, "model_ema": other}
    if key == "model.allow_missing":
        content = {name: value for name, value in state.items() if not name.startswith("last.")}
    elif key == "model.unsafe_pickle":
        content["from"] = Path("x")
    torch.save(content, tmp_path / "own.pt")
    if key == "model.weights_key":
        assert torch.equal(load_trained(one).first.bias, state["first.bias"])
    else:
        with pytest.raises(WeightsError, match=key.partition(".")[2].replace("_", "[-_]")):
            load_trained(one)
    loaded = load_trained(recipe(tmp_path, **{"model.weights": "own.pt", key: OWN[key]}))
    wanted = other if key == "model.weights_key" else state
    assert torch.equal(loaded.first.bias, wanted["first.bias"])


def test_patience_ends_a_training(tmp_path: Path) -> None:
    erratic = {"train.epochs": 12, "train.lr": 0.5}  # its validation loss rises and falls
    patient = train(recipe(tmp_path, **erratic, **{"train.patience": 1}), device="cpu", show=False)
    whole = train(recipe(tmp_path, **erratic), device="cpu", show=False)
    assert len(patient.history.epochs) < len(whole.history.epochs) == 12


class _Plan:
    def to_json(self) -> str:
        return "{}"

    def summary(self) -> str:
        return "tuned"


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Build a recipe; return its report, the graph, the certificate, and what the tuner was asked."""
    asked: dict[str, Any] = {}

    def tuned(path: Path, **options: Any) -> _Plan:
        asked["tune"] = options
        return _Plan()

    monkeypatch.setattr(measure_step, "run_tuner", tuned)
    monkeypatch.setattr(build_files, "render_page", lambda _: "page")
    monkeypatch.setattr(build_files, "build_page", lambda report: report)
    monkeypatch.setattr(builder, "print_build", lambda _: None)

    def run(*, force: bool = True, **changed: Any) -> dict[str, Any]:
        asked.clear()
        one = recipe(tmp_path, **{"bench.repeats": 3, "train.epochs": 1, **changed})
        builder.build(one, device="cpu", force=force)
        read = {name: json.loads((tmp_path / f"net.{name}.json").read_text()) for name in ("report", "certificate")}
        return {**asked, **read, "graph": onnx.load(tmp_path / "net.onnx")}

    return run


# a key's value, what shows it in a build, and what is seen there then: all but the first two are the value itself
BUILT: dict[str, tuple[Any, Callable[[dict[str, Any]], Any], Any]] = {
    "export.inputs": (["rows=float32:ax4"], lambda found: found["graph"].graph.input[0].name, "rows"),
    "export.outputs": (["scores"], lambda found: found["graph"].graph.output[0].name, "scores"),
    "export.opset": (19, lambda found: found["graph"].opset_import[0].version, 19),
    "verify.level": ("default", lambda found: found["report"]["verdict"]["level"], "default"),
    "verify.seed": (7, lambda found: found["report"]["verdict"]["environment"]["seed"], 7),
    "bench.batch_size": (5, lambda found: found["report"]["latency"]["batch_size"], 5),
    "bench.repeats": (4, lambda found: found["report"]["latency"]["contenders"][0]["rounds"], 4),
    "bench.threads": (2, lambda found: found["report"]["latency"]["threads"], 2),
    "tune.budget": ("rel=1%", lambda found: found["tune"]["budget"], "rel=1%"),
}


def test_it_changes_what_is_built(built: Callable[..., dict[str, Any]]) -> None:
    before = {key: seen(found) for found in [built()] for key, (_, seen, _) in BUILT.items()}
    found = built(**{key: value for key, (value, _, _) in BUILT.items()})
    for key, (_, seen, expected) in BUILT.items():
        assert before[key] != expected == seen(found), key


QUANTIZED: dict[str, tuple[Any, Callable[[dict[str, Any]], Any]]] = {
    "quantize.epochs": (3, lambda found: found["sha256"]),
    "quantize.lr": (0.05, lambda found: found["sha256"]),
    "quantize.calibration": (2, lambda found: found["rows"][1]["error"]),
}


@pytest.mark.filterwarnings("ignore:.*(is|are) deprecated.*")
def test_it_changes_what_is_quantized(built: Callable[..., dict[str, Any]]) -> None:
    before = built(**{"quantize.epochs": 1})["report"]["quantized"]
    assert before["status"] == "pass"
    for key, (value, seen) in QUANTIZED.items():
        # its float file stays, and is not exported and measured again
        found = built(force=False, **{"quantize.epochs": 1, key: value})["report"]["quantized"]
        assert seen(before) != seen(found), key


@pytest.mark.parametrize(("key", "value"), [("fold", False), ("approximate", True), ("integer", True)])
def test_rewrites_are_asked_for_or_not(key: str, value: bool, built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def watched(*_: Any, **options: Any) -> Any:
        given.append(options[key])
        raise InterruptedError("seen")

    monkeypatch.setattr(writing, "export_traced", watched)
    for changed in ({}, {f"export.{key}": value}):
        with pytest.raises(InterruptedError, match="seen"):
            built(**changed)
    assert given == [not value, value]


def test_no_key_is_left_out() -> None:
    tables = json.loads(SCHEMA.read_text(encoding="utf-8"))["properties"]
    keys = {f"{name}.{key}" for name, table in tables.items() for key in table["properties"]}
    weights = {"model.weights", *OWN}
    # each of them decides what tests/train/test_data_files.py reads
    files = {"files", "test", "target", "columns", "size", "grey", "standardize", "workers", "seed"}
    weights |= {f"data.{key}" for key in files} | {"export.preprocess"}
    assert keys == WEIGHTS.keys() | BUILT.keys() | QUANTIZED.keys() | weights | {
        "train.patience",
        "export.fold",
        "export.approximate",
        "export.integer",
    }


def test_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"verify\.seeds is unknown.*did you mean 'seed'"):
        recipe(tmp_path, **{"verify.seeds": 1})
