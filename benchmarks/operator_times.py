"""Where a file's time goes: microseconds by kind of operator, from the runtimes' own profilers, on one thread.

A head line gives the CPU time of whole calls, taken without profiling, in turns for all files and, with --against, for
a torch module. CPU time leaves out what a call waits for a busy processor. Below stand the medians of the operators'
times added up by kind; onnxruntime's profiler adds a few microseconds to each operator. --macs N also says what N
multiplications with addition take at the rate of one large product (1536 x 1536 x 1536), in float32 and in 8 bits: no
network with so many takes less.

    python benchmarks/operator_times.py net.onnx net.int8.onnx --rows rows.npy [--batch 8] [--calls 300]
        [--against benchmarks/networks.py:mixer_net] [--macs 226.5e6]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper, parser

from normdeploy.ort.settings import CPU, OPENVINO_RUNTIME, Settings
from normdeploy.runtime.backend import open_backend

Kinds = dict[str, float]
SIDE = 1536


def cpu_times(calls: Mapping[str, Callable[[], object]], count: int) -> dict[str, float]:
    """Return the median CPU time of each call in microseconds, measured in turns of five."""
    draw = np.random.default_rng(0)
    names = list(calls)
    found: dict[str, list[float]] = {name: [] for name in names}
    for call in calls.values():
        for _ in range(5):
            call()
    for _ in range(max(1, count // 5)):
        for index in draw.permutation(len(names)):
            call = calls[names[index]]
            call()
            start = time.process_time_ns()
            for _ in range(5):
                call()
            found[names[index]].append((time.process_time_ns() - start) / 5e3)
    return {name: float(np.median(times)) for name, times in found.items()}


def onnxruntime_kinds(path: Path, rows: np.ndarray, count: int) -> Kinds:
    """Return medians of onnxruntime's operators, added up by kind."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        session = ort.InferenceSession(str(path), options, providers=[CPU])
        for _ in range(count):
            session.run(None, {session.get_inputs()[0].name: rows})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("kernel_time"):
            times[event["args"]["op_name"], event["name"]].append(event["dur"])
    kinds: Kinds = defaultdict(float)
    for (kind, _), durations in times.items():
        kinds[kind] += float(np.median(durations))
    return kinds


def openvino_kinds(path: Path, rows: np.ndarray, count: int) -> Kinds:
    """Return medians of OpenVINO's operators, added up by kind."""
    import openvino

    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": 1, "PERF_COUNT": True}
    request = openvino.Core().compile_model(str(path), "CPU", config).create_infer_request()
    times = defaultdict(list)
    for _ in range(count):
        request.infer([rows])
        for one in request.profiling_info:
            if one.real_time.total_seconds():
                times[f"{one.node_type} ({one.exec_type})", one.node_name].append(one.real_time.total_seconds() * 1e6)
    kinds: Kinds = defaultdict(float)
    for (kind, _), durations in times.items():
        kinds[kind] += float(np.median(durations))
    return kinds


def best_rates() -> dict[str, float]:
    """Return multiplications with addition per second of one large product, in float32 and in 8 bits."""
    draw = np.random.default_rng(0)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    forms = {
        "float32": ("float", "float", "MatMul", np.float32),
        "8 bits": ("uint8", "int32", "MatMulInteger", np.uint8),
    }
    rates = {}
    for name, (given, result, operator, dtype) in forms.items():
        weight = draw.integers(-100, 100, (SIDE, SIDE)).astype(np.float32 if name == "float32" else np.int8)
        model = parser.parse_model(
            f'<ir_version: 10, opset_import: ["" : 20]> n ({given}[{SIDE},{SIDE}] x) => ({result}[{SIDE},{SIDE}] y) '
            f"{{ y = {operator}(x, W) }}"
        )
        model.graph.initializer.append(numpy_helper.from_array(weight, "W"))
        onnx.checker.check_model(model)
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[CPU])
        x = draw.integers(0, 100, (SIDE, SIDE)).astype(dtype)
        times = []
        for _ in range(10):
            start = time.process_time()
            session.run(None, {"x": x})
            times.append(time.process_time() - start)
        rates[name] = SIDE**3 / min(times)
    return rates


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="+", type=Path, help="ONNX files of one input")
    options.add_argument("--rows", type=Path, required=True, help="a .npy file of rows")
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--calls", type=int, default=300)
    options.add_argument("--against", help="SOURCE of the torch module")
    options.add_argument("--macs", type=float, help="multiplications with addition of one call")
    chosen = options.parse_args()
    rows = np.ascontiguousarray(np.load(chosen.rows)[: chosen.batch])
    calls: dict[str, Callable[[], object]] = {}
    for file in chosen.files:
        for provider in (CPU, OPENVINO_RUNTIME):
            backend = open_backend(file, Settings(provider=provider, threads=1))
            name = f"{file.name}, {'onnxruntime' if provider == CPU else provider}"
            calls[name] = partial(backend.run, {backend.inputs[0].name: rows})
    if chosen.against:
        import torch

        from normdeploy.parsing.sources import load_source

        torch.set_num_threads(1)
        module, tensor = load_source(chosen.against)().eval(), torch.from_numpy(rows)

        def eager() -> object:
            with torch.inference_mode():
                return module(tensor)

        calls["eager torch"] = eager
    found = cpu_times(calls, chosen.calls)
    for name, whole in found.items():
        print(f"{name}: {whole:.0f} us of CPU time")
        file = next((file for file in chosen.files if name.startswith(f"{file.name}, ")), None)
        if file is not None:
            kinds = (onnxruntime_kinds if name.endswith("onnxruntime") else openvino_kinds)(file, rows, chosen.calls)
            for kind, total in sorted(kinds.items(), key=lambda item: -item[1]):
                print(f"    {kind:<56} {total:8.0f}")
    if chosen.macs:
        for name, rate in best_rates().items():
            print(f"{chosen.macs:.4g} in {name}: {chosen.macs / rate * 1e6:.0f} us at {rate / 1e9:.0f} 10^9 per second")


if __name__ == "__main__":
    main()
