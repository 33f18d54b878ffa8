"""The pipeline of Ray Data: parts are read by its tasks, predicted by a pool of its actors, written by its tasks.

Each step is the local engine's own. A step that dies is repeated by Ray, and a part written twice is the same file: it
appears whole or not at all. All workers must see the same files.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from normdeploy.errors import InputError, MissingDependencyError, NormdeployError, UsageError
from normdeploy.ort.machine import usable_cores
from normdeploy.ort.settings import CUDA, TENSORRT, Settings
from normdeploy.runtime.bulk.source import Part
from normdeploy.runtime.bulk.work import Job, Report

_PART, _ROWS = "part", "rows"  # columns that say which part a block is, and how many rows it must have

_TASKS = 1000


def actor_options(settings: Settings, workers: int | None, cores: int, gpus: int) -> dict[str, Any]:
    """Return how many actors there are ("size") and what each asks for.

    An actor on a GPU asks for one, which is then the only device it sees; others ask for one core.

    Args:
        settings: how the model is run.
        workers: how many were asked for; by default as many as there are cores, or GPUs, to give.
        cores, gpus: what there is.

    Raises:
        UsageError: the model runs on a GPU and there is none.
    """
    if settings.provider not in (CUDA, TENSORRT):
        return {"size": workers or max(1, cores), "num_cpus": 1}
    if not gpus:
        raise UsageError(
            f"the model runs on {settings.provider} and Ray has no GPU; expected one: use a cluster with GPUs"
        )
    return {"size": min(workers or gpus, gpus), "num_cpus": 1, "num_gpus": 1}


class PartPredictor:
    """One actor: a Predictor and what to do with it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, block: pa.Table) -> pa.Table:
        """Predict a part."""
        return _labelled(self._job.predict(block), *_labels(block))


def write_part(block: pa.Table, job: Job) -> pa.Table:
    """Write a part's results and return what is to be told of it."""
    part, rows = _labels(block)
    if block.num_rows != rows:
        raise InputError(f"part {part} came as {block.num_rows} rows; expected all {rows}: Ray split it, report this")
    report = job.write(part, block.drop_columns([_PART, _ROWS]))
    return pa.table({_PART: [part], "rows": [report.rows], "bad": [report.bad]})


def _labels(block: pa.Table) -> tuple[int, int]:
    return block.column(_PART)[0].as_py(), block.column(_ROWS)[0].as_py()


def _labelled(block: pa.Table, part: int, rows: int) -> pa.Table:
    for name, value in ((_PART, part), (_ROWS, rows)):
        block = block.append_column(name, pa.array(np.full(block.num_rows, value)))
    return block


def _read(source: Any, units: Sequence[Sequence[Part]]) -> Iterator[pa.Table]:
    """Read units in a task of Ray; ``source`` is a reference to it, one for all tasks."""
    import ray

    for parts in units:
        for part, rows in zip(parts, ray.get(source).read(parts), strict=True):
            yield _labelled(rows, part.index, rows.num_rows)


def run_on_ray(job: Job, units: Sequence[Sequence[Part]], workers: int | None) -> Iterator[tuple[int, Report]]:
    """Yield number and report of finished parts, in any order.

    Connects to the running cluster, or starts one on this machine and stops it afterwards.

    Args:
        job: what to do; threads inside one operator are set to 1 where the settings leave them open, because the
            actors already fill the cores.
        units: which parts, by unit.
        workers: how many actors; see :func:`actor_options`.

    Raises:
        MissingDependencyError: ray[data] is not installed.
    """
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "engine 'ray' needs ray[data], which is not installed; "
            "expected the extra 'ray': pip install 'normdeploy[ray]'"
        ) from error
    if not units:
        return
    if not job.predictor.settings.threads:
        predictor = job.predictor.with_settings(dataclasses.replace(job.predictor.settings, threads=1))
        job = dataclasses.replace(job, predictor=predictor)
    started = not ray.is_initialized()
    if started:
        # it calls the plain fact that an actor's arguments lie in the object store an error; real ones are raised
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        cores = (workers or usable_cores()) + 1  # one for reading and writing
        ray.init(num_cpus=cores, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    chatter, context = logging.getLogger("ray.data"), ray.data.DataContext.get_current()
    before = chatter.level, context.enable_progress_bars, context.target_max_block_size
    chatter.setLevel(logging.ERROR)  # a plan and a time for each run, and that bars are off
    context.enable_progress_bars, context.target_max_block_size = False, None  # a part is a block
    try:
        there = ray.cluster_resources()
        options = actor_options(job.predictor.settings, workers, int(there.get("CPU", 1)) - 1, int(there.get("GPU", 0)))
        pool = ray.data.ActorPoolStrategy(size=min(options.pop("size"), sum(map(len, units))))
        blocks = ray.data.read_datasource(_datasource(ray.put(job.source), units), override_num_blocks=len(units))
        plain: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
        results = blocks.map_batches(PartPredictor, fn_constructor_args=(job,), compute=pool, **plain, **options)
        undone = {part.index for parts in units for part in parts}
        for row in results.map_batches(write_part, fn_args=(job,), **plain).iter_rows():
            undone.discard(row[_PART])
            yield row[_PART], Report(row["rows"], row["bad"])
        for part in [
            part for parts in units for part in parts if part.index in undone
        ]:  # Ray drops blocks without rows
            yield part.index, job.write(part.index, job.predict(next(job.source.read([part]))))
    except ray.exceptions.RayError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, NormdeployError):
            cause = getattr(cause, "cause", None) or cause.__cause__
        raise cause or error from None
    finally:
        chatter.level, context.enable_progress_bars, context.target_max_block_size = before
        if started:
            ray.shutdown()


def _datasource(source: Any, units: Sequence[Sequence[Part]]) -> Any:
    """Return a data source of Ray Data, which makes its tasks from units."""
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    class Units(Datasource):  # type: ignore[misc] # ray is optional: its classes have no type here
        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[Any]:
            each = -(-len(units) // min(parallelism, _TASKS))
            unknown = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None)
            return [
                ReadTask(partial(_read, source, units[at : at + each]), unknown) for at in range(0, len(units), each)
            ]

        def estimate_inmemory_data_size(self) -> int | None:
            return None

    return Units()
