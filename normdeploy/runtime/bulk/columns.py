"""Which columns of a table feed which input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from normdeploy.errors import InputError
from normdeploy.runtime.backend import TensorSpec


@dataclass(frozen=True)
class InputColumns:
    """The columns of one input, in order, and the shape they take in each row.

    Args:
        spec: the input.
        positions: indexes among the table's columns.
        shape: of one row.
    """

    spec: TensorSpec
    positions: tuple[int, ...]
    shape: tuple[int, ...]


def match_columns(
    specs: Sequence[TensorSpec], header: Sequence[str], chosen: Sequence[str] | None, where: str
) -> tuple[InputColumns, ...]:
    """Say which columns feed which input.

    A model of one input takes the chosen columns, or all of them, in order. Otherwise an input ``x`` takes the column
    ``x``, or the columns ``x.0``, ``x.1``, ... where a row has several values.

    Args:
        specs: the model's inputs.
        header: the table's column names.
        chosen: names of the columns to use, for a model of one input.
        where: the table, for messages.

    Raises:
        InputError: a column is missing, or the number of columns is not the number of values in a row.
    """
    if len(specs) == 1:
        names = list(header) if chosen is None else list(chosen)
        if missing := [name for name in names if name not in header]:
            raise InputError(f"{where} has no column {missing[0]!r}; expected one of {', '.join(header)}")
        return (_fit(specs[0], names, header, where),)
    if chosen is not None:
        raise InputError(
            f"columns are chosen and the model has {len(specs)} inputs; "
            "expected columns named after the inputs (x, or x.0, x.1, ...): leave the choice out"
        )
    result = []
    for spec in specs:
        names = [spec.name] if spec.name in header else []
        while not names or names[-1] != spec.name:
            if (name := f"{spec.name}.{len(names)}") not in header:
                break
            names.append(name)
        if not names:
            raise InputError(
                f"{where} has no column {spec.name!r} or '{spec.name}.0' for input {spec}; "
                f"expected one: the columns are {', '.join(header)}"
            )
        result.append(_fit(spec, names, header, where))
    return tuple(result)


def _fit(spec: TensorSpec, names: Sequence[str], header: Sequence[str], where: str) -> InputColumns:
    row = spec.shape[1:]
    open_sizes = [axis for axis, size in enumerate(row) if not isinstance(size, int)]
    known = prod(size for size in row if isinstance(size, int))
    if len(open_sizes) > 1 or (open_sizes and len(names) % known):
        raise InputError(
            f"{len(names)} columns of {where} do not tell the shape of {spec}; expected fixed sizes: use .npz"
        )
    shape = tuple(size if isinstance(size, int) else len(names) // known for size in row)
    if prod(shape) != len(names):
        shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        raise InputError(
            f"{where} gives {len(names)} columns ({shown}) for input {spec}; "
            f"expected {prod(shape)}: choose them by name (columns, --columns)"
        )
    return InputColumns(spec, tuple(list(header).index(name) for name in names), shape)
