"""A large network's ledger can be read on a terminal of 80 columns, and nothing of it is hidden without a word."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from normdeploy.report.ledger_table import grouped, print_ledger


def row(where: str, action: str = "folded", into: str = "", reason: str = "") -> dict[str, Any]:
    return {"where": where, "kind": "BatchNormalization", "action": action, "into": into, "reason": reason}


def dense(layers: int = 24) -> list[dict[str, Any]]:
    """Two norms a layer, as a dense network's: one stays for a reason that names its place, one is folded."""
    rows = [row("features.norm0", into="features.conv0")]
    for block in (1, 2):
        for layer in range(1, layers + 1):
            name = f"features.denseblock{block}.denselayer{layer}"
            stays = f"its shift cannot leave: behind it Relu '{name}.norm1.act' cuts at 0, which a shift would move"
            rows += [row(f"{name}.norm1", "kept", reason=stays), row(f"{name}.norm2", into=f"{name}.conv1")]
    return rows


def printed(
    rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int = 80
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    print_ledger(rows)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_large_ledger_is_a_screen_of_80_columns(monkeypatch, capsys):
    rows = dense()
    lines = printed(rows, monkeypatch, capsys)
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines)
    text = " ".join(" ".join(lines).split())
    counted = sum(int(count) for count in re.findall(r"norm[12] \((\d+)\)", text))
    assert counted + 1 == len(rows)
    assert "features.norm0 into features.conv0" in text
    assert "features.denseblock*.denselayer*.norm1 (48) its shift cannot leave" in text
    assert f"all {len(rows)} rows: --json, or the report of a build" in text
    assert not [line for line in lines if 0 < len(line.split()) == 1 and len(line.strip()) < 8]  # no narrow cells


def test_what_is_not_shown_is_counted(monkeypatch, capsys):
    rows = [row(f"{'abcdefghij'[n % 10] * (n // 10 + 1)}.norm", into="x") for n in range(70)]
    text = " ".join(printed(rows, monkeypatch, capsys))
    assert "... and 30 more rows" in text
    assert "all 70 rows: --json" in text
    assert "stands for" not in text


def test_a_small_ledger_is_the_table_it_was_and_a_narrow_console_still_names_all(monkeypatch, capsys):
    rows = [row("stem.norm", into="stem.conv"), row("head." + "deep." * 12 + "norm", "kept", reason="why it stays")]
    wide = printed(rows, monkeypatch, capsys, 160)
    assert wide[2].split() == ["where", "what", "became", "of", "it"]
    assert any(rows[1]["where"] in line for line in wide)
    narrow = printed(rows, monkeypatch, capsys, 60)
    assert all(len(line) <= 60 for line in narrow)
    assert any("…" in line and line.endswith("deep.norm") for line in narrow)  # from the left, where it says least
    assert any(line.strip() == "why it stays" for line in narrow)


def test_only_rows_that_say_the_same_are_one():
    rows = [
        row("a.0.norm", into="a.0.conv"),
        row("a.1.norm", into="a.1.conv"),
        row("a.2.norm", into="b.2.conv"),
        row("a.3.norm", "kept", reason="sizes 3 and 4"),
        row("a.4.norm", "kept", reason="sizes 3 and 5"),
        row("a.5.norm", into="a.5.conv"),
    ]
    found = [(count, where, words) for count, where, _, words in grouped(rows)]
    assert found == [
        (3, "a.*.norm", "into a.*.conv"),
        (1, "a.2.norm", "into b.2.conv"),
        (1, "a.3.norm", "sizes 3 and 4"),
        (1, "a.4.norm", "sizes 3 and 5"),
    ]


def test_numbers_that_all_share_stay():
    rows = [row(f"stages.3.blocks.{n}.norm1", into=f"stages.3.blocks.{n}.conv1") for n in range(4)]
    [(count, where, _, words)] = grouped(rows)
    assert (count, where, words) == (4, "stages.3.blocks.*.norm1", "into stages.3.blocks.*.conv1")


def test_a_star_in_a_name_is_no_error():
    rows: list[Mapping[str, Any]] = [row("a.*.norm", into="x"), row("a.1.norm", into="x")]
    assert [count for count, *_ in grouped(rows)] == [2]
