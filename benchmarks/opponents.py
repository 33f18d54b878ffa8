"""Tuned plans on networks that nobody here wrote, beside who runs the same network another way.

    python -m benchmarks.opponents [LIST ...] [--only NAME ...] [--out opponents.jsonl] [--budget exact] [--processor]
    python -m benchmarks.opponents [LIST ...] [--out opponents.jsonl] --table plans

Networks and lists are those of `benchmarks.zoo`. Each is exported and tuned within the budget; then the plan takes its
turns, in fresh sessions of one run, with

untuned     the exported file in onnxruntime, as it is
compiled    torch.compile with inductor and freezing, on one thread and on all
float32     OpenVINO in its LATENCY mode on the exported file, told to stay in float32
default     the same as it is by default: its own precision, which is bfloat16 where the processor has it

Numbers are the plan's time over theirs, with the 95 % interval over the sessions: an interval above 1 is a loss. torch
compiles once, so that of its own sessions none is fresh. With --processor each has one thread, and a call's time is the
calling thread's on the processor, whoever else is at work; without, the plan has the threads it chose, OpenVINO all.
"error" is the norm of the difference to float64 over the norm of the result, of the plan and of OpenVINO's default.
Rows go to OUT as they are measured; what is there is not measured again.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))  # as when it is run by its path

from zoo_lines import Line  # noqa: E402 - found by the line above
from zoo_run import Row, arguments, measure_all, rows_of  # noqa: E402 - likewise

PLAN, UNTUNED, FLOAT32, DEFAULT = "plan", "untuned", "OpenVINO in float32", "OpenVINO's default"
ROWS = 256
"""Rows that a lossy budget is measured on."""

Call = Callable[[], object]


def measure(
    line: Line, tell: Callable[[Row], None], *, budget: str, batch: int, tuning: float, seconds: float, processor: bool
) -> None:
    """Measure one network in this process.

    Args:
        tell: called with its row. budget: of the plan. batch: of a call. tuning: the tuner's seconds of timing.
        seconds: of the comparison. processor: its time on one thread, not the clock's.
    """
    import numpy as np
    import torch
    from zoo_row import made

    import normdeploy as nd
    from normdeploy.graph import Evaluator, load_graph
    from normdeploy.ort.machine import usable_cores
    from normdeploy.ort.providers import float32_options
    from normdeploy.ort.settings import OPENVINO_RUNTIME
    from normdeploy.runtime import Settings, tune
    from normdeploy.runtime.backend import open_backend
    from normdeploy.runtime.latency import PAUSE, STRETCH, measure_in_sessions, session_ratio
    from normdeploy.runtime.module_peers import ModuleContestant

    model, example = made(line)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        nd.export(model, example.args, path, kwargs=example.kwargs, verify=False)
        given = line.example(model, seed=1, rows=batch if budget == "exact" else ROWS).named()
        data = {name: tensor.numpy() for name, tensor in given.items()}
        feeds = {name: array[:batch] for name, array in data.items()}
        wall, own = time.perf_counter(), time.process_time()
        plan = tune(path, data=data, budget=budget, batch_size=batch, seconds=tuning)
        row: Row = {
            "chosen": plan.chosen.name,
            "loss": dict(plan.chosen.loss or {}),
            "trials": [trial.to_dict() for trial in plan.trials],  # why each was not chosen
            "tuned_s": time.perf_counter() - wall,
            "tuned_processor_s": time.process_time() - own,
        }
        ways = {
            PLAN: plan.resolve(path),
            UNTUNED: (path, Settings()),
            FLOAT32: (path, Settings(provider=OPENVINO_RUNTIME, options=float32_options(OPENVINO_RUNTIME))),
            DEFAULT: (path, Settings(provider=OPENVINO_RUNTIME)),
        }
        if processor:
            ways = {name: (file, replace(settings, threads=1)) for name, (file, settings) in ways.items()}
        truth = list(Evaluator(load_graph(path)).run(feeds).values())
        compiled: dict[str, Call] = {}
        refused: dict[str, str] = {}
        for count in sorted({1, 1 if processor else usable_cores()}):
            name = f"torch.compile, {count}"
            torch.set_num_threads(count)
            try:
                compiled[name] = _on_threads(
                    ModuleContestant(name, model, compiled=True).prepare(feeds, count).call, count
                )
                compiled[name]()
            except Exception as error:  # the compiler fails in many ways: a row that says so
                compiled.pop(name, None)
                refused[name] = " ".join(str(error).split())[:200]
        errors = {}
        for name in (PLAN, DEFAULT):
            found = open_backend(*ways[name]).run(feeds)
            gone = sum(float(np.square(mine - true.numpy()).sum()) for mine, true in zip(found, truth, strict=True))
            errors[name] = (gone / sum(float(true.double().square().sum()) for true in truth)) ** 0.5

        def prepare(session: int) -> dict[str, Call]:
            order = list(ways)[session % len(ways) :] + list(ways)[: session % len(ways)]
            opened = {name: open_backend(*ways[name]) for name in order}
            return compiled | {name: partial(backend.run, feeds) for name, backend in opened.items()}

        found = measure_in_sessions(
            prepare,
            seconds=seconds,
            stretch=STRETCH,
            pause=0.0 if processor else PAUSE,
            clock=time.thread_time_ns if processor else None,
        )
        ratios = {name: session_ratio(found, PLAN, name).to_dict() for name in (*ways, *compiled) if name != PLAN}
        median = float(np.median([part[PLAN].median for part in found]))
        tell(row | {"errors": errors, "ratios": ratios, "refused": refused, "plan_s": median})


def _on_threads(call: Call, count: int) -> Call:
    """Return a call with so many of torch's threads, which are the process's and differ among the contenders."""
    import torch

    def run() -> object:
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)
        return call()

    return run


def table(rows: Sequence[Row]) -> str:
    """Return the table, in Markdown; a loss beyond the interval is set in bold."""
    names = [UNTUNED, *dict.fromkeys(name for row in rows for name in row.get("ratios", {}) if "torch" in name)]
    names += [FLOAT32, DEFAULT]
    heads = [
        "network",
        "chosen",
        "ms",
        *(f"over {name}" for name in names),
        "error: plan, OpenVINO's default",
        "tuned in, s",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        if "ratios" not in row:
            lines.append(f"| {row['name']} | {row['ended']}: {row['why'][:120]} |" + " |" * (len(heads) - 2))
            continue
        errors = ", ".join(f"{row['errors'][name]:.0e}" for name in (PLAN, DEFAULT))
        cells = [
            row["name"],
            _short(row["chosen"]),
            f"{row['plan_s'] * 1e3:.2f}",
            *(_cell(row, name) for name in names),
            errors,
        ]
        lines.append(f"| {' | '.join([*cells, format(row['tuned_s'], '.0f')])} |")
    return "\n".join(lines)


def _short(chosen: str) -> str:
    """Return a way's name without what the table's head says already."""
    way, fixed, _ = chosen.replace(", INFERENCE_PRECISION_HINT=f32", "").partition(", made for")
    return way + (", fixed shapes" if fixed else "")


def _cell(row: dict[str, Any], name: str) -> str:
    if name not in row["ratios"]:
        return "refused" if name in row["refused"] else ""
    ratio = row["ratios"][name]
    text = f"{ratio['value']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"
    return f"**{text}**" if ratio["low"] > 1 else text


def main() -> int:
    """Measure what is not measured yet, or print the table of what is."""
    parser = arguments(__doc__, "opponents.jsonl", {"plans": table})
    parser.add_argument("--budget", default="exact", help="of the plans: exact, rel=1%%, ...")
    parser.add_argument("--batch", type=int, default=8, help="rows of a call")
    parser.add_argument("--tuning", type=float, default=40.0, help="seconds of timing that the tuner gets")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of the comparison")
    parser.add_argument("--processor", action="store_true", help="one thread each, by the processor's time")
    options = parser.parse_args()
    if options.table:
        print(table(rows_of(options)))
        return 0
    how = {name: getattr(options, name) for name in ("budget", "batch", "tuning", "seconds", "processor")}
    measure_all(options, partial(measure, **how), say=lambda row: str(row.get("why", row.get("chosen"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
