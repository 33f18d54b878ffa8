"""Outputs are matched by name where the sides share names, by position where they do not, and either is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.verification import verify
from normdeploy.verification.sides.output_pairs import match_outputs

Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("own", "file", "names", "said"),
    [
        (["a", "b"], ["a", "b"], ("a", "b"), ""),
        (["a", "b"], ["b", "a"], ("a", "b"), "by name"),
        (["a", "b"], ["x", "y"], ("x", "y"), "by position"),
        (["a", "b", "c"], ["x", "c", "a"], ("a", "x", "c"), "by position among themselves"),
    ],
)
def test_matching(own: list[str], file: list[str], names: tuple[str, ...], said: str):
    matching = match_outputs(own, file)
    assert matching.names == names
    assert said in matching.note
    assert not matching.problem


def test_other_numbers_of_outputs_do_not_match():
    assert "returns 1 outputs" in match_outputs(["a", "b"], ["a"]).problem


class Two(nn.Module):
    """A dict of two outputs of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"up": self.up(x), "down": self.down(x)}


def renamed(path: Path, target: Path, names: dict[str, str]) -> Path:
    proto = onnx.load(str(path))
    for node in proto.graph.node:
        for i, name in enumerate(node.output):
            node.output[i] = names.get(name, name)
    for value in proto.graph.output:
        value.name = names.get(value.name, value.name)
    onnx.save(proto, str(target))
    return target


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Tensor, Path]:
    torch.manual_seed(0)
    model, x = Two().eval(), torch.randn(2, 4)
    path = tmp_path_factory.mktemp("two") / "net.onnx"
    nd.export(model, x, path, verify=False)
    return model, x, path


def test_exchanged_names_of_a_modules_outputs_fail(two: tuple[nn.Module, Tensor, Path], tmp_path: Path):
    model, x, path = two
    wrong = renamed(path, tmp_path / "wrong.onnx", {"up": "down", "down": "up"})
    assert nd.verify(model, path, args=x).status == "pass"
    assert nd.verify(model, wrong, args=x, level="quick").status == "fail"
    assert nd.verify(path, wrong, level="quick").status == "fail"


def test_outputs_of_other_names_are_matched_by_position_and_said_so(
    two: tuple[nn.Module, Tensor, Path], tmp_path: Path
):
    model, x, path = two
    other = renamed(path, tmp_path / "other.onnx", {"up": "linear", "down": "linear_1"})
    for reference, args in ((model, x), (path, None)):
        verdict = nd.verify(reference, other, args=args)
        assert verdict.status == "pass", verdict.summary()
        assert "by position: 'linear' as 'up', 'linear_1' as 'down'" in verdict.check("names").detail


def test_another_order_of_the_same_outputs_is_right(two: tuple[nn.Module, Tensor, Path], tmp_path: Path):
    model, x, path = two
    proto = onnx.load(str(path))
    first = proto.graph.output[0].name
    proto.graph.output.append(proto.graph.output[0])
    del proto.graph.output[0]
    assert proto.graph.output[1].name == first
    target = tmp_path / "turned.onnx"
    onnx.save(proto, str(target))
    for reference, args in ((model, x), (path, None)):
        verdict = nd.verify(reference, target, args=args)
        assert verdict.status == "pass", verdict.summary()
        assert "by name" in verdict.check("names").detail


def test_an_input_that_is_missing_is_a_failure_of_structure(write: Write):
    one = write("g (float[4] x) => (float[4] y) { y = Neg(x) }", "a")
    other = write("g (float[4] z) => (float[4] y) { y = Neg(z) }", "b")
    verdict = verify(one, other)
    assert verdict.status == "fail"
    assert "the file takes z; expected x as in the reference" in verdict.reasons[0]
    assert "rename" in verdict.reasons[0]
