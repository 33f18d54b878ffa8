"""Where a failure starts: which site, which mistake, export or runtime, and which optimizer.

The file's float64 logic tells them apart. If it is wrong, no runtime setting will help: the file is to blame
(:mod:`.exported`), or torch's trace where the file is what was traced and that is not the module (:mod:`.untraced`). If
it is right, the runtime is wrong: with its optimizers, which are bisected, or without them, in an operator that errs on
right inputs (:mod:`.forced`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from normdeploy.array_types import Array
from normdeploy.errors import GraphError
from normdeploy.verification.check_context import Context
from normdeploy.verification.diagnosis.exported import first_bad_value
from normdeploy.verification.diagnosis.forced import Forced
from normdeploy.verification.diagnosis.optimizers import guilty_optimizers
from normdeploy.verification.diagnosis.untraced import untraced
from normdeploy.verification.family_case import Case
from normdeploy.verification.judging.float64_outputs import logic_problems
from normdeploy.verification.judging.outputs import hold_against
from normdeploy.verification.mutation.closest_mutant import likeliest
from normdeploy.verification.record.answers import Localization, Side
from normdeploy.verification.sides.sessions import Setting


@dataclass(frozen=True)
class _Failure:
    """A case that fails, how it was run (None: in float64), and what came out."""

    case: Case
    setting: Setting | None
    outputs: list[Array]


def localize(context: Context) -> Localization | None:
    """Return where the failure starts; None if no case shows it.

    Raises:
        GraphError: the graph of file or reference cannot be evaluated where it fails.
    """
    failure = _failure(context)
    if failure is None:
        return None
    case, setting = failure.case, failure.setting
    if setting is None:
        trace = untraced(context, case, failure.outputs)
        if trace is not None:
            return trace
        found = first_bad_value(context, case, Localization(case.family.name, Side.EXPORT))
    else:
        found = _in_the_runtime(context, case, setting, Localization(case.family.name, Side.RUNTIME, str(setting)))
    likely = likeliest(context, case, failure.outputs, value=found.value)
    if not likely.text:
        return found
    return replace(
        found,
        likely=likely.text,
        unexplained=likely.unexplained,
    )


def _failure(context: Context) -> _Failure | None:
    """Return the first case that fails, in float64 or else under a setting that was seen to fail."""
    for case in context.cases:
        try:
            outputs = context.subject.logic(case.family.feeds)
        except GraphError:
            break
        if logic_problems(case, outputs)[0]:
            return _Failure(case, None, outputs)
    if context.contradicted:
        case = context.cases[0]
        return _Failure(case, None, context.subject.logic(case.family.feeds))
    for setting in context.wrong_under:
        for case in context.cases:
            try:
                outputs = context.subject.run(case.family.feeds, setting)
            except GraphError:
                continue
            if _fails(case, outputs):
                return _Failure(case, setting, outputs)
    return None


def _fails(case: Case, outputs: Sequence[Array]) -> bool:
    return len(outputs) != len(case.truth) or not all(result.holds for result in hold_against(case, outputs))


def _in_the_runtime(context: Context, case: Case, setting: Setting, found: Localization) -> Localization:
    """Bisect the optimizers where the plain runtime is right, else find the operator that errs on right inputs."""
    forced = Forced(context.subject, case, setting, context.folder)
    if setting.level == "disable" or _fails(
        case, context.subject.run(case.family.feeds, replace(setting, level="disable"))
    ):
        return forced.first_bad(found)

    def passes(names: tuple[str, ...]) -> bool:
        changed = replace(setting, disabled=names)
        outputs = context.subject.run(case.family.feeds, changed)
        context.subject.close(changed)
        return not _fails(case, outputs)

    names = guilty_optimizers(context.subject.path, setting.level, passes)
    return forced.shrunk(replace(found, optimizers=names))
