"""``tune``: the fastest way to run a model on this machine that stays within a budget.

Candidates come in rounds, those that gain most first, so that a time limit gives up the least. Each round's are opened,
judged and timed against the untuned model, interleaved, and the best accepted one sets the direction of the next round.
Where int8 would be the fastest and is outside the budget, one more round leaves the operators in float32 that lose
most. The winner has to beat the untuned model, and the best float32 candidate if it is of lower precision, beyond the
noise of a last, longer comparison; otherwise the simpler one stays.

All of it has an end: timing takes ``seconds``, one hopelessly slow candidate is not timed in every round, and what has
not begun at the time limit is listed as not tried.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normdeploy.budget import Budget, parse_budget
from normdeploy.errors import GraphError, UsageError
from normdeploy.files import require_model_file
from normdeploy.ort.digest import model_digest
from normdeploy.ort.machine import this_machine, usable_cores
from normdeploy.ort.providers import default_settings, find_providers, float32_options
from normdeploy.ort.settings import CPU, CUDA, OPENVINO_PLUGIN, OPENVINO_RUNTIME, TENSORRT, Settings
from normdeploy.ort.specs import Array
from normdeploy.runtime.backend import Backend, open_backend
from normdeploy.runtime.latency import PAUSE, STRETCH, measure_latency
from normdeploy.runtime.plan import Plan, Trial, variant_name
from normdeploy.runtime.samples import check_rows, fixed_batch, make_samples, read_arrays, tile_samples
from normdeploy.runtime.tuning import candidates
from normdeploy.runtime.tuning.candidates import UNTUNED, Candidate, named
from normdeploy.runtime.tuning.final import compare_finalists
from normdeploy.runtime.tuning.fixed import InFixedBatches, with_fixed_shapes
from normdeploy.runtime.tuning.glance import glance
from normdeploy.runtime.tuning.int8 import INT8_RECIPES, Int8Recipe, Quantizer
from normdeploy.runtime.tuning.judge import Judge, Outcome
from normdeploy.runtime.tuning.kept import require_places, save_plan
from normdeploy.runtime.tuning.lower import write_float16
from normdeploy.runtime.tuning.measured import Measured
from normdeploy.runtime.tuning.mixed import fewest_kept, rank_by_loss
from normdeploy.runtime.tuning.opponent import against_compiler
from normdeploy.verification.diagnosis.optimizers import guilty_optimizers

if TYPE_CHECKING:
    from torch import nn

_SHARES = {
    "levels": 0.1,
    "lower levels": 0.1,
    "threading": 0.1,
    "providers": 0.15,
    "precisions": 0.15,
    "mixed": 0.1,
    "shapes": 0.1,
    "final": 0.2,
}
_FIXED = 4  # of the ways that gain by it, the fastest: tried with sessions for the timed shapes
_RANKING_SECONDS = 45.0
_WORTH = 0.95  # of the best accepted time: what int8 must be able to reach for a search which operators to keep


def tune(
    path: str | os.PathLike[str],
    *,
    data: Any = None,
    reference: Any = None,
    budget: str | None = None,
    batch_size: int = 8,
    sizes: Mapping[str, int] | None = None,
    seconds: float = 40.0,
    time_limit: float = 900.0,
    seed: int = 0,
    opponent: nn.Module | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Find the fastest way to run the model on this machine within a budget; save it as ``<name>.plan.json``.

    Where a variant of lower precision wins, it is saved beside the model as ``<name>.<precision>.onnx``. A plan that
    takes another's place takes that one's variant away.

    Args:
        path: the ONNX file.
        data: the user's rows: an array for a model of one input, a dict of arrays by input name, or a .npy or .npz file
            of them. Needed for a lossy budget: it is measured, and int8 is calibrated, on them.
        reference: whose float64 evaluation is the truth: a torch module, an ONNX file or graph; the file itself by
            default.
        budget: "exact" (default), "top1=0.5%" or "rel=1e-2".
        batch_size: samples per timed call, where the model leaves it open.
        sizes: sizes of dynamic dimensions other than the batch, by word, where ``data`` does not tell them.
        seconds: time for all timing together; judging and converting come on top.
        time_limit: seconds after which nothing new is begun: candidates not yet tried are listed as skipped, and the
            best of the others is chosen.
        seed: of made-up inputs and orders.
        opponent: the module that the file was made from: what ``torch.compile`` takes for it stands in the plan.
        overwrite: allow replacing a plan, and a variant, that lie beside the model.
        progress: called with a sentence before each step.

    Returns:
        Plan: what was chosen, and for everything that was tried what it cost, what it lost and why it was rejected.

    Raises:
        UsageError: a wrong budget, a lossy one without data, or nothing within the budget.
        OutputExistsError: there is a plan or variant and ``overwrite`` is false.
        InputError: data that does not fit the model.
        GraphError: the file cannot be run.
    """
    model = Path(path)
    limit = parse_budget(budget)
    if batch_size < 1 or seconds <= 0 or time_limit <= 0:
        raise UsageError(
            f"batch_size={batch_size}, seconds={seconds}, time_limit={time_limit}; expected positive values"
        )
    require_model_file(model)
    require_places(model, lossy=limit.metric != "exact", overwrite=overwrite)
    deadline = time.monotonic() + time_limit
    tell = progress or _silent
    request = {
        "data": _as_file(data, model),
        "reference": _as_file(reference, model) or (None if reference is None else type(reference).__name__),
        "batch_size": batch_size,
        "sizes": dict(sizes or {}),
        "seconds": seconds,
        "time_limit": time_limit,
        "seed": seed,
    }
    if isinstance(data, (str, os.PathLike)):
        data = read_arrays(Path(data))
    with tempfile.TemporaryDirectory() as folder:
        search = _Search(model, limit, data, reference, batch_size, sizes, seconds, deadline, seed, tell, Path(folder))
        winner = search.run()
        if opponent is not None:
            search.compare_with(opponent, winner)
        return search.save(winner, request)


def _as_file(value: Any, model: Path) -> str | None:
    """Return where a file lies, from the model's folder where it lies below that; None for what is no file."""
    if not isinstance(value, (str, os.PathLike)):
        return None
    path, folder = Path(value).absolute(), model.absolute().parent
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


class _Search:
    def __init__(
        self,
        model: Path,
        budget: Budget,
        data: Any,
        reference: Any,
        batch_size: int,
        sizes: Mapping[str, int] | None,
        seconds: float,
        deadline: float,
        seed: int,
        tell: Callable[[str], None],
        workspace: Path,
    ) -> None:
        self.model, self.budget, self.seconds, self.seed = model, budget, seconds, seed
        self.digest = model_digest(model)
        self.deadline, self.tell, self.workspace = deadline, tell, workspace
        self.base = Candidate(UNTUNED, "float32", model, default_settings())
        self.specs = specs = open_backend(model, self.base.settings).inputs
        rows = None if data is None else check_rows(specs, data)
        fixed = fixed_batch(specs)
        if rows is None:
            self.feeds = make_samples(specs, batch_size, sizes=sizes, seed=seed)
        else:
            some = {name: array[: fixed or batch_size] for name, array in rows.items()}
            self.feeds = tile_samples(specs, some, batch_size)
        first = next(iter(self.feeds.values()))
        self.batch = first.shape[0] if first.ndim else 1
        tell("computing the float64 truth")
        self.judge = Judge(model, budget, rows, reference=reference, sizes=sizes, seed=seed, fixed=fixed)
        self.entries: list[Measured] = []
        self.skipped: list[Trial] = []
        self.variants: dict[Path, tuple[Int8Recipe, Quantizer]] = {}
        self._conversions: dict[Path, float] = {}

    # rounds -----------------------------------------------------------------------------------------------------

    def run(self) -> Measured:
        """Return the winner."""
        cores = usable_cores()
        self._round("levels", [self.base, *self._float32(candidates.levels(self.base.settings, cores))])
        self._repair_untuned()
        best = self._best().settings
        self._round("providers", self._float32(candidates.other_providers(best, cores, find_providers())))
        self._round("precisions", list(self._precisions(self._best().settings)))
        self._mixed()
        accepted = [entry.candidate for entry in self._accepted()]
        self._round("shapes", list(with_fixed_shapes(accepted, self.specs, self.feeds))[:_FIXED])
        best = self._best_of_cpu().settings
        self._round("lower levels", self._float32(candidates.lower_levels(self.base.settings, cores)))
        self._round("threading", self._float32(candidates.threading(best, cores)))
        return self._final()

    def _float32(self, settings: Iterator[Settings] | Iterator[Settings | Trial]) -> list[Candidate]:
        found = list(settings)
        self.skipped += [entry for entry in found if isinstance(entry, Trial)]
        return [named(entry, self.model) for entry in found if isinstance(entry, Settings)]

    def _precisions(self, best: Settings) -> Iterator[Candidate]:
        if self.budget.metric == "exact":
            self.skipped.append(
                Trial("bfloat16, float16 and int8", "int8", "skipped", "the budget is exact: state a loss to try them")
            )
            return
        usable = _usable()
        for entry in candidates.reduced_openvino(best, usable_cores(), usable, this_machine()):
            if isinstance(entry, Trial):
                self.skipped.append(entry)
            else:
                yield named(entry[1], self.model, entry[0], entry[0])
        fast = best if best.provider == CPU else replace(self.base.settings, provider=CPU, options=())
        yield from self._int8(fast)
        if self._late("float16", "float16"):
            return
        target = self.workspace / "float16.onnx"
        try:
            write_float16(self.model, target)
        except Exception as error:  # the converter raises whatever it likes on graphs it does not know
            self._failed("float16", "float16", error)
            return
        where = CUDA if CUDA in usable else CPU
        yield named(replace(fast, provider=where, options=float32_options(where)), target, "float16", "float16")
        if TENSORRT in usable:
            half = (("trt_fp16_enable", "1"),)
            yield named(Settings(TENSORRT, options=half), self.model, "float16", "float16")

    def _int8(self, fast: Settings) -> Iterator[Candidate]:
        self.tell("taking the ranges of activations")
        try:
            quantizer = Quantizer(self.model, self.judge.calibration, this_machine())
        except Exception as error:  # likewise the quantizer
            self._failed("int8", "int8", error)
            return
        for recipe in INT8_RECIPES:
            if self._late(recipe.name, "int8"):
                continue
            target = self.workspace / f"{recipe.name.replace(', ', '.').replace(' ', '_')}.onnx"
            self.tell(f"quantizing: {recipe.name}")
            try:
                changed = quantizer.write(target, recipe)
            except Exception as error:
                self._failed(recipe.name, "int8", error)
                continue
            if not changed and (recipe.equalized or recipe.joined):
                self.skipped.append(Trial(recipe.name, "int8", "skipped", recipe.nothing_to_do))
                continue
            self.variants[target] = (recipe, quantizer)
            yield from self._int8_settings(recipe.name, target, fast, openvino=not recipe.joined)

    def _int8_settings(self, name: str, file: Path, fast: Settings, *, openvino: bool) -> Iterator[Candidate]:
        counts = sorted({1, usable_cores()})
        for threads in counts:
            yield named(replace(fast, threads=threads, optimization="all"), file, name, "int8")
        for provider in (OPENVINO_RUNTIME, OPENVINO_PLUGIN) if openvino else ():
            if provider in _usable():
                for threads in counts:
                    yield named(Settings(provider, threads=threads), file, name, "int8")

    def _mixed(self) -> None:
        """Where int8 would be the fastest but loses too much, keep the operators in float32 that lose most.

        Asked of the fastest variant that quantizes every operator, and of the fastest that quantizes linear layers:
        what the one loses in sums and norms, the other does not lose.
        """
        accepted = self._accepted()
        promising = [entry for entry in self.entries if entry.candidate.file in self.variants and entry.too_lossy]
        promising.sort(key=lambda entry: entry.relative)
        wanted: list[Candidate] = []
        for every in (True, False):
            of_kind = (entry for entry in promising if self.variants[entry.candidate.file][0].every_operator == every)
            fastest = next(of_kind, None)
            if fastest is None or not fastest.ratio or not accepted or not accepted[0].ratio:
                continue
            if fastest.ratio["low"] > _WORTH * accepted[0].ratio["value"] or self._late("int8, part of it", "int8"):
                continue
            wanted += self._partly(fastest)
        self._round("mixed", wanted)

    def _partly(self, fastest: Measured) -> list[Candidate]:
        """Return the candidates that quantize most of what an entry does, if any is within the budget."""
        recipe, quantizer = self.variants[fastest.candidate.file]
        self.tell(f"measuring what each operator loses in {recipe.name}")
        ranked = rank_by_loss(
            self.model, quantizer, recipe, self.judge.calibration[0], self.workspace, seconds=_RANKING_SECONDS
        )

        def judged(file: Path) -> Outcome:
            self.tell(f"{recipe.name}, with {file.suffixes[-2][1:]} of {len(ranked)} operators in float32")
            backend = open_backend(file, replace(fastest.candidate.settings, provider=CPU, options=()))
            return self.judge.judge(backend.run, "int8")

        attempts = fewest_kept(quantizer, recipe, ranked, self.workspace, judged, deadline=self.deadline)
        best = next((attempt for attempt in reversed(attempts) if attempt.outcome.accepted), None)
        for attempt in attempts:
            name = f"{recipe.name}, {attempt.kept} of {attempt.total} operators in float32"
            if attempt is not best and not attempt.outcome.accepted:
                self.skipped.append(Trial(name, "int8", "rejected", attempt.outcome.reason, loss=attempt.outcome.loss))
        if best is None:
            return []
        fast = fastest.candidate.settings
        fast = fast if fast.provider == CPU else replace(self.base.settings, provider=CPU, options=())
        wanted: list[Candidate] = []
        for other in (known for known, _ in self.variants.values() if known.same_operators(recipe)):
            file = best.file
            if other != recipe:  # the same operators, written in another form
                file = best.file.with_stem(f"{best.file.stem}.other")
                quantizer.write(file, other, keep=ranked[: best.kept])
            name = f"{other.name}, {best.kept} of {best.total} operators in float32"
            wanted += self._int8_settings(name, file, fast, openvino=not other.joined)
        return wanted

    def _repair_untuned(self) -> None:
        """Where optimization itself changes the result, find out which optimizer, and try all the others."""
        wrong = next((entry for entry in self.entries if entry.candidate is self.base and not entry.accepted), None)
        if wrong is None or wrong.outcome is None or self.base.settings.provider != CPU:
            return
        self.tell("looking for the optimizer that changes the result")

        def repaired(names: tuple[str, ...]) -> bool:
            settings = replace(self.base.settings, disabled_optimizers=names)
            return self.judge.judge(open_backend(self.model, settings).run, "float32").accepted

        guilty = guilty_optimizers(self.model, "all", repaired)
        if not guilty:
            return
        names = ", ".join(guilty)
        wrong.outcome = replace(wrong.outcome, reason=f"{wrong.outcome.reason}; {names} of onnxruntime does it")
        settings = replace(self.base.settings, disabled_optimizers=guilty)
        self._round("levels", [named(settings, self.model, f"float32, without {names}")])

    # judging and timing -----------------------------------------------------------------------------------------

    def _failed(self, name: str, precision: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        self.skipped.append(Trial(name, precision, "failed", reason))

    def _late(self, name: str, precision: str) -> bool:
        """Whether the time limit is over; then the candidate is listed as skipped for that."""
        late = time.monotonic() > self.deadline
        if late:
            self.skipped.append(Trial(name, precision, "skipped", "not tried: the time limit was over"))
        return late

    def _round(self, name: str, wanted: Sequence[Candidate]) -> None:
        """Open, judge and time some candidates against the untuned model."""
        known = {(entry.candidate.file, entry.candidate.settings) for entry in self.entries}
        fresh = [candidate for candidate in wanted if (candidate.file, candidate.settings) not in known]
        if not fresh:
            return
        entries: list[Measured] = []
        runs: dict[str, Callable[[], object]] = {}
        for candidate in fresh:
            if candidate is not self.base and self._late(candidate.name, candidate.precision):
                continue
            self.tell(f"trying {candidate.name}")
            entry = Measured(candidate)
            entries.append(entry)
            try:
                backend = open_backend(candidate.file, candidate.settings)
                entry.outcome = self._judge(candidate, backend)
            except Exception as error:  # a provider raises whatever it likes; the search goes on and says so
                if candidate is self.base:
                    raise
                entry.failure = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                continue
            runs[candidate.name] = _call(backend, self.feeds)
        self.entries += entries
        if not runs:
            return
        if UNTUNED not in runs:
            runs = {UNTUNED: _call(open_backend(self.model, self.base.settings), self.feeds), **runs}
        self.tell(f"a first glance at {len(runs)} ways")
        glances, slow = glance(runs, UNTUNED)
        for entry in entries:
            if (label := entry.candidate.name) in slow:
                entry.latency, entry.hopeless = glances[label], True  # with it in every round there would be few rounds
                del runs[label]
        self.tell(f"timing {len(runs)} ways, {self.seconds * _SHARES[name]:.0f} s")
        seconds = self.seconds * _SHARES[name]
        measured = measure_latency(runs, seconds=seconds, stretch=STRETCH, pause=PAUSE, seed=self.seed)
        for entry in entries:
            if entry.candidate.name in measured:
                entry.latency = measured[entry.candidate.name]
                entry.ratio = entry.latency.ratio(measured[UNTUNED]).to_dict()

    def _judge(self, candidate: Candidate, backend: Backend) -> Outcome:
        conversion = None
        if candidate.precision == "int8":
            if candidate.file not in self._conversions:
                plain = open_backend(candidate.file, Settings(optimization="disable"))
                self._conversions[candidate.file] = self.judge.loss(plain.run)
            conversion = self._conversions[candidate.file]
        if not candidate.settings.fixed_shapes:
            return self.judge.judge(backend.run, candidate.precision, conversion=conversion)
        fixed = InFixedBatches(backend, dict(candidate.settings.fixed_shapes))
        outcome = self.judge.judge(fixed.run, candidate.precision, conversion=conversion)
        if outcome.accepted and not fixed.fitting:
            reason = "not judged: no input of the verifier has its shapes; give rows of the timed shapes as data"
            return replace(outcome, accepted=False, reason=reason)
        return outcome

    def _accepted(self) -> list[Measured]:
        return sorted((entry for entry in self.entries if entry.accepted), key=lambda entry: entry.relative)

    def _best(self) -> Candidate:
        accepted = self._accepted()
        return accepted[0].candidate if accepted else self.base

    def _best_of_cpu(self) -> Candidate:
        """Return the fastest accepted float32 way on onnxruntime's CPU provider."""
        ours = (entry.candidate for entry in self._accepted() if entry.candidate.settings.provider == CPU)
        return next((entry for entry in ours if entry.file == self.model), self.base)

    def _final(self) -> Measured:
        """Compare the fastest accepted candidates once more, longer, and return the winner."""
        accepted = self._accepted()
        if not accepted:
            reasons = {entry.outcome.reason for entry in self.entries if entry.outcome}
            raise UsageError(
                f"nothing runs {self.model.name} within budget {self.budget.text} on this machine: "
                f"{'; '.join(sorted(reasons)[:3])}; expected at least one way: allow more"
            )
        self.tell("comparing the fastest")
        return compare_finalists(
            accepted,
            next(entry for entry in self.entries if entry.candidate is self.base),
            lambda entry: _call(open_backend(entry.candidate.file, entry.candidate.settings), self.feeds),
            self.seconds * _SHARES["final"],
            self.seed,
            lambda: time.monotonic() > self.deadline,
        )

    def compare_with(self, module: nn.Module, winner: Measured) -> None:
        """Say in the plan what torch's compiler takes for the network."""
        self.tell("compiling the module with torch, to compare")
        calls = [_call(open_backend(one.file, one.settings), self.feeds) for one in (winner.candidate, self.base)]
        seconds = self.seconds * _SHARES["final"]
        counts = sorted({1, usable_cores()})
        self.skipped += against_compiler(module, self.feeds, calls[0], calls[1], counts, seconds, self.seed)

    # the plan ---------------------------------------------------------------------------------------------------

    def save(self, winner: Measured, request: Mapping[str, Any]) -> Plan:
        """Copy the winner's variant beside the model and write the plan."""
        if (now := model_digest(self.model)) != self.digest:
            raise GraphError(
                f"{self.model} changed while it was tuned (digest {now[:12]}, before {self.digest[:12]}); expected the "
                "same file to the end: tune again"
            )
        file = self.model
        if winner.candidate.file != self.model:
            file = self.model.with_name(variant_name(self.model.name, winner.candidate.precision))
        trials = [entry.to_trial(winner, self.model, file) for entry in self.entries]
        trials.sort(key=lambda trial: (trial.status != "chosen", trial.ratio["value"] if trial.ratio else float("inf")))
        plan = Plan(
            model=self.model.name,
            model_digest=self.digest,
            budget=self.budget.text,
            data=f"{self.judge.note}; timed at batch {self.batch}",
            machine=this_machine(),
            trials=(*trials, *self.skipped),
            file_digest=model_digest(winner.candidate.file),
            request=request,
        )
        return save_plan(plan, self.model, winner.candidate.file)


def _usable() -> set[str]:
    """Return the names of the providers that can be used here."""
    return {provider.name for provider in find_providers() if provider.usable}


def _silent(text: str) -> None:
    """Say nothing of ``text``."""


def _call(backend: Backend, feeds: Mapping[str, Array]) -> Callable[[], object]:
    return lambda: backend.run(feeds)
