"""How often the interval of a file against itself holds 1: in 95 of 100 comparisons, if it is one of 95 %.

    python benchmarks/itself.py net.onnx [--times 100] [--seconds 1.5] [--batch 8] [--threads 1]

Each comparison is one of `normdeploy bench`: two names for one file, fresh sessions of both, turns in one run. "rounds
alone" is the interval that one would take from all rounds, as if sessions did not differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from normdeploy.ort.settings import Settings
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.latency import fair_turn, joined, measure_in_sessions, paired_ratio, session_ratio
from normdeploy.runtime.samples import make_samples

NAMES = ("one", "other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=1.5, help="of one comparison")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    settings = Settings(threads=options.threads)
    feeds = make_samples(open_backend(options.file, settings).inputs, options.batch)
    turn = fair_turn(options.threads)

    def prepare(session: int) -> dict[str, Callable[[], object]]:
        order = NAMES if session % 2 == 0 else NAMES[::-1]
        return {name: partial(open_backend(options.file, settings).run, feeds) for name in order}

    held = alone = 0
    values = []
    for seed in range(options.times):
        found = measure_in_sessions(prepare, seconds=options.seconds, seed=seed, **turn)
        ratio, rounds = session_ratio(found, *NAMES), paired_ratio(*(joined(found, name) for name in NAMES))
        held += ratio.low <= 1 <= ratio.high
        alone += rounds.low <= 1 <= rounds.high
        values.append(ratio.value)
    low, high = np.quantile(values, [0.025, 0.975])
    print(f"{options.times} comparisons of {options.file.name} with itself: 1 is in the interval of {held}", end="")
    print(f" (rounds alone: {alone}); ratios {low:.2f} to {high:.2f} in 95 of 100")


if __name__ == "__main__":
    main()
