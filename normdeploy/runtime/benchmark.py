"""``bench``: one model against the other ways to run the same network, interleaved in one run."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normdeploy.errors import ModelError, UsageError
from normdeploy.files import written_whole
from normdeploy.runtime.backend import Array, TensorSpec
from normdeploy.runtime.latency import Latency, Ratio, fair_turn, measure_latency
from normdeploy.runtime.machine import this_machine, usable_cores
from normdeploy.runtime.memory import Footprint, measure_footprint, measure_module_footprint
from normdeploy.runtime.peers import (
    COMPILED,
    EAGER,
    PEERS,
    FileContestant,
    ModuleContestant,
    ModuleSource,
    Run,
    file_peers,
    plain_export,
)
from normdeploy.runtime.plan import Plan
from normdeploy.runtime.predictor import load
from normdeploy.runtime.samples import make_samples, tile_samples

if TYPE_CHECKING:
    from torch import nn

OURS, TUNED = "normdeploy", "normdeploy tuned"
SCHEMA = 1
_SESSIONS = 3
_STRANGE = 0.1  # of the largest output: no rounding of one network to another of its forms
Contestant = FileContestant | ModuleContestant


@dataclass(frozen=True)
class BenchRow:
    """One contestant in one cell of the sweep.

    Args:
        name: who.
        batch: samples per call.
        threads: threads inside one operator.
        latency: seconds per call.
        ratio: its time over ours in the same rounds; above 1 means ours is faster.
        difference: largest output difference to ours, over the largest magnitude of ours.
    """

    name: str
    batch: int
    threads: int
    latency: Latency
    ratio: Ratio
    difference: float

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        return {
            **self.latency.to_dict(),
            "name": self.name,
            "batch": self.batch,
            "threads": self.threads,
            "ratio_to_normdeploy": self.ratio.to_dict(),
            "difference": self.difference,
        }


@dataclass(frozen=True)
class BenchResult:
    """A benchmark run.

    Args:
        model: the file that was measured.
        rows: every contestant in every cell.
        footprints: contestant to memory and load time in a fresh process.
        skipped: contestant to why it was not measured (or not its memory).
        machine: where.
        notes: what a reader of the numbers should know.
    """

    model: str
    rows: tuple[BenchRow, ...]
    footprints: Mapping[str, Footprint]
    skipped: Mapping[str, str]
    machine: Mapping[str, Any] = field(default_factory=lambda: this_machine().to_dict())
    notes: tuple[str, ...] = ()

    def row(self, name: str, *, batch: int, threads: int) -> BenchRow:
        """Return one cell's row.

        Raises:
            UsageError: it was not measured.
        """
        for row in self.rows:
            if (row.name, row.batch, row.threads) == (name, batch, threads):
                return row
        raise UsageError(f"{name!r} at batch {batch} and {threads} threads was not measured; {dict(self.skipped)}")

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return everything as JSON."""
        import torch

        fields = {
            "schema": SCHEMA,
            "model": self.model,
            "machine": dict(self.machine),
            "torch": torch.__version__,
            "rows": [row.to_dict() for row in self.rows],
            "footprints": {name: footprint.to_dict() for name, footprint in self.footprints.items()},
            "skipped": dict(self.skipped),
            "notes": list(self.notes),
        }
        return json.dumps(fields, indent=indent) + "\n"

    def summary(self) -> str:
        """Return a table for the console."""
        lines = [
            f"{self.model}  (ratio: time over {OURS}'s in the same rounds, with its 95 % interval; "
            "off by: largest difference of outputs to ours)"
        ]
        for row in self.rows:
            low, high = row.latency.quartiles
            ratio = f"{row.ratio.value:6.2f}x [{row.ratio.low:.2f}, {row.ratio.high:.2f}]"
            lines.append(
                f"batch {row.batch:<3} threads {row.threads:<2} {row.name:<28} {row.latency.median * 1e3:9.3f} ms"
                f"  {f'[{low * 1e3:.3f}, {high * 1e3:.3f}]':<18} {ratio:<24} off by {row.difference:.0e}"
            )
        for name, footprint in self.footprints.items():
            lines.append(
                f"{name:<28} peak {footprint.peak_bytes / 2**20:.0f} MiB, of it {footprint.added_bytes / 2**20:.0f} "
                f"for the model; load {footprint.load_s * 1e3:.0f} ms, first run {footprint.first_run_s * 1e3:.0f} ms"
            )
        lines += [f"skipped {name}: {reason}" for name, reason in self.skipped.items()]
        lines += [f"note: {text}" for text in self.notes]
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Draw medians with quartiles, one panel per cell; the format follows the file's ending."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        cells = sorted({(row.threads, row.batch) for row in self.rows})
        names = list(dict.fromkeys(row.name for row in self.rows))
        figure = Figure(figsize=(7, 0.9 + len(cells) * (0.6 + 0.28 * len(names))), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, (threads, batch) in zip(figure.subplots(len(cells), squeeze=False)[:, 0], cells, strict=True):
            rows = [row for row in self.rows if (row.threads, row.batch) == (threads, batch)]
            medians = np.array([row.latency.median for row in rows]) * 1e3
            bounds = np.array([row.latency.quartiles for row in rows]).T * 1e3
            errors = np.abs(bounds - medians)
            colors = ["tab:blue" if row.name.startswith(OURS) else "tab:gray" for row in rows]
            axes.barh([row.name for row in rows], medians, xerr=errors, color=colors, error_kw={"capsize": 2})
            axes.invert_yaxis()
            axes.set_xlim(left=0)
            axes.set_title(f"batch {batch}, {threads} threads", fontsize="medium", loc="left")
            axes.set_xlabel("ms per call, median and quartiles")
        with written_whole(path, overwrite=overwrite) as temporary:
            figure.savefig(temporary)
        return Path(path)


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

    The rounds of a cell are shared between three fresh sessions of each file: where its buffers and threads happen to
    lie makes one session of a file differ from another for as long as both live.

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
        UsageError: an unknown peer, or sizes below 1.
    """
    wanted = PEERS if peers is None else tuple(peers)
    if unknown := [name for name in wanted if name not in PEERS]:
        raise UsageError(f"unknown peer {unknown[0]!r}; expected some of {', '.join(PEERS)}")
    counts = tuple(threads) if threads else tuple(dict.fromkeys((1, usable_cores())))
    if min((*counts, *batch_sizes), default=0) < 1:
        raise UsageError(f"batch_sizes={tuple(batch_sizes)}, threads={counts}; expected sizes of at least 1")
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
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        references = list(against) if isinstance(against, (list, tuple)) else [against]
        for index, reference in enumerate(references):
            label = f" ({_label(reference)})" if len(references) > 1 else ""
            sub = folder / str(index)
            sub.mkdir()
            tell("making the other contestants")
            for found in _contestants(reference, stack, sub, label, wanted, specs, feeds_of(max(2, *batches))):
                if isinstance(found, tuple):
                    skipped[found[0]] = found[1]
                else:
                    contestants.append(found)
        rows: list[BenchRow] = []
        for count in counts:
            with _torch_threads(count):
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
    notes += _strangers(Path(path).name, rows)
    return BenchResult(Path(path).name, tuple(rows), footprints, skipped, notes=tuple(notes))


def _strangers(model: str, rows: Sequence[BenchRow]) -> list[str]:
    """Return a note for each module whose results are not those of the file."""
    worst: dict[str, float] = {}
    for row in rows:
        if row.name.startswith(EAGER):
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


def _label(reference: Any) -> str:
    if isinstance(reference, ModuleSource):
        return reference.source
    return Path(reference).name if isinstance(reference, (str, os.PathLike)) else type(reference).__name__


def _contestants(
    reference: Any,
    stack: ExitStack,
    folder: Path,
    label: str,
    wanted: Sequence[str],
    specs: Sequence[TensorSpec],
    feeds: Mapping[str, Array],
) -> Iterator[Contestant | tuple[str, str]]:
    """Yield the contestants that one reference gives, and (name, reason) for each that is skipped."""
    from normdeploy.sources import is_source

    if isinstance(reference, str) and is_source(reference):
        reference = ModuleSource(reference)
    origin = reference if isinstance(reference, ModuleSource) else None
    if isinstance(reference, (str, os.PathLike)):
        yield from file_peers(Path(reference), folder, label, wanted)
        return
    from normdeploy.export.mode import evaluation_mode

    module: nn.Module = reference if origin is None else origin.build()
    stack.enter_context(evaluation_mode(module, fast=True))
    for name, compiled in ((EAGER, False), (COMPILED, True)):
        if name in wanted:
            yield ModuleContestant(name + label, module, compiled, origin)
    try:
        plain = plain_export(module, feeds, specs, folder)
    except Exception as error:  # the exporter fails in many ways; the peers that need its file are skipped by name
        reason = f"torch.onnx.export failed: {type(error).__name__}: {str(error).splitlines()[0]}"
        for name in wanted:
            if name not in (EAGER, COMPILED):
                yield name + label, reason
        return
    yield from file_peers(plain, folder, label, wanted)


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
    runs: dict[str, Run] = {}
    outputs: dict[str, Sequence[Array]] = {}
    parts: list[dict[str, Latency]] = []
    sessions = min(_SESSIONS, rounds) if rounds else _SESSIONS
    stretch, pause = fair_turn(*(_threads(contestant, threads) for contestant in contestants))
    for session in range(sessions):
        for contestant in contestants if session % 2 == 0 else contestants[::-1]:
            if session and (contestant.name not in runs or isinstance(contestant, ModuleContestant)):
                continue
            try:
                run = contestant.prepare(feeds, _threads(contestant, threads))
                outputs[contestant.name] = run()
                runs[contestant.name] = run
            except Exception as error:
                if contestant.name == OURS:
                    raise
                skipped[contestant.name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                runs.pop(contestant.name, None)
        share = None if rounds is None else rounds // sessions + (session < rounds % sessions)
        parts.append(
            measure_latency(
                runs, rounds=share, seconds=seconds / sessions, stretch=stretch, pause=pause, seed=seed + session
            )
        )
    measured = {name: Latency(name, sum((part[name].samples for part in parts), ())) for name in runs}
    return [
        BenchRow(
            name, batch, threads, latency, latency.ratio(measured[OURS]), _difference(outputs[name], outputs[OURS])
        )
        for name, latency in measured.items()
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
