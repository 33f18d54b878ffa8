"""From the rows of a part to its results on disk: the steps that every engine takes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from normdeploy.errors import InputError
from normdeploy.files import put_in_place, storage
from normdeploy.ort.specs import Array
from normdeploy.runtime.bulk.source import IN, KEEP, OUT, REASON, Source, to_array, to_column
from normdeploy.runtime.bulk.workspace import UNFINISHED, part_path
from normdeploy.runtime.predictor import Predictor
from normdeploy.runtime.rows import join


@dataclass(frozen=True)
class Job:
    """All a worker needs; picklable.

    Args:
        predictor: the model.
        source: the rows.
        folder: where parts are written; the same place for every worker.
        batch_size: rows per run of the model.
    """

    predictor: Predictor
    source: Source
    folder: Path
    batch_size: int

    def predict(self, rows: pa.Table) -> pa.Table:
        """Return a part's results, a column ``out/NAME`` per output in place of the inputs.

        Raises:
            InputError: outputs of different batches do not fit together.
        """
        reason = rows.column(REASON)
        good = np.flatnonzero(reason.is_null().to_numpy())
        columns = {KEEP + name: rows.column(KEEP + name) for name in self.source.kept}
        if len(good):
            arrays = {spec.name: to_array(rows.column(IN + spec.name)) for spec in self.predictor.inputs}
            if len(good) < rows.num_rows:
                arrays = {name: array[good] for name, array in arrays.items()}
            outputs, refused = self._outputs(arrays)
            if refused:
                reasons = dict(zip(good[list(refused)].tolist(), refused.values(), strict=True))
                reason = pa.chunked_array(
                    [[reasons.get(at, old) for at, old in enumerate(reason.to_pylist())]], pa.string()
                )
                good = np.delete(good, list(refused))
            for name, value in outputs.items():
                spread = value
                if len(good) < rows.num_rows:  # what stands in a bad row's place is never shown
                    spread = value[np.zeros(rows.num_rows, np.int64)]
                    spread[good] = value
                columns[OUT + name] = pa.chunked_array([to_column(spread)])
        return pa.table({**columns, REASON: reason})

    def _outputs(self, arrays: dict[str, Array]) -> tuple[dict[str, Array], dict[int, str]]:
        """Run all batches; return the outputs, and position and reason of the rows that the model refuses."""
        rows = self.predictor.rows(arrays)
        parts: list[list[Array]] = []
        refused: dict[int, str] = {}
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

    def write(self, part: int, results: pa.Table) -> Report:
        """Write a part's results, whole or not at all; doing it again gives the same file."""
        temporary = self.folder / f"{part}.{os.getpid()}{UNFINISHED}"
        with storage(self.folder):
            with temporary.open("wb") as stream, pa.ipc.new_file(stream, results.schema) as writer:
                writer.write_table(results)
            put_in_place(temporary, part_path(self.folder, part))
        return Report.of(results)


@dataclass(frozen=True)
class Report:
    """How many rows a part has, and how many of them are bad."""

    rows: int
    bad: int

    @classmethod
    def of(cls, results: Any) -> Report:
        """Count a part's results."""
        return cls(results.num_rows, results.num_rows - results.column(REASON).null_count)
