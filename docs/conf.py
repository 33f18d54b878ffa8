"""The documentation as a site: ``sphinx-build -W docs build/docs`` (extra: docs)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import make_rule_catalogue

import normdeploy

project = "normdeploy"
copyright = "the normdeploy authors"  # noqa: A001 - Sphinx's name
release = normdeploy.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "norms", "upstream"]
html_theme = "furo"
html_title = "normdeploy"
html_extra_path = ["recipe.schema.json", "verdict.schema.json"]
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_rtype = False
suppress_warnings = [
    "ref.python",  # a name that several modules re-export is found several times
]

make_rule_catalogue.write(Path(__file__).with_name("rules.md"))
