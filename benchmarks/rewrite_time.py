"""Where rewriting spends its time: processor time per pass and per node, of any ONNX files and of chains.

1. files: each is rewritten several times, and the fastest is shown, pass by pass, in milliseconds and in microseconds
   per node of the file;
2. chains of convolution, BatchNormalization, ReLU and a residual sum, of 400, 800 and 1600 nodes: time per node is the
   same for all where rewriting takes a time proportional to a graph's nodes.

Processor time of this process is taken, so that other processes disturb little; garbage is collected before each.

    python benchmarks/rewrite_time.py [model.onnx ...] [--chains 400 800 1600] [--repeat 3] [--least 0.01]
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir
from fold_cost import chain

from normdeploy.graph import load_graph, save_graph
from normdeploy.rewrite import RewriteContext, pipeline, rewrite

Passes = Callable[[RewriteContext], tuple[ir.passes.PassBase, ...]]


class _Timed(ir.passes.InPlacePass):
    """A pass, with its processor time added up under its place and name."""

    def __init__(self, step: ir.passes.PassBase, name: str, seconds: Counter[str]) -> None:
        super().__init__()
        self._step, self._name, self._seconds = step, name, seconds

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        start = time.process_time()
        result = self._step(model)
        self._seconds[self._name] += time.process_time() - start
        return result


@contextmanager
def timed(seconds: Counter[str]) -> Iterator[None]:
    """Add up what each pass of a rewriting takes meanwhile."""
    plain = {name: getattr(pipeline, name) for name in ("understand", "transform")}

    def measured(passes: Passes) -> Passes:
        def steps(context: RewriteContext) -> tuple[ir.passes.PassBase, ...]:
            return tuple(_Timed(step, type(step).__name__, seconds) for step in passes(context))

        return steps

    try:
        for name, passes in plain.items():
            setattr(pipeline, name, measured(passes))
        yield
    finally:
        for name, passes in plain.items():
            setattr(pipeline, name, passes)


def measure(path: Path, repeat: int) -> tuple[int, float, Counter[str]]:
    """Return a file's nodes, and the seconds of its fastest rewriting: of all, and by pass."""
    best: tuple[float, Counter[str]] | None = None
    nodes = 0
    for _ in range(repeat):
        model, seconds = load_graph(path), Counter[str]()
        nodes = sum(1 for _ in ir.traversal.RecursiveGraphIterator(model.graph))
        gc.collect()
        with timed(seconds):
            start = time.process_time()
            rewrite(model)
            total = time.process_time() - start
        if best is None or total < best[0]:
            best = total, seconds
    assert best is not None
    return nodes, *best


def show(name: str, path: Path, repeat: int, least: float) -> None:
    """Print one table."""
    nodes, total, seconds = measure(path, repeat)
    seconds["everything else"] = total - seconds.total()
    print(f"\n{name}: {nodes} nodes, {1e3 * total:.0f} ms, {1e6 * total / nodes:.0f} us per node")
    for step, spent in seconds.most_common():
        if spent >= least * total:
            print(f"  {step:<20} {1e3 * spent:8.1f} ms {1e6 * spent / nodes:8.1f} us per node {spent / total:6.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--chains", nargs="*", type=int, default=[400, 800, 1600], help="nodes of each chain")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--least", type=float, default=0.01, help="share of the whole below which a pass is left out")
    arguments = parser.parse_args()
    for path in arguments.files:
        show(path.stem, path, arguments.repeat, arguments.least)
    with tempfile.TemporaryDirectory() as folder:
        for nodes in arguments.chains:
            path = Path(folder) / f"chain_{nodes}.onnx"
            save_graph(chain(nodes), path)
            show(path.stem, path, arguments.repeat, arguments.least)


if __name__ == "__main__":
    main()
