"""Rows from Parquet files and folders of them: described by pyarrow.dataset, decoded as streams."""

from __future__ import annotations

from bisect import bisect
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
from normdeploy.runtime.bulk.source import Block, Part, ranges

_BUFFER = 1 << 20
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


class ParquetSource:
    """Rows of Parquet files: columns of numbers as in a CSV file, or one column of lists per input.

    Raises:
        InputError: columns that are missing, differ between files, do not fit, or hold no numbers.
    """

    def __init__(
        self, files: Sequence[Path], specs: Sequence[TensorSpec], columns: Sequence[str] | None, keep: Sequence[str]
    ) -> None:
        self._files = [str(path) for path in files]
        try:
            fragments = [ds.ParquetFileFormat().make_fragment(path, LocalFileSystem()) for path in self._files]
            self._ends = [list(accumulate(group.num_rows for group in found.row_groups)) for found in fragments]
            schemas = [fragment.physical_schema for fragment in fragments]
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{error}: cannot be read as Parquet; expected whole Parquet files") from error
        self._counts = [max(ends, default=0) for ends in self._ends]
        self.total: int | None = sum(self._counts)
        first, where = schemas[0], self._files[0]
        lists = {field.name for field in first if any(is_list(field.type) for is_list in _LISTS)}
        self._columns = match_columns(specs, first.names, columns, keep, where, lists)
        self.row_bytes = self._columns.row_bytes
        if nested := [name for name in keep if pa.types.is_nested(first.field(name).type)]:
            raise InputError(f"column {nested[0]!r} of {where} is nested; expected plain values to keep: leave it out")
        for name in self._columns.dtypes:
            found = first.field(name).type
            kind = found.value_type if name in lists else found
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
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
        return ranges(self._counts, rows, lambda file, first: bisect(self._ends[file], first))

    def read(self, parts: Sequence[Part]) -> Iterator[Block]:
        """Yield the parts' rows; a row group is decoded in pieces, once, from its start to the last row asked for."""
        ends, group = self._ends[parts[0].file], parts[0].unit[1]
        # a scan of the dataset would hold a whole row group: it is decoded ahead
        with pq.ParquetFile(self._files[parts[0].file], buffer_size=_BUFFER, pre_buffer=False) as file:
            batches = file.iter_batches(parts[0].size, range(group, len(ends)), self._columns.used)
            held, start = pa.Table.from_batches([next(batches)]), ends[group - 1] if group else 0
            for part in parts:
                while start + held.num_rows <= part.first:
                    start, held = start + held.num_rows, pa.Table.from_batches([next(batches)])
                while start + held.num_rows < part.first + part.size:
                    held = pa.concat_tables([held, pa.Table.from_batches([next(batches)])])
                held, start = held.slice(part.first - start), part.first
                yield self._columns.block(held.slice(0, part.size), {})
