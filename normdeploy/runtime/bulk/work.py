"""Predict one part: the unit of work that every engine hands out."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from normdeploy.errors import InputError
from normdeploy.runtime.backend import Array
from normdeploy.runtime.bulk.journal import PartReport, part_path
from normdeploy.runtime.bulk.source import BadRow, Part, Rows, Source
from normdeploy.runtime.predictor import Predictor

OUTPUT = "output/"  # prefix of output names inside a part file


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

    def run(self, part: Part, advance: Callable[[int], None] | None = None) -> PartReport:
        """Predict a part and write its results whole; doing it again gives the same file.

        Args:
            part: which rows.
            advance: called with the number of rows after each batch.

        Raises:
            InputError: the data ends early, or outputs of different batches do not fit together.
        """
        outputs: dict[str, list[Array]] = {spec.name: [] for spec in self.predictor.outputs}
        index: list[Array] = []
        keys: list[str] = []
        bad: list[BadRow] = []
        for rows in self.source.read(part, self.batch_size):
            count = len(rows.index) + len(rows.bad)
            bad += rows.bad
            for good, results in self._predict(rows, bad):
                index.append(good.index)
                keys += good.keys
                for name, value in results.items():
                    outputs[name].append(value)
            if advance is not None:
                advance(count)
        arrays = {OUTPUT + name: _join(name, values) for name, values in outputs.items() if values}
        bad.sort(key=lambda row: row.row)
        found = sum(map(len, index)) + len(bad)
        if found != part.rows:
            raise InputError(
                f"part {part.index} gave {found} rows; expected {part.rows}: the data changed while it was read"
            )
        temporary = self.folder / f".{part.index:08d}.{os.getpid()}.npz"
        with temporary.open("wb") as stream:
            np.savez(
                stream,
                row=np.concatenate(index) if index else np.zeros(0, np.int64),
                key=np.array(keys, dtype=np.str_),
                bad_row=np.array([row.row for row in bad], dtype=np.int64),
                bad_key=np.array([row.key for row in bad], dtype=np.str_),
                bad_reason=np.array([row.reason for row in bad], dtype=np.str_),
                **arrays,  # type: ignore[arg-type] # numpy's stub types every keyword as allow_pickle
            )
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(part_path(self.folder, part.index))
        return PartReport(part.index, part.first, part.rows, len(bad))

    def _predict(self, rows: Rows, bad: list[BadRow]) -> list[tuple[Rows, dict[str, Array]]]:
        """Run a batch; where the model refuses it, row by row, so that one bad row does not cost its neighbours."""
        if not len(rows.index):
            return []
        try:
            results = self.predictor.batched(rows.feeds, batch_size=self.batch_size)
        except InputError as error:
            if len(rows.index) == 1:
                bad.append(BadRow(int(rows.index[0]), rows.keys[0] if rows.keys else "", str(error)))
                return []
            found = []
            for at in range(len(rows.index)):
                one = slice(at, at + 1)
                feeds = {name: array[one] for name, array in rows.feeds.items()}
                found += self._predict(Rows(feeds, rows.index[one], rows.keys[one]), bad)
            return found
        if not isinstance(results, dict):
            raise TypeError(f"batched returned {type(results).__name__} for a dict")
        return [(rows, results)]


def _join(name: str, values: list[Array]) -> Array:
    if len({value.shape[1:] for value in values}) > 1:
        raise InputError(
            f"output {name!r} has rows of shapes {sorted({value.shape[1:] for value in values})}; "
            "expected one shape for all rows: predict samples of one size at a time"
        )
    return np.concatenate(values)
