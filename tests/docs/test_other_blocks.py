"""Blocks of code that no other test of the documentation runs: each runs here, or says where it does or why it cannot.

`test_pages` runs the quick start, training and the how-tos, `test_consoles` the lines of ``console`` of the how-tos and
of README. Here are all other pages, and every command line that a page prints is read by the command's own parser.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import typer
from forked_python import ForkedPython
from pages import ROOT, run_block
from typer.testing import CliRunner

from normdeploy.cli.app import app
from normdeploy.parsing.recipe import parse_recipe
from normdeploy.rewrite.rules_of_others import GROUP

DOCS = ROOT / "docs"
WRITTEN = sorted(page for page in DOCS.rglob("*.md") if page != DOCS / "rules.md")  # that one is made with the site
ALL = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *WRITTEN]
_FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
CODE = {"python", "py", "sh", "bash", "console", "toml"}
SHOWN = {"text", "{toctree}", "{eval-rst}"}  # what a command printed, a synopsis, and what Sphinx reads

# (page or folder, language of the block) -> the file that runs every one of them, in the order of the page
RUN = {
    ("README.md", "console"): "tests/docs/test_consoles.py",
    ("README.md", "sh"): ".ci/run",
    ("docs/quickstart.md", "python"): "tests/docs/test_pages.py",
    ("docs/quickstart.md", "sh"): "tests/docs/test_pages.py",
    ("docs/training.md", "python"): "tests/docs/test_pages.py",
    ("docs/howto", "python"): "tests/docs/test_pages.py",
    ("docs/howto", "sh"): "tests/docs/test_pages.py",
    ("docs/howto", "console"): "tests/docs/test_consoles.py",
    ("docs/upstream", "python"): "tests/docs/test_upstream.py",
    ("docs/upstream", "py"): "tests/docs/test_upstream.py",
}
# (page, how the block begins) -> the test that runs it, or why none can; what runs in this file is found by its name
ELSEWHERE = {
    ("CONTRIBUTING.md", "python3 -m venv"): "sets up a machine and runs this suite",
    ("SECURITY.md", "pip install --require-hashes"): "installs; tests/test_packaging.py reads hashes.txt",
    ("docs/conformance.md", "normdeploy conformance --adapter mine.py:optimizer"): "test_an_adapter_of_the_page",
    ("docs/conformance.md", "# mine.py"): "test_an_adapter_of_the_page",
    ("docs/doctor.md", "normdeploy inspect models/net.py:Net"): "test_the_doctor_is_called",
    ("docs/doctor.md", "import normdeploy as nd"): "test_findings_are_printed",
    ("docs/gpu.md", "pytest -m cuda"): "needs a GPU; without one these tests skip with the reason",
    ("docs/howto/own-rule.md", "[project.entry-points"): "test_an_entry_point_as_shown_names_the_rule_of_the_page",
    ("docs/quantization.md", "normdeploy export models/digits_int8.py"): "test_an_integer_file_is_exported",
    ("docs/quantization.md", "[quantize]"): "test_tables_of_a_recipe_are_read",
    ("docs/quickstart.md", "pip install"): "installs; .ci/run does",
    ("docs/robustness.md", "$ nice -n 10 python -m benchmarks.fuzzing"): "takes hours",
    ("docs/robustness.md", "$ nice -n 10 python benchmarks/power_cut.py"): "takes an hour",
    ("docs/robustness.md", "$ OMP_NUM_THREADS=1 nice -n 3 python benchmarks/extremes.py"): "takes hours and 8 GB",
    ("docs/robustness.md", "$ echo torch=="): "installs",
    (
        "docs/upstream/onnx.md",
        'python -c "',
    ): "measures a time; tests/graph/test_shape_inference.py calls the same",
    ("docs/running.md", "import normdeploy as nd"): "test_arrays_and_dictionaries_of_arrays",
    ("docs/running.md", "class Predict:"): "test_rows_of_a_dataset",
    ("docs/running.md", "from pyspark"): "tests/runtime/test_other_engines.py",
    (
        "docs/running.md",
        "from apache_beam.ml.inference.base import RunInference",
    ): "tests/runtime/test_other_engines.py",
    (
        "docs/running.md",
        "from apache_beam.ml.inference.base import ModelHandler",
    ): "tests/runtime/test_other_engines.py",
    ("docs/training.md", "[data]"): "test_tables_of_a_recipe_are_read",
    ("docs/tuning.md", "normdeploy tune net.onnx --budget exact"): "tests/cli/test_runtime_commands.py",
    (
        "docs/tuning.md",
        "python -c \"import numpy as np; np.save('rows.npy', np.random.default_rng(0).normal(size=(400, 3",
    ): ("takes three minutes of two idle cores; test_rows_made_by_a_line"),
    (
        "docs/tuning.md",
        "python -c \"import numpy as np; np.save('rows.npy', np.random.default_rng(0).normal(size=(400, 48",
    ): ("takes minutes of two idle cores; test_rows_made_by_a_line"),
    ("docs/verification.md", "from normdeploy.testing"): "test_equivalence_as_a_test_of_ones_own",
    ("docs/web.md", "normdeploy package digits.onnx --web"): "needs the browser's runtime (tests/web, CONTRIBUTING.md)",
    ("docs/web.md", "normdeploy verify model.py:Net"): "needs Chromium and the browser's runtime (tests/web)",
    ("docs/web.md", "normdeploy package net.onnx --mobile"): "test_a_package_for_phones",
}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def fenced(page: Path) -> list[tuple[str, str]]:
    """Language and text of every block of a page."""
    return _FENCED.findall(page.read_text(encoding="utf-8"))


def blocks_of(page: Path) -> list[str]:
    return [text for kind, text in fenced(page) if kind in CODE]


def runner(page: Path, kind: str) -> str | None:
    """The file that runs every block of a language on a page."""
    name = name_of(page)
    return next(
        (path for (where, of), path in RUN.items() if of == kind and where in (name, name_of(page.parent))), None
    )


def block(page: str, begins: str) -> str:
    (found,) = [text for text in blocks_of(ROOT / page) if text.startswith(begins)]
    return found


def printed_lines(page: Path) -> list[str]:
    """The command lines of a page: in its blocks, and where it is set in by four columns."""
    found, inside = [], False
    for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            inside = not inside
        stands = re.match(r"(?:\$ )?(normdeploy .+)" if inside else r" {4}(normdeploy .+)", line)
        if stands and not re.search(r"[\[|]--", stands[1]):  # a synopsis
            found.append(re.split(r" (?:>>|>|\||&&|;) ", stands[1])[0])
    return found


def parse(words: Sequence[str]) -> None:
    """Read words as the command line does, and run nothing; what it does not know ends the test."""
    command = typer.main.get_command(app)
    context = command.make_context("normdeploy", [words[0]], resilient_parsing=True)
    name, sub, rest = command.resolve_command(context, list(words))
    sub.make_context(name, list(rest), parent=context)


def test_every_block_of_every_page_is_run_somewhere_or_says_why_not() -> None:
    known = {page: [begins for named, begins in ELSEWHERE if named == page] for page, _ in ELSEWHERE}
    used = set()
    for page in ALL:
        name = name_of(page)
        text = page.read_text(encoding="utf-8")
        assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(fenced(page)), name  # none is set in, or open
        for kind, text in fenced(page):
            assert kind in CODE | SHOWN, (name, text)  # a block without a language is read by nobody
            named = [begins for begins in known.get(name, []) if text.startswith(begins)]
            assert kind in SHOWN or bool(runner(page, kind)) != bool(named), (name, text)
            used.add(runner(page, kind))
    assert used - {None} == set(RUN.values())
    assert all((ROOT / path).exists() for path in RUN.values())
    for page, begins in ELSEWHERE:
        assert block(page, begins)
    for where in ELSEWHERE.values():
        if where.startswith("test_"):
            assert where in globals()
        for path in re.findall(r"tests/[\w/.]+\w", where):
            assert (ROOT / path).exists(), where


@pytest.mark.parametrize("page", [page for page in ALL if printed_lines(page)], ids=name_of)
def test_every_command_line_that_a_page_prints_is_understood(page: Path) -> None:
    for line in printed_lines(page):
        parse(shlex.split(line, comments=True)[1:])


def test_every_script_that_a_page_names_is_there_with_its_options() -> None:
    seen = 0
    for page in ALL:
        for path, rest in re.findall(
            r"python (?:-m )?(benchmarks[/.][\w/.]+)([^`\n&]*)", page.read_text(encoding="utf-8")
        ):
            stem = path.removesuffix(".py").rstrip(".").replace(".", "/")
            script = ROOT / f"{stem}.py"
            sources = [script] if script.exists() else sorted((ROOT / stem).glob("*.py"))
            assert sources, (name_of(page), path)
            text = "".join(source.read_text(encoding="utf-8") for source in [*sources, *script.parent.glob("zoo_*.py")])
            for option in re.findall(r"(?<!\S)--[a-z-]+", rest):
                assert f'"{option}"' in text, (name_of(page), path, option)
            seen += 1
    assert seen > 20


# what a reader of these pages has: a module in evaluation mode, and net.onnx
READER = """
import numpy as np
import pytest
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, image):
        return self.norm(self.conv(image)).mean((2, 3))


torch.manual_seed(0)
model = Net().eval()
"""


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with net.onnx."""
    monkeypatch.chdir(tmp_path)
    made = "import normdeploy as nd\nnd.export(model, (torch.randn(2, 3, 16, 16),), 'net.onnx', verify=False)\n"
    run_block(READER + made, tmp_path, monkeypatch)
    return tmp_path


def test_an_adapter_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = block("docs/conformance.md", "# mine.py")
    body = "def optimize(model):\n    return model\n"
    (tmp_path / "mytool.py").write_text(body)
    (tmp_path / "mine.py").write_text(text)
    words = shlex.split(block("docs/conformance.md", "normdeploy conformance"))[1:]
    result = CliRunner().invoke(app, [*words, "--case", "traps/depthwise multiplier"])
    assert result.exit_code == 0, result.output
    assert "left" in result.output  # a tool that does nothing


def test_the_doctor_is_called(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = block("docs/doctor.md", "normdeploy inspect models/net.py:Net").strip().splitlines()
    (prepared / "models").mkdir()
    (prepared / "models" / "net.py").write_text(READER.replace("model = Net().eval()\n", "").replace("image", "x"))
    run_block(
        f"{READER}from safetensors.torch import save_file\nsave_file(model.state_dict(), 'net.safetensors')\n",
        prepared,
        monkeypatch,
    )
    for line in (first, second):
        result = CliRunner().invoke(app, shlex.split(line)[1:])
        assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)


def test_tables_of_a_recipe_are_read() -> None:
    whole = {"model": {"source": "net.py:Net", "weights": "net.safetensors"}, "data": {"files": "rows.csv"}}
    asked = tomllib.loads(block("docs/quantization.md", "[quantize]"))
    recipe = parse_recipe({**whole, **asked}, ROOT / "net.toml")
    assert recipe.quantize is not None
    assert asked == {"quantize": {name: getattr(recipe.quantize, name) for name in ("epochs", "lr", "calibration")}}
    asked = tomllib.loads(block("docs/training.md", "[data]"))
    recipe = parse_recipe({**whole, **asked}, ROOT / "net.toml")
    assert recipe.data is not None
    assert asked["data"] == {"files": recipe.data.files, "size": recipe.data.size, "workers": recipe.data.workers}
    assert asked["export"] == {"preprocess": True}
    assert recipe.export.preprocess


def test_an_entry_point_as_shown_names_the_rule_of_the_page() -> None:
    asked = tomllib.loads(block("docs/howto/own-rule.md", "[project.entry-points"))
    (entry,) = asked["project"]["entry-points"][GROUP].values()
    file, name = entry.split(":")
    (page,) = [text for kind, text in fenced(ROOT / "docs/howto/own-rule.md") if text.startswith(f"# file: {file}.py")]
    assert f"def {name}(" in page


@pytest.mark.parametrize("size", ["(400, 3", "(400, 48"])
def test_rows_made_by_a_line(size: str, tmp_path: Path) -> None:
    begins = f"python -c \"import numpy as np; np.save('rows.npy', np.random.default_rng(0).normal(size={size}"
    words = shlex.split(block("docs/tuning.md", begins).splitlines()[0])
    subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, check=True)
    assert np.load(tmp_path / "rows.npy").dtype == np.float32


def test_findings_are_printed(prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    broken = "model.norm.running_var[0] = 0.0\n"
    run_block(READER + broken + block("docs/doctor.md", "import normdeploy as nd"), prepared, monkeypatch)
    assert "norm" in capsys.readouterr().out


def test_arrays_and_dictionaries_of_arrays(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    text = block("docs/running.md", "import normdeploy as nd")
    x = "x = np.zeros((2, 3, 16, 16), np.float32)\n"
    after = "\nassert np.array_equal(out['mean'] if 'mean' in out else next(iter(out.values())), y)\n"
    run_block(READER + x + text + after, prepared, monkeypatch)
    assert "image: float32[" in capsys.readouterr().out


def test_rows_of_a_dataset(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *body, last = block("docs/running.md", "class Predict:").strip().splitlines()
    assert last.startswith("dataset.map_batches(Predict, ")  # tests/runtime/bulk has Ray's own
    text = "\n".join(body).replace("/shared/net.onnx", "net.onnx")
    before = "import normdeploy as nd\nrows = {'image': np.ones((2, 3, 16, 16), np.float32), 'id': [1, 2]}\n"
    after = (
        "\nout = Predict()(rows)\nassert out['id'] == [1, 2]\n"
        "with torch.no_grad():\n    y = model(torch.from_numpy(rows['image'])).numpy()\n"
        "assert np.allclose(out['y'], y, atol=1e-5)\n"
    )
    run_block(READER + before + text + after, prepared, monkeypatch)


def test_equivalence_as_a_test_of_ones_own(prepared: Path, forked: ForkedPython) -> None:
    before = READER + "x = torch.randn(2, 3, 16, 16)\nimages = np.random.default_rng(0).normal(size=(8, 3, 16, 16))\n"
    before += "images = images.astype(np.float32)\n"
    (prepared / "test_mine.py").write_text(before + block("docs/verification.md", "from normdeploy.testing"))
    done = forked.run("import pytest; raise SystemExit(pytest.main(['-q', 'test_mine.py']))", folder=prepared)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_an_integer_file_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # the line names files of this repository
    words = shlex.split(block("docs/quantization.md", "normdeploy export models/digits_int8.py").replace("\\\n", " "))
    assert words[-2:] == ["-o", "digits_int8.onnx"]
    result = CliRunner().invoke(app, [*words[1:-1], str(tmp_path / "digits_int8.onnx")])
    assert result.exit_code == 0, result.output


def test_a_package_for_phones(prepared: Path) -> None:
    result = CliRunner().invoke(app, shlex.split(block("docs/web.md", "normdeploy package net.onnx --mobile"))[1:])
    assert result.exit_code == 0, result.output
    assert list(prepared.rglob("*.ort"))
