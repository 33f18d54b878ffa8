"""A first recipe for one's own network: it is valid, it builds, and what was guessed is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from normdeploy.parsing.recipe import load_recipe

Run = Callable[..., Result]


def test_a_recipe_of_ones_own_builds(run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("net.py", "net.pt"):
        (tmp_path / name).write_bytes((home / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    made = run("init", "net.py:Net", "--weights", "net.pt", "--arg", "width=5", "-o", "sub/mine.toml")
    assert made.exit_code == 0, made.output
    assert "inputs are guessed (conv is Conv2d(3, 5" in made.stderr
    assert "normdeploy build sub/mine.toml --out build" in made.stdout
    recipe = load_recipe(tmp_path / "sub" / "mine.toml")
    assert recipe.model.source == "../net.py:Net"
    assert recipe.model.arguments == {"width": 5}
    assert recipe.weights_path == tmp_path / "net.pt"
    assert recipe.export.inputs == ("x=float32:batchx3x32x32",)
    built = run("build", "sub/mine.toml")
    assert built.exit_code == 0, built.output
    assert json.loads((tmp_path / "sub" / "mine.report.json").read_text())["status"] == "pass"
    again = run("init", "net.py:Net", "-o", "sub/mine.toml")
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr


def test_inputs_arguments_and_data_as_they_are_given(run: Run, home: Path, tmp_path: Path) -> None:
    words = ("--input", "x=float32:batchx3xheight=9x9", "--data", f"{home}/net.py:data", "--arg", "width=7")
    made = run("init", f"{home}/net.py:Net", "-o", tmp_path / "net.toml", *words)
    assert made.exit_code == 0, made.output
    recipe = load_recipe(tmp_path / "net.toml")
    assert recipe.export.inputs == ("x=float32:batchx3xheight=9x9",)
    assert recipe.data is not None
    assert recipe.data.source == f"{home}/net.py:data"
    assert recipe.model.weights == "net.safetensors"


def test_data_may_be_files(run: Run, home: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b,kind\n1,2,x\n")
    made = run("init", f"{home}/net.py:Net", "-o", tmp_path / "net.toml", "--data", tmp_path / "rows.csv")
    assert made.exit_code == 0, made.output
    recipe = load_recipe(tmp_path / "net.toml")
    assert recipe.data is not None
    assert (recipe.data.source, recipe.data.files) == (None, str(tmp_path / "rows.csv"))
    assert "# preprocess = true" in (tmp_path / "net.toml").read_text()
    absent = run("init", f"{home}/net.py:Net", "-o", tmp_path / "no.toml", "--data", tmp_path / "rows.tsv")
    assert absent.exit_code == 2
    assert "rows.tsv, which does not exist; expected a function as net.py:data, or a folder" in absent.stderr
    assert not (tmp_path / "no.toml").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [(("-o", "net.txt"), "net.toml"), (("-o", "net.toml", "--arg", "width=None"), "argument None")],
)
def test_what_a_recipe_cannot_hold(run: Run, home: Path, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    source = f"{tmp_path}/any.py:net"
    (tmp_path / "any.py").write_text("from torch import nn\ndef net(width=3):\n    return nn.Linear(3, 2)\n")
    placed = [tmp_path / word if word.startswith("net.") else word for word in words]
    result = run("init", source, *placed)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".py" and path.is_file()] == []


def test_a_recipe_without_inputs_and_data_guesses_and_says_so(run: Run, home: Path, tmp_path: Path) -> None:
    text = f"""[model]
source = \"{home}/net.py:Net\"
weights = \"{home}/net.pt\"
[verify]
level = \"quick\"
[bench]
repeats = 3
"""
    (tmp_path / "net.toml").write_text(text)
    built = run("build", tmp_path / "net.toml")
    assert built.exit_code == 0, built.output
    assert 'write others under [export]: inputs = ["x=float32:batchx3x32x32"]' in " ".join(built.stdout.split())


def test_keyword_inputs_and_nested_outputs_have_their_names(run: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("""
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(5, 4)
    def forward(self, left, *, right):
        both = self.a(left) + self.b(right)
        return {"logits": both, "aux": (both.relu(), {"deep": both.sum(-1)})}
""")
    words = ("--input", "right=float32:batchx5", "--input", "left=float32:batchx3")
    for given in (words, ()):
        result = run("export", f"{tmp_path}/net.py:Net", *given, "-o", tmp_path / "net.onnx", "--quick", "--overwrite")
        assert result.exit_code == 0, result.output
        shown = json.loads(run("run", tmp_path / "net.onnx", "--json").stdout)
        assert list(shown) == ["logits", "aux_0", "aux_1_deep"]
