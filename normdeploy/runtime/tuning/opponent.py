"""What others take for the same network, left to themselves: the plan says it, so that nobody goes slower unaware.

OpenVINO's own LATENCY mode on the file, with the threads and the precision that it chooses, and torch's compiler on the
module. These are no ways that normdeploy runs; they stand among the trials as what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from normdeploy.array_types import Array
from normdeploy.errors import in_one_line
from normdeploy.ort.machine import reduced_precision, this_machine, usable_cores
from normdeploy.ort.providers import find_providers
from normdeploy.ort.settings import OPENVINO_RUNTIME, Settings
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.module_peers import COMPILED, ModuleContestant, torch_threads
from normdeploy.runtime.plan import Trial

if TYPE_CHECKING:
    from torch import nn

    from normdeploy.runtime.tuning.stopwatch import Stopwatch
    from normdeploy.runtime.tuning.trials import Tried


OWN_LATENCY = "OpenVINO, its own LATENCY mode"


def opponents(
    tried: Tried,
    module: nn.Module | None,
    winner: Callable[[], object],
    base: Callable[[], object],
    seconds: float,
) -> list[Trial]:
    """Return what others take for the network: OpenVINO, where it is usable and there is time, and torch's compiler.

    Args:
        tried: what the search tried; a time limit that is over is listed there. module: the network that the file was
            made from, if it is given. winner: one call of the plan. base: one call of the untuned model. seconds: for
            timing each, without compiling.
    """
    found = []
    usable = any(provider.name == OPENVINO_RUNTIME and provider.usable for provider in find_providers())
    if usable and not tried.late(OWN_LATENCY, "float32"):
        tried.tell("comparing with OpenVINO's own LATENCY mode")
        found.append(against_openvino(tried.base.file, tried.feeds, winner, base, tried.stopwatch, seconds, tried.seed))
    if module is not None:
        tried.tell("compiling the module with torch, to compare")
        counts = sorted({1, usable_cores()})
        found += against_compiler(module, tried.feeds, winner, base, counts, tried.stopwatch, seconds, tried.seed)
    return found


def against_openvino(
    file: Path,
    feeds: Mapping[str, Array],
    winner: Callable[[], object],
    base: Callable[[], object],
    stopwatch: Stopwatch,
    seconds: float,
    seed: int,
) -> Trial:
    """Time OpenVINO as it runs a file when it is asked for low latency and for nothing else.

    Args:
        file: the untuned model. feeds: what is timed. winner: one call of the plan. base: one call of the untuned
            model. stopwatch: times them. seconds: for timing. seed: of the order within rounds.

    Returns:
        a trial, "skipped", whose reason says its precision and its time over the plan's; "failed" where OpenVINO
        cannot run the file.
    """
    precision = (*reduced_precision(this_machine()), "float32")[0]  # what it takes by default, unasked
    try:
        backend = open_backend(file, Settings(provider=OPENVINO_RUNTIME))
        backend.run(feeds)
    except Exception as error:  # of its own kinds; the plan stands without it
        reason = in_one_line(error)
        return Trial(OWN_LATENCY, precision, "failed", reason)
    runs = {OWN_LATENCY: lambda: backend.run(feeds), "plan": winner, "untuned": base}
    return _trial(OWN_LATENCY, precision, runs, stopwatch, seconds, seed)


def _trial(
    name: str,
    precision: str,
    runs: Mapping[str, Callable[[], object]],
    stopwatch: Stopwatch,
    seconds: float,
    seed: int,
) -> Trial:
    """Time an opponent beside the plan and the untuned model, interleaved."""
    found = stopwatch.measure(runs, seconds, seed, warmup=3)
    ratio = found[name].ratio(found["plan"])
    reason = (
        f"an opponent, not a way that normdeploy runs, in {precision}: {ratio.value:.2f} of the plan's time "
        f"({ratio.low:.2f} to {ratio.high:.2f})"
    )
    over = found[name].ratio(found["untuned"]).to_dict()
    return Trial(name, precision, "skipped", reason, latency=found[name].to_dict(), ratio=over)


def against_compiler(
    module: nn.Module,
    feeds: Mapping[str, Array],
    winner: Callable[[], object],
    base: Callable[[], object],
    threads: list[int],
    stopwatch: Stopwatch,
    seconds: float,
    seed: int,
) -> list[Trial]:
    """Time ``torch.compile`` beside the plan's winner, once for each number of threads.

    Args:
        module: the network that the file was made from.
        feeds: what is timed.
        winner: one call of the plan.
        base: one call of the untuned model.
        threads: torch's numbers of threads.
        stopwatch: times them.
        seconds: for all of it, without compiling.
        seed: of the order within rounds.

    Returns:
        a trial for each, "skipped", whose reason says its time over the plan's.
    """
    from normdeploy.exporting.module.mode import evaluation_mode

    trials = []
    for count in threads:
        name = f"{COMPILED}, {'1 thread' if count == 1 else f'{count} threads'}"
        with evaluation_mode(module), torch_threads(count):
            try:
                run = ModuleContestant(name, module, compiled=True).prepare(feeds, count).call
                run()
            except Exception as error:  # the compiler fails in many ways; the plan stands without it
                reason = in_one_line(error)
                trials.append(Trial(name, "float32", "failed", reason))
                continue
            runs = {name: run, "plan": winner, "untuned": base}
            trials.append(_trial(name, "float32", runs, stopwatch, seconds / len(threads), seed))
    return trials
