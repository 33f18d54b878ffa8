"""Recipes: parsing, messages that name the key, and the published schema."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.errors import RecipeError
from normdeploy.parsing.recipe import load_recipe, parse_recipe, recipe_schema

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "export").glob("*.toml"))
PUBLISHED = json.loads((ROOT / "docs" / "recipe.schema.json").read_text(encoding="utf-8"))
MINIMAL: dict[str, Any] = {"model": {"source": "m.py:Net", "weights": "m.safetensors"}}


def changed(path: str, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(MINIMAL)
    *tables, key = path.split(".")
    place = data
    for table in tables:
        place = place.setdefault(table, {})
    place[key] = value
    return data


def schema_accepts(data: Any) -> bool:
    return not list(jsonschema.Draft202012Validator(PUBLISHED).iter_errors(data))


def test_published_schema_is_the_parsers() -> None:
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)
    assert recipe_schema() == PUBLISHED


def test_there_are_recipes() -> None:
    assert "digits_cnn.toml" in [path.name for path in RECIPES]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads_and_fits_the_schema(path: Path) -> None:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(PUBLISHED).validate(data)
    recipe = load_recipe(path)
    assert recipe.name == path.stem


def test_minimal_recipe_has_defaults() -> None:
    recipe = parse_recipe(MINIMAL, "folder/net.toml")
    assert (recipe.name, recipe.data, recipe.tune) == ("net", None, None)
    assert recipe.train.batch_size == 64
    assert recipe.weights_path == Path.cwd() / "folder" / "m.safetensors"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, ["[model]", "missing", "source, weights"]),
        ({"model": 3}, ["model", "table"]),
        ({"modle": {}}, ["[modle]", "did you mean 'model'"]),
        ({"model": {"source": "m.py:Net"}}, ["model.weights", "missing"]),
        (changed("model.source", 1), ["model.source", "1", "a string"]),
        (changed("train.epoch", 3), ["train.epoch", "unknown", "did you mean 'epochs'"]),
        (changed("train.epochs", 0), ["train.epochs", "at least 1"]),
        (changed("train.epochs", 2.5), ["train.epochs", "2.5", "an integer"]),
        (changed("train.epochs", True), ["train.epochs", "True"]),
        (changed("train.lr", 0), ["train.lr", "above 0"]),
        (changed("train.warmup", 1.0), ["train.warmup", "below 1"]),
        (changed("verify.level", "hard"), ["verify.level", "'thorough'"]),
        (changed("export.inputs", "x=float32:2"), ["export.inputs", "list of strings"]),
        (changed("export.fold", "yes"), ["export.fold", "true or false"]),
        (changed("model.arguments", [1]), ["model.arguments", "a table"]),
        (changed("tune.budget", 1), ["tune.budget", "a string"]),
        ({**MINIMAL, "tune": {}}, ["tune.budget", "missing"]),
    ],
)
def test_wrong_recipes_name_the_key_and_the_schema_refuses_them_too(data: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(data, "net.toml")
    assert all(word in str(caught.value) for word in ["net.toml", *words])
    assert caught.value.exit_code == 2
    assert not schema_accepts(data)


SCALARS = st.one_of(
    st.integers(-3, 200), st.floats(-2, 2, allow_nan=False), st.booleans(), st.text(max_size=5), st.just([])
)
KEYS = [(table, key) for table, kind in recipe_schema()["properties"].items() for key in kind["properties"]]


@settings(deadline=None, max_examples=200)
@given(place=st.sampled_from(KEYS), value=SCALARS)
def test_parser_and_schema_agree(place: tuple[str, str], value: Any) -> None:
    data = changed(".".join(place), value)
    try:
        parse_recipe(data, "net.toml")
    except RecipeError:
        accepted = False
    else:
        accepted = True
    # JSON Schema counts 3.0 as an integer; TOML and the parser keep 3 and 3.0 apart
    whole_float = isinstance(value, float) and value.is_integer()
    assert accepted == schema_accepts(data) or whole_float


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not exist"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("[model\n")
    with pytest.raises(RecipeError, match=r"no valid TOML.*line 1"):
        load_recipe(tmp_path / "broken.toml")
