"""Time per call and size of the graph, side by side: in words and as sections of a build's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normdeploy.report.page import Cell, Details, Picture, Section, Table
from normdeploy.report.pictures import before_after_bars, latency_bars

MICRO = 1e6
_ALIKE = 1.25
"""Two are called about as fast where their ratio is certain to be nearer to one."""


def threads_words(threads: int) -> str:
    """Write a thread count."""
    return "1 thread" if threads == 1 else f"{threads} threads"


def ratio_words(ratio: Mapping[str, float] | None) -> str:
    """Write "4.0x faster (3.8x to 4.2x)" for our time over another's of 0.25; nothing for ours.

    Where the interval has 1 in it, neither is faster: "about as fast (0.90x to 1.08x the time)"; one that reaches
    beyond a quarter more or less says nothing: "not clear (0.09x to 4.72x the time)".
    """
    if ratio is None:
        return ""
    value, low, high = ratio["value"], ratio["low"], ratio["high"]
    if low <= 1 <= high:
        word = "about as fast" if low >= 1 / _ALIKE and high <= _ALIKE else "not clear"
        return f"{word} ({low:.2f}x to {high:.2f}x the time)"
    if high < 1:
        return f"{_times(1 / value)} faster ({_times(1 / high)} to {_times(1 / low)})"
    return f"{_times(value)} slower ({_times(low)} to {_times(high)})"


def _times(factor: float) -> str:
    return f"{factor:.2f}x" if factor < 10 else f"{factor:.0f}x"


def latency_section(latency: Mapping[str, Any]) -> Section:
    """Draw the time per call side by side."""
    bars = [
        (item["name"], item["median_s"] * MICRO, item["q25_s"] * MICRO, item["q75_s"] * MICRO)
        for item in latency["contenders"]
    ]
    rows: list[list[Cell]] = [
        [
            item["name"],
            round(item["median_s"] * MICRO, 1),
            round(item["q25_s"] * MICRO, 1),
            round(item["q75_s"] * MICRO, 1),
            ratio_words(latency["ratios"].get(item["name"])),
        ]
        for item in latency["contenders"]
    ]
    rounds = latency["contenders"][0]["rounds"]
    return Section(
        "Latency",
        [
            Picture(latency_bars(bars), "Time per call of the same batch; shorter is better."),
            Details("Numbers", [Table(["", "median, µs", "25 %, µs", "75 %, µs", "ours is"], rows)]),
        ],
        f"Batch {latency['batch_size']}, {threads_words(latency['threads'])}, {rounds} rounds in one run; each round "
        "times every contender once in random order, so that a busy machine is busy for all of them.",
    )


def graph_section(graph: Mapping[str, Any]) -> Section:
    """Compare the sizes of the graphs."""
    rows: list[list[Cell]] = [
        ["nodes", *(graph[key]["nodes"] for key in ("traced", "plain", "ours"))],
        ["file, bytes", None, graph["plain"]["bytes"], graph["ours"]["bytes"]],
    ]
    return Section(
        "Graph",
        [
            Table(["", "as traced", "plain export", "ours"], rows),
            Picture(
                before_after_bars(graph["traced"]["operators"], graph["ours"]["operators"]),
                "Nodes per operator, as traced and in our file.",
            ),
        ],
        "As traced: every operator that eager torch ran. Plain export: torch.onnx.export with its defaults, its own "
        "optimizer included.",
    )
