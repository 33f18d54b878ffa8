"""Draw a rule: its tiny graph (docs/rule_examples.py) as it is, and as the rewriting leaves it, as one small SVG.

What is drawn is computed: the graph goes through the whole pipeline each time the documentation is built. Colours are
the theme's variables, so that the picture follows a light and a dark page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
import onnx_ir as ir
from rule_examples import Example

from normdeploy.rewrite.ledger import Ledger
from normdeploy.rewrite.pipeline import rewrite

_ROW, _BOX, _SPACE, _BETWEEN = 58, 36, 18, 70
STYLE = (
    ".rule{font:12px var(--font-stack,system-ui,sans-serif);max-width:100%;height:auto}"
    ".rule rect{fill:var(--color-background-secondary,#f4f6f9);stroke:var(--color-foreground-border,#8a94a3)}"
    ".rule .leaves{stroke:var(--color-brand-primary,#b3261e);stroke-dasharray:4 3}"
    ".rule .comes{stroke:var(--color-brand-primary,#b3261e);stroke-width:2}"
    ".rule text{fill:var(--color-foreground-primary,#1c2430);text-anchor:middle}"
    ".rule .soft{fill:var(--color-foreground-secondary,#5b6675);font-size:10.5px}"
    ".rule path{fill:none;stroke:var(--color-foreground-muted,#8a94a3)}"
)
"""The pictures' style, once per page."""


@dataclass(eq=False)
class _Box:
    """An operator, an input or output of the graph, or (without a label) a place where a line passes a row."""

    label: str
    note: str = ""
    kind: str = ""
    row: int = 0
    x: float = 0.0
    reads: list[_Box] = field(default_factory=list)

    @property
    def width(self) -> float:
        return max(7.4 * len(self.label), 6.2 * len(self.note)) + 16 if self.label else 6


@dataclass(frozen=True)
class _Known:
    """The first graph's constants: their numbers, and which one an operator reads at a place."""

    values: dict[str, np.ndarray]
    places: dict[tuple[str, int], str | None]


def picture(example: Example) -> tuple[str, Ledger]:
    """Return an ``<svg>`` of a graph before and after, and the ledger of the rewriting."""
    before = example.model()
    result = rewrite(before, **example.options)
    known = _Known(
        {name: _values(value) for name, value in before.graph.initializers.items()},
        {(n.op_type, at): v.name for n in before.graph for at, v in enumerate(n.inputs) if v and v.const_value},
    )
    sides = [_boxes(graph, known) for graph in (before.graph, result.model.graph)]
    names = [{box.label for box in side if box.kind == "operator"} for side in sides]
    for side, others, word in zip(sides, reversed(names), ("leaves", "comes"), strict=True):
        for box in side:
            if box.kind == "operator" and box.label not in others:
                box.kind = f"operator {word}"
    widths = [_place(side) for side in sides]
    rows = max(box.row for side in sides for box in side) + 1
    width, height = sum(widths) + _BETWEEN, rows * _ROW - _ROW + _BOX + 4
    said = " becomes ".join(", ".join(b.label for b in side if b.kind.startswith("operator")) for side in sides)
    parts = [
        f'<svg class="rule" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg" aria-label="{escape(said)}">'
    ]
    for side, left in zip(sides, (0, widths[0] + _BETWEEN), strict=True):
        parts += [_line(left, maker, box) for box in side for maker in box.reads]
        parts += [_drawn(left, box) for box in side if box.label]
    middle, y = widths[0] + _BETWEEN / 2, height / 2
    parts.append(f'<path d="M{middle - 18} {y}h36m-8 -6l8 6l-8 6" stroke-width="2"/></svg>')
    return "".join(parts), result.ledger


def _values(value: ir.Value) -> np.ndarray:
    return np.asarray(value.const_value.numpy() if value.const_value is not None else 0.0)


def _boxes(graph: ir.Graph, known: _Known) -> list[_Box]:
    """Return what is to be drawn of a graph, in its order, with what each reads; bodies' operators in a note."""
    made: dict[ir.Value, _Box] = {value: _Box(str(value.name), kind="end") for value in graph.inputs}
    boxes = list(made.values())
    for node in graph:
        inside = [one for body in node.attributes.values() for one in _body(body)]
        inner = [one.op_type for one in inside]
        held = [_named(node, at, value, known) for at, value in enumerate(node.inputs) if value and value.const_value]
        box = _Box(node.op_type, ", ".join(inner or held), "operator")
        read = [value for one in (node, *inside) for value in one.inputs]
        box.reads = list(dict.fromkeys(made[value] for value in read if value in made))
        box.row = 1 + max((maker.row for maker in box.reads), default=0)
        boxes.append(box)
        made |= dict.fromkeys(node.outputs, box)
    last = max(box.row for box in boxes) + 1
    boxes += [
        _Box(str(value.name), kind="end", row=last, reads=[made[value]]) for value in graph.outputs if value in made
    ]
    return _with_passages(boxes)


def _body(attribute: ir.Attr) -> Sequence[ir.Node]:
    return list(attribute.as_graph()) if attribute.type == ir.AttributeType.GRAPH else []


def _named(node: ir.Node, at: int, value: ir.Value, known: _Known) -> str:
    """Return a constant's name in the first graph; with a prime where its numbers are others now; else its size."""
    found = _values(value)
    for name, given in known.values.items():
        if given.shape == found.shape and np.array_equal(given, found):
            return name
    if found.size == 1:
        return f"{found.reshape(-1)[0]:.4g}"
    old = value.name if value.name in known.values else known.places.get((node.op_type, at))
    return f"{old}′" if old else f"[{'×'.join(map(str, found.shape))}]"


def _with_passages(boxes: list[_Box]) -> list[_Box]:
    """Let a line that crosses rows pass each of them at a place of its own."""
    every = list(boxes)
    for box in boxes:
        for at, maker in enumerate(box.reads):
            source = maker
            for row in range(maker.row + 1, box.row):
                source = _Box("", row=row, reads=[source])
                every.append(source)
            box.reads[at] = source
    return every


def _place(boxes: list[_Box]) -> float:
    """Give every box its place within its row, near what it reads; return the width of all."""
    rows: dict[int, list[_Box]] = {}
    for box in boxes:
        rows.setdefault(box.row, []).append(box)
    widest = max(sum(box.width + _SPACE for box in row) for row in rows.values())
    for number in sorted(rows):
        row = rows[number]
        row.sort(key=lambda box: sum(maker.x for maker in box.reads) / len(box.reads) if box.reads else 0.0)
        left = (widest - sum(box.width + _SPACE for box in row)) / 2
        for box in row:
            box.x = left + (box.width + _SPACE) / 2
            left += box.width + _SPACE
    return widest


def _line(left: float, start: _Box, end: _Box) -> str:
    x, z = left + start.x, left + end.x
    y = start.row * _ROW + (_BOX if start.label else 0)
    down = end.row * _ROW + 2
    passed = f"V{end.row * _ROW + _BOX}" if not end.label else ""
    y -= 0 if start.label else -_BOX
    half = (y + down) / 2
    return f'<path d="M{x:.1f} {y}C{x:.1f} {half} {z:.1f} {half} {z:.1f} {down}{passed}"/>'


def _drawn(left: float, box: _Box) -> str:
    x, y = left + box.x, box.row * _ROW + 2
    if box.kind == "end":
        return f'<text x="{x:.1f}" y="{y + 22}">{escape(box.label)}</text>'
    word = box.kind.partition(" ")[2]
    note = f'<text class="soft" x="{x:.1f}" y="{y + 28}">{escape(box.note)}</text>' if box.note else ""
    return (
        f'<rect class="{word}" x="{x - box.width / 2:.1f}" y="{y}" width="{box.width:.1f}" height="{_BOX - 2}" rx="5"/>'
        f'<text x="{x:.1f}" y="{y + (14 if note else 21)}">{escape(box.label)}</text>{note}'
    )
