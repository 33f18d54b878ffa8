"""The tables of docs/batch-or-layer.md, from the numbers in docs/norms/."""

from __future__ import annotations

import statistics
from typing import Any

Rows = tuple[list[str], list[list[str]]]


def rows_of(name: str, found: dict[str, Any]) -> Rows:
    """Return header and rows of the table of one experiment of docs/norm_experiment.py."""
    return {
        "worked": _worked,
        "curves": _curves,
        "batch-size": _batch_size,
        "statistics": _statistics,
        "deployment": _deployment,
    }[name](found)


def markdown(name: str, found: dict[str, Any]) -> str:
    """Return the table as Markdown."""
    header, rows = rows_of(name, found)
    lines = ["| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows]]
    return "\n".join(lines)


def _pair(values: list[float]) -> str:
    return f"{values[0]:.4f}, {values[1]:.4f}"


def _worked(found: dict[str, Any]) -> Rows:
    header = [
        "sample",
        "x",
        "BatchNorm",
        "LayerNorm",
        "BatchNorm of the first two alone",
        "LayerNorm of the first two alone",
    ]
    rows = []
    for number, x in enumerate(found["input"]):
        alone = number < 2
        rows.append(
            [
                str(number + 1),
                _pair(x),
                _pair(found["batch"][number]),
                _pair(found["layer"][number]),
                _pair(found["batch_of_first_two"][number]) if alone else "",
                _pair(found["layer_of_first_two"][number]) if alone else "",
            ]
        )
    return header, rows


def _percent(values: list[float]) -> str:
    return f"{statistics.mean(values):.1%} ({min(values):.1%} to {max(values):.1%})"


def _curves(found: dict[str, Any]) -> Rows:
    header = [
        "normalization",
        "epochs until the validation loss is below 0.2",
        "test accuracy",
        "seconds for 30 epochs",
    ]
    rows = []
    for norm, held in found.items():
        reached = ["never" if n is None else str(n) for n in held["epochs_to_loss_0.2"]]
        rows.append([norm, ", ".join(reached), _percent(held["test_accuracy"]), f"{held['seconds']:.1f}"])
    return header, rows


def _batch_size(found: dict[str, Any]) -> Rows:
    header = ["normalization", *(f"batches of {size}" for size in found["sizes"])]
    rows = [[norm, *(_percent(cell) for cell in cells)] for norm, cells in found.items() if norm != "sizes"]
    return header, rows


def _statistics(found: dict[str, Any]) -> Rows:
    header = ["", "statistics", "test accuracy", "test loss", "means off by", "deviations off by"]
    rows = []
    for when in dict.fromkeys(row["when"] for row in found["rows"]):
        held = [row for row in found["rows"] if row["when"] == when]
        for kind, title in (
            ("running", "running average"),
            ("update_bn", "torch's update_bn"),
            ("population", "population"),
            ("unshifted", "population, of images without the shifts"),
        ):

            def mean(key: str, held: list[dict[str, Any]] = held) -> float:
                return statistics.mean(row[key] for row in held)

            exact = kind == "population"
            rows.append(
                [
                    when,
                    title,
                    f"{mean(kind):.2%}",
                    f"{mean(kind + '_loss'):.4f}",
                    "0, by definition" if exact else f"{mean(kind + '_mean_distance'):.4f}",
                    "0, by definition" if exact else f"{mean(kind + '_deviation_distance'):.4f}",
                ]
            )
    return header, rows


def _deployment(found: dict[str, Any]) -> Rows:
    header = [
        "normalization",
        "nodes as traced",
        "nodes deployed",
        "what is left of it",
        "batch 1",
        "batch 64",
        "verdict",
    ]
    rows = []
    for norm, held in found.items():
        ours = held["ours"]["operators"]
        left = [f"{count} {name}" for name, count in ours.items() if "Normalization" in name]
        times = [held["microseconds"][size]["normdeploy"] for size in ("1", "64")]
        rows.append(
            [
                norm,
                str(held["traced"]["nodes"]),
                str(held["ours"]["nodes"]),
                ", ".join(left) or "nothing",
                *(f"{time:.0f} µs" for time in times),
                held["verdict"],
            ]
        )
    return header, rows
