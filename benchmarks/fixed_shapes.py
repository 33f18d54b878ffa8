"""What a session made for one shape gains over one for any shape, by provider and network, as a ratio within one run.

Each repeat opens both sessions anew; the ratio is the median over the repeats, the interval their range. Below 1 the
fixed session is faster. The last column is the time from nothing to the first result.

    python benchmarks/fixed_shapes.py net.onnx [more.onnx] [--batch 8] [--threads 2] [--seconds 3]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from targets import compare

from normdeploy.ort.machine import usable_cores
from normdeploy.ort.providers import find_providers, float32_options
from normdeploy.ort.specs import file_specs
from normdeploy.runtime import Settings
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.fixed_shapes import made_for
from normdeploy.runtime.latency import PAUSE, STRETCH
from normdeploy.runtime.samples import make_samples


def called(path: Path, settings: Settings, feeds: Mapping[str, Any]) -> Callable[[], object]:
    """Open a session and return what calls it."""
    backend = open_backend(path, settings)
    return lambda: backend.run(feeds)


def first_result(path: Path, settings: Settings, feeds: Mapping[str, Any]) -> float:
    """Return milliseconds from nothing to the first result."""
    started = time.perf_counter()
    called(path, settings, feeds)()
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="ONNX files with a dynamic batch")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--seconds", type=float, default=3.0, help="time per line")
    options = parser.parse_args()
    print("| file | provider | any shape, ms | fixed / any (range) | first result, ms: any, fixed |")
    print("|---|---|---|---|---|")
    for path in options.files:
        feeds = make_samples(file_specs(path)[0], options.batch)
        for provider in find_providers():
            if not provider.usable:
                continue
            settings = Settings(provider.name, options=float32_options(provider.name), threads=options.threads)
            ways = {"any": settings, "fixed": made_for(settings, feeds)}
            makers = {name: partial(called, path, way, feeds) for name, way in ways.items()}
            found = compare(makers, options.seconds, stretch=STRETCH, pause=PAUSE)
            ratios = [turn["fixed"].ratio(turn["any"]).value for turn in found]
            plain = np.median([turn["any"].median for turn in found]) * 1e3
            loads = [first_result(path, way, feeds) for way in ways.values()]
            print(
                f"| {path.name} | {settings.describe().partition(',')[0]} | {plain:.3f} | {np.median(ratios):.2f} "
                f"({min(ratios):.2f}-{max(ratios):.2f}) | {loads[0]:.0f}, {loads[1]:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
