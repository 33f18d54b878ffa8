"""``tune``: the fastest way to run a model on this machine that stays within a budget.

Candidates come in rounds, those that gain most first, so that a time limit gives up the least. Each round's are opened,
judged and timed against the untuned model, interleaved, and the best accepted one sets the direction of the next round.
Where int8 would be the fastest and is outside the budget, one more round leaves the operators in float32 that lose
most. The winner has to beat what is simpler (the untuned model, float32 ways tried before it) beyond the noise of a
last, longer comparison; otherwise the simpler one stays.

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
from normdeploy.ort.providers import default_settings, find_providers
from normdeploy.ort.settings import CPU, Settings
from normdeploy.parsing.amounts import require_count, require_seconds
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.plan import Plan, Trial, variant_name
from normdeploy.runtime.samples import check_rows, fixed_batch, make_samples, read_arrays, tile_samples
from normdeploy.runtime.tuning import candidates
from normdeploy.runtime.tuning.candidates import UNTUNED, Candidate, named
from normdeploy.runtime.tuning.final_comparison import compare_finalists
from normdeploy.runtime.tuning.fixed import with_fixed_shapes
from normdeploy.runtime.tuning.half_precision import half_candidates
from normdeploy.runtime.tuning.judge import Judge
from normdeploy.runtime.tuning.measured_candidate import MeasuredCandidate
from normdeploy.runtime.tuning.opponent import opponents
from normdeploy.runtime.tuning.plan_files import named_file, require_places, save_plan
from normdeploy.runtime.tuning.trials import Tried, call_of
from normdeploy.runtime.tuning.variants import Int8Variants
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
    "final": 0.15,
    "opponents": 0.05,
}
_FIXED = 4  # of the ways that gain by it, the fastest: tried with sessions for the timed shapes


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
    precedence: bool = True,
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
        precedence: put this process before other programs while ways are timed, where the system grants it: what is
            chosen is then what an idle machine would choose. Without it other programs may decide which way wins.
        opponent: the module that the file was made from: the plan then says how long ``torch.compile`` takes for it.
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
    require_count("batch_size", batch_size)
    require_seconds("seconds", seconds)
    require_seconds("time_limit", time_limit)
    require_model_file(model)
    require_places(model, lossy=limit.metric != "exact", overwrite=overwrite)
    deadline = time.monotonic() + time_limit
    tell = progress or (lambda _: None)
    request = {
        "data": named_file(data, model),
        "reference": named_file(reference, model) or (None if reference is None else type(reference).__name__),
        "batch_size": batch_size,
        "sizes": dict(sizes or {}),
        "seconds": seconds,
        "time_limit": time_limit,
        "seed": seed,
        "precedence": precedence,
    }
    if isinstance(data, (str, os.PathLike)):
        data = read_arrays(Path(data))
    with tempfile.TemporaryDirectory() as folder:
        search = _Search(model, limit, data, reference, batch_size, sizes, seconds, deadline, seed, tell, Path(folder))
        search.tried.stopwatch.wanted = precedence
        winner = search.run()
        search.compare_with(opponent, winner)
        return search.save(winner, request, overwrite=overwrite)


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
        self.tried = Tried(self.base, self.judge, self.feeds, deadline, seed, tell)
        self.variants = Int8Variants(model, self.tried, workspace, usable_cores(), _usable())

    # rounds -----------------------------------------------------------------------------------------------------

    def run(self) -> MeasuredCandidate:
        """Return the winner."""
        cores = usable_cores()
        self._round("levels", [self.base, *self._float32(candidates.levels(self.base.settings, cores))])
        self._repair_untuned()
        best = self.tried.best().settings
        self._round("providers", self._float32(candidates.other_providers(best, cores, find_providers())))
        self._round("precisions", list(self._precisions(self.tried.best().settings)))
        self._round("mixed", self.variants.mixed())
        accepted = [entry.candidate for entry in self.tried.accepted()]
        self._round("shapes", list(with_fixed_shapes(accepted, self.specs, self.feeds))[:_FIXED])
        best = self.tried.best(lambda one: one.settings.provider == CPU and one.file == self.model).settings
        self._round("lower levels", self._float32(candidates.lower_levels(self.base.settings, cores)))
        self._round("threading", self._float32(candidates.threading(best, cores)))
        return self._final()

    def _round(self, name: str, wanted: Sequence[Candidate]) -> None:
        self.tried.round(wanted, self.seconds * _SHARES[name])

    def _float32(self, settings: Iterator[Settings] | Iterator[Settings | Trial]) -> list[Candidate]:
        found = list(settings)
        self.tried.skipped += [entry for entry in found if isinstance(entry, Trial)]
        return [named(entry, self.model) for entry in found if isinstance(entry, Settings)]

    def _precisions(self, best: Settings) -> Iterator[Candidate]:
        if self.budget.metric == "exact":
            self.tried.skipped.append(
                Trial("bfloat16, float16 and int8", "int8", "skipped", "the budget is exact: state a loss to try them")
            )
            return
        usable = _usable()
        for entry in candidates.reduced_openvino(best, usable_cores(), usable, this_machine()):
            if isinstance(entry, Trial):
                self.tried.skipped.append(entry)
            else:
                yield named(entry[1], self.model, entry[0], entry[0])
        fast = best if best.provider == CPU else replace(self.base.settings, provider=CPU, options=())
        yield from self.variants.first(fast)
        if self.tried.late("float16", "float16"):
            return
        try:
            yield from half_candidates(self.model, self.workspace / "float16.onnx", fast, usable)
        except Exception as error:  # the converter raises whatever it likes on graphs it does not know
            self.tried.failed("float16", "float16", error)

    def _repair_untuned(self) -> None:
        """Where optimization itself changes the result, find out which optimizer, and try all the others."""
        wrong = next(
            (entry for entry in self.tried.opened if entry.candidate is self.base and not entry.accepted), None
        )
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

    def _final(self) -> MeasuredCandidate:
        """Compare the fastest accepted candidates once more, longer, and return the winner."""
        accepted = [entry for entry in self.tried.opened if entry.accepted]
        if not accepted:
            reasons = {entry.outcome.reason for entry in self.tried.opened if entry.outcome}
            raise UsageError(
                f"nothing runs {self.model.name} within budget {self.budget.text} on this machine: "
                f"{'; '.join(sorted(reasons)[:3])}; expected at least one way: allow more"
            )
        self.tell("comparing the fastest")
        return compare_finalists(
            accepted,
            next(entry for entry in self.tried.opened if entry.candidate is self.base),
            lambda entry: call_of(open_backend(entry.candidate.file, entry.candidate.settings), self.feeds),
            self.tried.stopwatch.measure,
            self.seconds * _SHARES["final"],
            self.seed,
            lambda: time.monotonic() > self.deadline,
        )

    def compare_with(self, module: nn.Module | None, winner: MeasuredCandidate) -> None:
        """Say in the plan what others take for the network."""
        calls = [call_of(open_backend(one.file, one.settings), self.feeds) for one in (winner.candidate, self.base)]
        self.tried.skipped += opponents(self.tried, module, calls[0], calls[1], self.seconds * _SHARES["opponents"])

    # the plan ---------------------------------------------------------------------------------------------------

    def save(self, winner: MeasuredCandidate, request: Mapping[str, Any], *, overwrite: bool) -> Plan:
        """Copy the winner's variant beside the model and write the plan."""
        if (now := model_digest(self.model)) != self.digest:
            raise GraphError(
                f"{self.model} changed while it was tuned (digest {now[:12]}, before {self.digest[:12]}); expected the "
                "same file to the end: tune again"
            )
        file = self.model
        if winner.candidate.file != self.model:
            file = self.model.with_name(variant_name(self.model.name, winner.candidate.precision))
        trials = [entry.to_trial(winner, self.model, file) for entry in self.tried.opened]
        trials.sort(key=lambda trial: (trial.status != "chosen", trial.ratio["value"] if trial.ratio else float("inf")))
        plan = Plan(
            model=self.model.name,
            model_digest=self.digest,
            budget=self.budget.text,
            data=f"{self.judge.note}; timed at batch {self.batch}",
            machine=this_machine(),
            trials=(*trials, *self.tried.skipped),
            file_digest=model_digest(winner.candidate.file),
            request=request,
            company=self.tried.stopwatch.company,
        )
        return save_plan(plan, self.model, winner.candidate.file, overwrite=overwrite)


def _usable() -> set[str]:
    """Return the names of the providers that can be used here."""
    return {provider.name for provider in find_providers() if provider.usable}
