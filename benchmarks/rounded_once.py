"""Whose the error of a file is: the kernels that run it, or its operators and their numbers.

Of one network of the zoo's lists, the file that torch writes and ours of it: the error against float64 over eager
torch's, run by onnxruntime, and evaluated with each operator exact and its result rounded to float32 once, as by
kernels that lose nothing within a sum. What only the first shows, no choice of operators or weights would mend. Per
input; the geometric mean, the middle and the largest are shown, because few roundings decide of one.

    python benchmarks/rounded_once.py repvgg_a0 [--inputs 40]
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from zoo_lines import read_list
from zoo_pipelines import OURS, PIPELINES
from zoo_row import made, squared_error
from zoo_run import LISTS

from normdeploy.exporting.module.forward import flatten_outputs
from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator, evaluate_node, load_graph
from normdeploy.graph.evaluate import as_constant
from normdeploy.verification.sides.sessions import Setting, open_session, run_session


def rounded_once(model: ir.Model, feeds: list[np.ndarray]) -> list[torch.Tensor]:
    """Return a graph's outputs, each operator exact and its result rounded to float32."""
    known = {value: torch.from_numpy(array) for value, array in zip(model.graph.inputs, feeds, strict=True)}
    known |= {v: as_constant(v.const_value, torch.float64) for v in model.graph.initializers.values() if v.const_value}
    for node in model.graph:
        given = [None if value is None else known[value] for value in node.inputs]
        wide = [tensor.double() if tensor is not None and tensor.is_floating_point() else tensor for tensor in given]
        for value, tensor in zip(node.outputs, evaluate_node(node, wide), strict=False):  # a norm has more results
            known[value] = tensor.float() if tensor.is_floating_point() else tensor
    return [known[value] for value in model.graph.outputs]


def main() -> int:
    """Print a table of the network that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--inputs", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    line = next(line for path in LISTS for line in read_list(path) if line.name == options.name)
    model, example = made(line)
    truth = Evaluator(trace(model, example.args, input_names=example.input_names, kwargs=example.kwargs).model)
    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {"torch.onnx": Path(folder) / "plain.onnx", OURS: Path(folder) / "ours.onnx"}
        given = {"kwargs": dict(example.kwargs), "dynamo": True, "external_data": False, "verbose": False}
        torch.onnx.export(model, example.args, files["torch.onnx"], **given)
        PIPELINES[OURS].optimize(*map(str, files.values()))
        graphs = {name: load_graph(path) for name, path in files.items()}
        sessions = {name: open_session(path, Setting()) for name, path in files.items()}
        for run in range(options.inputs):
            drawn = line.example(model, seed=1000 + run)
            feeds = {name: tensor.numpy() for name, tensor in drawn.named().items()}
            exact = list(truth.run(feeds).values())
            with torch.no_grad():
                eager = flatten_outputs(model(*drawn.args, **drawn.kwargs)).tensors
            base = sum(map(squared_error, eager, exact))
            for name, session in sessions.items():
                inputs = [value.name for value in session.get_inputs()]
                outputs = [value.name for value in session.get_outputs()]
                arrays = run_session(session, dict(zip(inputs, feeds.values(), strict=True)), outputs)
                both = {
                    "in onnxruntime": [torch.from_numpy(array) for array in arrays],
                    "each operator rounded once": rounded_once(graphs[name], list(feeds.values())),
                }
                for how, tensors in both.items():
                    ratio = math.sqrt(sum(map(squared_error, tensors, exact)) / base)
                    found.setdefault((name, how), []).append(ratio)
    print("| file | how it is run | error over eager's: geometric mean | median | largest |\n|---|---|---|---|---|")
    for (name, how), ratios in sorted(found.items(), key=lambda item: item[0][1]):
        mean = statistics.geometric_mean(ratios)
        print(f"| {name} | {how} | {mean:.2f} | {statistics.median(ratios):.2f} | {max(ratios):.2f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
