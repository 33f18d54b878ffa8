"""``tune``: the fastest way to run a model on this machine that stays within a budget.

Candidates come in rounds; each round's are opened, judged and timed against the untuned model, interleaved, and the
best accepted one sets the direction of the next round. The winner has to beat the untuned model, and the best float32
candidate if it is of lower precision, beyond the noise of a last, longer comparison; otherwise the simpler one stays.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from normdeploy.errors import UsageError
from normdeploy.runtime.backend import Array, Backend, open_backend
from normdeploy.runtime.latency import Latency, measure_latency
from normdeploy.runtime.machine import this_machine, usable_cores
from normdeploy.runtime.plan import Plan, Status, Trial, model_digest, plan_path
from normdeploy.runtime.predictor import check_feeds
from normdeploy.runtime.providers import default_settings, find_providers, float32_options
from normdeploy.runtime.samples import make_samples, tile_samples
from normdeploy.runtime.settings import CPU, CUDA, OPENVINO_PLUGIN, OPENVINO_RUNTIME, TENSORRT, Settings
from normdeploy.runtime.tuning.budget import Budget, parse_budget
from normdeploy.runtime.tuning.judge import Judge, Outcome
from normdeploy.runtime.tuning.lower import INT8_RECIPES, write_float16, write_int8
from normdeploy.verify.optimizers import guilty_optimizers

UNTUNED = "untuned"
_FINALISTS = 3
_SHARES = {"levels": 0.25, "threading": 0.2, "providers": 0.15, "precisions": 0.2, "final": 0.2}
_BLOCK, _PAUSE = 5, 0.02  # lets threads that spin between calls show their gain without disturbing the others


@dataclass(frozen=True)
class Candidate:
    """One way to run the model: a file, its precision, and settings."""

    name: str
    precision: str
    file: Path
    settings: Settings


@dataclass(eq=False)
class _Entry:
    candidate: Candidate
    outcome: Outcome | None = None
    failure: str = ""
    latency: Latency | None = None
    ratio: dict[str, float] | None = None

    @property
    def accepted(self) -> bool:
        return self.outcome is not None and self.outcome.accepted and self.ratio is not None


def tune(
    path: str | os.PathLike[str],
    *,
    data: Any = None,
    reference: Any = None,
    budget: str | None = None,
    batch_size: int = 8,
    sizes: Mapping[str, int] | None = None,
    seconds: float = 40.0,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Find the fastest way to run the model on this machine within a budget; save it as ``<name>.plan.json``.

    Args:
        path: the ONNX file.
        data: the user's rows: an array for a model of one input, or a dict of arrays by input name. Needed for a lossy
            budget: it is measured, and int8 is calibrated, on them.
        reference: whose float64 evaluation is the truth: a torch module, an ONNX file or graph; the file itself by
            default.
        budget: "exact" (default), "top1=0.5%" or "rel=1e-2".
        batch_size: samples per timed call, where the model leaves it open.
        sizes: sizes of dynamic dimensions other than the batch, by word, where ``data`` does not tell them.
        seconds: time for all timing together; judging and converting come on top.
        seed: of made-up inputs and orders.
        progress: called with a sentence before each step.

    Returns:
        Plan: what was chosen, and for everything that was tried what it cost, what it lost and why it was rejected.

    Raises:
        UsageError: a wrong budget, a lossy one without data, or nothing within the budget.
        InputError: data that does not fit the model.
        GraphError: the file cannot be run.
    """
    model = Path(path)
    limit = parse_budget(budget)
    if batch_size < 1 or seconds <= 0:
        raise UsageError(f"batch_size={batch_size}, seconds={seconds}; expected positive values")
    tell = progress or _silent
    with tempfile.TemporaryDirectory() as folder:
        search = _Search(model, limit, data, reference, batch_size, sizes, seconds, seed, tell, Path(folder))
        winner = search.run()
        return search.save(winner)


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
        seed: int,
        tell: Callable[[str], None],
        workspace: Path,
    ) -> None:
        self.model, self.budget, self.seconds, self.seed = model, budget, seconds, seed
        self.tell, self.workspace = tell, workspace
        self.base = Candidate(UNTUNED, "float32", model, default_settings())
        backend = open_backend(model, self.base.settings)
        specs = backend.inputs
        rows: dict[str, Array] | None = None
        if data is not None:
            named = data if isinstance(data, Mapping) else {specs[0].name: data}
            rows = check_feeds(specs, named)
        if rows is not None:
            self.feeds = tile_samples(specs, rows, batch_size)
        else:
            self.feeds = make_samples(specs, batch_size, sizes=sizes, seed=seed)
        first = next(iter(self.feeds.values()))
        self.batch = first.shape[0] if first.ndim else 1
        self.data = None if rows is None else {name: np.asarray(array) for name, array in rows.items()}
        tell("computing the float64 truth")
        self.judge = Judge(model, budget, self.data, reference=reference, sizes=sizes, seed=seed)
        self.entries: list[_Entry] = []
        self.skipped: list[Trial] = []

    # rounds -----------------------------------------------------------------------------------------------------

    def run(self) -> _Entry:
        """Return the winner."""
        self._round("levels", list(self._levels()))
        self._repair_untuned()
        best = self._best()
        self._round("threading", list(self._threading(best)), block=_BLOCK, pause=_PAUSE)
        best = self._best()
        self._round("providers", list(self._providers(best)))
        self._round("precisions", list(self._precisions(self._best())))
        return self._final()

    def _levels(self) -> Iterator[Candidate]:
        """The untuned model, then its layouts (level "all" blocks channels for the CPU) by thread counts."""
        yield self.base
        if self.base.settings.provider != CPU:
            return
        cores = usable_cores()
        for threads in sorted({1, max(1, cores // 2), cores}):
            for level in ("all", "extended", "basic"):
                yield self._named(replace(self.base.settings, threads=threads, optimization=level))

    def _threading(self, best: Candidate) -> Iterator[Candidate]:
        if best.settings.provider != CPU:
            return
        if best.settings.threads != 1:
            for spinning in ("off", "always"):
                yield self._named(replace(best.settings, spinning=spinning))
        if usable_cores() > 1:
            yield self._named(replace(best.settings, threads=usable_cores(), parallel=True))

    def _providers(self, best: Candidate) -> Iterator[Candidate]:
        threads = sorted({best.settings.threads, usable_cores()})
        for provider in find_providers():
            if provider.name == CPU:
                continue
            if not provider.usable:
                self.skipped.append(Trial(provider.name, "float32", "skipped", provider.reason))
                continue
            exact = float32_options(provider.name)
            if provider.name in (CUDA, TENSORRT):
                yield self._named(Settings(provider=provider.name, options=exact))
                if provider.name == CUDA:  # cuDNN's tensor cores want channels last
                    yield self._named(Settings(provider=CUDA, options=(*exact, ("prefer_nhwc", "1"))))
                continue
            for count in threads:
                yield self._named(Settings(provider=provider.name, options=exact, threads=count))

    def _precisions(self, best: Candidate) -> Iterator[Candidate]:
        if self.budget.metric == "exact":
            self.skipped.append(
                Trial("bfloat16, float16 and int8", "int8", "skipped", "the budget is exact: state a loss to try them")
            )
            return
        usable = {provider.name for provider in find_providers() if provider.usable}
        yield from self._reduced_openvino(best, usable)
        fast = best.settings if best.settings.provider == CPU else replace(self.base.settings, provider=CPU, options=())
        for recipe in INT8_RECIPES:
            target = self.workspace / f"{recipe.name.replace(', ', '.').replace(' ', '_')}.onnx"
            self.tell(f"quantizing: {recipe.name}")
            try:
                pairs = write_int8(self.model, target, self.judge.calibration, recipe, this_machine())
            except Exception as error:  # the quantizer raises whatever it likes on graphs it does not know
                self._failed(recipe.name, "int8", error)
                continue
            if recipe.equalized and not pairs:
                self.skipped.append(Trial(recipe.name, "int8", "skipped", "no two neighbouring layers to equalize"))
                continue
            for threads in sorted({1, usable_cores()}):
                settings = replace(fast, threads=threads, optimization="all")
                yield self._named(settings, recipe.name, "int8", target)
            if OPENVINO_RUNTIME in usable and recipe.every_operator:
                yield self._named(Settings(OPENVINO_RUNTIME, threads=usable_cores()), recipe.name, "int8", target)
        target = self.workspace / "float16.onnx"
        try:
            write_float16(self.model, target)
        except Exception as error:  # likewise
            self._failed("float16", "float16", error)
            return
        where = CUDA if CUDA in usable else CPU
        yield self._named(replace(fast, provider=where, options=float32_options(where)), "float16", "float16", target)
        if TENSORRT in usable:
            half = (("trt_fp16_enable", "1"),)
            yield self._named(Settings(TENSORRT, options=half), "float16", "float16", self.model)

    def _reduced_openvino(self, best: Candidate, usable: set[str]) -> Iterator[Candidate]:
        instructions = set(this_machine().instructions)
        for precision, needed in (
            ("bfloat16", {"avx512_bf16", "amx_bf16", "bf16"}),
            ("float16", {"avx512_fp16", "asimdhp"}),
        ):
            if not instructions & needed:
                reason = f"this processor has no {precision} arithmetic"
                self.skipped.append(Trial(f"{precision}, OpenVINO", precision, "skipped", reason))
                continue
            hint = "bf16" if precision == "bfloat16" else "f16"
            for provider, options in (
                (OPENVINO_RUNTIME, (("INFERENCE_PRECISION_HINT", hint),)),
                (OPENVINO_PLUGIN, (("load_config", f'{{"CPU": {{"INFERENCE_PRECISION_HINT": "{hint}"}}}}'),)),
            ):
                if provider in usable:
                    settings = Settings(provider=provider, options=options, threads=best.settings.threads)
                    yield self._named(settings, precision, precision, self.model)

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
        self._round("levels", [self._named(settings, f"float32, without {names}", "float32", self.model)])

    # judging and timing -----------------------------------------------------------------------------------------

    def _named(
        self, settings: Settings, label: str = "float32", precision: str = "float32", file: Path | None = None
    ) -> Candidate:
        return Candidate(f"{label}: {settings.describe()}", precision, file or self.model, settings)

    def _failed(self, name: str, precision: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        self.skipped.append(Trial(name, precision, "failed", reason))

    def _round(self, name: str, candidates: Sequence[Candidate], *, block: int = 1, pause: float = 0.0) -> None:
        """Open, judge and time some candidates against the untuned model."""
        known = {(entry.candidate.file, entry.candidate.settings) for entry in self.entries}
        fresh = [candidate for candidate in candidates if (candidate.file, candidate.settings) not in known]
        if not fresh:
            return
        entries: list[_Entry] = []
        runs: dict[str, Callable[[], object]] = {}
        for candidate in fresh:
            self.tell(f"trying {candidate.name}")
            entry = _Entry(candidate)
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
        if UNTUNED not in runs:
            runs = {UNTUNED: _call(open_backend(self.model, self.base.settings), self.feeds), **runs}
        measured = measure_latency(runs, seconds=self.seconds * _SHARES[name], block=block, pause=pause, seed=self.seed)
        for entry in entries:
            if entry.candidate.name in measured:
                entry.latency = measured[entry.candidate.name]
                entry.ratio = entry.latency.ratio(measured[UNTUNED]).to_dict()
        self.entries += entries

    def _judge(self, candidate: Candidate, backend: Backend) -> Outcome:
        simulate = None
        if candidate.precision == "int8":
            simulate = open_backend(candidate.file, Settings(optimization="disable")).run
        return self.judge.judge(backend.run, candidate.precision, simulate=simulate)

    def _accepted(self) -> list[_Entry]:
        accepted = [entry for entry in self.entries if entry.accepted]
        return sorted(accepted, key=lambda entry: entry.ratio["value"] if entry.ratio else float("inf"))

    def _best(self) -> Candidate:
        accepted = self._accepted()
        return accepted[0].candidate if accepted else self.base

    def _final(self) -> _Entry:
        """Compare the fastest accepted candidates once more, longer, and return the winner."""
        accepted = self._accepted()
        if not accepted:
            reasons = {entry.outcome.reason for entry in self.entries if entry.outcome}
            raise UsageError(
                f"nothing runs {self.model.name} within budget {self.budget.text} on this machine: "
                f"{'; '.join(sorted(reasons)[:3])}; expected at least one way: allow more"
            )
        self.tell("comparing the fastest")
        base = next(entry for entry in self.entries if entry.candidate is self.base)
        exact = next((entry for entry in accepted if entry.candidate.precision == "float32"), base)
        finalists = list(accepted[:_FINALISTS])
        finalists += [entry for entry in dict.fromkeys((exact, base)) if entry not in finalists]
        runs = {
            entry.candidate.name: _call(open_backend(entry.candidate.file, entry.candidate.settings), self.feeds)
            for entry in finalists
        }
        steady = any(entry.candidate.settings.spinning == "always" for entry in finalists)
        options: dict[str, Any] = {"block": _BLOCK, "pause": _PAUSE} if steady else {}
        measured = measure_latency(runs, seconds=self.seconds * _SHARES["final"], seed=self.seed, **options)
        for entry in finalists:
            entry.latency = measured[entry.candidate.name]
            entry.ratio = entry.latency.ratio(measured[UNTUNED]).to_dict()
        winner = next(entry for entry in self._accepted() if entry in finalists)
        for simpler in (base, exact):  # settings and precision are given up for a gain beyond the noise only
            if simpler.accepted and simpler is not winner:
                gain = measured[winner.candidate.name].ratio(measured[simpler.candidate.name])
                worth = simpler is base or (simpler.ratio is not None and simpler.ratio["high"] < 1)
                if gain.high >= 1 and worth:
                    return simpler
        return winner

    # the plan ---------------------------------------------------------------------------------------------------

    def save(self, winner: _Entry) -> Plan:
        """Copy the winner's variant beside the model and write the plan."""
        file = self.model
        if winner.candidate.file != self.model:
            file = self.model.with_name(f"{self.model.stem}.{winner.candidate.precision}.onnx")
            shutil.copyfile(winner.candidate.file, file)
        trials = [self._trial(entry, entry is winner, file) for entry in self.entries]
        trials.sort(key=lambda trial: (trial.status != "chosen", trial.ratio["value"] if trial.ratio else float("inf")))
        plan = Plan(
            model=self.model.name,
            model_digest=model_digest(self.model),
            budget=self.budget.text,
            data=f"{self.judge.note}; timed at batch {self.batch}",
            machine=this_machine(),
            trials=(*trials, *self.skipped),
            file_digest=model_digest(file),
        )
        return plan.save(plan_path(self.model), overwrite=True)

    def _trial(self, entry: _Entry, chosen: bool, file: Path) -> Trial:
        status: Status
        outcome = entry.outcome
        if outcome is None:
            status, reason = "failed", entry.failure
        elif not outcome.accepted:
            status, reason = "rejected", outcome.reason
        elif chosen:
            status, reason = "chosen", ""
        else:
            status, reason = "accepted", "slower"
        kept = self.model if entry.candidate.file == self.model else (file if chosen else None)
        return Trial(
            name=entry.candidate.name,
            precision=outcome.precision if outcome else entry.candidate.precision,
            status=status,
            reason=reason,
            file=kept.name if kept else "",
            settings=entry.candidate.settings,
            latency=entry.latency.to_dict() if entry.latency else None,
            ratio=entry.ratio,
            loss=outcome.loss if outcome else None,
        )


def _silent(text: str) -> None:
    """Say nothing of ``text``."""


def _call(backend: Backend, feeds: Mapping[str, Array]) -> Callable[[], object]:
    return lambda: backend.run(feeds)
