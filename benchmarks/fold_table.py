"""What the rewriting does to the reference models: maps left, nodes, time, and float32's error over eager's.

Per model: the affine maps and normalizations of the graph as traced and how many are kept, the nodes as traced and
rewritten, the median processor time of a rewrite, and the error against float64 of the rewritten graph over eager
torch's (root mean squares over held-out data, as in fold_numerics.py). Run it in the checkouts of two versions to
compare them.

    python benchmarks/fold_table.py [--only lenet tabular] [--runs 100] [--times 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

from fold_numerics import ratio, reference_models, squares

from normdeploy.exporting.trace import trace
from normdeploy.rewrite import rewrite


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="names of the models; all by default")
    parser.add_argument("--runs", type=int, default=100, help="inputs per model, where there are so many")
    parser.add_argument("--times", type=int, default=5, help="rewrites that are timed")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| model | maps | kept | nodes as traced | nodes | rewrite, ms | error over eager's |")
    print("|---|---|---|---|---|---|---|")
    for network in reference_models("data"):
        if chosen.only and network.name not in chosen.only:
            continue
        traced = trace(network.make(0), network.args, kwargs=dict(network.kwargs)).model
        rewritten = rewrite(traced)
        seconds = []
        for _ in range(chosen.times):
            start = time.process_time()
            rewrite(traced)
            seconds.append(time.process_time() - start)
        found = squares(network, 0, chosen.runs, cancel=False)
        error = ratio([found["folded"]], [found["eager"]])[0]
        print(
            f"| {network.name} | {len(rewritten.ledger)} | {len(rewritten.ledger.kept)} | {len(traced.graph)} | "
            f"{len(rewritten.model.graph)} | {1e3 * statistics.median(seconds):.0f} | {error:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
