"""The files of a tuning: the plan, and the variant it runs; nothing of others is replaced or deleted."""

from __future__ import annotations

from pathlib import Path

from normdeploy.errors import OutputExistsError, UsageError
from normdeploy.runtime.plan import Plan, model_digest, plan_path

_PRECISIONS = ("int8", "float16")  # of the variants that are files of their own


def variant_path(model: Path, precision: str) -> Path:
    """Return where a variant of the model lies: ``<name>.<precision>.onnx`` beside it."""
    return model.with_name(f"{model.stem}.{precision}.onnx")


def require_free(model: Path, *, exact: bool, overwrite: bool) -> None:
    """Check before the search that its files may be written.

    Args:
        model: what is tuned.
        exact: no variant will be written.
        overwrite: allow replacing them.

    Raises:
        OutputExistsError: one exists and ``overwrite`` is false.
    """
    variants = () if exact else _PRECISIONS
    for path in (plan_path(model), *(variant_path(model, precision) for precision in variants)):
        if path.exists() and not overwrite:
            raise OutputExistsError(
                f"{path} exists; expected a free path: move it, or pass --overwrite (overwrite=True) to replace it"
            )


def remove_old_variant(model: Path, *, kept: Path) -> None:
    """Delete the variant that the plan to be replaced ran, where it is still that file and is not chosen again."""
    try:
        before = Plan.load(plan_path(model))
        name = before.chosen.file
    except (UsageError, StopIteration):  # no plan, or none that says which file is its own
        return
    old = next((path for path in (variant_path(model, one) for one in _PRECISIONS) if path.name == name), None)
    if old is not None and old != kept and old.is_file() and model_digest(old) == before.file_digest:
        old.unlink()
