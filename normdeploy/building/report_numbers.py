"""The numbers a build report shows: graph sizes, latency side by side, quality on the test split."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from torch import Tensor, nn

from normdeploy.errors import InputError, ModelError
from normdeploy.exporting.module.mode import evaluation_mode
from normdeploy.graph import in_root, load_graph, module_path
from normdeploy.onnxfile.model import read_model
from normdeploy.ort.byte_products import exact_session
from normdeploy.parsing.recipe import BenchSection
from normdeploy.runtime import Predictor, Settings
from normdeploy.runtime.latency import fair_turn, joined, measure_in_sessions, session_ratio
from normdeploy.train.data import FileSplit, Split, Splits, batches
from normdeploy.train.score import score


class RuntimeModule(nn.Module):
    """A `Predictor` as a torch module: float tensors in, the first output out; for code that scores modules.

    Args:
        predictor: the exported model, of one input.
    """

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, x: Tensor) -> Tensor:
        """Run onnxruntime on ``x``."""
        backend = self.predictor.backend
        return torch.from_numpy(backend.run({backend.inputs[0].name: x.numpy()})[0])


def node_facts(model: ir.Model) -> dict[str, Any]:
    """Return a graph's node count and its nodes per operator."""
    operators = Counter(node.op_type for node in model.graph.all_nodes())
    return {"nodes": sum(operators.values()), "operators": dict(sorted(operators.items()))}


def network_facts(model: ir.Model) -> dict[str, Any]:
    """Return a graph's nodes with their modules' paths, and which feeds which: what the report draws.

    A node without a module, as rewriting makes them, counts to that of the node in front of it. "root" names the nodes
    of the model's own forward, whose names stand in place of a path.
    """
    root: dict[str, None] = {}
    nodes: list[list[str]] = []
    producer: dict[ir.Value, int] = {}
    edges: list[list[int]] = []
    path = ""
    for node in model.graph:
        path = module_path(node) or path
        if in_root(node):
            root[path] = None
        edges += [[producer[value], len(nodes)] for value in node.inputs if value is not None and value in producer]
        producer |= dict.fromkeys(node.outputs, len(nodes))
        nodes.append([path, node.op_type])
    return {"nodes": nodes, "edges": edges, "root": list(root)}


def profile_facts(path: Path, inputs: Mapping[str, np.ndarray[Any, Any]], *, calls: int = 20) -> dict[str, Any]:
    """Return the mean time per call and kind of operator, s, by onnxruntime's own profile on one thread."""
    source, entries = exact_session(path)
    with tempfile.TemporaryDirectory(prefix="normdeploy-profile-") as folder:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        for key, value in entries.items():
            options.add_session_config_entry(key, value)
        session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        for _ in range(calls):
            session.run(None, dict(inputs))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    spent: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["args"]["op_name"]] += event["dur"]  # µs
    return {"calls": calls, "seconds": {name: micro / calls * 1e-6 for name, micro in spent.most_common()}}


def file_facts(path: Path) -> dict[str, Any]:
    """Return an ONNX file's size in bytes (external weights included) and its `node_facts`."""
    size = path.stat().st_size + sum(file.stat().st_size for file in read_model(path).data.values())
    return {"bytes": size, **node_facts(load_graph(path))}


def latency_table(
    model: nn.Module, files: Mapping[str, Path], inputs: Mapping[str, np.ndarray[Any, Any]], bench: BenchSection
) -> dict[str, Any]:
    """Time eager torch and ONNX files on the same inputs, interleaved in one run.

    Args:
        model: the eager model; timed in evaluation mode and inference mode.
        files: contender name to ONNX file; the last one is ours.
        inputs: graph input name to array, in the order of the model's arguments.
        bench: rounds and threads.

    Returns:
        ``{"batch_size", "threads", "contenders": [Latency.to_dict()], "ratios": {name: ours over it, with interval}}``.
    """
    tensors = [torch.from_numpy(array) for array in inputs.values()]

    def prepare(session: int) -> dict[str, Callable[[], object]]:  # noqa: ARG001 - each session is made alike
        calls: dict[str, Callable[[], object]] = {"eager torch": lambda: model(*tensors)}
        for name, path in files.items():
            calls[name] = _caller(Predictor(path, Settings(threads=bench.threads)), dict(inputs))
        return calls

    threads = torch.get_num_threads()
    torch.set_num_threads(bench.threads)
    try:
        with evaluation_mode(model, fast=True), torch.inference_mode():
            parts = measure_in_sessions(prepare, rounds=bench.repeats, **fair_turn(bench.threads))
    finally:
        torch.set_num_threads(threads)
    names = ["eager torch", *files]
    ours = names[-1]
    return {
        "batch_size": int(next(iter(inputs.values())).shape[0]),
        "threads": bench.threads,
        "contenders": [joined(parts, name).to_dict() for name in names],
        "ratios": {name: session_ratio(parts, ours, name).to_dict() for name in names if name != ours},
    }


def _caller(predictor: Predictor, feeds: dict[str, Any]) -> Callable[[], object]:
    backend = predictor.backend  # the session itself: what is timed is the runtime, not our input checks
    return lambda: backend.run(feeds)


def quality_table(model: nn.Module, path: Path, splits: Splits) -> dict[str, Any]:
    """Score the eager model and onnxruntime on the test split.

    Returns:
        ``{"measure", "count", "eager", "onnxruntime", "agreement", "largest_difference"}``: the measure is accuracy or
        R²; agreement is the share of equal decisions (None where nothing is decided).
    """
    ours = RuntimeModule(Predictor(path, Settings()))
    test = splits.test
    eager_score, ours_score = score(model, test, splits.task), score(ours, test, splits.task)
    with evaluation_mode(model), torch.no_grad():
        eager_output = in_batches(model, test)
    ours_output = in_batches(ours, test)
    decides = splits.task == "classification"
    agreement = float((eager_output.argmax(-1) == ours_output.argmax(-1)).double().mean()) if decides else None
    return {
        "measure": "accuracy" if decides else "R²",
        "count": len(test),
        "eager": asdict(eager_score),
        "onnxruntime": asdict(ours_score),
        "agreement": agreement,
        "largest_difference": float((eager_output.double() - ours_output.double()).abs().max()),
    }


def in_batches(model: nn.Module, split: Split | FileSplit) -> Tensor:
    """Return what a model makes of a split's inputs."""
    outputs = [model(part.inputs) for part in batches(split, 512)]
    if not isinstance(outputs[0], Tensor):
        raise ModelError(f"{type(model).__name__} returns a {type(outputs[0]).__name__}; expected one tensor to score")
    return torch.cat(outputs)


def bench_inputs(split: Split | FileSplit, names: list[str], batch_size: int) -> dict[str, np.ndarray[Any, Any]]:
    """Take one batch of real samples for timing, repeated where the split is smaller.

    Raises:
        InputError: the graph has several inputs, and the split holds one.
    """
    if len(names) != 1:
        raise InputError(f"the graph has the inputs {', '.join(names)}; expected one, as the data has")
    inputs = split.head(batch_size).inputs
    rows = torch.arange(batch_size) % len(inputs)
    return {names[0]: inputs[rows].contiguous().numpy()}
