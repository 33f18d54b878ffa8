"""The documentation's code runs as it stands, and the site is built without a warning."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pages import ROOT, blocks, run_block
from typer.testing import CliRunner

from normdeploy.cli.app import app

DOCS = ROOT / "docs"
PAGES = [DOCS / "quickstart.md", DOCS / "training.md", *sorted((DOCS / "howto").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs_in_the_order_of_the_page(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    found = blocks(page)
    if not found:
        assert "```console" in page.read_text(encoding="utf-8")
        return
    monkeypatch.chdir(tmp_path)
    for kind, text in found:
        if kind == "sh":
            for line in text.strip().splitlines():
                words = shlex.split(line)
                assert words[0] == "normdeploy", line
                result = CliRunner().invoke(app, words[1:])
                assert result.exit_code == 0, (line, result.output)
        elif named := re.match(r"# file: (\S+)\n", text):
            (tmp_path / named[1]).write_text(text)
        elif "add_rule(" in text:  # what every export of this process would obey
            done = request.getfixturevalue("forked").run(text, folder=tmp_path)
            assert done.returncode == 0, done.stderr
        else:
            run_block(text, tmp_path, monkeypatch)


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r"^(?!:)([\w/-]+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
    generated, outside = {"rules"}, {path for path in pages if path.startswith("upstream/")}
    assert listed - generated == pages - outside - generated - {"index"}


@pytest.fixture(scope="module")
def catalogue() -> str:
    spec = importlib.util.spec_from_file_location("make_rule_catalogue", DOCS / "make_rule_catalogue.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.catalogue())


def test_the_catalogue_has_every_operator_that_a_rule_passes(catalogue: str) -> None:
    from normdeploy.rewrite.gauge.rules import RULES

    for _, name in RULES:
        assert re.search(rf"\b{name}\b", catalogue), name


def test_the_catalogue_has_every_pass_and_a_picture_of_each_in_which_something_changes(catalogue: str) -> None:
    from normdeploy.rewrite.pipeline import transform, understand
    from normdeploy.rewrite.rewrite_context import RewriteContext

    sections = dict(re.findall(r"^### ([^\n]+)\n(.*?)(?=^### |^## |\Z)", catalogue, re.DOTALL | re.MULTILINE))
    context = RewriteContext(integer=True)
    for step in (*understand(context), *transform(context)):
        place = type(step).__module__.removeprefix("normdeploy.rewrite.")
        # the merging rules stand in files of their own beside their pass; the pipeline's own only prepare
        assert place in (*sections, "branches.branches_pass", "pipeline") or place.startswith("onnx_ir."), place
    assert {"branches.merge", "branches.border", "branches.dead_bias"} <= sections.keys()
    for title, text in sections.items():
        (drawn,) = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        root = ElementTree.fromstring(drawn)
        _, _, width, _ = (float(number) for number in root.attrib["viewBox"].split())
        arrow = next(float(path.attrib["d"][1:].split()[0]) for path in root.iter() if path.get("stroke-width"))
        boxes: dict[bool, list[tuple[str, ...]]] = {False: [], True: []}
        texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
        for word in texts:
            boxes[float(word.attrib["x"]) > arrow].append((str(word.text), word.get("class", "")))
        assert boxes[False] != boxes[True], title
        assert all(0 <= float(box.attrib["x"]) <= width for box in root.iter("{http://www.w3.org/2000/svg}rect"))


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")),
    reason="the extra docs is not installed",
)
@pytest.mark.slow  # .ci/run builds it the same way
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        str(DOCS),
        str(tmp_path / "site"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in ("index.html", "quickstart.html", "howto/own-model.html", "rules.html", "api.html"):
        assert (tmp_path / "site" / page).stat().st_size > 2000
