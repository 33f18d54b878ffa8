"""Which columns of a table feed which input, and how their cells become its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from normdeploy.errors import InputError, UsageError
from normdeploy.ort.specs import Array, TensorSpec
from normdeploy.runtime.bulk.source import rows_table
from normdeploy.runtime.casting import cast, expectation


@dataclass(frozen=True)
class InputColumns:
    """The columns of one input, in order, the shape they take in each row, and whether it is one column of lists."""

    spec: TensorSpec
    names: tuple[str, ...]
    shape: tuple[int, ...]
    listed: bool


@dataclass(frozen=True)
class Columns:
    """The columns that are read: those of each input, and those that are passed through."""

    inputs: tuple[InputColumns, ...]
    keep: tuple[str, ...]

    @property
    def used(self) -> list[str]:
        """The names of all of them, each once."""
        return list(dict.fromkeys([name for item in self.inputs for name in item.names] + list(self.keep)))

    @property
    def row_bytes(self) -> int:
        """What one row of all inputs takes."""
        return sum(prod(item.shape) * np.dtype(item.spec.dtype).itemsize for item in self.inputs)

    def rows(self, table: pa.Table, reasons: dict[int, str]) -> pa.Table:
        """Return a part's table; a cell that is null or that its input cannot hold makes a row bad.

        Args:
            table: the columns used, numbers or lists of them; anything in the rows that ``reasons`` names.
            reasons: position of each row known to be bad to why; more are added.
        """
        count = table.num_rows
        feeds: dict[str, Array] = {}
        for item in self.inputs:
            rows = np.zeros((count, prod(item.shape)), item.spec.dtype)
            for position, name in enumerate(item.names):
                column, where = table.column(name).combine_chunks(), np.arange(count)
                if item.listed:
                    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
                    for at in np.flatnonzero(lengths != rows.shape[1]).tolist():
                        found = "null" if lengths[at] < 0 else f"a list of {lengths[at]} values"
                        reasons.setdefault(
                            at, f"column {name!r} is {found}; expected {rows.shape[1]}: correct the data"
                        )
                    where = np.flatnonzero(lengths == rows.shape[1])
                    values = pc.list_flatten(column.filter(pa.array(lengths == rows.shape[1])))
                    flat = _numbers(values, name, item.spec.dtype, np.repeat(where, rows.shape[1]), reasons)
                    rows[where] = flat.reshape(len(where), rows.shape[1])
                else:
                    rows[:, position] = _numbers(column, name, item.spec.dtype, where, reasons)
            feeds[item.spec.name] = rows.reshape(count, *item.shape)
        kept = {name: table.column(name) for name in self.keep}
        return rows_table(feeds, {name: _decoded(column).combine_chunks() for name, column in kept.items()}, reasons)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without its dictionary, whose codes differ from part to part."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _numbers(values: pa.Array, name: str, dtype: str, where: Array, reasons: dict[int, str]) -> Array:
    """Return values as the input's dtype; ``where`` is the row of each, for those that are not numbers it holds."""
    if values.null_count:
        for at in where[values.is_null().to_numpy(zero_copy_only=False)].tolist():
            reasons.setdefault(at, f"column {name!r} is '' or null; expected a number: fill or remove the row")
        values = pc.fill_null(values, pa.scalar(0, values.type))
    given = values.to_numpy(zero_copy_only=False)
    result, wrong = cast(given, dtype)
    if wrong is not None:
        for at, value in zip(where[wrong].tolist(), given[wrong].tolist(), strict=True):
            reasons.setdefault(
                at, f"column {name!r} is {value}; expected {expectation(dtype)}: correct or remove the row"
            )
    return result


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
        raise InputError(f"{where} has no column {missing[0]!r}; expected one of {', '.join(header)}")
    if len(specs) == 1:
        names = [name for name in header if name not in keep] if chosen is None else list(chosen)
        return Columns((_fit(specs[0], names, where, lists),), tuple(keep))
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
                f"expected one of them: the columns are {', '.join(header)}"
            )
        names = [spec.name] if spec.name in header else []
        while f"{spec.name}.{len(names)}" in header and spec.name not in names:
            names.append(f"{spec.name}.{len(names)}")
        result.append(_fit(spec, names, where, lists))
    return Columns(tuple(result), tuple(keep))


def _fit(spec: TensorSpec, names: Sequence[str], where: str, lists: Collection[str]) -> InputColumns:
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
        )
    return InputColumns(spec, tuple(names), shape, listed)
