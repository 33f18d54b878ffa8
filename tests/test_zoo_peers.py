"""The tables of benchmarks/zoo_peers.py: losses stand in them as losses, failures as failures."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NAMES = ["torch.onnx", "peer", "normdeploy", "OpenVINO"]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return importlib.import_module("zoo_peers_table")


def measured(name: str, peer: float, ours: float, *, width: float = 0.05) -> dict[str, Any]:
    def ratio(value: float) -> dict[str, float]:
        return {"value": value, "low": value - width, "high": value + width}

    files = {
        "torch.onnx": {"bytes": 10**6, "nodes": 9, "left": 4, "removable": 3, "error": 2.0},
        "peer": {"bytes": 10**6, "nodes": 8, "left": 2, "removable": 1, "error": 8.0, "seconds": 1.0, "peak": 10**6},
        "normdeploy": {"bytes": 10**6, "nodes": 5, "left": 1, "removable": 0, "error": 0.5, "seconds": 2.0, "peak": 0},
    }
    ratios = {"peer": ratio(peer), "normdeploy": ratio(ours)}
    return {"name": name, "date": "2026-11-26", "files": files, "latency": {"ratios": ratios}}


def row_of(table: str, start: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_summary_counts_wins_ties_and_losses_by_their_intervals(tables: ModuleType) -> None:
    rows = [measured("won", 0.9, 0.5), measured("even", 0.52, 0.5), measured("lost", 0.5, 0.9)]
    found = row_of(tables.summary(rows, NAMES, "normdeploy"), "peer")
    assert found[1:5] == ["3, 0", "6", "3", "24"]
    assert found[8] == "8.00, 8.0"
    assert found[-2:] == ["1, 1, 1", "1.80 lost"]
    assert row_of(tables.summary(rows, NAMES, "normdeploy"), "torch.onnx")[-2:] == ["3, 0, 0", "0.90 lost"]


def test_the_summary_says_when(tables: ModuleType) -> None:
    rows = [measured("new", 0.9, 0.5), measured("old", 0.5, 0.9) | {"date": "2026-11-25"}]
    said = tables.summary(rows, NAMES, "normdeploy").splitlines()[-1]
    assert said == "2 networks of 2, measured from 2026-11-25 to 2026-11-26."


def test_a_file_that_cannot_be_used_is_counted_and_left_out_of_the_sums(tables: ModuleType) -> None:
    bad = measured("bad", 1.0, 0.5)
    bad["files"]["peer"] = {"failed": "cannot be loaded", "version": "2"}
    del bad["latency"]["ratios"]["peer"]
    found = row_of(tables.summary([bad, measured("won", 0.9, 0.5)], NAMES, "normdeploy"), "peer")
    assert found[1:4] == ["2, 1", "2", "1"]
    assert found[-2] == "1, 0, 0"


def test_what_ended_a_run_stands_in_the_line_of_its_network(tables: ModuleType) -> None:
    ended = {"name": "huge", "date": "2026-11-26", "ended": "killed", "why": "exit code -9"}
    assert row_of(tables.networks([ended], NAMES, "normdeploy"), "huge")[1] == "killed: exit code -9"
    assert "0 networks of 1" in tables.summary([ended], NAMES, "normdeploy")


def test_a_network_s_line_shows_ours_beside_the_best_peer(tables: ModuleType) -> None:
    found = row_of(tables.networks([measured("vit", 0.9, 0.5)], NAMES, "normdeploy"), "vit")
    assert found[1:4] == ["4, 2, 1", "0", "9, 8, 5"]
    assert found[6].startswith("peer 0.90")
    assert found[7] == "0.50 (0.45-0.55)"


def test_losses_name_who_is_better_in_what(tables: ModuleType) -> None:
    """A peer with fewer nodes, one with fewer maps, one that is right where ours is off, and one that is faster."""
    rows = [measured(name, 0.9, 0.5) for name in ("none", "nodes", "maps", "error")] + [measured("time", 0.5, 0.9)]
    rows[1]["files"]["peer"]["nodes"] = 3
    rows[2]["files"]["peer"]["left"] = 0
    rows[3]["files"]["normdeploy"]["error"] = 4.0
    rows.append({"name": "ours fails", "files": {"torch.onnx": {}, "normdeploy": {"failed": "cannot be loaded"}}})
    table = tables.losses(rows, NAMES, "normdeploy")
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert found == [
        ["nodes", "nodes", "5", "peer 3"],
        ["maps", "maps left", "1", "peer 0"],
        ["error", "error over eager's", "4.00", "torch.onnx 2.00"],
        ["time", "time", "0.90", "peer 0.50"],
        ["ours fails", "usable", "no", "torch.onnx"],
    ]


def test_a_runtime_is_held_against_ours_by_their_own_ratio(tables: ModuleType) -> None:
    """One network lost beyond the interval, one that the runtime refuses, one that ended."""
    lost, refused = measured("lost", 1.0, 0.9), measured("refused", 1.0, 0.5)
    for row in (lost, refused):
        row["latency"] |= {"plain_s": 0.002, "refused": {}}
    lost["latency"]["ratios"]["OpenVINO"] = {"value": 0.75, "low": 0.7, "high": 0.8}
    lost["latency"]["ours over OpenVINO"] = {"value": 1.2, "low": 1.1, "high": 1.3}
    refused["latency"]["refused"]["OpenVINO"] = "no such operator"
    ended = {"name": "huge", "date": "2026-11-26", "ended": "killed", "why": "exit code -9"}
    table = tables.runtimes([lost, refused, ended], NAMES, "normdeploy")
    assert row_of(table, "lost")[1:] == ["2.00", "0.75 (0.70-0.80)", "0.90 (0.85-0.95)", "**1.20 (1.10-1.30)**"]
    assert row_of(table, "refused")[2:] == ["no such operator", "0.50 (0.45-0.55)", ""]
    assert row_of(table, "huge")[1] == "killed: exit code -9"
    assert table.endswith("ours over OpenVINO: 1.20 (geometric mean); ours is 0 faster, 0 equal, 1 slower.")
