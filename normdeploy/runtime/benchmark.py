"""``bench``: one model against the other ways to run the same network, interleaved in one run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normdeploy.array_types import Array
from normdeploy.errors import ModelError, UsageError, in_one_line
from normdeploy.ort.machine import usable_cores
from normdeploy.parsing.amounts import require_count, require_seconds
from normdeploy.runtime.bench_result import OURS, TUNED, BenchResult, BenchRow
from normdeploy.runtime.contestant import PEERS, PLAIN, FileContestant, Prepared
from normdeploy.runtime.latency import fair_turn, joined, measure_in_sessions, session_ratio
from normdeploy.runtime.lineup import Contestant, contestants_of, labels_of
from normdeploy.runtime.memory import Footprint, measure_footprint, measure_module_footprint
from normdeploy.runtime.module_peers import (
    ModuleContestant,
    torch_threads,
)
from normdeploy.runtime.plan import Plan
from normdeploy.runtime.predictor import load
from normdeploy.runtime.samples import make_samples, tile_samples

if TYPE_CHECKING:
    pass

_STRANGE = 0.1  # of the largest output: no rounding of one network to another of its forms


def bench(
    path: str | os.PathLike[str],
    *,
    against: Sequence[Any] | Any = (),
    inputs: Mapping[str, Array] | Array | None = None,
    sizes: Mapping[str, int] | None = None,
    batch_sizes: Sequence[int] = (1, 8),
    threads: Sequence[int] | None = None,
    seconds: float = 5.0,
    rounds: int | None = None,
    plan: Plan | str | os.PathLike[str] | None = None,
    peers: Sequence[str] | None = None,
    memory: bool = True,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> BenchResult:
    """Time a model against the other ways to run the same network, interleaved in one run.

    The rounds of a cell are shared between fresh sessions of each file, and the interval of a ratio is that of the
    sessions (`normdeploy.runtime.latency.session_ratio`). Whatever is compared runs where the file runs: on a GPU all
    inputs and outputs stay on the device.

    Args:
        path: the ONNX file to judge.
        against: what it was made from: a torch module, a SOURCE string or a `ModuleSource` (then eager, compiled and
            plainly exported torch run too), or an ONNX file; or a sequence of these.
        inputs: the user's own samples; made up where missing.
        sizes: sizes of dynamic dimensions other than the batch, by word.
        batch_sizes: samples per call; ignored where the model fixes its batch.
        threads: thread counts; by default one, and all cores this process may use.
        seconds: time per cell for all contestants together, without making them.
        rounds: rounds per cell instead of ``seconds``.
        plan: also run the file as this plan says, as "normdeploy tuned".
        peers: which of `normdeploy.runtime.peers.PEERS`; by default all.
        memory: measure peak memory and load time, each in a fresh process.
        seed: of the made-up inputs and of the order within rounds.
        progress: called with a sentence before each step.

    Returns:
        BenchResult: rows, footprints and what was skipped with the reason.

    Raises:
        ModelError: our own file cannot be run; a peer's failure is reported in ``skipped``.
        UsageError: an unknown peer, sizes or rounds below 1, or seconds that are not above 0.

    >>> import normdeploy as nd
    >>> result = nd.bench("folded.onnx", batch_sizes=[1], threads=[1], rounds=3, memory=False)
    >>> [(row.name, row.batch, row.threads, row.ratio.value) for row in result.rows]
    [('normdeploy', 1, 1, 1.0)]
    """
    wanted = PEERS if peers is None else tuple(peers)
    if unknown := [name for name in wanted if name not in PEERS]:
        raise UsageError(f"unknown peer {unknown[0]!r}; expected some of {', '.join(PEERS)}")
    counts = tuple(threads) if threads else tuple(dict.fromkeys((1, usable_cores())))
    if min((*counts, *batch_sizes), default=0) < 1:
        raise UsageError(f"batch_sizes={tuple(batch_sizes)}, threads={counts}; expected sizes of at least 1")
    require_seconds("seconds", seconds)
    if rounds is not None:
        require_count("rounds", rounds)
    tell = progress or _silent
    ours = load(path)
    specs = ours.inputs
    batches = (ours.fixed_batch,) if ours.fixed_batch else tuple(dict.fromkeys(batch_sizes))

    def feeds_of(batch: int) -> dict[str, Array]:
        if inputs is None:
            return make_samples(specs, batch, sizes=sizes, seed=seed)
        named = inputs if isinstance(inputs, Mapping) else {specs[0].name: inputs}
        return tile_samples(specs, named, batch)

    contestants: list[Contestant] = [FileContestant(OURS, ours.path, ours.settings)]
    skipped: dict[str, str] = {}
    notes: list[str] = []
    if plan is not None:
        tuned = load(path, plan=plan)
        contestants.append(FileContestant(TUNED, tuned.path, tuned.settings))
        notes.append(f"{TUNED} is {tuned.path.name} on {tuned.settings.describe()}, whatever the cell's threads")
        if inputs is None and any(trial.status == "chosen" and trial.precision != "float32" for trial in _trials(plan)):
            notes.append(
                f"inputs are made up, and {TUNED} is of lower precision, whose ranges were measured on other rows: "
                "what it is off by says nothing; expected rows of yours (--data FILE)"
            )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        references = list(against) if isinstance(against, (list, tuple)) else [against]
        labels = labels_of(references)
        for index, reference in enumerate(references):
            label = f" ({labels[index]})" if len(references) > 1 else ""
            sub = folder / str(index)
            sub.mkdir()
            tell("making the other contestants")
            plain = labels[index] if isinstance(reference, (str, os.PathLike)) else PLAIN + label
            example = feeds_of(max(2, *batches))
            for found in contestants_of(reference, stack, sub, label, plain, wanted, specs, example, ours.settings):
                if isinstance(found, tuple):
                    skipped[found[0]] = found[1]
                else:
                    contestants.append(found)
        rows: list[BenchRow] = []
        for count in counts:
            with torch_threads(count):
                for batch in batches:
                    tell(f"batch {batch}, {count} threads")
                    rows += _cell(contestants, feeds_of(batch), batch, count, skipped, seconds, rounds, seed)
        footprints: dict[str, Footprint] = {}
        if memory:
            feeds, count = feeds_of(batches[-1]), counts[-1]
            for contestant in contestants:
                tell(f"memory of {contestant.name}, in a fresh process")
                try:
                    footprints[contestant.name] = _footprint(contestant, feeds, count)
                except ModelError as error:
                    skipped[f"{contestant.name} (memory)"] = str(error)
    eager = {entry.name for entry in contestants if isinstance(entry, ModuleContestant) and not entry.compiled}
    notes += _strangers(Path(path).name, [row for row in rows if row.name in eager])
    return BenchResult(Path(path).name, tuple(rows), footprints, skipped, notes=tuple(notes))


def _strangers(model: str, rows: Sequence[BenchRow]) -> list[str]:
    """Return a note for each module, of which these are the rows, whose results are not those of the file."""
    worst: dict[str, float] = {}
    for row in rows:
        worst[row.name] = max(worst.get(row.name, 0.0), row.difference)
    return [
        f"{name} is off by {gap:.1g}: it is another network than {model}, or has other weights; expected the weights "
        f"that {model} was exported with (--weights)"
        for name, gap in worst.items()
        if not gap <= _STRANGE
    ]


def _footprint(contestant: Contestant, feeds: Mapping[str, Array], threads: int) -> Footprint:
    if isinstance(contestant, ModuleContestant):
        return measure_module_footprint(contestant, feeds, threads)
    settings = contestant.settings if contestant.name == TUNED else contestant.with_threads(threads)
    return measure_footprint(contestant.path, settings, feeds)


def _trials(plan: Plan | str | os.PathLike[str]) -> Sequence[Any]:
    return (plan if isinstance(plan, Plan) else Plan.load(plan)).trials


def _cell(
    contestants: Sequence[Contestant],
    feeds: Mapping[str, Array],
    batch: int,
    threads: int,
    skipped: dict[str, str],
    seconds: float,
    rounds: int | None,
    seed: int,
) -> list[BenchRow]:
    runs: dict[str, Prepared] = {}
    outputs: dict[str, Sequence[Array]] = {}

    def prepare(session: int) -> dict[str, Callable[[], object]]:
        for contestant in contestants if session % 2 == 0 else contestants[::-1]:
            if session and (contestant.name not in runs or isinstance(contestant, ModuleContestant)):
                continue
            try:
                run = contestant.prepare(feeds, _threads(contestant, threads))
                outputs[contestant.name] = run.fetch()
                runs[contestant.name] = run
            except Exception as error:
                if contestant.name == OURS:
                    raise
                skipped[contestant.name] = in_one_line(error)
                runs.pop(contestant.name, None)
        return {contestant.name: runs[contestant.name].call for contestant in contestants if contestant.name in runs}

    turn = fair_turn(*(_threads(contestant, threads) for contestant in contestants))
    parts = measure_in_sessions(prepare, rounds=rounds, seconds=seconds, seed=seed, **turn)
    return [
        BenchRow(
            contestant.name,
            batch,
            threads,
            joined(parts, contestant.name),
            session_ratio(parts, contestant.name, OURS),
            _difference(outputs[contestant.name], outputs[OURS]),
        )
        for contestant in contestants
        if contestant.name in runs
    ]


def _threads(contestant: Contestant, threads: int) -> int:
    """Return the cell's threads, or the plan's where the contestant is tuned: they are part of the plan."""
    if isinstance(contestant, FileContestant) and contestant.name == TUNED:
        return contestant.settings.threads or threads
    return threads


def _silent(text: str) -> None:
    """Say nothing of ``text``."""


def _difference(found: Sequence[Array], ours: Sequence[Array]) -> float:
    """Return max |found - ours| / max |ours| over all outputs; infinite where they do not even match in shape."""
    worst = 0.0
    if len(found) != len(ours):
        return float("inf")
    for mine, theirs in zip(ours, found, strict=True):
        if mine.shape != theirs.shape:
            return float("inf")
        if mine.size:
            gap = np.abs(theirs.astype(np.float64) - mine.astype(np.float64)).max()
            worst = max(worst, float(gap / (np.abs(mine.astype(np.float64)).max() or 1.0)))
    return worst
