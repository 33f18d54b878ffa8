"""What ships and how it is installed, as far as it can be checked without a network; .ci/run checks the rest."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import normdeploy

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def marked(name: str) -> str:
    """The code block after a marker, read independently of .ci/run."""
    (block,) = re.findall(rf"<!-- ci: {name} -->\n```sh\n(.*?)```", README, re.DOTALL)
    return block.strip()


def test_readme_has_the_two_commands_each_installing_for_itself() -> None:
    assert re.fullmatch(r"pip install -c constraints\.txt \S+ && normdeploy build export/\S+\.toml.*", marked("build"))
    assert re.fullmatch(r"pip install -c constraints\.txt (-e )?\S+ && pytest.*", marked("test"))
    recipe = re.search(r"export/\S+\.toml", marked("build"))
    assert recipe is not None
    assert (ROOT / recipe[0]).is_file()


@pytest.mark.parametrize("name", ["build", "test"])
def test_ci_runs_exactly_what_readme_says(name: str) -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    function = re.search(r"^command_of\(\) \{.*?^\}", script, re.DOTALL | re.MULTILINE)
    assert function is not None
    shell = f"{function[0]}\ncommand_of {name}"
    printed = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == marked(name)
    assert "for name in build test; do" in script


def requirement_name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=;!~ ]", text, maxsplit=1)[0]).lower()


def declared(*extras: str) -> set[str]:
    """What the project and these extras ask for, without the project itself."""
    texts = list(PROJECT["project"]["dependencies"])
    for extra in extras:
        texts += PROJECT["project"]["optional-dependencies"][extra]
    return {requirement_name(text) for text in texts} - {"normdeploy"}


def test_constraints_pin_everything_the_commands_install() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {requirement_name(name) for name in pins}
    assert pins["torch"] == "2.13.0"
    assert declared("models", "test", "dev") - pinned == set()


def test_every_data_file_of_the_package_is_declared() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["normdeploy"]
    for path in (ROOT / "normdeploy").rglob("*"):
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts:
            relative = str(path.relative_to(ROOT / "normdeploy"))
            assert any(fnmatch.fnmatch(relative, pattern.replace("**/", "*")) for pattern in patterns), relative


def test_only_the_package_is_packaged() -> None:
    assert PROJECT["tool"]["setuptools"]["packages"]["find"]["include"] == ["normdeploy", "normdeploy.*"]
    for folder in ("models", "export", "tests", "docs", "benchmarks"):
        assert not (ROOT / folder / "__init__.py").exists()


def test_versions_agree() -> None:
    assert PROJECT["project"]["version"] == normdeploy.__version__
    try:
        installed = importlib.metadata.version("normdeploy")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("normdeploy runs from the source folder, not installed")
    assert installed == normdeploy.__version__


def test_what_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_hashes_are_those_of_the_tested_versions() -> None:
    def rows(name: str) -> dict[str, str]:
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        pairs = (line.split()[0].split("==") for line in lines if line[:1] not in "#")
        return {requirement_name(key): value.partition("+")[0] for key, value in pairs}

    tested, hashed = rows("constraints.txt"), rows("hashes.txt")
    assert len(hashed) > 50
    assert {"torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "numpy"} <= set(hashed)
    assert {name: tested.get(name) for name in hashed} == hashed
    assert declared("dev", "test", "docs", "models", "cpu", "digits") <= set(hashed)
