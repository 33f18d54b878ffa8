"""Two versions of the rewriting side by side: what stays, nodes, float32's error over eager's, processor time, lines.

    git worktree add /tmp/before COMMIT
    python -m benchmarks.before_after --before /tmp/before [LIST ...] [--only NAME ...] [--out before_after.jsonl]
    python -m benchmarks.before_after --before /tmp/before --table [--out before_after.jsonl]
    python -m benchmarks.before_after --before /tmp/before --draws 24 --only repvgg tabular

The reference models and the networks of the lists (zoo_timm.txt and zoo_transformers.txt where none is given; see
benchmarks/zoo.py) are traced once, by this version, and written as ONNX files. Each version rewrites the same file in a
process of its own, with one thread, --repeat times in turns; the fastest time counts. What each writes runs in
onnxruntime: "error" is the root mean square error against float64 over eager torch's.

One network's error is one draw of roundings. With --draws it is measured again on as many networks, whose weights are
moved by a thousandth at random: the geometric mean of after / before, with a 95 % interval (bootstrap).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SIDES = ("before", "after")
RUNS = 8
"""Inputs on which errors against float64 are measured."""

BRANCHES = ("parallel branches", "operators in a row", "written border")
"""Kinds of ledger rows that are neither a norm nor a map."""

Row = dict[str, Any]


def serve() -> None:
    """Rewrite files as they are asked for on standard input: of the version that is on the path."""
    from normdeploy.graph import load_graph, save_graph
    from normdeploy.rewrite import rewrite

    warnings.simplefilter("ignore")
    for line in sys.stdin:
        source, target = json.loads(line)
        model = load_graph(Path(source))
        start = time.process_time()
        result = rewrite(model)
        row: Row = {"seconds": time.process_time() - start, "nodes": len(result.model.graph)}
        rows = [row for row in result.ledger if row.kind not in BRANCHES]
        row |= {"maps": len(rows), "kept": sum(row.action == "kept" for row in rows)}
        if target:
            save_graph(result.model.clone(), Path(target))
        print(json.dumps(row), flush=True)


class Version:
    """A checkout, of which a process rewrites files.

    Args:
        checkout: its folder.
    """

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        path = os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "before_after.py"), "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )

    def rewritten(self, source: Path, target: Path | None = None) -> Row:
        """Return what the rewriting of a file took and left; write the result to ``target``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([str(source), str(target or "")]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.checkout} could not rewrite {source.name}: see what it said above")
        found: Row = json.loads(answer)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def size(checkout: Path, room: str) -> str:
    """Return the lines and the modules of a room of the rewriting."""
    files = list((checkout / "normdeploy" / "rewrite" / room).rglob("*.py"))
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    return f"{lines} lines in {len(files)} modules"


@dataclass
class Subject:
    """A network that was traced.

    Args:
        name: shown.
        model: torch's. traced: its graph.
        calls: arguments and keyword arguments to run it with, and the graph's feeds.
    """

    name: str
    model: Any
    traced: Any
    calls: list[tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]]


def subjects(lists: Iterable[Path], only: Iterable[str], known: Iterable[str]) -> Iterator[Subject]:
    """Yield the reference models, then the networks of lists."""
    import torch
    from fold_numerics import reference_models
    from zoo_lines import read_list
    from zoo_row import made

    from normdeploy.exporting.trace import trace

    wanted, done = set(only), set(known)
    for network in reference_models("data"):
        if network.name in done or (wanted and network.name not in wanted):
            continue
        model = network.make(0).eval()
        traced = trace(model, network.args, kwargs=dict(network.kwargs))
        calls = []
        for feeds in network.feeds(traced.feeds, RUNS, 0):
            given = [torch.from_numpy(feeds[name]) for name in traced.input_names]
            count = len(network.args)
            calls.append((tuple(given[:count]), dict(zip(network.kwargs, given[count:], strict=True)), feeds))
        yield Subject(network.name, model, traced, calls)
    for line in (line for path in lists for line in read_list(path)):
        if line.name in done or (wanted and line.name not in wanted):
            continue
        model, example = made(line)
        traced = trace(model, example.args, input_names=example.input_names, kwargs=example.kwargs)
        calls = []
        for run in range(RUNS):
            drawn = line.example(model, seed=100 + run)
            arrays = [tensor.numpy() for tensor in drawn.named().values()]
            calls.append((drawn.args, drawn.kwargs, dict(zip(traced.input_names, arrays, strict=True))))
        yield Subject(line.name, model, traced, calls)


def errors(subject: Subject, files: Mapping[str, Path]) -> dict[str, float]:
    """Return the error of each file over eager's; nothing where eager makes none."""
    import torch
    from zoo_row import squared_error

    from normdeploy.exporting.module.forward import flatten_outputs
    from normdeploy.exporting.module.mode import evaluation_mode
    from normdeploy.graph import Evaluator
    from normdeploy.verification.sides.sessions import Setting, open_session, run_session

    truth = Evaluator(subject.traced.model)
    sessions = {key: open_session(path, Setting()) for key, path in files.items()}
    squares = dict.fromkeys(["eager", *files], 0.0)
    for args, kwargs, feeds in subject.calls:
        exact = list(truth.run(feeds).values())
        with torch.no_grad(), evaluation_mode(subject.model):
            found = {"eager": flatten_outputs(subject.model(*args, **kwargs)).tensors}
        for key, session in sessions.items():
            names = [value.name for value in session.get_outputs()]
            found[key] = [torch.from_numpy(array) for array in run_session(session, feeds, names)]
        for key, tensors in found.items():
            squares[key] += sum(map(squared_error, tensors, exact))
    return {key: math.sqrt(squares[key] / squares["eager"]) for key in files if squares["eager"]}


def measured(subject: Subject, versions: Mapping[str, Version], repeat: int) -> Row:
    """Return one network's row."""
    from normdeploy.graph import save_graph

    row: Row = {"name": subject.name, "traced": len(subject.traced.model.graph)}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "traced.onnx"
        save_graph(subject.traced.model.clone(), source)
        files = {side: Path(folder) / f"{side}.onnx" for side in versions}
        for side, version in versions.items():
            row[side] = version.rewritten(source, files[side])
        for _ in range(repeat):
            for side, version in versions.items():
                row[side]["seconds"] = min(row[side]["seconds"], version.rewritten(source)["seconds"])
        row["errors"] = errors(subject, files)
    return row


def drawn_again(subject: Subject, versions: Mapping[str, Version], draws: int) -> str:
    """Return the errors of both versions against each other on networks like one."""
    import numpy as np
    import onnx
    import torch
    from zoo_row import _square

    from normdeploy.graph import Evaluator, load_graph, save_graph
    from normdeploy.verification.sides.sessions import Setting, open_session, run_session

    found = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "traced.onnx"
        files = {side: Path(folder) / f"{side}.onnx" for side in versions}
        save_graph(subject.traced.model.clone(), source)
        for draw in range(draws):
            model, rng = onnx.load(source), np.random.default_rng(draw)
            for tensor in model.graph.initializer:
                array = onnx.numpy_helper.to_array(tensor)
                if array.dtype == np.float32 and array.size > 1:
                    moved = array * (1 + 1e-3 * rng.standard_normal(array.shape))
                    tensor.CopyFrom(onnx.numpy_helper.from_array(moved.astype(np.float32), tensor.name))
            onnx.save(model, Path(folder) / "drawn.onnx")
            squares = dict.fromkeys(versions, 0.0)
            truth = Evaluator(load_graph(Path(folder) / "drawn.onnx"))
            for side, version in versions.items():
                files[side].unlink(missing_ok=True)
                version.rewritten(Path(folder) / "drawn.onnx", files[side])
                session = open_session(files[side], Setting())
                names = [value.name for value in session.get_outputs()]
                for _, _, feeds in subject.calls:
                    arrays = [torch.from_numpy(array) for array in run_session(session, feeds, names)]
                    squares[side] += sum(map(_square, arrays, truth.run(feeds).values()))
            found.append(math.log(squares["after"] / squares["before"]) / 2)
    logs, rng = np.array(found), np.random.default_rng(0)
    low, high = np.exp(np.percentile([rng.choice(logs, len(logs)).mean() for _ in range(4000)], [2.5, 97.5]))
    return f"{subject.name}: after / before {math.exp(logs.mean()):.3f} [{low:.3f}, {high:.3f}] over {draws} draws"


def table(rows: list[Row], folders: Mapping[str, Path]) -> str:
    """Return the table in Markdown, each cell "before, after", and how large the rooms are."""
    found = ["| network | norms and maps | kept | nodes | error over eager's | rewrite, ms | after / before |"]
    found.append("|---" * 7 + "|")

    def pair(row: Row, key: str) -> str:
        return ", ".join(str(row[side][key]) for side in SIDES)

    for row in rows:
        times = [1e3 * row[side]["seconds"] for side in SIDES]
        ratios = ", ".join(f"{row['errors'][side]:.2f}" for side in SIDES) if row["errors"] else ""
        found.append(
            f"| {row['name']} | {pair(row, 'maps')} | {pair(row, 'kept')} | {pair(row, 'nodes')} | {ratios} | "
            f"{times[0]:.0f}, {times[1]:.0f} | {times[1] / times[0]:.2f} |"
        )
    sums = {key: ", ".join(str(sum(row[side][key] for row in rows)) for side in SIDES) for key in _SUMMED}
    exact = [row for row in rows if row["errors"] and min(row["errors"].values()) > 0]
    means = ", ".join(f"{_mean(row['errors'][side] for row in exact):.2f}" for side in SIDES)
    total = ", ".join(f"{1e3 * sum(row[side]['seconds'] for row in rows):.0f}" for side in SIDES)
    share = _mean(row["after"]["seconds"] / row["before"]["seconds"] for row in rows)
    found.append(
        f"| all {len(rows)} | {sums['maps']} | {sums['kept']} | {sums['nodes']} | {means} | {total} | {share:.2f} |"
    )
    rooms = ("affine", "gauge", ".")
    sizes = ("; ".join(f"{room}: {size(folders[side], room)}" for room in rooms) for side in SIDES)
    return "\n".join([*found, "", *(f"{side}: {text}" for side, text in zip(SIDES, sizes, strict=True))])


_SUMMED = ("maps", "kept", "nodes")


def _mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def main() -> None:
    """Measure what is not measured yet, or print the table of what is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--before", type=Path, help="a checkout of the other version")
    parser.add_argument("--only", nargs="*", default=[], help="names of networks; all by default")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--draws", type=int, default=0, help="compare errors on networks with moved weights instead")
    parser.add_argument("--out", type=Path, default=Path("before_after.jsonl"))
    parser.add_argument("--table", action="store_true", help="print what was measured")
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    if options.before is None:
        parser.error("--before: expected a checkout of the other version")
    folders = {"before": options.before.resolve(), "after": HERE.parent}
    text = options.out.read_text(encoding="utf-8") if options.out.exists() else ""
    rows: list[Row] = [json.loads(line) for line in text.splitlines()]
    if options.table:
        print(table([row for row in rows if not options.only or row["name"] in options.only], folders))
        return
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(HERE))  # as when it is run by its path
    lists = options.lists or [HERE / "zoo_timm.txt", HERE / "zoo_transformers.txt"]
    versions = {side: Version(folder) for side, folder in folders.items()}
    try:
        for subject in subjects(lists, options.only, [] if options.draws else [row["name"] for row in rows]):
            if options.draws:
                print(drawn_again(subject, versions, options.draws), flush=True)
                continue
            row = measured(subject, versions, options.repeat)
            with options.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
            print(row, flush=True)
    finally:
        for version in versions.values():
            version.close()


if __name__ == "__main__":
    main()
