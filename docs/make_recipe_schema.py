"""Write docs/recipe.schema.json from the dataclasses in normdeploy/parsing/recipe.py."""

import json
from pathlib import Path

from normdeploy.parsing.recipe import recipe_schema

Path(__file__).with_name("recipe.schema.json").write_text(
    json.dumps(recipe_schema(), indent=2) + "\n", encoding="utf-8"
)
