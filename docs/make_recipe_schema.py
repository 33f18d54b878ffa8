"""Write docs/recipe.schema.json from the dataclasses in normdeploy/recipe.py."""

import json
from pathlib import Path

from normdeploy.recipe import recipe_schema

Path(__file__).with_name("recipe.schema.json").write_text(
    json.dumps(recipe_schema(), indent=2) + "\n", encoding="utf-8"
)
