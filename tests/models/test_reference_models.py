"""Every reference model is what its file says: trained by its recipe, small, accurate, and explained."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import torch

from normdeploy.nn.object_walk import unregistered_tensors
from normdeploy.nn.unregistered import full_state
from normdeploy.parsing.recipe import load_recipe
from normdeploy.parsing.sources import build
from normdeploy.train import load_weights, provenance, read_metadata, score
from normdeploy.train.from_recipe import recipe_data

ROOT = Path(__file__).parents[2]
# what each must reach on its test split; the autoencoder's is R^2, the transformer's is next characters guessed right
LEAST = {
    "autoencoder": 0.94,
    "char_transformer": 0.55,
    "cnn_view_norm": 0.98,
    "digits_binary": 0.95,
    "digits_cnn": 0.98,
    "digits_int4": 0.98,
    "digits_int8": 0.98,
    "lenet": 0.98,
    "mlp_plain_norm": 0.97,
    "mobilenet": 0.97,
    "preact_resnet": 0.98,
    "repvgg": 0.98,
    "resnet": 0.98,
    "tabular": 0.96,
    "vit": 0.97,
}
# tensors of hand-written normalizations that state_dict() loses
HIDDEN = {"lenet": 8, "mlp_plain_norm": 8}


def test_every_model_has_file_weights_and_recipe() -> None:
    files = {path.stem for path in (ROOT / "models").glob("*.py")}
    weights = {path.stem for path in (ROOT / "models").glob("*.safetensors")}
    recipes = {path.stem for path in (ROOT / "export").glob("*.toml")}
    assert files == weights == recipes == LEAST.keys()


@pytest.mark.parametrize("name", LEAST)
def test_trained_as_it_says(name: str) -> None:
    recipe = load_recipe(ROOT / "export" / f"{name}.toml")
    model = build(recipe.model.source, recipe.model.arguments, folder=recipe.folder)
    metadata = load_weights(model, recipe.weights_path)
    assert recipe.weights_path.stat().st_size < 1_000_000
    recorded = provenance.from_header(metadata)
    assert recorded is not None
    splits = recipe_data(recipe)
    stale = provenance.changes(recorded, provenance.of_recipe(recipe, splits))
    if name == "char_transformer":
        # its text is the standard library of the interpreter at hand, which differs from version to version
        stale = [phrase for phrase in stale if not phrase.startswith("data of")]
    assert not stale, f"stale: normdeploy train export/{name}.toml"
    assert float(metadata["seconds"]) > 0
    assert len(unregistered_tensors(model)) == HIDDEN.get(name, 0)
    assert all(torch.isfinite(tensor).all() for tensor in full_state(model).values())
    if name == "char_transformer":
        assert float(metadata["test_accuracy"]) >= LEAST[name]
        return
    reached = score(model, splits.test, splits.task)
    assert reached.accuracy >= LEAST[name]
    assert reached.accuracy == pytest.approx(float(metadata["test_accuracy"]), abs=1e-4)


@pytest.mark.parametrize("name", LEAST)
def test_the_docstring_says_what_it_shows(name: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / "models" / f"{name}.py").read_text(encoding="utf-8")))
    assert text is not None
    assert "\nShows: " in text
    assert "Data: " in text
    assert f"{name}.safetensors" in text


def test_metadata_names_settings_and_versions() -> None:
    metadata = read_metadata(ROOT / "models" / "digits_cnn.safetensors")
    assert metadata["model"] == "DigitsCNN"
    assert json.loads(metadata["settings"])["seed"] == 0
    assert metadata["torch"]


def test_the_text_is_cut_into_next_characters() -> None:
    recipe = load_recipe(ROOT / "export" / "char_transformer.toml")
    splits = recipe_data(recipe)
    for split in (splits.train, splits.valid, splits.test):
        assert split.inputs.shape[1] == 64
        torch.testing.assert_close(split.inputs[:, 1:], split.targets[:, :-1])
        torch.testing.assert_close(split.inputs[1:, 0], split.targets[:-1, -1])
