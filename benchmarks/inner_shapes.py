"""What types and shapes of values inside the file ("value_info") cost in onnxruntime on the CPU: time and peak memory.

torch's exporter writes them; files of this package leave them out. Here each network is written both ways. The time
is a ratio within one run, repeated with fresh sessions (median and range); below 1 the file without them is faster.
Memory is the peak of a fresh process over five calls, less what it had before the first. "operators" are those that
onnxruntime runs.

    python benchmarks/inner_shapes.py [--only NAME] [--seconds 2] [--batch 32] [--memory-batch 512]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from graphs import operators
from targets import compare, runner, subjects
from torch import nn

import normdeploy as nd
from normdeploy.ort.specs import file_specs
from normdeploy.runtime import Settings
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.memory import peak_resident_bytes
from normdeploy.runtime.samples import make_samples

_CALLS = 5
_LENGTH = 64  # of dynamic dimensions other than the batch


def export_both(module: nn.Module, arguments: dict[str, Any], bare: Path, full: Path) -> None:
    """Export without and with what the exporter knows of the values inside."""
    given = dict(arguments)
    args = given.pop("args")
    nd.export(module, args, bare, verify=False, overwrite=True, **given)
    with mock.patch("normdeploy.graph.onnx_files.strip_inner_shapes"):
        nd.export(module, args, full, verify=False, overwrite=True, **given)


def memory_mb(path: Path, feeds: dict[str, np.ndarray]) -> float:
    """Return the megabytes that a fresh process needs for its calls (the first one alone shows no planned memory)."""
    with tempfile.NamedTemporaryFile(suffix=".npz") as rows:
        np.savez(rows, **feeds)
        rows.flush()
        words = [sys.executable, __file__, "--child", str(path), rows.name]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout))


def child(path: Path, rows: Path) -> None:
    """Print the memory of this process's calls."""
    backend = open_backend(path, Settings(threads=1))
    with np.load(rows) as archive:
        feeds = dict(archive)
    before = peak_resident_bytes()
    for _ in range(_CALLS):
        backend.run(feeds)
    print(json.dumps((peak_resident_bytes() - before) / 2**20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--seconds", type=float, default=2.0, help="time per network")
    parser.add_argument("--batch", type=int, default=32, help="of the timed calls, where the network leaves it open")
    parser.add_argument("--memory-batch", type=int, default=512)
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    warnings.simplefilter("ignore")  # what the exporter and transformers say of themselves
    print("| network | time without / with (range) | memory, MB: without, with | operators: without, with |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        bare, full = Path(folder) / "bare.onnx", Path(folder) / "full.onnx"
        for name, module, arguments, given in subjects():
            if options.only not in name:
                continue
            export_both(module, arguments, bare, full)
            specs = file_specs(bare)[0]
            sizes = {str(size): _LENGTH for spec in specs for size in spec.shape[1:] if isinstance(size, str)}
            feeds = given or make_samples(specs, options.batch, sizes=sizes)
            large = given or make_samples(specs, options.memory_batch, sizes=sizes)
            calls = {"without": partial(runner, bare, feeds, 1), "with": partial(runner, full, feeds, 1)}
            ratios = [turn["without"].ratio(turn["with"]).value for turn in compare(calls, options.seconds)]
            print(
                f"| {name} | {np.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) "
                f"| {memory_mb(bare, large):.0f}, {memory_mb(full, large):.0f} "
                f"| {sum(operators(bare).values())}, {sum(operators(full).values())} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
