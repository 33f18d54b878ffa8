"""How networks of a list are measured: each in a process of its own, its row kept at once, none measured twice.

A network that ends its process is a row that says how: after a limit of processor time (a time-out), by a signal, or by
an error. Rows are JSON lines; a run that is ended goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from zoo_lines import Line, read_list

Row = dict[str, Any]
Measure = Callable[[Line, Callable[[Row], None]], None]
"""Measures a network; tells its row as far as it is known, ``stage`` saying what comes next."""

HERE = Path(__file__).resolve().parent
LISTS = (HERE / "zoo_timm.txt", HERE / "zoo_transformers.txt")
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["zoo_warm"])


def arguments(description: str | None, out: str, tables: Mapping[str, object]) -> argparse.ArgumentParser:
    """Return the options of every command that measures lists. Args: out: the default file of rows."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", type=Path, default=[])
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--limit", type=int, default=900, help="seconds of processor time per network")
    parser.add_argument("--table", choices=tables, help="print a table of the rows of OUT, measure nothing")
    return parser


def chosen(options: argparse.Namespace) -> list[Line]:
    """Return the networks that the options name."""
    lines = [line for path in options.lists or LISTS for line in read_list(path)]
    return [line for line in lines if not options.only or line.name in options.only]


def read_rows(path: Path) -> dict[str, Row]:
    """Return the latest row of each line measured so far."""
    if not path.exists():
        return {}
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row["line"]: row for row in rows}


def rows_of(options: argparse.Namespace) -> list[Row]:
    """Return the rows of OUT of the networks that the options name."""
    known = read_rows(options.out)
    return [known[line.text] for line in chosen(options) if line.text in known]


def measure_all(
    options: argparse.Namespace,
    measure: Measure,
    *,
    say: Callable[[Row], str],
    again: Callable[[Row], bool] | None = None,
) -> None:
    """Measure what the options name and has no row yet.

    Args:
        options: of `arguments`. measure: of a module that can be imported, for it runs in other processes.
        say: what is printed of a row. again: whether a network of a row is measured again; none is by default.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    lines, known = chosen(options), read_rows(options.out)
    for number, line in enumerate(lines, 1):
        row = known.get(line.text)
        if row is not None and not (again and again(row)):
            continue
        row = measured(line, measure, options.limit)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{number} of {len(lines)} {line.name}: {say(row)}", flush=True)


def worker(line: Line, measure: Measure, limit: int, pipe: Connection) -> None:
    """Measure one network in this process; the row is sent as far as it is known, again and again."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    known: Row = {"stage": "building"}

    def tell(row: Row) -> None:
        known.clear()
        known.update(row)
        pipe.send(row)

    try:
        measure(line, tell)
    except Exception as error:  # whatever ends it is the row
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        pipe.send(known | {"ended": "error", "why": why, "traceback": traceback.format_exc()})


def measured(line: Line, measure: Measure, limit: int) -> Row:
    """Measure one network in a process of its own and return its row."""
    reading, writing = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=worker, args=(line, measure, limit, writing))
    process.start()
    writing.close()
    row: Row = {"stage": "start"}
    with suppress(EOFError):  # the process is over
        while True:
            row = reading.recv()
    process.join()
    if process.exitcode == -signal.SIGXCPU:
        row |= {"ended": "time-out", "why": f"{limit} s of processor time were spent"}
    elif process.exitcode:
        row |= {"ended": f"exit code {process.exitcode}", "why": "the process was ended"}
    known: Row = {"name": line.name, "kind": line.kind, "line": line.text, "date": date.today().isoformat()}
    return known | row
