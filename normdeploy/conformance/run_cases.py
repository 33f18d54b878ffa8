"""Run adapters through cases, each adapter in a process of its own that is started again where it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from normdeploy.conformance.adapters import Adapter
from normdeploy.conformance.case import Case, Outcome

Progress = Callable[[str], None]


def run(adapters: Sequence[Adapter], cases: Sequence[Case], progress: Progress | None = None) -> list[Outcome]:
    """Return what every adapter did with every case, adapter by adapter.

    Args:
        adapters: all of them installed. cases: in the table's order. progress: called with what is at work.
    """
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="normdeploy-conformance-") as sources:
        for adapter in adapters:
            waiting = list(cases)
            while waiting:
                with _worker(adapter, sources) as ask:
                    while waiting:
                        case = waiting.pop(0)
                        if progress is not None:
                            progress(f"{adapter.name}: {case.name}")
                        answer, ended = ask(case)
                        outcomes.append(answer)
                        if ended:
                            break
    return outcomes


@contextmanager
def _worker(adapter: Adapter, sources: str) -> Iterator[Callable[[Case], tuple[Outcome, bool]]]:
    """Give a function that asks a process of the adapter's own; it answers also whether the process ended."""
    command = [sys.executable, "-m", "normdeploy.conformance.worker", adapter.name, sources]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def ask(case: Case) -> tuple[Outcome, bool]:
            try:
                stdin.write(f"{case.name}\n")
                stdin.flush()
                answer = stdout.readline()
            except BrokenPipeError:
                answer = ""
            if not answer:
                code = process.wait()
                return Outcome(case.name, adapter.name, "crashed", f"the process ended with code {code}"), True
            return Outcome.from_dict(json.loads(answer)), False

        try:
            yield ask
        finally:
            if process.poll() is None:
                stdin.close()
                process.wait()
