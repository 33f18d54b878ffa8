"""Tuning again, on another machine or after the model changed, with the options that the plan file kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from normdeploy.errors import UsageError
from normdeploy.runtime.plan import Plan
from normdeploy.runtime.tuning.tuning_search import tune

_KEPT = {"data", "reference", "batch_size", "sizes", "seconds", "time_limit", "seed", "precedence"}


def retune(
    plan: Plan | str | os.PathLike[str],
    *,
    data: Any = None,
    reference: Any = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Plan:
    """Repeat the tuning that made ``plan``, for the model beside it as it is now and this machine.

    Args:
        plan: what ``tune`` returned or the file it saved. The new plan takes the file's place.
        data: the rows; by default the file that they were read from then.
        reference: likewise.
        progress: called with a sentence before each step.
        options: others of ``tune``'s options, instead of those that the plan kept.

    Raises:
        UsageError: rows or a reference were given as objects then, which a plan does not hold, and are not given now;
            or their file is not here.
    """
    before = plan if isinstance(plan, Plan) else Plan.load(plan)
    if before.path is None:
        raise UsageError(f"the plan for {before.model} was never saved; expected a saved one: save it beside its model")
    folder = before.path.parent
    kept = dict(before.request)
    if unknown := sorted(set(kept) - _KEPT):
        raise UsageError(f"{before.path} asks for {unknown[0]!r}; expected a plan that tune wrote: tune again")
    files = {"data": data, "reference": reference}
    for name, given in files.items():
        place = kept.pop(name, None)
        if given is not None or place is None:
            continue
        files[name] = folder / place
        if not files[name].is_file():
            raise UsageError(
                f"{before.path.name} was tuned with {name} {place!r}, which is no file here; expected it at "
                f"{folder / place}: give {name} again"
            )
    if before.budget != "exact" and files["data"] is None:
        raise UsageError(
            f"{before.path.name} has budget {before.budget} and does not say on which file of rows it was measured; "
            "expected data: give it (--data FILE)"
        )
    given = {"budget": before.budget, **kept, **options}
    return tune(
        folder / before.model,
        data=files["data"],
        reference=files["reference"],
        overwrite=True,  # the plan itself asks for it: it is made anew
        progress=progress,
        **given,
    )
