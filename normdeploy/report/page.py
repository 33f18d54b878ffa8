"""A report page as plain data, and its rendering to one self-contained HTML file.

Other rooms describe what they have to say with the blocks below; only this module and its template know HTML.
The page loads nothing from elsewhere: style and pictures (SVG) are inlined, and it works without JavaScript.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jinja2

Tone = Literal["good", "warn", "bad", "neutral"]

#: How the status of a verdict, or of a check, looks.
STATUS_TONES: dict[str, Tone] = {
    "pass": "good",
    "weak": "warn",
    "not-exercised": "warn",
    "fail": "bad",
    "error": "bad",
    "note": "neutral",
}


@dataclass(frozen=True)
class Badge:
    """A coloured word."""

    text: str
    tone: Tone = "neutral"


@dataclass(frozen=True)
class Folded:
    """Words, and lines behind them that open on a click."""

    text: str
    summary: str
    lines: Sequence[str]


Cell = str | int | float | Badge | Folded | None


@dataclass(frozen=True)
class Cards:
    """A row of large numbers: (label, value, note) each."""

    items: Sequence[tuple[str, str, str]]
    block: str = field(default="cards", init=False)


@dataclass(frozen=True)
class Table:
    """Columns and rows; columns whose cells are all numbers are aligned right.

    With an anchor, row ``n`` can be linked to as ``#anchor-n``.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    anchor: str = ""
    block: str = field(default="table", init=False)

    @property
    def numeric(self) -> list[bool]:
        """Tell for each column whether every cell that is there is a number."""
        return [
            any(row[i] is not None for row in self.rows)
            and all(row[i] is None or isinstance(row[i], (int, float)) for row in self.rows)
            for i in range(len(self.columns))
        ]


def checks_table(checks: Iterable[Mapping[str, Any]], caption: str = "") -> Table:
    """List the checks of a verdict: name, answer and what was found."""
    rows = [[check["name"], Badge(check["status"], STATUS_TONES[check["status"]]), check["detail"]] for check in checks]
    return Table(["check", "answer", "what was found"], rows, caption)


@dataclass(frozen=True)
class Facts:
    """Names and values, one per line."""

    items: Sequence[tuple[str, Cell]]
    block: str = field(default="facts", init=False)


@dataclass(frozen=True)
class Picture:
    """An SVG drawing (see `normdeploy.report.pictures.svg`), trusted as it is, with what it shows in words."""

    svg: str
    caption: str
    block: str = field(default="picture", init=False)


@dataclass(frozen=True)
class Text:
    """Paragraphs."""

    paragraphs: Sequence[str]
    tone: Tone = "neutral"
    block: str = field(default="text", init=False)


@dataclass(frozen=True)
class Details:
    """Blocks behind a line that opens on a click."""

    summary: str
    blocks: Sequence[Block]
    block: str = field(default="details", init=False)


Block = Cards | Table | Facts | Picture | Text | Details


@dataclass(frozen=True)
class Section:
    """A heading, a sentence under it, and blocks."""

    title: str
    blocks: Sequence[Block]
    lead: str = ""


@dataclass(frozen=True)
class Page:
    """One report.

    Args:
        title: the model's name, or what the report is about.
        subtitle: a sentence.
        status: the badge beside the title, such as a verdict's status; None for none.
        sections: in reading order.
        footer: how the report came to be (versions, command).
    """

    title: str
    subtitle: str
    sections: Sequence[Section]
    status: Badge | None = None
    footer: str = ""


def render_page(page: Page) -> str:
    """Return ``page`` as one HTML document; all text is escaped, SVG is not."""
    return _environment().get_template("page.html.j2").render(page=page)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("normdeploy.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["cell"] = _cell_text
    return environment


_LARGE = 1e9
"""From here on powers of ten are easier to read than digits."""


def _cell_text(value: Cell) -> str:
    """Write a number shortly, and nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < _LARGE else f"{value:.4g}"
    return str(value)
