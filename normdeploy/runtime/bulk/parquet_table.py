"""Rows from Parquet files and folders of them: found by pyarrow.dataset, decoded as streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from normdeploy.errors import InputError
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.bulk.columns import match_columns
from normdeploy.runtime.bulk.source import Part

_BUFFER = 1 << 20


class ParquetSource:
    """Rows of Parquet files: columns of numbers as in a CSV file, or one column of lists per input.

    Args:
        files: all with the columns that are used, of the same types.
        specs: the model's inputs.
        columns: names of the columns to use, for a model of one input.
        keep: names of the columns to pass through.

    Raises:
        InputError: columns that are missing, differ between files, do not fit, or hold no numbers.
    """

    def __init__(
        self, files: Sequence[Path], specs: Sequence[TensorSpec], columns: Sequence[str] | None, keep: Sequence[str]
    ) -> None:
        self._files = [str(path) for path in files]
        try:
            fragments = [ds.ParquetFileFormat().make_fragment(path, LocalFileSystem()) for path in self._files]
            self._groups = [[group.num_rows for group in fragment.row_groups] for fragment in fragments]
            schemas = [fragment.physical_schema for fragment in fragments]
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{error}: cannot be read as Parquet; expected whole Parquet files") from error
        self.total: int | None = sum(map(sum, self._groups))
        first, where = schemas[0], self._files[0]
        values = {field.name: getattr(field.type, "value_type", field.type) for field in first}
        lists = {field.name for field in first if _is_list(field.type)}
        self._columns = match_columns(specs, first.names, columns, keep, where, lists)
        self.kept, self.row_bytes = self._columns.keep, self._columns.row_bytes
        if nested := [name for name in keep if pa.types.is_nested(first.field(name).type)]:
            raise InputError(f"column {nested[0]!r} of {where} is nested; expected plain values to keep: leave it out")
        for name in [name for item in self._columns.inputs for name in item.names]:
            kind = values[name] if name in lists else first.field(name).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
                found = first.field(name).type
                raise InputError(f"column {name!r} of {where} is {found}; expected numbers: choose other columns")
        for path, schema in zip(self._files, schemas, strict=True):
            for name in self._columns.used:
                found = schema.field(name).type if schema.names.count(name) == 1 else "not there once"
                if found != first.field(name).type:
                    raise InputError(
                        f"column {name!r} of {path} is {found}; expected {first.field(name).type} as in {where}"
                    )

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield equal ranges of rows; those that begin in one row group are a unit."""
        index, unit = 0, -1
        for file, groups in enumerate(self._groups):
            ends, end = accumulate(groups), 0
            for first in range(0, sum(groups), rows):
                unit += first >= end
                while end <= first:
                    end = next(ends)
                yield Part(index, unit, file, first, min(rows, sum(groups) - first))
                index += 1

    def read(self, parts: Sequence[Part]) -> Iterator[pa.Table]:
        """Yield the parts' rows; a row group is decoded in pieces, once, from its start to the last row asked for."""
        groups, start = self._groups[parts[0].file], 0
        while groups and start + groups[0] <= parts[0].first:
            start, groups = start + groups[0], groups[1:]
        last = len(self._groups[parts[0].file])
        with pq.ParquetFile(self._files[parts[0].file], buffer_size=_BUFFER, pre_buffer=False) as file:
            batches = file.iter_batches(
                batch_size=parts[0].size, row_groups=range(last - len(groups), last), columns=self._columns.used
            )
            held = pa.Table.from_batches([next(batches)])
            for part in parts:
                while start + held.num_rows <= part.first:
                    start, held = start + held.num_rows, pa.Table.from_batches([next(batches)])
                pieces = [held.slice(part.first - start)]
                while (missing := part.size - sum(piece.num_rows for piece in pieces)) > 0:
                    start, held = start + held.num_rows, pa.Table.from_batches([next(batches)])
                    pieces.append(held.slice(0, missing))
                yield self._columns.rows(pa.concat_tables(pieces).slice(0, part.size), {})


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
