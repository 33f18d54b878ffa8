"""The int8 variants of a model: what is tried, what each correction is worth, and which operators stay in float32.

A variant is written for each recipe; equalization, corrected biases and re-estimated statistics are kept where, on the
evaluation rows, the budget's measure is smaller with them, with the whole of its 95 % interval. The others are listed
with the number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from normdeploy.ort.machine import this_machine
from normdeploy.ort.settings import CPU, GPU_PROVIDERS, OPENVINO_PLUGIN, OPENVINO_RUNTIME, Settings
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.plan import Trial
from normdeploy.runtime.tuning.candidates import Candidate, named
from normdeploy.runtime.tuning.int8 import CORRECTIONS, INT8_RECIPES, Int8Recipe, Quantizer
from normdeploy.runtime.tuning.judge import Outcome
from normdeploy.runtime.tuning.measured_candidate import MeasuredCandidate
from normdeploy.runtime.tuning.mixed import fewest_kept, rank_by_loss
from normdeploy.runtime.tuning.trials import Tried

_RANKING_SECONDS = 45.0
WORTH = 0.95
"""Of the best accepted time: what int8 must be able to reach for a search which operators to keep."""

INT8_REACH = 16.0
"""How many times as fast as in float32 int8 may be on a processor: VNNI multiplies 4 times as fast, AMX 32 times, and
what is not multiplied gains nothing. The most that docs/tuning.md has is 5."""


class Int8Variants:
    """Writes variants, and says which to try.

    Args:
        model: the float32 model.
        tried: what was tried; takes what is not.
        workspace: for the variants.
        cores: the largest number of threads to try.
        providers: those that can be used here.
    """

    def __init__(self, model: Path, tried: Tried, workspace: Path, cores: int, providers: set[str]) -> None:
        self._model, self._tried, self._workspace = model, tried, workspace
        self._cores, self._providers = cores, providers
        self._written: dict[Path, tuple[Int8Recipe, Quantizer]] = {}

    def first(self, fast: Settings) -> Iterator[Candidate]:
        """Yield the candidates that quantize all operators of a kind.

        Args:
            fast: what onnxruntime runs them with, threads aside.
        """
        tried = self._tried
        if reason := self._out_of_reach():
            tried.skipped.append(Trial("int8", "int8", "skipped", reason))
            return
        tried.tell("taking the ranges of activations")
        try:
            quantizer = Quantizer(self._model, tried.judge.calibration, this_machine())
        except Exception as error:  # the quantizer raises whatever it likes on graphs it does not know
            tried.failed("int8", "int8", error)
            return
        kept: dict[str, Path] = {}
        for recipe in INT8_RECIPES:
            if tried.late(recipe.name, "int8"):
                continue
            file = self._write(quantizer, recipe)
            if file is None or (recipe.equalized and not self._helps(recipe.name, kept.get("int8"), file)):
                continue
            kept[recipe.name] = file
            better, file = self._corrected(quantizer, recipe, file)
            self._written[file] = (better, quantizer)
            yield from self._settings(better.name, file, fast, openvino=not better.joined)

    def _out_of_reach(self) -> str:
        """Say why no int8, which runs on the processor, can be the fastest; "" where one may be.

        Beside a GPU, to calibrate and to judge it on the processor would take most of the time, for nothing.
        """
        here = (entry for entry in self._tried.opened if entry.candidate.settings.provider not in GPU_PROVIDERS)
        times = [entry.slowdown for entry in here if entry.slowdown is not None]
        accepted = self._tried.accepted()
        if not times or not accepted or min(times) <= INT8_REACH * accepted[0].relative:
            return ""
        best = accepted[0]
        return (
            f"it runs on the processor, where float32 takes {min(times) / best.relative:.0f} times as long as "
            f"{best.candidate.name}: more than int8 can gain ({INT8_REACH:.0f} times)"
        )

    def _write(self, quantizer: Quantizer, recipe: Int8Recipe) -> Path | None:
        """Write a variant; None where it cannot be, or would be another one."""
        target = self._workspace / f"{recipe.file_stem}.onnx"
        self._tried.tell(f"quantizing: {recipe.name}")
        try:
            changed = quantizer.write(target, recipe)
        except Exception as error:  # likewise
            self._tried.failed(recipe.name, "int8", error)
            return None
        if not changed and (recipe.equalized or recipe.joined or recipe.corrected):
            self._tried.skipped.append(Trial(recipe.name, "int8", "skipped", recipe.nothing_to_do))
            return None
        return target

    def _corrected(self, quantizer: Quantizer, recipe: Int8Recipe, file: Path) -> tuple[Int8Recipe, Path]:
        """Return the variant with the corrections that help."""
        best = recipe, file
        for kind in CORRECTIONS:
            other = recipe.with_correction(kind)
            if self._tried.late(other.name, "int8"):
                continue
            target = self._write(quantizer, other)
            if target is None or not self._helps(other.name, best[1], target):
                continue
            if best[0].corrected:
                reason = f"helps, and {CORRECTIONS[kind]} more"
                self._tried.skipped.append(Trial(best[0].name, "int8", "skipped", reason))
            best = other, target
        return best

    def _helps(self, name: str, before: Path | None, after: Path) -> bool:
        """Tell whether a variant loses less than another, with the whole interval; list it with the number if not."""
        if before is None:
            return True
        judge = self._tried.judge
        try:
            outputs = [self._tried.converted(file) for file in (before, after)]
        except Exception as error:  # a variant that onnxruntime does not run
            self._tried.failed(name, "int8", error)
            return False
        gain = judge.gain(*outputs)
        if gain.high < 0:
            return True
        metric = judge.budget.metric
        reason = f"does not help for certain: it changes {metric} by {gain.words('+.2g')}, by conversion"
        loss = judge.loss_of(outputs[1])
        self._tried.skipped.append(
            Trial(name, "int8", "rejected", reason, loss={metric: loss, f"{metric} by conversion": loss})
        )
        return False

    def _settings(self, name: str, file: Path, fast: Settings, *, openvino: bool) -> Iterator[Candidate]:
        counts = sorted({1, self._cores})
        for threads in counts:
            yield named(replace(fast, threads=threads, optimization="all"), file, name, "int8")
        for provider in (OPENVINO_RUNTIME, OPENVINO_PLUGIN) if openvino else ():
            if provider in self._providers:
                for threads in counts:
                    yield named(Settings(provider, threads=threads), file, name, "int8")

    def mixed(self) -> list[Candidate]:
        """Return variants that keep those operators in float32 that lose most, where int8 would be the fastest.

        Asked of the fastest variant that quantizes every operator, and of the fastest that quantizes linear layers:
        what the one loses in sums and norms, the other does not lose.
        """
        accepted = self._tried.accepted()
        promising = [entry for entry in self._tried.opened if entry.candidate.file in self._written and entry.too_lossy]
        promising.sort(key=lambda entry: entry.relative)
        wanted: list[Candidate] = []
        for every in (True, False):
            of_kind = (entry for entry in promising if self._written[entry.candidate.file][0].every_operator == every)
            fastest = next(of_kind, None)
            if fastest is None or not fastest.ratio or not accepted or not accepted[0].ratio:
                continue
            if fastest.ratio["low"] > WORTH * accepted[0].ratio["value"] or self._tried.late(
                "int8, part of it", "int8"
            ):
                continue
            wanted += self._partly(fastest)
        return wanted

    def _partly(self, fastest: MeasuredCandidate) -> list[Candidate]:
        """Return the candidates that quantize most of what an entry does, if any is within the budget."""
        recipe, quantizer = self._written[fastest.candidate.file]
        self._tried.tell(f"measuring what each operator loses in {recipe.name}")
        ranked = rank_by_loss(
            self._model, quantizer, recipe, self._tried.judge.calibration[0], self._workspace, seconds=_RANKING_SECONDS
        )

        def judged(file: Path) -> Outcome:
            self._tried.tell(f"{recipe.name}, with {file.suffixes[-2][1:]} of {len(ranked)} operators in float32")
            backend = open_backend(file, replace(fastest.candidate.settings, provider=CPU, options=()))
            return self._tried.judge.judge(backend.run, "int8")

        attempts = fewest_kept(quantizer, recipe, ranked, self._workspace, judged, deadline=self._tried.deadline)
        best = next((attempt for attempt in reversed(attempts) if attempt.outcome.accepted), None)
        for attempt in attempts:
            name = f"{recipe.name}, {attempt.kept} of {attempt.total} operators in float32"
            if attempt is not best and not attempt.outcome.accepted:
                self._tried.skipped.append(
                    Trial(name, "int8", "rejected", attempt.outcome.reason, loss=attempt.outcome.loss)
                )
        if best is None:
            return []
        fast = fastest.candidate.settings
        fast = fast if fast.provider == CPU else replace(self._tried.base.settings, provider=CPU, options=())
        wanted: list[Candidate] = []
        for other in (known for known, _ in self._written.values() if known.same_operators(recipe)):
            file = best.file
            if other != recipe:  # the same operators, written in another form
                file = best.file.with_stem(f"{best.file.stem}.other")
                quantizer.write(file, other, keep=ranked[: best.kept])
            name = f"{other.name}, {best.kept} of {best.total} operators in float32"
            wanted += self._settings(name, file, fast, openvino=not other.joined)
        return wanted
