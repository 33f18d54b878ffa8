"""``normdeploy build``: every stage once, then nothing that is up to date; what changes is done again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
import torch
from typer.testing import CliRunner, Result

from normdeploy.building import recipe_model
from normdeploy.cli.app import app
from normdeploy.parsing.recipe import load_recipe
from normdeploy.parsing.sources import build as build_model
from normdeploy.report import pictures
from normdeploy.train import provenance, read_metadata
from normdeploy.train.from_recipe import recipe_data

Run = Callable[..., Result]

MODEL = '''
import torch
from torch import nn
from normdeploy.train import Split, Splits


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


def data():
    """Which of three coordinates is the largest: learnt in a few epochs."""
    x = torch.randn(480, 4, generator=torch.Generator().manual_seed(0))
    y = x[:, :3].argmax(1)
    return Splits(Split(x[:320], y[:320]), Split(x[320:400], y[320:400]), Split(x[400:], y[400:]))
'''
RECIPE = """
[model]
source = "net.py:Net"
weights = "net.safetensors"
[data]
source = "net.py:data"
[train]
epochs = 30
lr = 0.01
[export]
inputs = ["x=float32:batchx4"]
outputs = ["scores"]
[verify]
level = "quick"
[bench]
batch_size = 4
repeats = 5
"""
OUTPUTS = ["net.onnx", "net.report.html", "net.report.json"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A recipe's folder after one build, and what that build said."""
    made = tmp_path_factory.mktemp("recipe")
    (made / "net.py").write_text(MODEL)
    (made / "net.toml").write_text(RECIPE)
    return made, CliRunner().invoke(app, ["build", str(made / "net.toml")])


@pytest.fixture(autouse=True)
def _no_pictures() -> Iterator[None]:
    """Only the first build draws its pictures, 0.2 s; a patch of its own, which no test's ``undo`` takes back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "svg", lambda _: "<svg></svg>")
        yield


@pytest.fixture
def folder(built: tuple[Path, Result], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of that folder: every test may do to it what it likes."""
    return shutil.copytree(built[0], tmp_path_factory.mktemp("copied") / "recipe")


def digests(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in [*OUTPUTS, "net.safetensors"]}


def test_a_recipe_is_trained_exported_proven_measured_and_reported(built: tuple[Path, Result], folder: Path) -> None:
    first = built[1]
    assert first.exit_code == 0, first.output
    for words in ("making net.safetensors", "trained: test accuracy", "folded", "into first", "eager torch", "PASS"):
        assert words in first.output
    assert "BatchNormalization" not in {node.op_type for node in onnx.load(folder / "net.onnx").graph.node}
    recipe = load_recipe(folder / "net.toml")
    recorded = provenance.from_header(read_metadata(folder / "net.safetensors"))
    assert recorded == provenance.of_recipe(recipe, recipe_data(recipe))
    report = json.loads((folder / "net.report.json").read_text())
    assert report["status"] == "pass"
    assert report["ledger"]["counts"] == {"folded": 1, "fused": 0, "merged": 0, "kept": 0}
    assert report["graph"]["traced"]["operators"]["BatchNormalization"] == 1
    assert [item["name"] for item in report["latency"]["contenders"]] == ["eager torch", "plain export", "normdeploy"]
    assert report["quality"]["count"] == 80
    assert report["quality"]["agreement"] == 1.0
    assert report["quality"]["eager"]["accuracy"] > 0.6


def test_a_network_is_traced_once(run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is inspected and for what is exported: half of a large network's build."""
    traced, made = [], recipe_model.trace

    def counted(*args: object, **options: object) -> object:
        traced.append(options["output_names"])
        return made(*args, **options)  # type: ignore[arg-type]  # as the real one is called

    for place in ("building.recipe_model.trace", "exporting.trace.trace"):  # the second for who loads it when needed
        monkeypatch.setattr(f"normdeploy.{place}", counted)
    monkeypatch.setattr("normdeploy.building.measure_step.latency_table", lambda *_: {"contenders": []})
    run("build", folder / "net.toml", "--out", tmp_path)
    assert traced == [["scores"]]


def test_what_is_up_to_date_is_left_alone(run: Run, folder: Path) -> None:
    before = digests(folder)
    marked = run("build", folder / "net.toml", "--markdown")
    assert marked.stdout.startswith("### net\n\n✅ **PASS**")
    assert marked.stderr.count("up to date") == 3
    again = run("build", folder / "net.toml")
    assert again.exit_code == 0, again.output
    assert again.output.count("up to date") == 3
    assert "PASS" in again.output
    assert digests(folder) == before


def test_other_measurements_are_measured_and_nothing_else_is_done_again(run: Run, folder: Path) -> None:
    before = digests(folder)
    (folder / "net.toml").write_text(RECIPE.replace("repeats = 5", "repeats = 6"))
    measured = run("build", folder / "net.toml")
    assert measured.output.count("up to date") == 2
    after = digests(folder)
    assert after["net.onnx"] == before["net.onnx"]
    assert after["net.report.json"] != before["net.report.json"]


def computed(path: Path) -> list[object]:
    """Weights and nodes of a file; its metadata hold timings and a name made of the source's folder."""
    graph = onnx.load(path).graph
    nodes = [(node.op_type, *node.input, "->", *node.output, *node.attribute) for node in graph.node]
    return [*nodes, *graph.initializer]


def test_a_file_that_changed_since_its_report_is_exported_again(run: Run, folder: Path) -> None:
    before = computed(folder / "net.onnx")
    with (folder / "net.onnx").open("ab") as stream:
        stream.write(b"\x5a\x00")  # an empty string field: still ONNX
    repaired = run("build", folder / "net.toml")
    assert repaired.exit_code == 0, repaired.output
    assert "changed since its report" in repaired.output
    assert computed(folder / "net.onnx") == before


def test_weights_of_other_settings_are_trained_again_and_all_after_them(run: Run, folder: Path) -> None:
    (folder / "net.toml").write_text(RECIPE.replace("epochs = 30", "epochs = 2"))
    retrained = run("build", folder / "net.toml")
    assert retrained.exit_code == 0, retrained.output
    assert "is stale: train.epochs is 2, was 30" in " ".join(retrained.output.split())
    assert "up to date" not in retrained.output


@pytest.mark.parametrize("name", ["net.onnx", "net.certificate.json", "net.derivation.json"])
def test_outputs_of_others_are_not_overwritten(name: str, run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    result = run("build", folder / "net.toml", "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert "exists" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"
    result = run("build", folder / "net.toml", "--out", tmp_path / "none" / "deeper")
    assert result.exit_code == 2
    assert "none" in result.stderr


def test_training_into_a_folder_leaves_the_recipes_weights_alone(run: Run, folder: Path, tmp_path: Path) -> None:
    shipped = (folder / "net.safetensors").read_bytes()
    made = run("build", folder / "net.toml", "--train", "--out", tmp_path / "out")
    assert made.exit_code == 0, made.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "net.certificate.json", "net.derivation.json", "net.onnx", "net.report.html", "net.report.json",
        "net.safetensors",
    ]  # fmt: skip
    assert (folder / "net.safetensors").read_bytes() == shipped
    again = run("build", folder / "net.toml", "--out", tmp_path / "out")
    assert again.exit_code == 0, again.output
    assert again.output.count("up to date") == 3


def test_a_failed_proof_leaves_a_report_and_no_file(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from normdeploy.graph import save_graph

    def damaged(model: object, path: Path, **options: object) -> Path:
        saved = save_graph(model, path, **options)  # type: ignore[arg-type]  # as the real one is called
        proto = onnx.load(saved)
        weight = next(tensor for tensor in proto.graph.initializer if list(tensor.dims) == [3, 8])
        array = onnx.numpy_helper.to_array(weight).copy()
        array[1, 2] *= 1.001
        weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
        onnx.save(proto, saved)
        return saved

    monkeypatch.setattr("normdeploy.graph.save_graph", damaged)
    result = run("build", folder / "net.toml", "--out", tmp_path)
    assert result.exit_code == 1, result.output
    assert "not proven equal" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.report.html", "net.report.json"]
    assert json.loads((tmp_path / "net.report.json").read_text())["status"] == "fail"
    assert "fail" in (tmp_path / "net.report.html").read_text()
    monkeypatch.undo()
    assert run("build", folder / "net.toml", "--out", tmp_path).exit_code == 0
    assert (tmp_path / "net.derivation.json").is_file()
    monkeypatch.setattr("normdeploy.graph.save_graph", damaged)
    assert run("build", folder / "net.toml", "--out", tmp_path, "--force").exit_code == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.report.html", "net.report.json"]


def test_a_build_stopped_while_measuring_goes_on_from_there(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("normdeploy.building.measure_step.latency_table", stopped)
    assert run("build", folder / "net.toml", "--out", tmp_path).exit_code != 0
    monkeypatch.undo()
    result = run("build", folder / "net.toml", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "net.onnx is up to date" in result.output.replace("\n", "")
    assert "normdeploy is" in result.output


@pytest.mark.filterwarnings("ignore:.*(is|are) deprecated.*")
def test_int8_is_made_once_again_where_it_is_gone_and_forgotten_where_it_is_not_asked_for(
    run: Run, folder: Path
) -> None:
    recipe = folder / "net.toml"
    plain = recipe.read_text()
    recipe.write_text(plain + "\n[quantize]\nepochs = 1\n")
    result = run("build", recipe)
    assert result.exit_code == 0, result.output
    report = json.loads((folder / "net.report.json").read_text())
    assert report["quantized"]["status"] == "pass"
    kinds = {node.op_type for node in onnx.load(folder / "net.qat.onnx").graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    assert "BatchNormalization" not in kinds
    assert "net.qat.onnx is up to date" in run("build", recipe).output.replace("\n", "")
    (folder / "net.qat.onnx").unlink()
    assert "net.qat.onnx (verdict: pass)" in run("build", recipe).output.replace("\n", "")
    recipe.write_text(plain)
    assert run("build", recipe).exit_code == 0
    assert "quantized" not in json.loads((folder / "net.report.json").read_text())


def test_without_data_weights_must_be_there(run: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "net.toml").write_text('[model]\nsource = "net.py:Net"\nweights = "none.safetensors"\n')
    result = run("build", tmp_path / "net.toml")
    assert result.exit_code == 2, result.output
    assert "none.safetensors" in result.stderr
    assert "[data]" in result.stderr


def test_train_alone_and_weights_of_another_model(run: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "net.toml").write_text(RECIPE.replace("epochs = 30", "epochs = 1"))
    trained = run("train", tmp_path / "net.toml", "--history")
    assert trained.exit_code == 0, trained.output
    assert (tmp_path / "net.history.json").is_file()
    other = RECIPE.replace("net.py:Net", "wide.py:Net").replace('[data]\nsource = "net.py:data"\n', "")
    (tmp_path / "wide.py").write_text(MODEL.replace("8", "9"))
    (tmp_path / "wide.toml").write_text(other)
    result = run("build", tmp_path / "wide.toml")
    assert result.exit_code == 4, result.output
    assert "first.weight" in result.stderr
    assert not (tmp_path / "wide.onnx").exists()


@pytest.mark.parametrize("name", ["net.pt", "net.pth"])
def test_a_recipe_trains_into_and_builds_from_a_file_of_torch(run: Run, tmp_path: Path, name: str) -> None:
    short = RECIPE.replace("epochs = 30", "epochs = 1").replace("net.safetensors", name)
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "net.toml").write_text(short)
    first = run("build", tmp_path / "net.toml")
    assert first.exit_code == 0, first.output
    held = torch.load(tmp_path / name, weights_only=True)
    assert {"first.weight", "norm.running_mean"} <= held["state_dict"].keys()
    again = run("build", tmp_path / "net.toml")
    assert again.output.count("up to date") == 3
    (tmp_path / "net.toml").write_text(short.replace("lr = 0.01", "lr = 0.02"))
    stale = run("build", tmp_path / "net.toml")
    assert "is stale: train.lr is 0.02, was 0.01" in " ".join(stale.output.split())


def own_weights(folder: Path, content: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A recipe with data beside somebody's own checkpoint, whose first bias is 7."""
    (folder / "net.py").write_text(MODEL)
    model = build_model(f"{folder}/net.py:Net")
    with torch.no_grad():
        model.first.bias.fill_(7)
    torch.save(content(model.state_dict()), folder / "own.pt")
    (folder / "net.toml").write_text(RECIPE.replace("net.safetensors", "own.pt"))
    return folder / "net.toml"


def test_weights_of_ones_own_are_used_and_never_replaced_unasked(run: Run, tmp_path: Path) -> None:
    recipe = own_weights(
        tmp_path, lambda state: {"model_ema": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}
    )
    before = (tmp_path / "own.pt").read_bytes()
    made = run("build", recipe)
    assert made.exit_code == 0, made.output
    said = " ".join(made.output.split())
    assert "own.pt was not trained by a recipe: used as it is (--train trains anew and replaces it)" in said
    assert "prefix 'module.' is taken off" in said
    assert (tmp_path / "own.pt").read_bytes() == before
    refused = run("train", recipe)
    assert refused.exit_code == 2, refused.output
    assert "--overwrite" in refused.stderr
    assert (tmp_path / "own.pt").read_bytes() == before
    assert run("train", recipe, "--overwrite").exit_code == 0
    assert (tmp_path / "own.pt").read_bytes() != before


def test_a_checkpoint_of_python_objects_needs_a_word_in_the_recipe(run: Run, tmp_path: Path) -> None:
    recipe = own_weights(tmp_path, lambda state: {"state_dict": state, "from": Path("x")})
    refused = run("build", recipe)
    assert refused.exit_code == 4, refused.output
    assert "unsafe_pickle = true under [model]" in " ".join(refused.stderr.split())
    assert list(tmp_path.glob("net.onnx*")) == []
    recipe.write_text(recipe.read_text().replace('weights = "own.pt"', 'weights = "own.pt"\nunsafe_pickle = true'))
    assert run("build", recipe).exit_code == 0


def test_a_name_that_weights_cannot_have_is_told_before_the_training(run: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "net.toml").write_text(RECIPE.replace("net.safetensors", "net.weights"))
    result = run("train", tmp_path / "net.toml")
    assert result.exit_code == 2, result.output
    assert "net.weights" in result.stderr
    assert ".safetensors, .pt, .pth" in " ".join(result.stderr.split())
