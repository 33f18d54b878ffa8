"""Rows from Parquet files (extra: pyarrow)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from normdeploy.errors import InputError, MissingDependencyError
from normdeploy.runtime.backend import Array, TensorSpec
from normdeploy.runtime.bulk.columns import InputColumns, match_columns
from normdeploy.runtime.bulk.source import BadRow, Part, Rows, file_identity, ranges


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "Parquet files need pyarrow, which is not installed; expected it: pip install pyarrow"
        ) from error
    return pyarrow.parquet


class ParquetSource:
    """Rows of a Parquet file: numeric columns as in a CSV file, or one list column per input.

    Args:
        path: the file.
        specs: the model's inputs.
        columns: names of the columns to use, for a model of one input.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        InputError: columns that are missing, do not fit, or hold no numbers.
    """

    named = False

    def __init__(self, path: Path, specs: Sequence[TensorSpec], columns: Sequence[str] | None = None) -> None:
        parquet = _parquet()
        import pyarrow as pa

        self.path = path
        self._columns = columns
        try:
            with parquet.ParquetFile(path) as file:
                schema, self.total = file.schema_arrow, file.metadata.num_rows
                self._group_rows = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        except pa.ArrowInvalid as error:
            raise InputError(f"{path} cannot be read as Parquet ({error}); expected a whole Parquet file") from error
        self._lists = self._list_columns(specs, schema)
        if self._lists:
            self._names = [self._lists[spec.name] for spec in specs]
            self.inputs = tuple(
                InputColumns(spec, (position,), self._row_shape(spec)) for position, spec in enumerate(specs)
            )
        else:
            self.inputs = match_columns(specs, schema.names, columns, str(path))
            used = sorted({position for item in self.inputs for position in item.positions})
            self._names = [schema.names[position] for position in used]
            self.inputs = tuple(
                InputColumns(item.spec, tuple(used.index(at) for at in item.positions), item.shape)
                for item in self.inputs
            )
        for name in self._names:
            kind = schema.field(name).type
            value = kind.value_type if name in self._lists.values() else kind
            if not (pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_boolean(value)):
                raise InputError(f"column {name!r} of {path} is {kind}; expected numbers: choose other columns")

    def _list_columns(self, specs: Sequence[TensorSpec], schema: Any) -> dict[str, str]:
        import pyarrow as pa

        def is_list(name: str) -> bool:
            kind = schema.field(name).type
            return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))

        names = list(self._columns) if self._columns is not None else list(schema.names)
        if len(specs) == 1 and len(names) == 1 and names[0] in schema.names and is_list(names[0]):
            return {specs[0].name: names[0]}
        if all(spec.name in schema.names and is_list(spec.name) for spec in specs) and self._columns is None:
            return {spec.name: spec.name for spec in specs}
        return {}

    def _row_shape(self, spec: TensorSpec) -> tuple[int, ...]:
        row = spec.shape[1:]
        if any(not isinstance(size, int) for size in row):
            raise InputError(f"a list column does not tell the shape of {spec}; expected fixed sizes: use .npz")
        return tuple(size for size in row if isinstance(size, int))

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield equal ranges of rows."""
        return ranges(self.total or 0, rows)

    def read(self, part: Part, batch: int) -> Iterator[Rows]:
        """Yield the part's rows; a null, or a list of another length, is a bad row."""
        row = 0
        groups: list[int] = []
        start = 0
        for group, count in enumerate(self._group_rows):
            if start + count > part.first and start < part.first + part.rows:
                row = row if groups else start
                groups.append(group)
            start += count
        end = part.first + part.rows
        with _parquet().ParquetFile(self.path) as file:
            for table in file.iter_batches(batch_size=batch, row_groups=groups, columns=self._names):
                low, high = max(part.first - row, 0), min(end - row, table.num_rows)
                if low < high:
                    yield self._rows(table.slice(low, high - low), row + low)
                row += table.num_rows
                if row >= end:
                    break

    def _rows(self, table: Any, first: int) -> Rows:
        ok = np.ones(table.num_rows, dtype=bool)
        reasons: dict[int, str] = {}

        def mark(wrong: Array, reason: str) -> None:
            for position in np.flatnonzero(wrong):
                reasons.setdefault(int(position), reason)
            ok[wrong] = False

        columns = [table.column(table.schema.get_field_index(name)) for name in self._names]
        for name, column in zip(self._names, columns, strict=True):
            mark(np.asarray(column.is_null()), f"column {name!r} is null; expected a number")
        if self._lists:
            self._check_lists(columns, mark)
        feeds = {item.spec.name: self._array(item, columns, ok) for item in self.inputs}
        bad = [BadRow(first + position, "", reason) for position, reason in sorted(reasons.items())]
        return Rows(feeds, first + np.flatnonzero(ok).astype(np.int64), [], bad).without_nan()

    def _check_lists(self, columns: list[Any], mark: Any) -> None:
        import pyarrow.compute as pc

        for item, name, column in zip(self.inputs, self._names, columns, strict=True):
            expected = int(np.prod(item.shape, dtype=np.int64))
            lengths = np.asarray(pc.fill_null(pc.list_value_length(column), expected))
            mark(lengths != expected, f"column {name!r} holds another number of values; expected {expected}")
            values = column.flatten()
            if values.null_count:
                parents = np.asarray(pc.list_parent_indices(column))[np.asarray(values.is_null())]
                wrong = np.zeros(len(column), dtype=bool)
                wrong[parents] = True
                mark(wrong, f"column {name!r} holds a null value; expected numbers")

    def _array(self, item: InputColumns, columns: list[Any], ok: Array) -> Array:
        import pyarrow as pa

        keep = pa.array(ok)
        count = int(ok.sum())
        chosen = [columns[position].filter(keep) for position in item.positions]
        if self._lists:
            values = chosen[0].flatten().to_numpy(zero_copy_only=False)
        else:
            values = np.stack([column.to_numpy(zero_copy_only=False) for column in chosen], axis=1)
        return np.ascontiguousarray(values.reshape(count, *item.shape).astype(item.spec.dtype))

    def identity(self) -> Mapping[str, Any]:
        """Return the file's identity and the chosen columns."""
        return {**file_identity(self.path), "columns": None if self._columns is None else list(self._columns)}
