"""Whether `tune` chooses the same on an idle and on a busy machine.

    python -m benchmarks.same_choice FILE.onnx ... [--out same_choice.jsonl] [--situation idle busy shared] [--batch 1]
    python -m benchmarks.same_choice --out same_choice.jsonl --table

idle        nothing else is at work
busy        one program for each core computes all the time; `tune` goes before it, where the system grants that
shared      the same without precedence (`--no-precedence`)

A row says the chosen way, its time over the untuned model's with the interval of the comparison, and what the plan says
about others. Rows go to OUT as they are measured; the table has a line for each file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

IDLE, BUSY, SHARED = "idle", "busy", "shared"
_WORK = "while True: pass"


@contextmanager
def company(count: int) -> Iterator[None]:
    """Let that many programs compute meanwhile."""
    programs = [subprocess.Popen([sys.executable, "-c", _WORK]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def measure(file: Path, situation: str, batch: int) -> dict[str, Any]:
    """Tune a file in a situation; its plan is replaced."""
    import normdeploy as nd
    from normdeploy.ort.machine import usable_cores

    with company(0 if situation == IDLE else usable_cores()):
        plan = nd.tune(file, batch_size=batch, overwrite=True, precedence=situation != SHARED)
    ratio = dict(plan.chosen.ratio or {})
    return {"file": file.stem, "situation": situation, "chosen": plan.chosen.name, **ratio, "company": plan.company}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown: a file a line, a situation a column."""
    seen = [name for name in (IDLE, BUSY, SHARED) if any(row["situation"] == name for row in rows)]
    lines = [f"| network | {' | '.join(seen)} |", "|---" * (len(seen) + 1) + "|"]
    for file in dict.fromkeys(row["file"] for row in rows):
        cells = []
        for name in seen:
            mine = [row for row in rows if (row["file"], row["situation"]) == (file, name)]
            found = (f"{row['chosen']}, {row['value']:.2f} ({row['low']:.2f}-{row['high']:.2f})" for row in mine)
            cells.append("; ".join(found))
        lines.append(f"| {file} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=Path("same_choice.jsonl"))
    parser.add_argument("--situation", nargs="+", choices=(IDLE, BUSY, SHARED), default=[IDLE, BUSY])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    for situation in given.situation if not given.table else ():
        for file in given.files:
            row = measure(file, situation, given.batch)
            print(f"{row['file']}, {situation}: {row['chosen']}", flush=True)
            with given.out.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
    if given.table:
        print(table([json.loads(line) for line in given.out.read_text(encoding="utf-8").splitlines()]))


if __name__ == "__main__":
    main()
