"""The lists of benchmarks/zoo.py: their grammar, what a line builds, and what of a row is printed."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from normdeploy.errors import UsageError

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def module(name: str) -> ModuleType:
    """Import a script of benchmarks/, which is no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def lines() -> ModuleType:
    return module("zoo_lines")


def test_a_line_builds_the_module_it_names(lines: ModuleType) -> None:
    line = lines.parse_line("torch.nn:Linear in_features=3 out_features=2 bias=False | x=float32:4x3", "small")
    model = line.model()
    assert isinstance(model, nn.Linear)
    assert model.weight.shape == (2, 3)
    assert model.bias is None
    assert (line.name, line.kind) == ("Linear", "small")
    example = line.example(model, rows=5)
    assert model(*example.args, **example.kwargs).shape == (5, 2)
    again = line.model().weight
    assert torch.equal(again, model.weight)  # seeds are fixed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resnetv2_50x1.goog_in21k", "resnetv2_50x1.goog_in21k"),
        ("3tiny", "3tiny"),
        ("(1, 2)", (1, 2)),
        ("{'a': [1, -2.5]}", {"a": [1, -2.5]}),
        ("collections.OrderedDict(a=layer, b=[True])", {"a": "layer", "b": [True]}),
    ],
)
def test_values(lines: ModuleType, text: str, expected: object) -> None:
    assert lines.value(text) == expected


def test_blanks_in_brackets_and_quotes_do_not_separate(lines: ModuleType) -> None:
    line = lines.parse_line("a.b:c one=(1, 2) two='x y z' | i=int64:2x3<9 j=bool:2 | shown")
    assert line.arguments == {"one": "(1, 2)", "two": "'x y z'"}
    assert line.tops == {"i": 9}
    assert [str(spec) for spec in line.inputs] == ["i=int64:2x3", "j=bool:2"]
    assert line.name == "shown"


def test_integers_are_drawn_below_what_the_list_says(lines: ModuleType) -> None:
    class Takes(nn.Module):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return ids * mask

    line = lines.parse_line("a.b:c | ids=int64:40x40<7 mask=int64:40x40")
    given = line.example(Takes()).named()
    assert given["ids"].unique().tolist() == list(range(7))
    assert given["mask"].unique().tolist() == [0, 1]


@pytest.mark.parametrize("text", ["a.b:c", "a.b:c x=1 | ", "a.b:c x | i=float32:2", "a.b:c | x", "a | b | c | d"])
def test_what_is_no_line_is_refused(lines: ModuleType, text: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        lines.parse_line(text)


def test_two_networks_of_one_name_are_refused(lines: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("[k]\na.b:c | x=float32:2  # once\na.d:c | x=float32:2\n")
    with pytest.raises(UsageError, match="c stands there 2 times"):
        lines.read_list(path)


@pytest.mark.parametrize(("name", "least"), [("zoo_timm.txt", 40), ("zoo_transformers.txt", 20)])
def test_the_lists_that_ship_are_lists(lines: ModuleType, name: str, least: int) -> None:
    found = lines.read_list(BENCHMARKS / name)
    assert len(found) >= least
    assert all(line.kind for line in found)


def test_the_tables_say_what_ended_a_network_and_count_what_passed() -> None:
    table = module("zoo_table")
    measured = {"maps": 3, "fused": 1, "kept": 1, "reasons": ["n (affine map): because"], "nodes_traced": 9, "nodes": 5}
    times = {"export_s": 2.0, "rewrite_s": 1.0, "verify_s": 3.0, "peak": 5e6, "error": 0.5, "error_torch": 2.0}
    judged = {"verdict": "weak", "not_passes": {"reference": "weak"}, "operators": 5, "by_samples_only": [{}]}
    rows = [
        {"name": "whole", "kind": "k", **measured, **times, **judged},
        {"name": "cut", "kind": "k", "ended": "time-out", "stage": "verify", "export_s": 1.0},
        {"name": "ours", "kind": "k", **measured, **times, **judged, "export_failed": "why", "error_torch": None},
    ]
    del rows[2]["export_s"]
    verdicts = table.verdicts(rows)
    assert "| whole | k | weak, reference | 4 of 5 | 2.0 | 1.0 | 3.0 | 5 |" in verdicts
    assert "| cut | k | time-out in verify |  | 1.0 |" in verdicts
    assert "| ours | k | weak, reference | 4 of 5 | fails | 1.0 |" in verdicts
    assert "3 networks: 0 passed" in verdicts
    assert "took 2.00 times torch's export" in verdicts
    assert "| ours | 3 | 1 | 1 | 9 | 5 | 1.00 | 0.50 | fails |" in table.folds(rows)
    assert "| whole | 3 | 1 | 1 | 9 | 5 | 1.00 | 0.50 | 2.00 |" in table.folds(rows)
    assert table.kept(rows[:2]) == "whole: n (affine map): because"
