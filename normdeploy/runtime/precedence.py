"""Precedence over other programs while something is timed, where the system grants it.

On cores that others use, two threads are slower than one, and whoever waits for several threads waits for the one that
was interrupted: no order of turns takes that out of a comparison. The real-time class of the scheduler does: a thread
in it is interrupted by no ordinary program. Linux grants it to root and to holders of CAP_SYS_NICE, and keeps a
twentieth of each second for the others.

Source: sched(7), "SCHED_RR: Round-robin scheduling" and "Limiting the CPU usage of real-time and deadline processes".
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform == "linux":
    _THREADS = Path("/proc/self/task")
    _STATISTICS = Path("/proc/stat")
    _LOWEST = os.sched_param(1)  # of the real-time priorities: kernel threads stay above

    def _everybody() -> list[int]:
        return [int(entry.name) for entry in _THREADS.iterdir()]

    def _put(thread: int, policy: int, parameters: os.sched_param) -> None:
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setscheduler(thread, policy, parameters)

    @contextmanager
    def precedence() -> Iterator[bool]:
        """Put all threads of this process before other programs; yield whether the system grants it.

        Threads that are begun inside inherit it. On leaving, each gets back what it had, new ones what the caller had.
        """
        before = {}
        for thread in _everybody():
            with suppress(ProcessLookupError):
                before[thread] = os.sched_getscheduler(thread), os.sched_getparam(thread)
        caller = os.sched_getscheduler(0), os.sched_getparam(0)
        try:
            try:
                for thread in before:
                    _put(thread, os.SCHED_RR, _LOWEST)
                granted = True
            except PermissionError:
                granted = False
            yield granted
        finally:
            for thread in _everybody():
                _put(thread, *before.get(thread, caller))

    def processor_seconds_of_others() -> float | None:
        """Return the processor time that all other programs have taken since the machine was started; None if unknown.

        Source: proc_stat(5): jiffies of user, nice, system, idle, iowait, irq, softirq, steal.
        """
        try:
            first = _STATISTICS.read_text(encoding="ascii").split("\n", 1)[0].split()
        except OSError:
            return None
        user, nice, system, _, _, irq, softirq, *_ = map(int, first[1:])
        mine = time.process_time()
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK") - mine

else:

    @contextmanager
    def precedence() -> Iterator[bool]:
        """Yield that this system has no class of threads that others do not interrupt."""
        yield False

    def processor_seconds_of_others() -> float | None:
        """Return None: this system does not tell."""
        return None
