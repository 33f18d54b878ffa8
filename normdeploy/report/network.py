"""The network before and after, drawn: one box per module, what was folded marked and linked to its row.

Modules are grouped until at most some dozens of boxes are left, so that a network of hundreds of operators can be read.
The drawing is plain SVG in the page's own colours: names are text, boxes are links, and what a pointer rests on, or the
keyboard reaches, tells the algebra.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

_MOST_BOXES = 48
_ROW, _BOX, _WIDTH, _GAP, _ARC = 34, 26, 300, 70, 26
_LONGEST = 40

ALGEBRA = {
    "BatchNormalization": "W' = W · γ / √(σ² + ε),  b' = (b − μ) · γ / √(σ² + ε) + β",
    "LayerNormalization": "y = (x − mean(x)) / √(var(x) + ε); in the next weights W' = W · γ, b' = b + W β",
    "RMSNormalization": "y = x / √(mean(x²) + ε); its γ goes into the next weights: W' = W · γ",
    "InstanceNormalization": "y = (x − mean(x)) / √(var(x) + ε) per sample and channel; γ, β go into the next weights",
    "GroupNormalization": "y = (x − mean(x)) / √(var(x) + ε) per group; its γ and β go into the next weights",
    "affine map": "s · (W x + b) + t = (s W) x + (s b + t)",
}
"""What folding a kind of operator does to the weights beside it."""


@dataclass
class _Group:
    """One box: a module cut at the depth shown, or some operators of the model's own forward (``inside``)."""

    path: str
    operators: Counter[str] = field(default_factory=Counter)
    inside: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Side:
    """One network: its groups in the order of the graph, and from which to which values go."""

    groups: list[_Group]
    edges: set[tuple[int, int]]


def network(before: Mapping[str, Any], after: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an ``<svg>`` of two graphs side by side.

    Args:
        before, after: ``{"nodes": [[module path, operator], ...], "edges": [[from, to], ...], "root": [name, ...]}``;
            a node of the model's own forward has its name as its path, and is listed under "root".
        rows: the ledger's, in its order; row ``n`` is linked as ``#row-n``.
    """
    depth = _depth([path for side in (before, after) for path, _ in side["nodes"] if path not in side.get("root", ())])
    sides = [_grouped(side, depth) for side in (before, after)]
    height = _ROW * max(len(side.groups) for side in sides) + 40
    width = 2 * _WIDTH + _GAP + 2 * _ARC
    parts = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" class="network" '
        'xmlns="http://www.w3.org/2000/svg" aria-label="The network before and after">'
    ]
    tips: list[str] = []
    shown: list[str] = []
    for left, side, title in zip((_ARC, _ARC + _WIDTH + _GAP), sides, ("as traced", "as exported"), strict=True):
        count = sum(sum(group.operators.values()) for group in side.groups)
        parts.append(f'<text x="{left}" y="18" class="head">{title}: {count:,} operators</text>')
        parts += [_edge(left, *edge) for edge in sorted(side.edges)]
        for place, group in enumerate(side.groups):
            found = _rows_in(group, rows, depth)
            told = _told_of(group, found)
            name = f"box-{'before' if left == _ARC else 'after'}-{place}"
            parts.append(_box(left, place, group, found, told, name))
            if found:
                tips.append(_tip(left, place, told, name))
                shown.append(f"#{name}:focus-visible~#{name}-tip{{display:inline}}")
    style = "".join(shown)
    return "".join([*parts, *tips, f"<style>{style}</style></svg>"])


def _depth(paths: Sequence[str]) -> int:
    """Return how many parts of a module's path to keep, so that few enough groups are left."""
    deepest = max((path.count(".") + 1 for path in paths), default=1)
    for depth in range(deepest, 1, -1):
        if len({_cut(path, depth) for path in paths}) <= _MOST_BOXES:
            return depth
    return 1


def _cut(path: str, depth: int) -> str:
    return ".".join(path.split(".")[:depth])


def _grouped(side: Mapping[str, Any], depth: int) -> _Side:
    """Group nodes by module; past the most that can be read, neighbours share a box.

    Operators of the model's own forward that follow each other are one box.
    """
    root, paths, run = set(side.get("root", ())), [], ""
    for path, _ in side["nodes"]:
        run = (run or path) if path in root else ""
        paths.append(run or _cut(path, depth))
    names = list(dict.fromkeys(paths))
    share = -(-len(names) // _MOST_BOXES)  # modules per box, where even the outermost are too many
    place = {name: number // share for number, name in enumerate(names)}
    shown = ["" if name in root else name for name in names]
    groups = [_Group(_joined(shown[start : start + share])) for start in range(0, len(names), share)]
    for path, (name, operator) in zip(paths, side["nodes"], strict=True):
        group = groups[place[path]]
        group.operators[operator] += 1
        if name in root:
            group.inside.add(name)
    edges = {(place[paths[a]], place[paths[b]]) for a, b in side["edges"]}
    return _Side(groups, {(a, b) for a, b in edges if a != b})


def _joined(names: Sequence[str]) -> str:
    named = [name for name in names if name]
    return named[0] if len(set(named)) == 1 else f"{named[0]} to {named[-1]}" if named else ""


def _rows_in(group: _Group, rows: Sequence[Mapping[str, Any]], depth: int) -> list[tuple[int, Mapping[str, Any]]]:
    found = []
    for number, row in enumerate(rows):
        where = str(row["where"])
        if where in group.inside or (group.path and _cut(where, depth) == group.path):
            found.append((number, row))
    return found


def _told_of(group: _Group, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> list[str]:
    """Return the lines that a box tells: its name, its operators, and the algebra of its norms."""
    counts = ", ".join(f"{name} × {n}" if n > 1 else name for name, n in group.operators.most_common())
    return [_label(group), counts, *(_told(row) for _, row in rows)]


def _label(group: _Group) -> str:
    return group.path or "(the model itself)"


def _tip(left: int, place: int, told: Sequence[str], name: str) -> str:
    """Return what a box tells, to be shown where the keyboard reaches it; a pointer has the title.

    Drawn behind all boxes, so that it lies on top of them.
    """
    lines = "".join(f"<div>{escape(line)}</div>" for line in chr(10).join(told).split(chr(10)))
    return (
        f'<foreignObject id="{name}-tip" class="tip" x="{left}" y="{30 + place * _ROW + _BOX + 4}" '
        f'width="{_WIDTH}" height="1"><div xmlns="http://www.w3.org/1999/xhtml">{lines}</div></foreignObject>'
    )


def _box(
    left: int,
    place: int,
    group: _Group,
    rows: Sequence[tuple[int, Mapping[str, Any]]],
    told: Sequence[str],
    name: str,
) -> str:
    top = 30 + place * _ROW
    label = _label(group)
    shown = label if len(label) <= _LONGEST else "…" + label[1 - _LONGEST :]
    middle = top + _BOX / 2
    every = sum(group.operators.values())
    size = f' <tspan class="soft">{every:,} operators</tspan>' if every > 1 and len(shown) <= _LONGEST - 14 else ""
    box = (
        f"<title>{escape(chr(10).join(told))}</title>"
        f'<rect x="{left}" y="{top}" width="{_WIDTH}" height="{_BOX}" rx="5"/>'
        f'<text x="{left + 8}" y="{top + 17}">{escape(shown)}{size}</text>{_marks(left + _WIDTH - 12, middle, rows)}'
    )
    return f'<a id="{name}" href="#row-{rows[0][0]}">{box}</a>' if rows else f"<g>{box}</g>"


def _marks(right: float, middle: float, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    """Return a dot for each thing that became of norms in a box, with how many, from the right."""
    parts = []
    for action, count in reversed(Counter(str(row["action"]) for _, row in rows).items()):
        if count > 1:
            parts.append(f'<text x="{right + 5}" y="{middle + 4}" class="count">{count:,}</text>')
            right -= 7 * len(f"{count:,}") + 4
        parts.append(f'<circle cx="{right}" cy="{middle}" r="4.5" class="{escape(action)}"/>')
        right -= 15
    return "".join(parts)


def _told(row: Mapping[str, Any]) -> str:
    words = f"{row['kind']} {row['where']}: {row['action']}"
    if row["action"] == "kept":
        return f"{words}, {row['reason']}"
    algebra = ALGEBRA.get(str(row["kind"]), "")
    return f"{words} into {row['into']}" + (f"\n{algebra}" if algebra else "")


def _edge(left: int, start: int, end: int) -> str:
    """Draw a line to the next box, an arc beside the boxes to one further on."""
    if end == start + 1:
        x = left + _WIDTH / 2
        return f'<path d="M{x} {30 + start * _ROW + _BOX}V{30 + end * _ROW}"/>'
    y, z = (30 + place * _ROW + _BOX / 2 for place in (start, end))
    reach = left - min(_ARC - 4, 6 + 2 * abs(end - start))
    return f'<path d="M{left} {y}C{reach} {y} {reach} {z} {left} {z}"/>'
