"""Ours and its peers on networks that nobody here wrote: what is left, nodes, size, cost, error, latency.

    python -m benchmarks.zoo_peers [LIST ...] [--only NAME ...] [--out peers.jsonl] [--seconds 12]
    python -m benchmarks.zoo_peers [LIST ...] [--pipelines NAME ...]
    python -m benchmarks.zoo_peers [LIST ...] [--out peers.jsonl] --table networks|summary|losses|runtimes

Networks and lists are those of `benchmarks.zoo`. Each is written by `torch.onnx.export`, its defaults; every pipeline
of `zoo_pipelines.py` makes a file of that one. Of each file:

left        norms and maps per channel that our engine sees in it, and how many of these it could still remove
nodes       that onnxruntime runs, after its own optimizations at the level "all"
bytes       of the file
seconds     of the processor, and ``peak`` of memory, that making it took
error       against float64 over eager torch's, root mean squares over four inputs
ratio       of the time of one call to the plain file's, all in onnxruntime on one thread, interleaved in one run, with
            the 95 % interval over fresh sessions. OpenVINO is a runtime: it runs the plain file in float32 on one.
            With --processor it is the calling thread's time on the processor, which is the time of a call on one
            thread, whoever else is at work (OpenVINO, too, runs one in the caller; the clock of the whole process
            moves in steps of 4 ms on some machines)

Rows go to OUT as they are measured; what is there is not measured again. With --dynamic all begin with the graph as it
is traced, its batch dynamic, where torch's file has the sizes of its example. With --pipelines only these make files:
`--pipelines normdeploy` is what the table runtimes is made of.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))  # as when it is run by its path

import zoo_peers_table  # noqa: E402 - found by the line above
from graphs import operators  # noqa: E402 - likewise
from zoo_lines import Line  # noqa: E402 - likewise
from zoo_pipelines import OURS, PIPELINES, run  # noqa: E402 - likewise
from zoo_run import Row, arguments, measure_all, rows_of  # noqa: E402 - likewise

PLAIN, OPENVINO = "torch.onnx", "OpenVINO"
TABLES = {
    "networks": zoo_peers_table.networks,
    "summary": zoo_peers_table.summary,
    "losses": zoo_peers_table.losses,
    "runtimes": zoo_peers_table.runtimes,
}


def measure(
    line: Line,
    tell: Callable[[Row], None],
    *,
    seconds: float,
    dynamic: bool = False,
    processor: bool = False,
    pipelines: Collection[str] = tuple(PIPELINES),
) -> None:
    """Measure one network in this process.

    Args:
        tell: called with its row. seconds: of timing. dynamic: the batch. processor: its time, not the clock's.
        pipelines: that make files.
    """
    import onnx_ir as ir
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
            if dynamic:
                ir.save(traced.model, files[PLAIN])  # with the sizes of values inside, which torch writes too
            else:
                torch.onnx.export(model, example.args, files[PLAIN], **given)
        except Exception as error:  # what torch cannot write starts from our trace
            row["torch_failed"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            save_graph(traced.model.clone(), files[PLAIN])
        made_by: dict[str, Row] = {PLAIN: {}}
        for name, pipeline in PIPELINES.items():
            if not pipeline.here or name not in pipelines:
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
                row["latency"] = _latency(usable, feeds, seconds, processor=processor)
    tell(row)


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


def _latency(files: Mapping[str, Path], feeds: list[Any], seconds: float, *, processor: bool) -> dict[str, Any]:
    """Return each file's time over the plain one's, and the plain one's median in seconds."""
    from normdeploy.ort.providers import float32_options
    from normdeploy.ort.settings import OPENVINO_RUNTIME
    from normdeploy.runtime import Settings
    from normdeploy.runtime.backend import open_backend
    from normdeploy.runtime.latency import joined, measure_in_sessions, session_ratio

    ways: dict[str, tuple[Path, Settings]] = {name: (path, Settings(threads=1)) for name, path in files.items()}
    exactly = float32_options(OPENVINO_RUNTIME)  # its default follows the processor, down to bfloat16
    ways[OPENVINO] = files[PLAIN], Settings(provider=OPENVINO_RUNTIME, options=exactly, threads=1)
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

    sessions = measure_in_sessions(prepare, seconds=seconds, clock=time.thread_time_ns if processor else None)
    ratios = {
        name: session_ratio(sessions, name, PLAIN).to_dict() for name in ways if name not in refused and name != PLAIN
    }
    row = {"plain_s": joined(sessions, PLAIN).median, "ratios": ratios, "refused": refused}
    if {OURS, OPENVINO} <= ratios.keys():
        row["ours over OpenVINO"] = session_ratio(sessions, OURS, OPENVINO).to_dict()
    return row


def main() -> int:
    """Measure what is not measured yet, or print a table of what is."""
    parser = arguments(__doc__, "peers.jsonl", TABLES)
    parser.add_argument("--seconds", type=float, default=12.0, help="of timing per network; 0 times nothing")
    parser.add_argument("--dynamic", action="store_true", help="begin with the graph as traced, its batch dynamic")
    parser.add_argument("--processor", action="store_true", help="time by the processor, one thread each")
    parser.add_argument("--pipelines", nargs="+", default=list(PIPELINES), choices=PIPELINES, help="all by default")
    options = parser.parse_args()
    if options.table:
        print(TABLES[options.table](rows_of(options), [PLAIN, *PIPELINES, OPENVINO], OURS))
        return 0
    measure_all(
        options,
        partial(
            measure,
            seconds=options.seconds,
            dynamic=options.dynamic,
            processor=options.processor,
            pipelines=options.pipelines,
        ),
        say=lambda row: str(row.get("why", "measured")),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
