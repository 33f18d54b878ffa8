"""Drawings for report pages: matplotlib figures as inline SVG, in one style."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # half a second, for commands that draw
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: One colour per role, distinguishable for colour-blind readers: eager torch and what it ran, plain export, our file, a
#: limit. On a page each is a variable of its style, so that a dark page has lighter ones.
EAGER, PLAIN, OURS, BOUND = "#8a94a3", "#d08a2e", "#2b6cb0", "#b3261e"
_INK, _SOFT, _AXIS, _GRID = "#3b4655", "#5b6675", "#9aa5b3", "#e6eaf0"
_VARIABLES = {
    EAGER: "--eager", PLAIN: "--plain", OURS: "--ours", BOUND: "--bound",
    _INK: "--ink", _SOFT: "--soft", _AXIS: "--axis", _GRID: "--grid",
}  # fmt: skip

_STYLE = {
    "svg.fonttype": "none",  # text stays text: it takes the page's font and can be searched
    "svg.hashsalt": "normdeploy",  # the same picture gives the same bytes
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _INK,
    "axes.edgecolor": _AXIS,
    "axes.labelcolor": _INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "xtick.color": _SOFT,
    "ytick.color": _INK,
}


@contextmanager
def drawing(height: float) -> Iterator[tuple[Figure, Axes]]:
    """Yield a figure and its axes in the report's style, nine inches wide. Draw inside the block, then call `svg`.

    Args:
        height: in inches.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]  # the stub lists keys as literals
        figure = Figure(figsize=(9.0, height), layout="constrained")
        yield figure, figure.add_subplot()


def svg(figure: Figure) -> str:
    """Return ``figure`` as an ``<svg>`` element to inline; the same figure always gives the same text."""
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]  # the stub lists keys as literals
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in _VARIABLES.items():
        text = text.replace(f": {colour}", f": var({variable}, {colour})")
    return re.sub(r"font: ([^;\"]*?)'[^;\"]*", r"font: \1system-ui, 'Noto Sans', 'DejaVu Sans', sans-serif", text)


def latency_bars(rows: Sequence[tuple[str, float, float, float]]) -> str:
    """Draw one horizontal bar per contender; the last one, ours, stands out.

    Args:
        rows: (name, median, lower quartile, upper quartile), in microseconds.
    """
    with drawing(0.6 + 0.5 * len(rows)) as (figure, axes):
        for place, (_, median, low, high) in enumerate(rows):
            colour = OURS if place == len(rows) - 1 else EAGER if place == 0 else PLAIN
            axes.barh(place, median, color=colour, height=0.62)
            axes.errorbar(median, place, xerr=[[median - low], [high - median]], color=_INK, capsize=3, linewidth=1)
            axes.annotate(f"{_short(median)} µs", (high, place), (6, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlim(0, max(high for *_, high in rows) * 1.18)
        axes.set_xlabel("µs per call (median; whiskers: quartiles)")
        return svg(figure)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def depth_curve(points: Sequence[Mapping[str, Any]]) -> str:
    """Draw the relative error of every operator's result, in the order of the graph (a verdict's ``depth``)."""
    with drawing(2.8) as (figure, axes):
        errors = [max(float(point["relative_error"]), 1e-12) for point in points]
        axes.plot(range(len(points)), errors, color=OURS, marker="o", markersize=3, linewidth=1.2)
        axes.axhline(2.0**-24, color=EAGER, linewidth=1, linestyle="--")
        axes.annotate("one float32 rounding", (0, 2.0**-24), (2, 3), textcoords="offset points", color=_SOFT)
        axes.set_yscale("log")
        axes.set_xlabel("operator, in graph order")
        axes.set_ylabel("RMS error / RMS value")
        return svg(figure)


def share_bars(rows: Sequence[tuple[str, float]], *, unit: str) -> str:
    """Draw one horizontal bar per name, the largest first."""
    with drawing(0.7 + 0.34 * len(rows)) as (figure, axes):
        axes.barh(range(len(rows)), [value for _, value in rows], color=OURS, height=0.62)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(unit)
        return svg(figure)


def before_after_bars(counts_before: Mapping[str, int], counts_after: Mapping[str, int]) -> str:
    """Draw how many nodes of each operator the graph held before and after, operators that changed first."""
    from matplotlib.ticker import MaxNLocator

    names = sorted(
        counts_before.keys() | counts_after.keys(),
        key=lambda name: (-abs(counts_before.get(name, 0) - counts_after.get(name, 0)), name),
    )[:12]
    with drawing(0.8 + 0.36 * len(names)) as (figure, axes):
        for place, name in enumerate(names):
            axes.barh(
                place - 0.19,
                counts_before.get(name, 0),
                color=EAGER,
                height=0.36,
                label="as traced" if place == 0 else None,
            )
            axes.barh(
                place + 0.19, counts_after.get(name, 0), color=OURS, height=0.36, label="ours" if place == 0 else None
            )
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("nodes")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(frameon=False, loc="outside upper right", ncols=2)
        return svg(figure)
