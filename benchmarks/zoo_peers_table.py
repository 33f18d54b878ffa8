"""The tables of ours and its peers, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def _mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values if value]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _head(names: Sequence[str]) -> list[str]:
    return [_line(names), "|---" * len(names) + "|"]


def _ratio(row: Row, name: str) -> str:
    found = row.get("latency", {}).get("ratios", {}).get(name)
    return "" if found is None else f"{found['value']:.2f} ({found['low']:.2f}-{found['high']:.2f})"


def networks(rows: Sequence[Row], names: Sequence[str], ours: str) -> str:
    """Return a line per network: ours beside the best of each column among the peers that onnxruntime runs."""
    heads = (
        "network", "maps left: plain, best peer, ours", "removable", "nodes: plain, best peer, ours",
        "seconds: quickest peer, ours", "error over eager's: plain, ours", "time over plain's: best peer", "ours",
        "OpenVINO",
    )  # fmt: skip
    lines = _head(heads)
    for row in rows:
        if "files" not in row:
            lines.append(_line([row["name"], f"{row['ended']}: {row['why']}", *[""] * (len(heads) - 2)]))
            continue
        files = {name: one for name, one in row["files"].items() if "failed" not in one}
        plain, own = files[names[0]], files.get(ours)
        peers = {name: one for name, one in files.items() if name not in (names[0], ours)}
        if own is None:
            lines.append(_line([row["name"], f"ours: {row['files'][ours]['failed']}", *[""] * (len(heads) - 2)]))
            continue
        best = best_peer(row, names, ours)
        cells = [
            row["name"],
            f"{plain['left']}, {min((one['left'] for one in peers.values()), default='')}, {own['left']}",
            str(own["removable"]),
            f"{plain['nodes']}, {min((one['nodes'] for one in peers.values()), default='')}, {own['nodes']}",
            f"{min((one['seconds'] for one in peers.values()), default=math.nan):.1f}, {own['seconds']:.1f}",
            ", ".join("" if one["error"] is None else f"{one['error']:.2f}" for one in (plain, own)),
            f"{best} {_ratio(row, best)}" if best else "",
            _ratio(row, ours),
            _ratio(row, names[-1]),
        ]
        lines.append(_line(cells))
    return "\n".join(lines)


def best_peer(row: Row, names: Sequence[str], ours: str) -> str:
    """Return the peer whose file onnxruntime runs fastest; "" where nothing was timed."""
    ratios = {
        name: one["value"]
        for name, one in row.get("latency", {}).get("ratios", {}).items()
        if name not in (ours, names[-1])
    }
    return min(ratios, key=ratios.__getitem__) if ratios else ""


def summary(rows: Sequence[Row], names: Sequence[str], ours: str) -> str:
    """Return a line per pipeline: sums, geometric means, wins and losses of ours, the worst case."""
    done = [row for row in rows if "files" in row]
    heads = (
        "pipeline", "files, of these not usable", "maps left", "removable", "nodes", "MB", "seconds", "peak, MB",
        "error over eager's: mean, largest", "time over plain's: mean", "ours against it: faster, equal, slower",
        "ours at worst",
    )  # fmt: skip
    lines = _head(heads)
    for name in names:
        tried = [row["files"][name] for row in done if name in row["files"]]
        good = [one for one in tried if "failed" not in one]
        errors = [one["error"] for one in good if one.get("error") is not None]
        ratios = [r["latency"]["ratios"][name]["value"] for r in done if name in r.get("latency", {}).get("ratios", {})]
        sums = [str(sum(one[key] for one in good)) if good else "" for key in ("left", "removable", "nodes")]
        seconds = [one["seconds"] for one in good if "seconds" in one]
        lines.append(
            _line(
                [
                    f"{name} {tried[0].get('version', '')}".strip() if tried else name,
                    f"{len(tried)}, {len(tried) - len(good)}" if tried else "",
                    *sums,
                    f"{sum(one['bytes'] for one in good) / 1e6:.0f}" if good else "",
                    f"{sum(seconds):.0f}" if seconds else "",
                    f"{max(one['peak'] for one in good) / 1e6:.0f}" if seconds else "",
                    f"{_mean(errors):.2f}, {max(errors):.1f}" if errors else "",
                    f"{_mean(ratios):.2f}" if ratios else "",
                    *_against(done, name, names[0], ours),
                ]
            )
        )
    dates = sorted({row["date"] for row in rows})
    return "\n".join([*lines, "", f"{len(done)} networks of {len(rows)}, measured from {dates[0]} to {dates[-1]}."])


def _against(rows: Sequence[Row], name: str, plain: str, ours: str) -> tuple[str, str]:
    """Return how often ours is faster, equal and slower, by the two intervals, and where it is worst."""
    faster = equal = slower = 0
    worst: tuple[float, str] = (0.0, "")
    for row in rows:
        ratios = row.get("latency", {}).get("ratios", {})
        its = {"value": 1.0, "low": 1.0, "high": 1.0} if name == plain and ratios else ratios.get(name)
        own = ratios.get(ours)
        if name == ours or own is None or its is None:
            continue
        faster += own["high"] < its["low"]
        slower += own["low"] > its["high"]
        equal += own["high"] >= its["low"] and own["low"] <= its["high"]
        worst = max(worst, (own["value"] / its["value"], row["name"]))
    if not worst[1]:
        return "", ""
    return f"{faster}, {equal}, {slower}", f"{worst[0]:.2f} {worst[1]}"


def runtimes(rows: Sequence[Row], names: Sequence[str], ours: str) -> str:
    """Return a line per network: the time of OpenVINO with the plain file, and of our file in onnxruntime."""
    openvino = names[-1]
    lines = _head(("network", "plain, ms", "OpenVINO over plain", "ours over plain", "ours over OpenVINO"))
    found, sides = [], {"faster": 0, "equal": 0, "slower": 0}
    for row in rows:
        latency = row.get("latency")
        if latency is None:
            lines.append(_line([row["name"], f"{row['ended']}: {row['why']}", "", "", ""]))
            continue
        pair = latency.get("ours over OpenVINO")
        cells = [_ratio(row, openvino) or latency["refused"].get(openvino, ""), _ratio(row, ours), ""]
        if pair is not None:
            found.append(pair["value"])
            side = "faster" if pair["high"] < 1 else "slower" if pair["low"] > 1 else "equal"
            sides[side] += 1
            text = f"{pair['value']:.2f} ({pair['low']:.2f}-{pair['high']:.2f})"
            cells[-1] = f"**{text}**" if side == "slower" else text
        lines.append(_line([row["name"], f"{latency['plain_s'] * 1e3:.2f}", *cells]))
    counted = ", ".join(f"{count} {side}" for side, count in sides.items())
    return "\n".join([*lines, "", f"ours over OpenVINO: {_mean(found):.2f} (geometric mean); ours is {counted}."])


NOTABLE = 1.1
"""An error so many times the plain file's is a loss; less is the draw of a rounding."""


def losses(rows: Sequence[Row], names: Sequence[str], ours: str) -> str:
    """Return a line per network and column in which a peer's file is better than ours: which, and by how much."""
    lines = _head(("network", "what", "ours", "better"))
    for row in rows:
        files = {name: one for name, one in row.get("files", {}).items() if "failed" not in one}
        own = files.pop(ours, None)
        if own is None:
            lines.append(_line([row["name"], "usable", "no", ", ".join(files)]))
            continue
        for key, what in (("left", "maps left"), ("nodes", "nodes")):
            better = {name: one[key] for name, one in files.items() if one[key] < own[key]}
            if better:
                lines.append(_line([row["name"], what, str(own[key]), _sorted(better, "")]))
        plain = files.get(names[0], {}).get("error")
        if plain and own["error"] > NOTABLE * plain:
            better = {name: one["error"] for name, one in files.items() if one["error"] < own["error"] / NOTABLE}
            lines.append(_line([row["name"], "error over eager's", f"{own['error']:.2f}", _sorted(better, ".2f")]))
        ratios = {k: r for k, r in row.get("latency", {}).get("ratios", {}).items() if k != names[-1]}
        mine = ratios.pop(ours, None)
        if mine is not None:
            better = {name: one["value"] for name, one in ratios.items() if one["high"] < mine["low"]}
            if better:
                lines.append(_line([row["name"], "time", f"{mine['value']:.2f}", _sorted(better, ".2f")]))
    return "\n".join(lines)


def _sorted(better: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in sorted(better.items(), key=lambda item: item[1]))
