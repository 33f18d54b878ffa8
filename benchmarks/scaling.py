"""How rewriting and verifying grow with a network: processor time and memory against nodes and against parameters.

    python benchmarks/scaling.py [--nodes 250 ... 4000] [--parameters 1e6 ... 6.4e7] [--out scaling.json]
        [--picture scaling.svg]

nodes        chains of convolution, BatchNormalization, ReLU and a residual sum on 4 channels, from a file
parameters   ten Linear-ReLU-BatchNorm blocks of ever greater width, from a file

Each size is folded without a verdict ("rewrite") and with one at the default level ("with verdict") in a process of its
own, on one thread; a small file comes first, so that imports are not measured. Processor seconds, and peak memory
over what was held before. "exponent" is p of time ~ size^p between a row and the one before: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

Row = dict[str, Any]
NODES = [250, 500, 1000, 2000, 4000]
PARAMETERS = [1e6, 4e6, 1.6e7, 6.4e7]
BLOCKS = 10
KINDS = ("nodes", "parameters")
LABELS = {"rewrite": "rewrite", "proven": "with verdict"}


def write_chain(nodes: int, path: Path) -> int:
    """Write a chain; return its number of parameters."""
    from fold_cost import chain

    from normdeploy.graph import save_graph

    model = chain(nodes)
    held = sum(math.prod(value.shape) for value in model.graph.initializers.values())
    save_graph(model, path)
    return held


def write_blocks(parameters: float, path: Path) -> int:
    """Write blocks of Linear, ReLU and BatchNorm, plainly exported; return their number of parameters."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    width = round(math.sqrt(parameters / BLOCKS))
    blocks = (nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.BatchNorm1d(width)) for _ in range(BLOCKS))
    model = nn.Sequential(*blocks)
    with torch.no_grad():
        model(torch.randn(64, width))  # statistics
    batch = {"input": {0: torch.export.Dim("batch")}}
    torch.onnx.export(
        model.eval(), (torch.randn(2, width),), path, dynamo=True, dynamic_shapes=batch, optimize=False, verbose=False
    )
    return sum(p.numel() for p in model.parameters())


def measure(kind: str, size: float) -> Row:
    """Measure one size in this process."""
    import warnings

    import torch
    from verdict_cost import taken
    from verify_cost import Peak, resident

    import normdeploy as nd

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # the libraries' own
    with tempfile.TemporaryDirectory() as folder:
        small, source, target = (Path(folder) / f"{name}.onnx" for name in ("small", "source", "target"))
        write_chain(8, small)
        nd.fold(small, Path(folder) / "small2.onnx")
        row: Row = {"kind": kind}
        if kind == "nodes":
            row["parameters"] = write_chain(int(size), source)
        else:
            row["parameters"] = write_blocks(size, source)
        from normdeploy.graph import load_graph

        row["nodes"] = len(load_graph(source).graph)
        for stage, call in (
            ("rewrite", lambda: nd.fold(source, target, verify=False)),
            ("proven", lambda: nd.fold(source, target, overwrite=True)),
        ):
            peak, before = Peak(), resident()
            with peak.watched():
                row[f"{stage}_s"], found = taken(call)
            row[f"{stage}_peak"] = peak.bytes - before
        row["verdict"] = found.verdict.status
        row["not_checked"] = found.verdict.not_checked
    return row


def table(rows: list[Row], kind: str) -> str:
    """Return the rows of a kind, in Markdown."""
    lines = [
        "| nodes | parameters | rewrite, s | exponent | peak, MB | with verdict, s | exponent | peak, MB | verdict |",
        "|---" * 9 + "|",
    ]
    before: Row | None = None
    for row in (row for row in rows if row["kind"] == kind):
        growth = ["", ""]
        if before is not None:
            step = math.log(row[kind] / before[kind])
            growth = [f"{math.log(row[key] / before[key]) / step:.2f}" for key in ("rewrite_s", "proven_s")]
        lines.append(
            f"| {row['nodes']} | {row['parameters']:.2g} | {row['rewrite_s']:.2f} | {growth[0]} | "
            f"{row['rewrite_peak'] / 1e6:.0f} | {row['proven_s']:.2f} | {growth[1]} | {row['proven_peak'] / 1e6:.0f} | "
            f"{row['verdict']} |"
        )
        before = row
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> None:
    """Draw seconds and megabytes against nodes and parameters, on logarithmic axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = Figure(figsize=(8, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, 2)
    for column, kind in enumerate(KINDS):
        own = [row for row in rows if row["kind"] == kind]
        sizes = [row[kind] for row in own]
        for row, (suffix, unit, scale) in enumerate((("_s", "processor seconds", 1.0), ("_peak", "peak, MB", 1e-6))):
            axes = grid[row, column]
            for stage, mark in (("rewrite", "o-"), ("proven", "s-")):
                axes.loglog(sizes, [one[stage + suffix] * scale for one in own], mark, label=LABELS[stage])
            start = own[0]["rewrite" + suffix] * scale
            axes.loglog(sizes, [start * size / sizes[0] for size in sizes], ":", color="#888888", label="linear")
            axes.set(xlabel=kind, ylabel=unit)
            axes.set_xticks(sizes, [str(size) if size < 1e5 else f"{size / 1e6:.0f} M" for size in sizes])
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.grid(visible=True, alpha=0.3)
    grid[0, 0].legend()
    figure.savefig(path)


def main() -> int:
    """Measure each size in a process of its own, print the tables, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", nargs="*", type=int, default=NODES)
    parser.add_argument("--parameters", nargs="*", type=float, default=PARAMETERS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--here", nargs=2, metavar=("KIND", "SIZE"), help="measure one size in this process")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options.here[0], float(options.here[1]))))
        return 0
    rows: list[Row] = []
    for kind, size in [("nodes", size) for size in options.nodes] + [
        ("parameters", size) for size in options.parameters
    ]:
        command = [sys.executable, __file__, "--here", kind, str(size)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=environment)
        if done.returncode:
            return done.returncode
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        if options.out is not None:
            options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for kind in KINDS:
        print(f"{table(rows, kind)}\n")
    if options.picture is not None:
        draw(rows, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
