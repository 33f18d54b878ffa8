"""What a benchmark found: rows, memory, what was skipped; as a table, JSON and a picture."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from normdeploy.errors import UsageError
from normdeploy.files import written_whole
from normdeploy.ort.machine import this_machine
from normdeploy.runtime.latency import Latency, Ratio
from normdeploy.runtime.memory import Footprint

OURS, TUNED = "normdeploy", "normdeploy tuned"
SCHEMA = 1


@dataclass(frozen=True)
class BenchRow:
    """One contestant in one cell of the sweep.

    Args:
        name: who.
        batch: samples per call.
        threads: threads inside one operator.
        latency: seconds per call.
        ratio: its time over ours in the same rounds; above 1 means ours is faster.
        difference: largest output difference to ours, over the largest magnitude of ours.
    """

    name: str
    batch: int
    threads: int
    latency: Latency
    ratio: Ratio
    difference: float

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        return {
            **self.latency.to_dict(),
            "name": self.name,
            "batch": self.batch,
            "threads": self.threads,
            "ratio_to_normdeploy": self.ratio.to_dict(),
            "difference": self.difference,
        }


@dataclass(frozen=True)
class BenchResult:
    """A benchmark run.

    Args:
        model: the file that was measured.
        rows: every contestant in every cell.
        footprints: contestant to memory and load time in a fresh process.
        skipped: contestant to why it was not measured (or not its memory).
        machine: where.
        notes: what a reader of the numbers should know.
    """

    model: str
    rows: tuple[BenchRow, ...]
    footprints: Mapping[str, Footprint]
    skipped: Mapping[str, str]
    machine: Mapping[str, Any] = field(default_factory=lambda: this_machine().to_dict())
    notes: tuple[str, ...] = ()

    def row(self, name: str, *, batch: int, threads: int) -> BenchRow:
        """Return one cell's row.

        Raises:
            UsageError: it was not measured.
        """
        for row in self.rows:
            if (row.name, row.batch, row.threads) == (name, batch, threads):
                return row
        raise UsageError(f"{name!r} at batch {batch} and {threads} threads was not measured; {dict(self.skipped)}")

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return everything as JSON."""
        import torch

        fields = {
            "schema": SCHEMA,
            "model": self.model,
            "machine": dict(self.machine),
            "torch": torch.__version__,
            "rows": [row.to_dict() for row in self.rows],
            "footprints": {name: footprint.to_dict() for name, footprint in self.footprints.items()},
            "skipped": dict(self.skipped),
            "notes": list(self.notes),
        }
        return json.dumps(fields, indent=indent) + "\n"

    def summary(self) -> str:
        """Return a table for the console."""
        lines = [
            f"{self.model}  (ratio: time over {OURS}'s in the same rounds, with its 95 % interval; "
            "off by: largest difference of outputs to ours)"
        ]
        for row in self.rows:
            low, high = row.latency.quartiles
            ratio = f"{row.ratio.value:6.2f}x [{row.ratio.low:.2f}, {row.ratio.high:.2f}]"
            lines.append(
                f"batch {row.batch:<3} threads {row.threads:<2} {row.name:<28} {row.latency.median * 1e3:9.3f} ms"
                f"  {f'[{low * 1e3:.3f}, {high * 1e3:.3f}]':<18} {ratio:<24} off by {row.difference:.0e}"
            )
        for name, footprint in self.footprints.items():
            lines.append(
                f"{name:<28} peak {footprint.peak_bytes / 2**20:.0f} MiB, of it {footprint.added_bytes / 2**20:.0f} "
                f"for the model; load {footprint.load_s * 1e3:.0f} ms, first run {footprint.first_run_s * 1e3:.0f} ms"
            )
        lines += [f"skipped {name}: {reason}" for name, reason in self.skipped.items()]
        lines += [f"note: {text}" for text in self.notes]
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Draw medians with quartiles, one panel per cell; the format follows the file's ending."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        cells = sorted({(row.threads, row.batch) for row in self.rows})
        names = list(dict.fromkeys(row.name for row in self.rows))
        figure = Figure(figsize=(7, 0.9 + len(cells) * (0.6 + 0.28 * len(names))), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, (threads, batch) in zip(figure.subplots(len(cells), squeeze=False)[:, 0], cells, strict=True):
            rows = [row for row in self.rows if (row.threads, row.batch) == (threads, batch)]
            medians = np.array([row.latency.median for row in rows]) * 1e3
            bounds = np.array([row.latency.quartiles for row in rows]).T * 1e3
            errors = np.abs(bounds - medians)
            colors = ["tab:blue" if row.name in (OURS, TUNED) else "tab:gray" for row in rows]
            axes.barh([row.name for row in rows], medians, xerr=errors, color=colors, error_kw={"capsize": 2})
            axes.invert_yaxis()
            axes.set_xlim(left=0)
            axes.set_title(f"batch {batch}, {threads} threads", fontsize="medium", loc="left")
            axes.set_xlabel("ms per call, median and quartiles")
        with written_whole(path, overwrite=overwrite) as temporary:
            figure.savefig(temporary)
        return Path(path)
