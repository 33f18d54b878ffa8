"""Rows from Parquet files and folders of them: described by pyarrow.dataset, decoded as streams."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
        self._ends: list[list[int]] = []
        schemas = []
        for path in self._files:
            with _whole(path):
                fragment = ds.ParquetFileFormat().make_fragment(path, LocalFileSystem())
                self._ends.append(list(accumulate(group.num_rows for group in fragment.row_groups)))
                schemas.append(fragment.physical_schema)
                _ = schemas[-1].names  # which are decoded when they are asked for, and may be no text
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
        path = self._files[parts[0].file]
        with _whole(path):
            opened = pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
        with opened as file:
            batches = file.iter_batches(parts[0].size, range(group, len(ends)), self._columns.used)
            held, start = _next(batches, path), ends[group - 1] if group else 0
            for part in parts:
                while start + held.num_rows <= part.first:
                    start, held = start + held.num_rows, _next(batches, path)
                while start + held.num_rows < part.first + part.size:
                    held = pa.concat_tables([held, _next(batches, path)])
                held, start = held.slice(part.first - start), part.first
                yield self._columns.block(held.slice(0, part.size), {})


@contextmanager
def _whole(path: str) -> Iterator[None]:
    """Turn what pyarrow says of a damaged file into an error of ours."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}; expected a whole file: write it again") from error


def _next(batches: Iterator[pa.RecordBatch], path: str) -> pa.Table:
    """Return the next rows; a file may hold fewer than it declares."""
    with _whole(path):
        batch = next(batches, None)
    if batch is None:
        raise InputError(f"{path} holds fewer rows than it declares; expected a whole Parquet file: write it again")
    return pa.Table.from_batches([batch])
