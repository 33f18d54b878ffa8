"""``predict``: a model over all rows of a file or folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

from normdeploy.errors import InputError, UsageError
from normdeploy.files import require_writable, storage
from normdeploy.runtime.backend import TensorSpec
from normdeploy.runtime.bulk.arrays import ArraySource
from normdeploy.runtime.bulk.csv_table import CsvSource
from normdeploy.runtime.bulk.images import ImageOptions, ImageSource
from normdeploy.runtime.bulk.join import Results, check_format, write_bad_rows, write_results
from normdeploy.runtime.bulk.journal import Journal, PartReport
from normdeploy.runtime.bulk.parquet_table import ParquetSource
from normdeploy.runtime.bulk.source import Source
from normdeploy.runtime.bulk.work import Job
from normdeploy.runtime.plan import Plan
from normdeploy.runtime.predictor import load

ENGINES = ("local", "ray")
_PART_BYTES = 32 * 2**20
_PART_INPUT = 2 * 2**20
_PART_BATCHES = 16
_PART_BATCHES_UNKNOWN = 4

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class BulkResult:
    """What a run did.

    Args:
        out: the results.
        bad_file: the bad rows with their reasons; None where there were none.
        rows: rows of the data.
        bad: how many of them were bad.
        first_reason: why the first bad row was.
        resumed: how many rows an interrupted run had already done.
        seconds: time of this run.
    """

    out: Path
    bad_file: Path | None
    rows: int
    bad: int
    first_reason: str
    resumed: int
    seconds: float

    def summary(self) -> str:
        """Return a few lines for the console."""
        speed = (self.rows - self.resumed) / max(self.seconds, 1e-9)
        lines = [f"{self.out}: {self.rows - self.bad} of {self.rows} rows in {self.seconds:.1f} s ({speed:.0f} rows/s)"]
        if self.resumed:
            lines.append(f"{self.resumed} rows were already done by the interrupted run")
        if self.bad_file is not None:
            rows = "1 bad row" if self.bad == 1 else f"{self.bad} bad rows"
            lines.append(f"{rows}, see {self.bad_file}; the first: {self.first_reason}")
        return "\n".join(lines)


def open_source(
    data: str | os.PathLike[str],
    specs: Sequence[TensorSpec],
    *,
    columns: Sequence[str] | None = None,
    images: ImageOptions | None = None,
) -> Source:
    """Return the rows of ``data``: a .npy, .npz, .csv or .parquet file, or a folder of images.

    Raises:
        InputError: it does not exist, is of another kind, or does not fit the model.
        UsageError: options for another kind of data.
        MissingDependencyError: the kind needs an extra that is not installed.
    """
    path = Path(data)
    if columns is not None and path.suffix not in (".csv", ".parquet"):
        raise UsageError(f"columns are chosen and {path} is no table; expected .csv or .parquet: leave the choice out")
    if path.is_dir():
        return ImageSource(path, specs, images)
    if not path.is_file():
        raise InputError(f"{path} does not exist; expected a file or a folder of images: check the path")
    if path.suffix in (".npy", ".npz"):
        return ArraySource(path, specs)
    if path.suffix == ".csv":
        return CsvSource(path, specs, columns)
    if path.suffix == ".parquet":
        return ParquetSource(path, specs, columns)
    raise InputError(f"{path} ends in {path.suffix!r}; expected .npy, .npz, .csv, .parquet or a folder of images")


def part_rows(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batch_size: int) -> int:
    """Return how many rows a part has: a whole number of batches.

    A part is what a kill costs, and each one is forced to disk. So it has some batches, and more where rows are small
    and therefore quick; its results stay well inside memory.
    """
    rows_in, rows_out = _row_bytes(inputs), _row_bytes(outputs)
    batches = _PART_BATCHES
    if rows_in:
        batches = max(batches, _PART_INPUT // (rows_in * batch_size))
    if not rows_out:
        return batch_size * min(batches, _PART_BATCHES_UNKNOWN)
    return batch_size * max(1, min(batches, _PART_BYTES // (rows_out * batch_size)))


def _row_bytes(specs: Sequence[TensorSpec]) -> int:
    """Return the bytes of one row at 8 per number; 0 where a dimension besides the first is open."""
    if any(not isinstance(size, int) for spec in specs for size in spec.shape[1:]):
        return 0
    return sum(8 * prod(size for size in spec.shape[1:] if isinstance(size, int)) for spec in specs)


def predict(
    path: str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    plan: Plan | str | os.PathLike[str] | None = None,
    batch_size: int = 64,
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    columns: Sequence[str] | None = None,
    images: ImageOptions | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BulkResult:
    """Run a model over all rows of ``data``, in constant memory, and survive being killed.

    Results are collected in ``<out>.partial`` and joined at the end; the same call after a kill goes on where the
    finished parts end. A row that cannot be read, holds NaN or is refused by the model goes to ``<out>.bad.csv``.

    Args:
        path: the ONNX file.
        data: a .npy, .npz, .csv or .parquet file, or a folder of images.
        out: .npz, .csv or .parquet (good rows, each with its index), or .npy (all rows, bad ones NaN).
        plan: how to run the model, from ``tune``.
        batch_size: rows per run of the model, where it leaves that open.
        engine: "local" in this process, "ray" on Ray Data.
        workers: actors of engine "ray".
        columns: columns of a table to use, for a model of one input.
        images: scaling of images.
        overwrite: allow replacing ``out``, and discarding an interrupted run that differs from this one.
        progress: called with (rows done, rows in all or None).

    Returns:
        BulkResult.

    Raises:
        InputError: the data does not fit the model, or every row is bad.
        OutputExistsError: ``out`` exists and ``overwrite`` is false.
        UsageError: an unknown engine or ending, or an interrupted run that differs from this one.
        MissingDependencyError: an extra is needed and not installed.
    """
    started = time.perf_counter()
    if engine not in ENGINES:
        raise UsageError(f"engine {engine!r} is unknown; expected one of {', '.join(ENGINES)}")
    if batch_size < 1 or (workers is not None and workers < 1):
        raise UsageError(f"batch_size={batch_size}, workers={workers}; expected at least 1 of each")
    target = require_writable(out, overwrite=overwrite)
    folder = target.with_name(f"{target.name}.partial")
    bad_file = target.with_name(f"{target.name}.bad.csv")
    require_writable(bad_file, overwrite=overwrite or folder.is_dir())  # an unfinished run may have written it
    predictor = load(path, plan=plan)
    check_format(target, predictor.outputs)
    source = open_source(data, predictor.inputs, columns=columns, images=images)
    size = predictor.fixed_batch or batch_size
    rows_per_part = part_rows(predictor.inputs, predictor.outputs, size)
    header = {
        "model": predictor.digest,
        "settings": predictor.settings.to_dict(),
        "data": dict(source.identity()),
        "batch size": size,
        "rows per part": rows_per_part,
    }
    with storage(target), Journal(folder, header, restart=overwrite) as journal:
        resumed = journal.resumed
        job = Job(predictor, source, folder, size)
        for report in _reports(job, journal, rows_per_part, engine, workers, progress):
            journal.record(report)
        total = sum(report.rows for report in journal.done.values())
        bad = sum(report.bad for report in journal.done.values())
        results = Results(folder, list(journal.done), total, named=source.named)
        bad_file.unlink(missing_ok=True)
        first_reason = ""
        if bad:
            write_bad_rows(results, bad_file)
            first_reason = next(str(part["bad_reason"][0]) for part in results.parts() if len(part["bad_reason"]))
        if bad == total:
            journal.remove()
            if not total:
                raise InputError(f"{data} has no rows; expected at least one")
            raise InputError(f"all {total} rows of {data} are bad, see {bad_file}; the first: {first_reason}")
        write_results(results, target, overwrite=overwrite)
        journal.remove()
    seconds = time.perf_counter() - started
    return BulkResult(target, bad_file if bad else None, total, bad, first_reason, resumed, seconds)


def _reports(
    job: Job, journal: Journal, rows_per_part: int, engine: str, workers: int | None, progress: Progress | None
) -> Iterator[PartReport]:
    done = journal.resumed

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(done, job.source.total)

    advance(0)
    missing = (part for part in job.source.parts(rows_per_part) if part.index not in journal.done)
    if engine == "local":
        for part in missing:
            yield job.run(part, advance)
        return
    from normdeploy.runtime.bulk.ray_engine import run_on_ray

    for report in run_on_ray(job, list(missing), workers):
        advance(report.rows)
        yield report
