"""What tuning leaves beside a model: the plan and, where a variant of lower precision won, the variant."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from normdeploy.errors import UsageError
from normdeploy.files import copy_file, require_writable, written_together
from normdeploy.ort.digest import model_digest
from normdeploy.runtime.plan import VARIANTS, Plan, plan_path, variant_name


def require_places(model: Path, *, lossy: bool, overwrite: bool) -> None:
    """Check before the search that the plan, and any variant that may win, can be written.

    The variant of the plan that is there belongs to it, and goes with it.

    Raises:
        OutputExistsError: there is one and ``overwrite`` is false.
        UsageError: something that is no file lies in its place.
    """
    require_writable(plan_path(model), overwrite=overwrite)
    for kind in VARIANTS if lossy else ():
        require_writable(model.with_name(variant_name(model.name, kind)), overwrite=overwrite)


def save_plan(plan: Plan, model: Path, made: Path, *, overwrite: bool) -> Plan:
    """Write the plan and its variant, and take the variant away that the plan before it ran.

    Args:
        plan: the new one. model: whose it is. made: the file that it runs, where the search left it.
        overwrite: allow replacing what lies there.

    Raises:
        OutputExistsError: another search has put its plan there meanwhile, and ``overwrite`` is false.
    """
    target, file = plan_path(model), model.with_name(plan.chosen.file)
    before = _owned_variant(target, model)
    with written_together(target, overwrite=overwrite) as folder:
        if file != model:
            copy_file(made, folder / file.name)
        plan.save(folder / target.name)
    if before is not None and before != file:
        before.unlink(missing_ok=True)
    return replace(plan, path=target)


def _owned_variant(plan: Path, model: Path) -> Path | None:
    """Return the variant that the present plan made: of the name and digest it says."""
    if not plan.is_file():
        return None
    try:
        old = Plan.load(plan)
    except UsageError:  # no plan of ours: nothing of it is ours to take away
        return None
    file = model.with_name(old.chosen.file)
    ours = old.model == model.name and old.chosen.file != old.model and file.is_file()
    return file if ours and model_digest(file) == old.file_digest else None


def named_file(value: Any, model: Path) -> str | None:
    """Return where a file lies, from the model's folder where it lies below that; None for what is no file."""
    if not isinstance(value, (str, os.PathLike)):
        return None
    path, folder = Path(value).absolute(), model.absolute().parent
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
