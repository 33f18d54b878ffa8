"""The steps between source and sink that every engine takes: predict the rows of a part, keep its results on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from normdeploy.array_types import Array
from normdeploy.errors import InputError
from normdeploy.files import put_in_place, storage
from normdeploy.runtime.bulk.source import Block, Part, Source
from normdeploy.runtime.predictor import Predictor
from normdeploy.runtime.sample_rows import join

UNFINISHED = ".unfinished"
ROW = "row"
_ABOUT = b"normdeploy"

Report = tuple[int, int]
"""How many rows a part has, and how many of them are bad."""


@dataclass(frozen=True)
class Results:
    """What came of a part.

    Args:
        table: its good rows: position in the part, what was kept, the outputs (a row's values as a flat list).
        shapes: of a row of each output.
        rows: how many rows it has, bad ones included.
        bad: position, key (an image's name) and reason of each bad row.
    """

    table: pa.Table
    shapes: dict[str, list[int]]
    rows: int
    bad: list[tuple[int, str, str]]

    @property
    def report(self) -> Report:
        """How many rows there are, and how many of them are bad."""
        return self.rows, len(self.bad)

    def array(self, name: str) -> Array:
        """Return a column of numbers, in its rows' shape."""
        column = self.table.column(name).combine_chunks()
        values = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        result: Array = values.to_numpy(zero_copy_only=False)
        return result.reshape(len(column), *self.shapes.get(name, ()))


def part_path(folder: Path, index: int) -> Path:
    """Return where a part's results lie."""
    return folder / f"{index:08d}.part"


def read_part(folder: Path, index: int) -> Results | None:
    """Return a part's results, mapped from its file; None where there is no whole one."""
    try:
        with pa.memory_map(str(part_path(folder, index))) as file:
            table = pa.ipc.open_file(file).read_all()
    except (FileNotFoundError, pa.ArrowInvalid):
        return None
    return Results(table.replace_schema_metadata(), **json.loads(table.schema.metadata[_ABOUT]))


@dataclass(frozen=True)
class Job:
    """All that is done to a block; picklable.

    Args:
        predictor: the model.
        folder: where parts are kept; the same place for every worker.
        batch_size: rows per run of the model.
    """

    predictor: Predictor
    folder: Path
    batch_size: int

    def predict(self, block: Block) -> Results:
        """Return a part's results. A row with NaN is bad, because a prediction on it means nothing.

        Raises:
            InputError: outputs of different batches do not fit together.
        """
        count, bad = len(next(iter(block.feeds.values()))), dict(block.bad)
        for name, array in block.feeds.items():
            if array.dtype.kind == "f" and array.size and np.isnan(array.min()):  # NaN wins every minimum
                for at in np.flatnonzero(np.isnan(array).reshape(count, -1).any(axis=1)).tolist():
                    bad.setdefault(at, f"input {name!r} holds NaN; expected numbers: fill or remove the row")
        good = np.delete(np.arange(count), list(bad))
        outputs: dict[str, Array] = {}
        if len(good):
            outputs, refused = self._outputs({name: x[good] if bad else x for name, x in block.feeds.items()})
            bad |= {int(good[at]): reason for at, reason in refused.items()}
            good = np.delete(good, list(refused))
        columns, shapes = {ROW: pa.array(good)}, {}
        for name, kept in block.kept.items():
            columns[f"kept.{name}" if name in columns else name] = kept.take(pa.array(good)) if bad else kept
        for name, value in outputs.items():
            free = f"output.{name}" if name in columns else name
            columns[free], shapes[free] = _column(value), list(value.shape[1:])
        keys = pc.fill_null(block.kept["key"].cast(pa.string()), "") if "key" in block.kept else None
        named = [(at, "" if keys is None else keys[at].as_py(), bad[at]) for at in sorted(bad)]
        return Results(pa.table(columns), shapes, count, named)

    def _outputs(self, arrays: dict[str, Array]) -> tuple[dict[str, Array], dict[int, str]]:
        """Run all batches; return the outputs, and position and reason of the rows that the model refuses."""
        rows, parts, refused = self.predictor.rows(arrays), list[list[Array]](), dict[int, str]()
        for start in range(0, rows.total, self.batch_size):
            stop = min(start + self.batch_size, rows.total)
            try:
                parts.append(rows.run(start, stop))
            except InputError:  # row by row, so that a bad one does not cost its neighbours
                for at in range(start, stop):
                    try:
                        parts.append(rows.run(at, at + 1))
                    except InputError as error:
                        refused[at] = str(error)
        return (join(self.predictor.outputs, parts) if parts else {}), refused

    def write(self, part: Part, results: Results) -> tuple[int, Report]:
        """Write a part's results, whole or not at all; doing it again gives the same file. Return number and report."""
        about = json.dumps({"shapes": results.shapes, "rows": results.rows, "bad": results.bad})
        table = results.table.replace_schema_metadata({_ABOUT: about})
        made = self.folder / f"{part.index}.{os.getpid()}{UNFINISHED}"
        with storage(self.folder):
            with made.open("wb") as stream, pa.ipc.new_file(stream, table.schema) as writer:
                writer.write_table(table)
            put_in_place(made, part_path(self.folder, part.index))
        return part.index, results.report


def _column(array: Array) -> pa.Array:
    """Return rows of an array as a column; those of several values as flat lists of a fixed size."""
    if 0 in array.shape[1:]:
        raise InputError(f"rows of shape {list(array.shape[1:])} hold nothing; expected at least one value in a row")
    values = pa.array(np.ascontiguousarray(array).reshape(-1))
    return values if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(values, len(values) // len(array))


def run_here(job: Job, source: Source, units: Sequence[Sequence[Part]]) -> Iterator[tuple[int, Report]]:
    """Yield number and report of parts as they are done: one is read, one predicted and one written at a time."""
    read = (pair for unit in units for pair in zip(unit, source.read(unit), strict=True))
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
        upcoming, written = reader.submit(next, read, None), list[Future[tuple[int, Report]]]()
        while (pair := upcoming.result()) is not None:
            upcoming, (part, block) = reader.submit(next, read, None), pair
            results = job.predict(block)
            yield from (one.result() for one in written)
            written = [writer.submit(job.write, part, results)]
        yield from (one.result() for one in written)
