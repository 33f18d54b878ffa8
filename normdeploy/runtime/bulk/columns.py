"""Which columns of a table feed which input, and how their cells become its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from normdeploy.array_types import Array
from normdeploy.errors import InputError, UsageError
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.bulk.source import Block, fitted

# What tables that are no comma-separated ones put between their cells
_OTHER_MARKS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class Columns:
    """The columns that are read: those of each input with the shape of its rows, and those that are passed through."""

    inputs: tuple[tuple[TensorSpec, tuple[str, ...], tuple[int, ...]], ...]
    keep: tuple[str, ...]

    @property
    def dtypes(self) -> dict[str, str]:
        """The type of the input that each column feeds."""
        return {name: spec.dtype for spec, names, _ in self.inputs for name in names}

    @property
    def used(self) -> list[str]:
        """The names of all columns, each once."""
        return list(dict.fromkeys([*self.dtypes, *self.keep]))

    @property
    def row_bytes(self) -> int:
        """What one row of all inputs takes."""
        return sum(prod(shape) * np.dtype(spec.dtype).itemsize for spec, _, shape in self.inputs)

    def block(self, table: pa.Table, bad: dict[int, str]) -> Block:
        """Return a part's rows; a cell that is null or that its input cannot hold makes a row bad.

        Args:
            table: the columns used, numbers or lists of them; anything in bad rows.
            bad: position of each row known to be bad to why; more are added.
        """
        feeds: dict[str, Array] = {}
        for spec, names, shape in self.inputs:
            rows = np.zeros((table.num_rows, prod(shape)), spec.dtype)
            for position, name in enumerate(names):
                column = table.column(name).combine_chunks()
                if not pa.types.is_nested(column.type):
                    rows[:, position] = _numbers(column, 1, name, spec.dtype, bad, np.arange(len(rows)))[:, 0]
                    continue
                lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
                right = lengths == rows.shape[1]
                for at in np.flatnonzero(~right).tolist():
                    found = "null" if lengths[at] < 0 else f"a list of {lengths[at]} values"
                    bad.setdefault(at, f"column {name!r} is {found}; expected {rows.shape[1]}: correct the data")
                values = pc.list_flatten(column.filter(pa.array(right)))
                rows[right] = _numbers(values, rows.shape[1], name, spec.dtype, bad, np.flatnonzero(right))
            feeds[spec.name] = rows.reshape(len(rows), *shape)
        kept = {name: table.column(name) for name in self.keep}
        for name, column in kept.items():
            if pa.types.is_dictionary(column.type):  # whose codes differ from part to part
                kept[name] = column.cast(column.type.value_type)
        return Block(feeds, {name: column.combine_chunks() for name, column in kept.items()}, bad)


def _numbers(values: pa.Array, width: int, name: str, dtype: str, bad: dict[int, str], where: Array) -> Array:
    """Return values as rows of ``width``; ``where`` are the rows' positions in the part."""
    if values.null_count:
        for at in where[np.flatnonzero(values.is_null()) // width].tolist():
            bad.setdefault(at, f"column {name!r} is '' or null; expected a number: fill or remove the row")
        values = pc.fill_null(values, pa.scalar(0).cast(values.type))  # a flag's 0 is False
    return fitted(values.to_numpy(zero_copy_only=False).reshape(-1, width), dtype, f"column {name!r}", bad, where)


def match_columns(
    specs: Sequence[TensorSpec],
    header: Sequence[str],
    chosen: Sequence[str] | None,
    keep: Sequence[str],
    where: str,
    lists: Collection[str] = (),
) -> Columns:
    """Say which columns feed which input.

    A model of one input takes the chosen columns, or all that are not kept, in order. Otherwise an input ``x`` takes
    the column ``x``, or the columns ``x.0``, ``x.1``, ... where a row has several values.

    Args:
        specs: the model's inputs.
        header: the table's column names.
        chosen: names of the columns to use, for a model of one input.
        keep: names of the columns to pass through.
        where: the table, for messages.
        lists: the columns that hold a list of numbers in each row.

    Raises:
        InputError: a column is missing or there twice, or their number is not the number of values in a row.
        UsageError: columns are chosen for a model of several inputs.
    """
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise InputError(
            f"{where} has several columns of one name ({', '.join(twice)}); expected each name once: rename the columns"
        )
    if missing := [name for name in [*(chosen or ()), *keep] if name not in header]:
        raise InputError(
            f"{where} has no column {missing[0]!r}; expected one of {', '.join(header)}{_separated(header)}"
        )
    if len(specs) == 1:
        names = [name for name in header if name not in keep] if chosen is None else list(chosen)
        return Columns(((specs[0], tuple(names), _row_shape(specs[0], names, where, lists)),), tuple(keep))
    if chosen is not None:
        raise UsageError(
            f"columns are chosen and the model has {len(specs)} inputs; "
            "expected columns named after the inputs (x, or x.0, x.1, ...): leave the choice out"
        )
    result = []
    for spec in specs:
        first = f"{spec.name}.0"
        if (spec.name in header) == (first in header):
            raise InputError(
                f"{where} has {'both' if first in header else 'no'} column {spec.name!r} "
                f"{'and' if first in header else 'or'} {first!r} for input {spec}; "
                f"expected one of them: the columns are {', '.join(header)}{_separated(header)}"
            )
        names = [spec.name] if spec.name in header else []
        while f"{spec.name}.{len(names)}" in header and spec.name not in names:
            names.append(f"{spec.name}.{len(names)}")
        result.append((spec, tuple(names), _row_shape(spec, names, where, lists)))
    return Columns(tuple(result), tuple(keep))


def _separated(names: Sequence[str]) -> str:
    """Return what an error adds where all columns were read as one."""
    marks = [word for mark, word in _OTHER_MARKS.items() if len(names) == 1 and mark in names[0]]
    return f"; {marks[0]} stand between the cells there: write commas" if marks else ""


def _row_shape(spec: TensorSpec, names: Sequence[str], where: str, lists: Collection[str]) -> tuple[int, ...]:
    """Return the shape that the columns take in each row."""
    if spec.dtype == "object":
        raise InputError(f"the model takes text ({spec}); expected numbers from a table: call the model directly")
    row = spec.shape[1:]
    known = prod(size for size in row if isinstance(size, int))
    listed = len(names) == 1 and names[0] in lists
    loose = sum(not isinstance(size, int) for size in row)
    if loose > 1 or (loose and (listed or not known or len(names) % known)):
        raise InputError(
            f"{len(names)} columns of {where} do not tell the shape of {spec}; expected fixed sizes: use .npz"
        )
    shape = tuple(size if isinstance(size, int) else len(names) // known for size in row)
    if not listed and prod(shape) != len(names):
        shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        raise InputError(
            f"{where} gives {len(names)} columns ({shown}) for input {spec}; "
            f"expected {prod(shape)}: choose them by name (columns, --column), pass others through (keep, --keep)"
            f"{_separated(names)}"
        )
    return shape
