"""Evidence for the verifier's constants: error over bound on clean files, difference over bound of every mutant.

    python benchmarks/calibrate_verifier.py [--zoo] [--scales] [--seeds 3] [--level default] [--json OUT] [MODEL ...]
    python benchmarks/calibrate_verifier.py --functions

For each model (every recipe in export/; with --zoo also published architectures with random weights, extra ``zoo``)
and each seed: trace, rewrite, write, verify. With --scales the outputs are multiplied by 1e-6 and 1e6 as well.
Printed per model: the factors that the clean file needed in place of 4 and 8, the largest ratio of error to bound, the
smallest ratio at which a mutant died, and by which check. The factors are over whole outputs; the ratio is the worst
over blocks, as judged. A clean file that fails or a mutant that survives unproven is listed at the end, and the exit
code is 1.

``--functions`` measures instead how accurately the runtime's kernels compute each function over float32's useful range
(the table in ``normdeploy/verification/sides/function_accuracy.py``). Single operators: ``calibrate_operators.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from onnx import parser
from public_networks import Plain, networks, reference_names, zoo_names
from torch import nn
from torch.utils._pytree import tree_leaves

from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import Verdict, verify
from normdeploy.verification.check_levels import LEVELS


@dataclass
class Row:
    """One model: what its clean file needed and how its mutants died."""

    name: str
    statuses: list[str] = field(default_factory=list)
    rms_factor: float = 0.0
    max_factor: float = 0.0
    ratios: list[float] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    by: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def take(self, verdict: Verdict, seconds: float) -> None:
        """Add one verdict."""
        self.statuses.append(verdict.status)
        self.seconds.append(seconds)
        for m in verdict.measurements:
            self.ratios.append(m.ratio)
            floor = max(m.rms_eager, m.rms_spread)
            if floor > 0:
                self.rms_factor = max(self.rms_factor, (m.rms_error - 2.0**-24 * m.rms_truth) / floor)
                peak = max(m.max_eager, 3 * m.rms_spread)
                self.max_factor = max(self.max_factor, (m.max_error - 2.0**-23 * m.max_truth) / peak)
        for site in verdict.sites:
            for mutant in site.mutants:
                if mutant.killed:
                    self.by[mutant.by] += 1
                    if mutant.by == "rounding":
                        self.kills.append(mutant.ratio)
                else:
                    self.by["harmless" if mutant.harmless else "survived"] += 1
        if verdict.status != "pass":
            self.problems += verdict.reasons


@contextmanager
def every_spread(level: str) -> Iterator[None]:
    """Measure S in every family inside the block, though a level measures it only where it decides."""
    known = LEVELS[level]
    LEVELS[level] = replace(known, measured=True)
    try:
        yield
    finally:
        LEVELS[level] = known


class Scaled(nn.Module):
    """A network whose float outputs are multiplied by a number."""

    def __init__(self, model: nn.Module, key: str | None, factor: float) -> None:
        super().__init__()
        self.model, self.key, self.factor = model, key, factor

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        result = self.model(x) if self.key is None else self.model(**{self.key: x})
        return [leaf * self.factor for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def scaled(name: str, model: nn.Module, example: Any) -> Iterator[tuple[str, nn.Module, Any]]:
    """Yield a model of one input with its outputs multiplied by 1e-6 and by 1e6."""
    key = next(iter(example.kwargs), None)
    inputs = tuple(example.kwargs.values()) or example.args
    for factor in (1e-6, 1e6):
        yield f"{name} x {factor:.0e}", Scaled(model, key, factor).eval(), Plain(inputs)


def measure(name: str, model: nn.Module, example: Any, seeds: int, level: str, folder: Path) -> Row:
    """Export once, verify once per seed."""
    row = Row(name)
    known: dict[str, Any] = {"kwargs": example.kwargs, "dynamic_shapes": example.dynamic_shapes}
    traced = trace(model, example.args, input_names=example.input_names, **known)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), folder / f"{len(list(folder.iterdir()))}.onnx", overwrite=True)
    for seed in range(seeds):
        start = time.perf_counter()
        with every_spread(level):
            verdict = verify(
                model, path, args=example.args, seed=seed, level=level, traced=traced, rewritten=rewritten, **known
            )
        row.take(verdict, time.perf_counter() - start)
    return row


def functions() -> None:
    """Print the largest error of the runtime's kernels against float64, in u, relative and absolute."""
    f = torch.nn.functional
    table: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "Sigmoid": torch.sigmoid,
        "Tanh": torch.tanh,
        "Erf": torch.erf,
        "Exp": torch.exp,
        "Gelu": f.gelu,
        "Softplus": f.softplus,
        "Mish": f.mish,
        "Elu": f.elu,
        "Selu": f.selu,
        "Celu": f.celu,
        "HardSwish": f.hardswish,
        "Sin": torch.sin,
        "Cos": torch.cos,
        "Sqrt": lambda x: x.abs().sqrt(),
        "Log": lambda x: x.abs().log(),
        "Reciprocal": torch.reciprocal,
    }
    u = 2.0**-24
    x = np.linspace(-20, 20, 400_000, dtype=np.float32)
    print("| function | relative error / u | absolute error / u, where \\|y\\| <= 1 |\n|---|---|---|")
    for name, function in table.items():
        feed = np.abs(x) + np.float32(1e-3) if name in ("Sqrt", "Log") else x
        proto = parser.parse_model(
            f'<ir_version: 10, opset_import: ["": 22]> g (float[N] x) => (float[N] y) {{ y = {name}(x) }}'
        )
        session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        truth = function(torch.from_numpy(feed.astype(np.float64))).numpy()
        error = np.abs(session.run(None, {"x": feed})[0].astype(np.float64) - truth)
        usable = np.isfinite(error) & (np.abs(truth) > 2.0**-126) & (np.abs(truth) < 3e38)
        small = usable & (np.abs(truth) <= 1)
        absolute = error[small].max() / u if small.any() else 0.0
        print(f"| {name} | {(error[usable] / np.abs(truth[usable])).max() / u:.3g} | {absolute:.3g} |")


def report(rows: list[Row]) -> None:
    """Print the table and the distributions."""
    print(
        "| model | verdicts | factor in place of 4 | in place of 8 | worst error / bound | weakest kill / bound ",
        end="",
    )
    print("| killed by rounding | at the site | by float64 only | harmless | survived | s per verdict |")
    print("|---" * 12 + "|")
    for r in rows:
        counts = Counter(r.statuses)
        print(
            f"| {r.name} | {', '.join(f'{n} {s}' for s, n in counts.items())} | {r.rms_factor:.2f} "
            f"| {r.max_factor:.2f} | {max(r.ratios, default=0):.2f} | {min(r.kills, default=float('nan')):.1f} "
            f"| {r.by['rounding']} | {r.by['site']} | {r.by['float64']} | {r.by['harmless']} "
            f"| {r.by['survived']} | {np.mean(r.seconds):.1f} |"
        )
    ratios = np.concatenate([r.ratios for r in rows])
    kills = np.concatenate([r.kills for r in rows])
    levels = (50, 90, 99, 100)
    print(f"\nclean: {len(ratios)} measurements, error / bound at percentiles {levels}: ", end="")
    print(", ".join(f"{v:.3f}" for v in np.percentile(ratios, levels)))
    low = (0, 1, 10, 50)
    print(f"mutants killed by rounding: {len(kills)}, difference / bound at percentiles {low}: ", end="")
    print(", ".join(f"{v:.3g}" for v in np.percentile(kills, low)))


def main() -> int:
    """Run what the arguments ask for."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("models", nargs="*")
    arguments.add_argument("--zoo", action="store_true")
    arguments.add_argument("--scales", action="store_true")
    arguments.add_argument("--functions", action="store_true")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--level", default="default")
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    if options.functions:
        functions()
        return 0
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    warnings.filterwarnings("ignore")  # the libraries' own
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        names = reference_names() + (zoo_names() if options.zoo else [])
        wanted = [n for n in names if not options.models or n.rpartition(":")[2] in options.models]
        for known in networks(wanted):
            for name, model, example in [known, *(scaled(*known) if options.scales else ())]:
                rows.append(measure(name, model, example, options.seeds, options.level, Path(folder)))
                print(f"{name}: {rows[-1].statuses} {rows[-1].problems}", file=sys.stderr, flush=True)
    report(rows)
    if options.json:
        options.json.write_text(json.dumps([vars(r) for r in rows], indent=1))
    bad = [f"{r.name}: {text}" for r in rows for text in r.problems]
    for text in bad:
        print(f"PROBLEM {text}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
