"""Ours and its peers on networks that nobody here wrote: what is left, nodes, size, cost, error, latency.

    python -m benchmarks.zoo_peers [LIST ...] [--only NAME ...] [--out peers.jsonl] [--seconds 12]
    python -m benchmarks.zoo_peers [LIST ...] [--out peers.jsonl] --table networks|summary

Networks and lists are those of `benchmarks.zoo`. Each is written by `torch.onnx.export`, its defaults; every pipeline
of `zoo_pipelines.py` makes a file of that one. Of each file:

left        norms and maps per channel that our engine sees in it, and how many of these it could still remove
nodes       that onnxruntime runs, after its own optimizations at the level "all"
bytes       of the file
seconds     of the processor, and ``peak`` of memory, that making it took
error       against float64 over eager torch's, root mean squares over four inputs
ratio       of the time of one call to the plain file's, all in onnxruntime on one thread, interleaved in one run, with
            the 95 % interval over fresh sessions. OpenVINO is a runtime: it runs the plain file, in float32, one thread

Rows go to OUT as they are measured; what is there is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))  # as when it is run by its path

import zoo_peers_table  # noqa: E402 - found by the line above
from graphs import operators  # noqa: E402 - likewise
from zoo import CONTEXT, LISTS, read_rows  # noqa: E402 - likewise
from zoo_lines import Line, read_list  # noqa: E402 - likewise
from zoo_pipelines import OURS, PIPELINES, run  # noqa: E402 - likewise

Row = dict[str, Any]
PLAIN, OPENVINO = "torch.onnx", "OpenVINO"
TABLES = {"networks": zoo_peers_table.networks, "summary": zoo_peers_table.summary}


def measure(line: Line, seconds: float) -> Row:
    """Measure one network in this process."""
    import torch
    from zoo_row import errors, made

    from normdeploy.exporting.trace import trace
    from normdeploy.graph import save_graph

    with tempfile.TemporaryDirectory() as folder:
        files = {PLAIN: Path(folder) / "plain.onnx"}
        model, example = made(line)
        words = any(isinstance(size, str) for spec in line.inputs for size in spec.shape)
        shapes = example.dynamic_shapes if any(example.dynamic_shapes) and words else None
        traced = trace(
            model, example.args, input_names=example.input_names, kwargs=example.kwargs, dynamic_shapes=shapes
        )
        row: Row = {"files": {}}
        try:
            # in one file: what is beside it would be counted for one pipeline and not for the next
            given = {"kwargs": dict(example.kwargs), "dynamo": True, "external_data": False, "verbose": False}
            torch.onnx.export(model, example.args, files[PLAIN], **given)
        except Exception as error:  # what torch cannot write starts from our trace
            row["torch_failed"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            save_graph(traced.model.clone(), files[PLAIN])
        made_by: dict[str, Row] = {PLAIN: {}}
        for name, pipeline in PIPELINES.items():
            if not pipeline.here:
                continue
            target = Path(folder) / f"{name}.onnx"
            made_by[name] = run(name, files[PLAIN], target) | {"version": pipeline.version}
            if "failed" not in made_by[name]:
                files[name] = target
        for name, path in files.items():
            made_by[name] |= _described(path)
        # what a pipeline wrote may not even load: then it is out of the race
        usable = {name: path for name, path in files.items() if "failed" not in made_by[name]}
        found = errors(line, model, traced, usable)
        for name in usable:
            made_by[name]["error"] = found[name]
        row |= {"eager_error": found["eager"], "files": made_by}
        if seconds:
            feeds = [tensor.numpy() for tensor in example.named().values()]
            with torch.no_grad():
                row["latency"] = _latency(usable, feeds, seconds)
    return row


def _described(path: Path) -> Row:
    """Return what there is in a file."""
    from normdeploy.graph import load_graph
    from normdeploy.rewrite import rewrite

    row: Row = {"bytes": path.stat().st_size}
    try:
        row["nodes"] = sum(operators(path).values())
    except Exception as error:  # onnxruntime's own classes: the file cannot be run
        return row | {"failed": f"cannot be loaded: {' '.join(str(error).split())[:200]}"}
    from zoo_row import BRANCHES

    maps = [one for one in rewrite(load_graph(path)).ledger if one.kind not in BRANCHES]
    row["left"] = sum(one.action == "kept" or one.action == "folded" for one in maps)
    row["removable"] = sum(one.action == "folded" for one in maps)
    return row


def _latency(files: Mapping[str, Path], feeds: list[Any], seconds: float) -> dict[str, Any]:
    """Return each file's time over the plain one's, and the plain one's median in seconds."""
    from normdeploy.ort.settings import OPENVINO_RUNTIME
    from normdeploy.runtime import Settings
    from normdeploy.runtime.backend import open_backend
    from normdeploy.runtime.latency import joined, measure_in_sessions, session_ratio

    ways: dict[str, tuple[Path, Settings]] = {name: (path, Settings(threads=1)) for name, path in files.items()}
    ways[OPENVINO] = files[PLAIN], Settings(provider=OPENVINO_RUNTIME, threads=1)
    refused: dict[str, str] = {}

    def prepare(session: int) -> dict[str, Callable[[], object]]:
        calls: dict[str, Callable[[], object]] = {}
        order = list(ways)[session % len(ways) :] + list(ways)[: session % len(ways)]
        for name in order:
            if name in refused:
                continue
            try:
                backend = open_backend(ways[name][0], ways[name][1])
                given = dict(zip([spec.name for spec in backend.inputs], feeds, strict=True))
                backend.run(given)
            except Exception as error:  # a runtime that cannot run this network is a row that says so
                refused[name] = " ".join(str(error).split())[:200]
                continue
            calls[name] = lambda backend=backend, given=given: backend.run(given)
        return calls

    sessions = measure_in_sessions(prepare, seconds=seconds)
    ratios = {
        name: session_ratio(sessions, name, PLAIN).to_dict() for name in ways if name not in refused and name != PLAIN
    }
    return {"plain_s": joined(sessions, PLAIN).median, "ratios": ratios, "refused": refused}


def worker(line: Line, seconds: float, limit: int, pipe: Any) -> None:
    """Measure one network in this process and send its row."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    try:
        pipe.send(measure(line, seconds))
    except Exception as error:  # whatever ends it is the row
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        pipe.send({"ended": "error", "why": why, "traceback": traceback.format_exc()})


def measured(line: Line, seconds: float, limit: int) -> Row:
    """Measure one network in a process of its own and return its row."""
    reading, writing = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=worker, args=(line, seconds, limit, writing))
    process.start()
    writing.close()
    try:
        row: Row = reading.recv()
    except EOFError:
        row = {"ended": "killed", "why": f"exit code {process.exitcode}"}
    process.join()
    return {"name": line.name, "kind": line.kind, "line": line.text, **row}


def main() -> int:
    """Measure what is not measured yet, or print a table of what is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", type=Path, default=[])
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("peers.jsonl"))
    parser.add_argument("--seconds", type=float, default=12.0, help="of timing per network; 0 times nothing")
    parser.add_argument("--limit", type=int, default=900, help="seconds of processor time per network")
    parser.add_argument("--table", choices=TABLES, help="print a table of the rows of OUT, measure nothing")
    options = parser.parse_args()
    lines = [line for path in options.lists or LISTS for line in read_list(path)]
    lines = [line for line in lines if not options.only or line.name in options.only]
    known = read_rows(options.out)
    if options.table:
        rows = [known[line.text] for line in lines if line.text in known]
        print(TABLES[options.table](rows, [PLAIN, *PIPELINES, OPENVINO], OURS))
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    for number, line in enumerate(lines, 1):
        if line.text in known:
            continue
        row = measured(line, options.seconds, options.limit)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{number} of {len(lines)} {line.name}: {row.get('why', 'measured')}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
