"""SOURCE: what is found, and what is said when it is not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from normdeploy.errors import SourceError
from normdeploy.parsing.sources import build, is_source, load_source, source_file

FILE = """
import helper
from torch import nn
class Net(nn.Linear):
    def __init__(self, width=helper.WIDTH):
        super().__init__(width, 1)
def plain():
    return 3
def breaks():
    raise ValueError("no such file")
number = 5
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("WIDTH = 4\n")
    (tmp_path / "net.py").write_text(FILE)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    return tmp_path


def test_a_file_with_its_neighbours(folder: Path) -> None:
    model = build(f"{folder}/net.py:Net")
    assert isinstance(model, torch.nn.Linear)
    assert model.in_features == 4
    assert build("net.py:Net", {"width": 7}, folder=folder).in_features == 7
    assert str(folder) not in sys.path


def test_the_same_file_gives_the_same_class_until_it_changes(folder: Path) -> None:
    first = load_source("net.py:Net", folder=folder)
    assert load_source("net.py:Net", folder=folder) is first
    (folder / "net.py").write_text(FILE + "\n# changed\n")
    assert load_source("net.py:Net", folder=folder) is not first


def test_a_file_changed_twice_in_a_second_is_read_again(folder: Path) -> None:
    """Same size, same time: Python takes the bytecode that it kept of the first for the second."""
    file = folder / "net.py"
    before = file.stat()
    assert load_source(f"{file}:number") == 5
    file.write_text(FILE.replace("number = 5", "number = 7"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load_source(f"{file}:number") == 7


def test_a_module() -> None:
    assert build("torch.nn:Identity").__class__ is torch.nn.Identity
    assert source_file("torch.nn:Identity") is None


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("net.py", ["net.py", "path/to/file.py:Name"]),
        ("net.py:", ["path/to/file.py:Name"]),
        ("none.py:Net", ["does not exist"]),
        ("a/b:Net", ["does not end in .py"]),
        ("net.py:Nothing", ["'Nothing'", "Net"]),
        ("broken.py:Net", ["ModuleNotFoundError", "nothing_of_this_name"]),
        ("no_such_package_here:Net", ["ModuleNotFoundError"]),
        ("net.py:plain", ["a value of type int", "torch.nn.Module", "return the model"]),
        ("net.py:number", ["int", "class or a function"]),
        ("net.py:breaks", ["ValueError: no such file"]),
    ],
)
def test_what_cannot_be_built_is_said(folder: Path, source: str, words: list[str]) -> None:
    with pytest.raises(SourceError) as caught:
        build(source, folder=folder)
    assert all(word in str(caught.value) for word in words)
    assert caught.value.exit_code == 4


def test_wrong_arguments_show_the_signature(folder: Path) -> None:
    with pytest.raises(SourceError, match=r"\(width=4\) does not take {'widht': 3}"):
        build("net.py:Net", {"widht": 3}, folder=folder)


def test_source_or_file(folder: Path) -> None:
    assert is_source("net.py:Net")
    assert is_source("package.module:Name")
    assert not is_source("model.onnx")
    assert not is_source(str(folder / "net.py"))
