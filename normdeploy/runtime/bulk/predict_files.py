"""``predict``: a model over all rows of files and folders."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Literal

import onnxruntime as ort

from normdeploy.errors import InputError, UsageError, kept_when_stopped
from normdeploy.files import PathLike, require_writable
from normdeploy.ort.specs import TensorSpec
from normdeploy.parsing.amounts import require_count
from normdeploy.runtime.bulk.array_source import ArraySource
from normdeploy.runtime.bulk.csv_source import CsvSource
from normdeploy.runtime.bulk.image_source import ImageOptions, ImageSource
from normdeploy.runtime.bulk.join_parts import Parts, check_format
from normdeploy.runtime.bulk.parquet_source import ParquetSource
from normdeploy.runtime.bulk.predict_part import Job, read_part, run_here
from normdeploy.runtime.bulk.source import Source, find_files, identity
from normdeploy.runtime.bulk.workspace import Workspace
from normdeploy.runtime.plan import Plan
from normdeploy.runtime.predictor import load

ENGINES = ("local", "ray")
_PART_BYTES = 32 * 2**20
_PART_INPUT = 8 * 2**20
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


def part_rows(row_bytes: int, outputs: Sequence[TensorSpec], batch_size: int) -> int:
    """Return how many rows a part has: a whole number of batches.

    A part is what a kill costs, and each one is forced to disk. So it has some batches, more where rows are small and
    therefore quick, and fewer where what is read or written would fill the memory.
    """
    batches = max(_PART_BATCHES, _PART_INPUT // (row_bytes * batch_size))
    batches = min(batches, _PART_BYTES // (row_bytes * batch_size))
    if any(not isinstance(size, int) for spec in outputs for size in spec.shape[1:]):
        return batch_size * max(1, min(batches, _PART_BATCHES_UNKNOWN))
    values = sum(prod(size for size in spec.shape[1:] if isinstance(size, int)) for spec in outputs)
    return batch_size * max(1, min(batches, _PART_BYTES // (8 * max(1, values) * batch_size)))  # outputs may be empty


def open_source(
    kind: str,
    files: Sequence[tuple[Path, str]],
    specs: Sequence[TensorSpec],
    columns: Sequence[str] | None,
    keep: Sequence[str],
    header: bool | None,
    images: ImageOptions | None,
) -> Source:
    """Return the rows of files of one kind.

    Raises:
        InputError: they cannot be read, or do not fit the model.
        UsageError: options for another kind of data.
    """
    paths = [path for path, _ in files]
    for name, given, fits in (
        ("columns", columns is not None, ("csv", "parquet")),
        ("keep", bool(keep), ("csv", "parquet")),
        ("header", header is not None, ("csv",)),
        ("images", images not in (None, ImageOptions()), ("images",)),
    ):
        if given and kind not in fits:
            raise UsageError(
                f"{name} is given and {paths[0]} is no table or no image; expected {' or '.join(fits)}: "
                f"leave {name} out"
            )
    if kind == "images":
        return ImageSource(files, specs, images or ImageOptions())
    if kind == "csv":
        return CsvSource(paths, specs, columns, keep, header)
    if kind == "parquet":
        return ParquetSource(paths, specs, columns, keep)
    return ArraySource(paths, specs)


def _require_unread(written: Sequence[Path], files: Sequence[Path]) -> None:
    """Require that no file of the data is to be replaced by what is made of it."""
    for target in written:
        if target.exists() and any(target.samefile(file) for file in files):
            raise UsageError(f"{target} is among the data that is read; expected another path for the results")


def predict(
    path: PathLike,
    data: PathLike | Sequence[PathLike],
    out: PathLike,
    *,
    plan: Plan | PathLike | None = None,
    batch_size: int = 64,
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    columns: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    header: bool | None = None,
    images: ImageOptions | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BulkResult:
    """Run a model over all rows of ``data``, in constant memory, and survive being killed.

    Results are collected in ``<out>.partial`` and joined at the end; the same call after a kill goes on where the
    finished parts end. A row that cannot be read, holds NaN or is refused by the model goes to ``<out>.bad.csv``.

    Args:
        path: the ONNX file.
        data: .npy, .npz, .csv, .parquet or image files: a file, a folder, a pattern, or a list of these, of one kind.
        out: .npz, .csv or .parquet (good rows, each with its index), or .npy (all rows, bad ones NaN).
        plan: how to run the model, from ``tune``.
        batch_size: rows per run of the model, where it leaves that open.
        engine: "local" in this process, "ray" on Ray Data.
        workers: actors of engine "ray".
        columns: columns of a table to use, for a model of one input.
        keep: columns of a table to pass through to ``out``.
        header: whether the first record of a CSV file names the columns; None: look at it (docs/running.md says how).
        images: scaling and size of images.
        overwrite: replace ``out``, and discard an unfinished run for something else.
        progress: called with (rows done, rows in all or None where that is not known) after each part.

    Returns:
        what was done, and how many rows were bad.

    Raises:
        InputError: data that does not fit the model, no rows, only bad ones, or data that changed meanwhile.
        UsageError: wrong options, or ``<out>.partial`` is of another unfinished run or none of ours.
        OutputExistsError: ``out`` or ``<out>.bad.csv`` exists.
        MissingDependencyError: the engine needs an extra that is not installed.

    >>> import numpy as np, onnx
    >>> onnx.save(onnx.parser.parse_model(
    ...     '<ir_version: 10, opset_import: ["": 20]> g (float[n, 2] x) => (float[n, 2] y) { y = Neg (x) }'
    ... ), "net.onnx")
    >>> np.save("rows.npy", np.float32([[1, 2], [3, 4], [np.nan, 6]]))
    >>> result = predict("net.onnx", "rows.npy", "out.npy")
    >>> result.rows, result.bad, np.load("out.npy")[:2].tolist()
    (3, 1, [[-1.0, -2.0], [-3.0, -4.0]])
    """
    started = time.perf_counter()
    if engine not in ENGINES:
        raise UsageError(f"engine {engine!r} is unknown; expected one of {', '.join(ENGINES)}")
    run = run_here
    if engine == "ray":
        from normdeploy.runtime.bulk.ray_engine import run_on_ray

        run = partial(run_on_ray, workers=workers)
    require_count("batch_size", batch_size)
    if workers is not None:
        require_count("workers", workers)
    target = require_writable(out, overwrite=overwrite)
    bad_file = require_writable(target.with_name(f"{target.name}.bad.csv"), overwrite=overwrite)
    kind, files = find_files(data)
    _require_unread((target, bad_file), [file for file, _ in files])
    named = ", ".join(map(str, [data] if isinstance(data, (str, os.PathLike)) else data))
    predictor = load(path, plan=plan)
    check_format(target, predictor.outputs, keep)
    source = open_source(kind, files, predictor.inputs, columns, keep, header, images)
    size = predictor.fixed_batch or batch_size
    rows = part_rows(source.row_bytes, predictor.outputs, size)
    depends_on = {
        "model": [predictor.digest, str(predictor.origin)],
        "settings": {**predictor.settings.to_dict(), "onnxruntime": ort.__version__},
        "data": identity(files),
        "reading": {"columns": columns, "keep": keep, "header": header, "images": asdict(images or ImageOptions())},
        "batch size": size,
        "rows per part": rows,
    }
    with Workspace(target.with_name(f"{target.name}.partial"), depends_on, restart=overwrite) as workspace:
        parts = list(source.parts(rows))
        done = {p.index: held.report for p in parts if (held := read_part(workspace.folder, p.index)) is not None}
        resumed = so_far = sum(count for count, _ in done.values())

        def kept() -> str:
            there = [read_part(workspace.folder, part.index) for part in parts]
            rows = sum(part.rows for part in there if part is not None)
            return f"{workspace.folder} keeps {rows} finished rows; the same command goes on from there"

        with kept_when_stopped(kept):
            missing = [part for part in parts if part.index not in done]
            units = [list(some) for _, some in groupby(missing, key=lambda part: part.unit)]
            for index, report in run(Job(predictor, workspace.folder, size), source, units):
                done[index], so_far = report, so_far + report[0]
                if progress is not None:
                    progress(so_far, source.total)
        if identity(files) != depends_on["data"]:
            workspace.remove()
            raise InputError(f"{named} changed while it was read; expected files that stay as they are: predict again")
        whole = Parts(workspace.folder, [done[part.index][0] for part in parts])
        bad, first_reason = sum(count for _, count in done.values()), ""
        if bad:
            with workspace.written(bad_file, overwrite) as stream:
                first_reason = whole.write_bad(stream)
        elif overwrite:
            bad_file.unlink(missing_ok=True)
        if bad == so_far:
            workspace.remove()
            if not so_far:
                raise InputError(f"{named} has no rows; expected at least one")
            raise InputError(f"all {so_far} rows of {named} are bad, see {bad_file}; the first: {first_reason}")
        with workspace.written(target, overwrite) as stream:
            whole.write(stream, target.suffix)
        workspace.remove()
    seconds = time.perf_counter() - started
    return BulkResult(target, bad_file if bad else None, so_far, bad, first_reason, resumed, seconds)
