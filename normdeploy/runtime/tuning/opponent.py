"""What torch's own compiler takes for the same network: the plan says it, so that nobody takes the slower way unaware.

It is no way that normdeploy runs; it stands among the trials as what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from normdeploy.ort.specs import Array
from normdeploy.runtime.latency import PAUSE, STRETCH, measure_latency
from normdeploy.runtime.module_peers import COMPILED, ModuleContestant, torch_threads
from normdeploy.runtime.plan import Trial

if TYPE_CHECKING:
    from torch import nn


def against_compiler(
    module: nn.Module,
    feeds: Mapping[str, Array],
    winner: Callable[[], object],
    base: Callable[[], object],
    threads: list[int],
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
        seconds: for all of it, without compiling.
        seed: of the order within rounds.

    Returns:
        a trial for each, "skipped", whose reason says its time over the plan's.
    """
    from normdeploy.exporting.mode import evaluation_mode

    trials = []
    for count in threads:
        name = f"{COMPILED}, {'1 thread' if count == 1 else f'{count} threads'}"
        with evaluation_mode(module), torch_threads(count):
            try:
                run = ModuleContestant(name, module, compiled=True).prepare(feeds, count).call
                run()
            except Exception as error:  # the compiler fails in many ways; the plan stands without it
                reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                trials.append(Trial(name, "float32", "failed", reason))
                continue
            runs = {name: run, "plan": winner, "untuned": base}
            found = measure_latency(runs, seconds=seconds / len(threads), stretch=STRETCH, pause=PAUSE, seed=seed)
        ratio = found[name].ratio(found["plan"])
        reason = (
            f"an opponent, not a way that normdeploy runs: {ratio.value:.2f} of the plan's time "
            f"({ratio.low:.2f} to {ratio.high:.2f})"
        )
        over = found[name].ratio(found["untuned"]).to_dict()
        trials.append(Trial(name, "float32", "skipped", reason, latency=found[name].to_dict(), ratio=over))
    return trials
