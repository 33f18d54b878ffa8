"""One build of onnxruntime: what the extras install, and what is said where there is none, or two."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from normdeploy.errors import MissingDependencyError
from normdeploy.ort import installed

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def resolved(*extras: str) -> set[str]:
    """The distributions that ``pip install 'normdeploy[...]'`` asks for, own extras followed."""
    names: set[str] = set()
    waiting, seen = [*PROJECT["dependencies"]], set(extras)
    waiting += [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name != PROJECT["name"]:
            names.add(canonicalize_name(requirement.name))
            continue
        for extra in requirement.extras - seen:
            seen.add(extra)
            waiting += PROJECT["optional-dependencies"][extra]
    return names


@pytest.mark.parametrize(
    ("extras", "builds"),
    [
        (("cpu",), {"onnxruntime"}),
        (("models",), {"onnxruntime"}),  # README's first command
        (("test",), {"onnxruntime"}),  # and its second
        (("dev",), {"onnxruntime"}),
        (("gpu",), {"onnxruntime-gpu"}),
        (("gpu", "digits"), {"onnxruntime-gpu"}),
        (("gpu", "digits", "ray", "openvino", "peers", "zoo"), {"onnxruntime-gpu"}),
    ],
)
def test_what_is_installed_together_has_one_build(extras: tuple[str, ...], builds: set[str]) -> None:
    assert resolved(*extras) & set(installed.BUILDS) == builds


def test_the_data_of_the_models_comes_with_and_without_a_gpu() -> None:
    assert "scikit-learn" in resolved("models") & resolved("gpu", "digits")


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch):
    def these(**versions: str) -> None:
        known = {name.replace("_", "-"): version for name, version in versions.items()}
        monkeypatch.setattr(installed, "version_of", known.get)

    return these


def test_one_build_is_fine(pretend) -> None:
    for name in ("onnxruntime", "onnxruntime_gpu"):
        pretend(**{name: "1.30"})
        assert installed.conflict() == ""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            installed.require_onnxruntime()


def test_two_builds_are_said_with_the_remedy(pretend) -> None:
    pretend(onnxruntime="1.31.1", onnxruntime_gpu="1.30.0")
    assert installed.conflict() == (
        "onnxruntime 1.31.1 and onnxruntime-gpu 1.30.0 are installed into one folder, where the last one unpacked "
        "wins; expected one build: pip uninstall -y onnxruntime onnxruntime-gpu, then pip install onnxruntime-gpu"
    )
    with pytest.warns(installed.InstallationWarning, match="pip uninstall -y onnxruntime onnxruntime-gpu"):
        installed.require_onnxruntime()


def test_none_is_said_with_the_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"normdeploy\[cpu\].*normdeploy\[gpu\]"):
        installed.require_onnxruntime()


@pytest.mark.parametrize("use", ["normdeploy.export", "import normdeploy.runtime", "normdeploy.load('x.onnx')"])
def test_whoever_uses_it_without_one_is_told(use: str) -> None:
    code = (
        "import importlib.util as u\nfound = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'onnxruntime' else found(name, *rest)\n"
        f"import normdeploy\nfrom normdeploy.errors import MissingDependencyError\ntry:\n    {use}\n"
        "except MissingDependencyError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "normdeploy[gpu]" in done.stdout
