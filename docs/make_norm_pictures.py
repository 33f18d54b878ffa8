"""Draw the pictures of docs/batch-or-layer.md and fill in its tables from the numbers in docs/norms/.

python docs/make_norm_pictures.py

The numbers come from docs/norm_experiment.py; this script computes none, it only draws and typesets.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from norm_tables import markdown

FOLDER = Path(__file__).with_name("norms")
PAGE = Path(__file__).with_name("batch-or-layer.md")
COLORS = {"none": "#888888", "batch": "#1f77b4", "layer": "#d95f02"}


def new_figure(width: float, height: float) -> Figure:
    """Return a figure that needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def numbers(name: str) -> dict[str, Any]:
    """Return the numbers of one experiment."""
    held: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return held


def draw_table_axes() -> None:
    """Show which numbers of an (N, C) table share a mean: a column for BatchNorm, a row for LayerNorm."""
    figure = new_figure(7.5, 2.9)
    for axes, (title, marked) in zip(
        figure.subplots(1, 2),
        [
            ("BatchNorm: one mean per feature", (slice(None), 1)),
            ("LayerNorm: one mean per sample", (1, slice(None))),
        ],
        strict=True,
    ):
        grid = np.zeros((4, 6))
        grid[marked] = 1
        color = COLORS["batch"] if "Batch" in title else COLORS["layer"]
        for (row, column), inside in np.ndenumerate(grid):
            axes.add_patch(
                _rectangle(column, row, color if inside else "#eeeeee"),
            )
        axes.set(xlim=(0, 6), ylim=(4, 0), aspect="equal", xticks=[], yticks=[], title=title)
        axes.set_xlabel("features (C)")
        axes.set_ylabel("samples (N)")
    figure.savefig(FOLDER / "axes-table.svg")


def _rectangle(x: float, y: float, color: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 1, 1, facecolor=color, edgecolor="white", linewidth=2)


def draw_image_axes() -> None:
    """Show the same for images (N, C, H, W): which block of numbers shares a mean."""
    figure = new_figure(10, 3.1)
    kinds = [
        ("BatchNorm\nall but 1", (slice(None), 1, slice(None)), COLORS["batch"]),
        ("LayerNorm over (C, H, W)\n1, 2 and 3", (0, slice(None), slice(None)), COLORS["layer"]),
        ("LayerNorm over channels\n1", (0, slice(None), 4), COLORS["layer"]),
        ("InstanceNorm\n2 and 3", (0, 1, slice(None)), "#1b9e77"),
        ("GroupNorm, 2 groups\nhalf of 1, 2 and 3", (0, slice(0, 2), slice(None)), "#7570b3"),
    ]
    for number, (title, marked, color) in enumerate(kinds, 1):
        axes: Any = figure.add_subplot(1, len(kinds), number, projection="3d")
        chosen = np.zeros((3, 4, 5), dtype=bool)
        chosen[marked] = True
        faces = np.where(chosen, color, "#f4f4f4")
        alpha = np.where(chosen, "ff", "70")
        axes.voxels(np.ones_like(chosen), facecolors=np.char.add(faces, alpha), edgecolor="#bbbbbb", linewidth=0.4)
        axes.set(xticks=[], yticks=[], zticks=[])
        axes.set_xlabel("N", labelpad=-14)
        axes.set_ylabel("C", labelpad=-14)
        axes.set_zlabel("H x W", labelpad=-14)
        axes.set_title(title, fontsize=9)
        axes.view_init(elev=22, azim=-52)
        axes.set_box_aspect((3, 4, 5))
    figure.savefig(FOLDER / "axes-image.png", dpi=120)


def draw_curves() -> None:
    """Draw the validation loss over the epochs."""
    figure = new_figure(6, 3.2)
    axes = figure.subplots()
    for norm, held in numbers("curves").items():
        axes.plot(range(1, len(held["valid_loss"]) + 1), held["valid_loss"], color=COLORS[norm], label=norm)
    axes.set(xlabel="epoch", ylabel="validation loss, mean of three seeds", yscale="log")
    axes.legend(title="normalization")
    figure.savefig(FOLDER / "curves.svg")


def draw_batch_size() -> None:
    """Draw the test accuracy against the size of the training batch, with the range of the three seeds."""
    held = numbers("batch-size")
    figure = new_figure(6, 3.2)
    axes = figure.subplots()
    for norm, color in COLORS.items():
        cells = held[norm]
        axes.plot(held["sizes"], [statistics.mean(cell) for cell in cells], "o-", color=color, label=norm)
        axes.fill_between(held["sizes"], [min(c) for c in cells], [max(c) for c in cells], color=color, alpha=0.15)
    axes.set(xscale="log", xlabel="samples per training batch", ylabel="test accuracy after 8 epochs")
    axes.set_xticks(held["sizes"], [str(size) for size in held["sizes"]])
    axes.minorticks_off()
    axes.legend(title="normalization")
    figure.savefig(FOLDER / "batch-size.svg")


def draw_deployment() -> None:
    """Draw the time of one call before and after folding."""
    held = numbers("deployment")
    figure = new_figure(7.5, 2.8)
    for axes, size in zip(figure.subplots(1, 2), ("1", "64"), strict=True):
        for place, norm in enumerate(held):
            times = held[norm]["microseconds"][size]
            for step, (name, shade) in enumerate({"eager torch": 0.25, "as traced": 0.55, "normdeploy": 1.0}.items()):
                axes.barh(place + (step - 1) * 0.27, times[name], 0.25, color=COLORS[norm], alpha=shade)
                axes.text(times[name], place + (step - 1) * 0.27, f" {name}", va="center", fontsize=7)
        axes.set_yticks(range(len(held)), list(held))
        axes.invert_yaxis()
        axes.set(xlabel="microseconds per call (median)", title=f"batch of {size}")
        axes.set_xlim(0, axes.get_xlim()[1] * 1.25)
    figure.savefig(FOLDER / "deployment.svg")


def filled(page: str) -> str:
    """Return the page with each table between its markers replaced by that of the numbers kept."""

    def table(match: re.Match[str]) -> str:
        return f"{match[1]}\n{markdown(match[2], numbers(match[2]))}\n{match[3]}"

    return re.sub(r"(<!-- table: ([\w-]+) -->)\n.*?(<!-- end -->)", table, page, flags=re.DOTALL)


def main() -> None:
    """Draw everything and fill in the page."""
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "normdeploy"  # the same drawing is the same file
    for draw in (draw_table_axes, draw_image_axes, draw_curves, draw_batch_size, draw_deployment):
        draw()
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
