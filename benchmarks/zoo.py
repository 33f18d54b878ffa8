"""Networks that nobody here wrote: what is folded, what stays, what it costs, whether it is proven, how far off it is.

    python -m benchmarks.zoo [LIST ...] [--only NAME ...] [--out zoo.jsonl] [--level default] [--limit 900] [--retry]
    python -m benchmarks.zoo [LIST ...] [--out zoo.jsonl] --table verdicts|folds|kept

A LIST names networks by their factories (benchmarks/zoo_lines.py has the grammar); without one, zoo_timm.txt and
zoo_transformers.txt beside this file: architectures of timm (``pip install --no-deps timm``, and a torchvision that
fits torch) and transformers (extra ``zoo``), built from configurations, nothing downloaded. Scales and shifts are drawn
and BatchNorms have the statistics of forward passes in training mode; all seeds are fixed.

Each network is measured in a process of its own with one thread, so that one that ends its process is a row that says
how: after --limit seconds of processor time (a time-out), by a signal, or by an error. Rows go to OUT as they are
measured, as JSON lines; what is there already is not measured again, but with --retry what is no pass. "export" is
torch.onnx.export as anyone calls it; seconds are those of the processor, so that a busy machine measures what an idle
one does; "peak" is the resident memory while tracing, rewriting and verifying, less what was resident before.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))  # as when it is run by its path

import zoo_table  # noqa: E402 - found by the line above
from zoo_lines import Line, read_list  # noqa: E402 - likewise

LISTS = (HERE / "zoo_timm.txt", HERE / "zoo_transformers.txt")
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["zoo_warm"])
TABLES = {"verdicts": zoo_table.verdicts, "folds": zoo_table.folds, "kept": zoo_table.kept}


def worker(line: Line, level: str, limit: int, pipe: Connection) -> None:
    """Measure one network in this process; the row is sent as far as it is known, again and again."""
    from zoo_row import measure

    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    known: dict[str, Any] = {"stage": "building"}

    def tell(row: dict[str, Any]) -> None:
        known.clear()
        known.update(row)
        pipe.send(row)

    try:
        measure(line, level, tell)
    except Exception as error:  # whatever ends it is the row
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        pipe.send(known | {"ended": "error", "why": why, "traceback": traceback.format_exc()})


def measured(line: Line, level: str, limit: int) -> dict[str, Any]:
    """Measure one network in a process of its own and return its row."""
    reading, writing = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=worker, args=(line, level, limit, writing))
    process.start()
    writing.close()
    row: dict[str, Any] = {"stage": "start"}
    with suppress(EOFError):  # the process is over
        while True:
            row = reading.recv()
    process.join()
    if process.exitcode == -signal.SIGXCPU:
        row |= {"ended": "time-out", "why": f"{limit} s of processor time were spent"}
    elif process.exitcode:
        row |= {"ended": f"exit code {process.exitcode}", "why": "the process was ended"}
    return {"name": line.name, "kind": line.kind, "line": line.text, "level": level, **row}


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Return the latest row of each line measured so far."""
    if not path.exists():
        return {}
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row["line"]: row for row in rows}


def main() -> int:
    """Measure what is not measured yet, or print a table of what is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", type=Path, default=[])
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("zoo.jsonl"))
    parser.add_argument("--level", default="default", choices=("quick", "default", "thorough"))
    parser.add_argument("--limit", type=int, default=900, help="seconds of processor time per network")
    parser.add_argument("--retry", action="store_true", help="measure again what is no pass")
    parser.add_argument("--table", choices=TABLES, help="print a table of the rows of OUT, measure nothing")
    options = parser.parse_args()
    lines = [line for path in options.lists or LISTS for line in read_list(path)]
    lines = [line for line in lines if not options.only or line.name in options.only]
    known = read_rows(options.out)
    if options.table:
        print(TABLES[options.table]([known[line.text] for line in lines if line.text in known]))
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    for number, line in enumerate(lines, 1):
        row = known.get(line.text)
        if row is not None and not (options.retry and row.get("verdict") != "pass"):
            continue
        row = measured(line, options.level, options.limit)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{number} of {len(lines)} {line.name}: {zoo_table.verdict_cell(row)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
