"""What a verdict costs beside torch's own export of the same network, in processor time.

    python benchmarks/verdict_cost.py [--json OUT] [--levels quick,default] [--parts] [NETWORK ...]

Networks as in public_networks.py (``digits_cnn``, ``zoo:BERT``, ``timm:resnet18``, ``listed:AlbertModel``), by default
the reference models.
Each level of each is measured in a process of its own, with one thread: ``torch.onnx.export`` as anyone calls it, then
the verdict as ``normdeploy.export`` asks for it (trace and rewriting are handed over). Processor time of all threads
and children. A busy machine measures more than an idle one does (caches and pipelines are shared), of both alike, so
that the quotient is what to read. Libraries are loaded, and each exporter has run once on a small network, before
anything is measured.

``--parts`` measures what no verdict can do without, each alone: reading, copying and digesting the file, opening one
session and one run in it, the module once in its own precision and once in float64, and its trace in float64.

Memory is the resident peak while verifying less what was resident before, over weights and activations of one float32
run; for networks of a few megabytes it is what the libraries take once.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from public_networks import Plain, network, reference_names
from torch import nn
from verify_cost import Peak, resident

from normdeploy.exporting.trace import Traced, trace
from normdeploy.graph import Evaluator, save_graph
from normdeploy.onnxfile.model import read_model
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.sides.flat_values import Signature, run_evaluator
from normdeploy.verification.sides.sessions import Setting, open_session, run_session
from normdeploy.verification.sides.two_sides import EagerReference


@dataclass
class Cost:
    """One network: per level, processor seconds of torch's export and of the verdict, in one process."""

    name: str
    export: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    mutants: int = 0
    peak: dict[str, float] = field(default_factory=dict)
    held: float = 0.0

    def take(self, other: Cost) -> None:
        """Add what another process measured."""
        for name in ("export", "seconds", "stages", "status", "reasons", "left_out", "peak"):
            getattr(self, name).update(getattr(other, name))
        self.mutants, self.held = max(self.mutants, other.mutants), other.held


def processor() -> float:
    """Return the processor time that this process and its children have used, s."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def taken(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return what a call takes, in processor seconds, and what it returns."""
    gc.collect()  # what was measured before pays for its own garbage
    before = processor()
    result = call()
    return processor() - before, result


def torch_export(model: nn.Module, example: Any, path: Path) -> None:
    torch.onnx.export(model, example.args, path, kwargs=dict(example.kwargs), dynamo=True, verbose=False)


def export_seconds(model: nn.Module, example: Any, path: Path) -> float:
    """Return what torch's export takes of a copy, s: what it leaves in a module stays there; NaN where it fails."""
    own = copy.deepcopy(model)
    try:
        return taken(lambda: torch_export(own, example, path))[0]
    except Exception as error:  # the exporter raises whatever it likes; the verdict is measured all the same
        print(f"torch's export fails: {str(error).splitlines()[:1]}", file=sys.stderr)
        return math.nan


def held_bytes(traced: Traced, model: nn.Module) -> float:
    """Return the bytes of a network's weights and of all that one float32 run of its graph stores."""
    from normdeploy.graph import Evaluator
    from normdeploy.verification.evaluation_cost import Counter
    from normdeploy.verification.samples.example import example_from_file

    feeds = example_from_file(traced.model, sizes={})
    counter = Counter(feeds)
    with torch.no_grad():
        Evaluator(traced.model, dtype=torch.float32).run(dict(feeds), hook=counter)
    return sum(p.nbytes for p in model.state_dict().values()) + 4.0 * counter.elements


def measure(name: str, level: str) -> Cost:
    """Measure one network at one level in this process."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # the libraries' own
    cost = Cost(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        small = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval()
        torch_export(small, Plain((torch.zeros(2, 4),)), Path(folder) / "small.onnx")
        known = trace(small, torch.zeros(2, 4))
        save_graph(rewrite(known.model).model, Path(folder) / "small2.onnx")
        verify(small, Path(folder) / "small2.onnx", args=torch.zeros(2, 4))
        model, example = network(name)
        cost.export[level] = export_seconds(model, example, Path(folder) / "torch.onnx")
        given: dict[str, Any] = {"kwargs": example.kwargs, "dynamic_shapes": example.dynamic_shapes}
        traced = trace(model, example.args, input_names=example.input_names, **given)
        rewritten = rewrite(traced.model)
        save_graph(rewritten.model.clone(), path)
        cost.held = held_bytes(traced, model)
        given |= {"traced": traced, "rewritten": rewritten}
        peak, before = Peak(), resident()
        with peak.watched():
            cost.seconds[level], verdict = taken(lambda: verify(model, path, args=example.args, level=level, **given))
        cost.peak[level] = peak.bytes - before
        cost.status[level], cost.reasons[level] = verdict.status, verdict.reasons
        cost.stages[level], cost.left_out[level] = verdict.seconds, verdict.not_checked
        cost.mutants = sum(len(s.mutants) for s in verdict.sites)
    return cost


def parts(name: str) -> list[tuple[str, float]]:
    """Return processor seconds of torch's export of one network, and of each part that a verdict cannot do without."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # the libraries' own
    with tempfile.TemporaryDirectory() as folder:
        file, beside = Path(folder) / "net.onnx", Path(folder) / "copy"
        beside.mkdir()
        small = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval()
        torch_export(small, Plain((torch.zeros(2, 4),)), Path(folder) / "small.onnx")
        model, example = network(name)
        export = export_seconds(model, example, Path(folder) / "torch.onnx")
        given: dict[str, Any] = {"kwargs": example.kwargs, "dynamic_shapes": example.dynamic_shapes}
        traced = trace(model, example.args, input_names=example.input_names, **given)
        save_graph(rewrite(traced.model).model, file)
        reference = EagerReference(
            model, Signature(model, example.args, example.kwargs, traced.input_names), traced.model
        )
        feeds, evaluator = reference.signature.feeds, Evaluator(traced.model)
        with reference.ready():
            reference.native(feeds)  # what torch prepares once
            read, copied = taken(lambda: read_model(file).copy_to(beside))
            opened, session = taken(lambda: open_session(copied.runs, Setting()))
            outputs = [output.name for output in session.get_outputs()]
            run, _ = taken(lambda: run_session(session, feeds, outputs))
            native, _ = taken(lambda: reference.native(feeds))
            double, _ = taken(lambda: reference.truth(feeds))
            graph, _ = taken(lambda: run_evaluator(evaluator, feeds))
    named = {"file": read, "session": opened, "its run": run, "float32": native, "float64": double, "trace": graph}
    return [("export", export), *named.items(), ("all, of export", sum(named.values()) / export)]


def table(costs: list[Cost], levels: list[str]) -> None:
    """Print one row per network."""
    heads = [f"{level}, s | of export | verdict | peak, of weights and activations" for level in levels]
    print(f"| network | mutants | weights and activations, MB | torch's export, s | {' | '.join(heads)} |")
    print("|---" * (4 + 4 * len(levels)) + "|")
    for c in costs:
        cells = [
            f"{c.seconds[x]:.1f} | {c.seconds[x] / c.export[x]:.2f} | {c.status[x]} | {c.peak[x] / c.held:.1f}"
            for x in levels
        ]
        export = sum(c.export.values()) / len(c.export)
        print(f"| {c.name} | {c.mutants} | {c.held / 1e6:.1f} | {export:.1f} | {' | '.join(cells)} |")


def main() -> int:
    """Measure what the arguments ask for."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("networks", nargs="*", default=[])
    arguments.add_argument("--levels", default="quick,default")
    arguments.add_argument("--json", type=Path)
    arguments.add_argument("--here", action="store_true", help="measure one network at one level in this process")
    arguments.add_argument("--parts", action="store_true", help="what no verdict can do without, each alone")
    options = arguments.parse_args()
    if options.parts:
        for number, name in enumerate(options.networks or reference_names()):
            found = parts(name)
            if not number:
                print(f"| network | {' | '.join(part for part, _ in found)} |")
                print("|---" * (1 + len(found)) + "|")
            print(f"| {name} | {' | '.join(f'{seconds:.2f}' for _, seconds in found)} |", flush=True)
        return 0
    levels = options.levels.split(",")
    if options.here:
        print(json.dumps(asdict(measure(options.networks[0], levels[0]))))
        return 0
    costs: list[Cost] = []
    for name in options.networks or reference_names():
        cost = Cost(name)
        for level in levels:
            command = [sys.executable, __file__, "--here", "--levels", level, name]
            run = subprocess.run(command, check=False, capture_output=True, text=True)
            if run.returncode:
                print(f"{name}: {run.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                break
            cost.take(Cost(**json.loads(run.stdout.splitlines()[-1])))
        else:
            costs.append(cost)
            print(cost, file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(c) for c in costs], indent=1))
    table(costs, levels)
    return 0


if __name__ == "__main__":
    sys.exit(main())
