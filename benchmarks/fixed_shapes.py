"""What a session made for one shape gains over one for any shape, by provider and network, as a ratio within one run.

Each repeat opens both sessions anew; the ratio is the median over the repeats, the interval their range. Below 1 the
fixed session is faster. Loading takes the other time of one kind: seconds until the first result.

    python benchmarks/fixed_shapes.py net.onnx [more.onnx] [--batch 8] [--threads 2] [--seconds 3]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from normdeploy.runtime import Settings, measure_latency
from normdeploy.runtime.backend import file_specs, open_backend
from normdeploy.runtime.latency import PAUSE, STRETCH, Latency
from normdeploy.runtime.machine import usable_cores
from normdeploy.runtime.providers import find_providers, float32_options
from normdeploy.runtime.samples import make_samples

REPEATS = 6


def compare(path: Path, any_shape: Settings, feeds: Mapping[str, Any], seconds: float) -> tuple[list[float], float]:
    """Return the ratios of the repeats, and the median milliseconds of a call of the session for any shape."""
    shapes = tuple(sorted((name, array.shape) for name, array in feeds.items()))
    ways = {"any": any_shape, "fixed": replace(any_shape, fixed_shapes=shapes)}
    ratios, plain = [], []
    for repeat in range(REPEATS):
        names = list(ways) if repeat % 2 else list(ways)[::-1]
        backends = {name: open_backend(path, ways[name]) for name in names}
        calls = {name: (lambda backend=backend: backend.run(feeds)) for name, backend in backends.items()}
        found: dict[str, Latency] = measure_latency(
            calls, seconds=seconds / REPEATS, stretch=STRETCH, pause=PAUSE, seed=repeat
        )
        ratios.append(found["fixed"].ratio(found["any"]).value)
        plain.append(found["any"].median * 1e3)
    return ratios, float(np.median(plain))


def first_result(path: Path, settings: Settings, feeds: Mapping[str, Any]) -> float:
    """Return milliseconds from nothing to the first result."""
    started = time.perf_counter()
    open_backend(path, settings).run(feeds)
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
            ratios, plain = compare(path, settings, feeds, options.seconds)
            shapes = tuple(sorted((name, array.shape) for name, array in feeds.items()))
            loads = [first_result(path, way, feeds) for way in (settings, replace(settings, fixed_shapes=shapes))]
            print(
                f"| {path.name} | {provider.name.removesuffix('ExecutionProvider')}"
                f"{' plugin' if provider.name != 'OpenVINO' and 'OpenVINO' in provider.name else ''} | {plain:.3f} "
                f"| {np.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) | {loads[0]:.0f}, {loads[1]:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
