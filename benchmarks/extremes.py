"""What the largest networks cost, step by step: processor seconds and peak memory over what was held before.

    python benchmarks/extremes.py [chain wide traced nested large] [--nodes 20000] [--modules 300] [--parameters 5.4e8]

chain    a file of convolution, BatchNormalization, ReLU and a residual sum on 4 channels, again and again
wide     a file of branches of convolution, BatchNormalization and ReLU that all read the input; one sum joins them
traced   a module of Linear, BatchNorm and ReLU, as many as give that many nodes: export itself
nested   modules in modules, each a norm around the next one
large    blocks of LayerNorm and two Linear layers, more than 2 GB of weights: export and fold with a quick verdict

Each in a process of its own, on one thread; a small network comes first, so that imports are not measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from fold_cost import chain
from torch import Tensor, nn
from verdict_cost import taken
from verify_cost import Peak, resident, stack

import normdeploy as nd
from normdeploy.graph import load_graph, save_graph

Steps = Iterator[tuple[str, Callable[[], Any]]]


class Shell(nn.Module):
    """A norm around another module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner = nn.BatchNorm1d(4), inner

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.inner(self.norm(x))
        return inner


def wide(nodes: int) -> ir.Model:
    """Return branches of three nodes each, joined by one Sum."""
    rng = np.random.default_rng(0)
    shape, kind = ir.Shape(["n", 4, 6, 6]), ir.TensorType(ir.DataType.FLOAT)
    x = ir.Value(name="x", shape=shape, type=kind)
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 20}, name="wide")
    ends = []
    for at in range(nodes // 3):
        parts = [("w", rng.standard_normal((4, 4, 3, 3)) / 6), *((name, rng.random(4) + 0.5) for name in "gbmv")]
        constants = []
        for name, array in parts:
            tensor = ir.tensor(array.astype(np.float32), name=f"b{at}.{name}")
            value = ir.Value(name=tensor.name, shape=ir.Shape(array.shape), type=kind, const_value=tensor)
            graph.register_initializer(value)
            constants.append(value)
        value = x
        for op_type, more, attributes in (
            ("Conv", constants[:1], {"pads": [1, 1, 1, 1]}),
            ("BatchNormalization", constants[1:], {}),
            ("Relu", [], {}),
        ):
            output = ir.Value(name=f"b{at}.{op_type.lower()}.y", shape=shape, type=kind)
            graph.append(ir.node(op_type, [value, *more], attributes, outputs=[output], name=f"b{at}.{op_type}"))
            value = output
        ends.append(value)
    total = ir.Value(name="y", shape=shape, type=kind)
    graph.append(ir.node("Sum", ends, outputs=[total], name="join"))
    graph.outputs.append(total)
    return ir.Model(graph, ir_version=10)


def trained(model: nn.Module, x: Tensor) -> nn.Module:
    """Return a module whose statistics are those of data."""
    with torch.no_grad():
        model.train()(x)
    return model.eval()


def of_file(make: Callable[[int], ir.Model], nodes: int, folder: Path) -> Steps:
    """Yield the steps that a file goes through, the verdict apart, which the chain alone is asked for."""
    source, target = folder / "source.onnx", folder / "target.onnx"
    model = make(nodes)
    yield f"write {len(model.graph)} nodes", lambda: save_graph(model, source)
    yield "read", lambda: load_graph(source)
    yield "inspect", lambda: nd.inspect(source)
    results: list[Any] = []
    yield "fold, no verdict", lambda: results.append(nd.fold(source, target, verify=False))
    yield (
        f"ledger of {len(results[0].ledger)} rows",
        lambda: (results[0].ledger.to_json(), results[0].ledger._repr_html_()),
    )
    if make is chain:
        yield "verify", lambda: nd.verify(source, target)
    yield "diff", lambda: nd.diff(source, target)
    if make is chain:
        yield "fold with the default verdict", lambda: nd.fold(source, target, overwrite=True)


def of_modules(model: nn.Module, x: Tensor, folder: Path, verify: Any) -> Steps:
    """Yield the steps of a module; torch's own come last: of 20,000 nodes torch.onnx.export takes over an hour."""
    target, plain = folder / "net.onnx", folder / "plain.onnx"
    yield f"export, verify={verify}", lambda: nd.export(model, (x,), target, verify=verify)
    size = sum(path.stat().st_size for path in folder.glob("net.onnx*"))
    yield f"read {len(load_graph(target).graph)} nodes, {size / 1e9:.3g} GB", lambda: load_graph(target)
    yield "inspect", lambda: nd.inspect(model, (x,))
    yield "torch.export.export alone", lambda: torch.export.export(model, (x,))
    yield (
        "torch.onnx.export alone",
        lambda: torch.onnx.export(model, (x,), plain, dynamo=True, optimize=False, verbose=False),
    )


def steps(kind: str, size: float, folder: Path) -> Steps:
    """Yield the steps of one network."""
    torch.manual_seed(0)
    if kind in ("chain", "wide"):
        yield from of_file(chain if kind == "chain" else wide, int(size), folder)
    elif kind == "traced":
        layers = (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()) for _ in range(int(size) // 3))
        yield from of_modules(trained(nn.Sequential(*layers), torch.randn(64, 4)), torch.randn(2, 4), folder, True)
    elif kind == "nested":
        model: nn.Module = nn.Linear(4, 4)
        for _ in range(int(size)):
            model = Shell(model)
        yield from of_modules(trained(model, torch.randn(64, 4)), torch.randn(2, 4), folder, "quick")
    else:
        width = 2048 if size > 1e8 else 64
        x = torch.randn(1, 4, width)
        plain, target = folder / "plain.onnx", folder / "folded.onnx"
        model = stack(size, width)
        yield "export, verify=quick", lambda: nd.export(model, (x,), target, verify="quick")
        yield "export plainly", lambda: nd.export(model, (x,), plain, fold=False, verify=False)
        yield "inspect the file", lambda: nd.inspect(plain)
        yield "fold, verify=quick", lambda: nd.fold(plain, target, verify="quick", overwrite=True)


def main() -> int:
    """Measure each kind in a process of its own and print its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=["chain", "wide", "traced", "nested", "large"])
    parser.add_argument("--nodes", type=float, default=20000)
    parser.add_argument("--modules", type=float, default=300)
    parser.add_argument("--parameters", type=float, default=5.4e8)
    parser.add_argument("--here", action="store_true", help="measure in this process")
    options = parser.parse_args()
    if not options.here:
        print("| network | step | processor s | peak, MB |\n|---|---|---|---|", flush=True)
        words = [f"--{name}={getattr(options, name)}" for name in ("nodes", "modules", "parameters")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        commands = ([sys.executable, __file__, kind, "--here", *words] for kind in options.kinds)
        return max(subprocess.run(command, check=False, env=environment).returncode for command in commands)
    torch.set_num_threads(1)
    sys.setrecursionlimit(20000)  # eager torch takes four calls per module and ends at 248 of them
    warnings.filterwarnings("ignore")  # the libraries' own
    (kind,) = options.kinds
    size = {"nested": options.modules, "large": options.parameters}.get(kind, options.nodes)
    with tempfile.TemporaryDirectory() as small, tempfile.TemporaryDirectory() as folder:
        for _, step in steps(kind, 30.0 if kind != "large" else 1e5, Path(small)):
            step()
        for name, step in steps(kind, size, Path(folder)):
            peak, before = Peak(), resident()
            with peak.watched():
                seconds, _ = taken(step)
            print(f"| {kind} | {name} | {seconds:.1f} | {(peak.bytes - before) / 1e6:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
