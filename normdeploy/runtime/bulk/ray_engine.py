"""The pipeline of Ray Data: units are read by its tasks, predicted by a pool of its actors, written by its tasks.

Each step is the local engine's own. A row of Ray's is a part, packed: Ray can neither split it nor join it to another.
A step that dies is repeated by Ray, and a part written twice is the same file: it appears whole or not at all. All
workers must see the same files.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
from collections.abc import Iterator
from typing import Any

from normdeploy.errors import MissingDependencyError, NormdeployError, UsageError
from normdeploy.ort.machine import usable_cores
from normdeploy.ort.settings import CUDA, TENSORRT, Settings
from normdeploy.runtime.bulk.predict_part import Job, Report
from normdeploy.runtime.bulk.source import Part, Source

_TASKS = 1000

Row = dict[str, Any]


def actor_options(settings: Settings, workers: int | None, cores: int, gpus: int) -> dict[str, Any]:
    """Return how many actors there are ("size") and what each asks for.

    An actor on a GPU asks for one, which is then the only device it sees; others ask for one core.

    Args:
        settings: how the model is run.
        workers: how many were asked for; no more than there are cores, or GPUs, to give, which is the default.
        cores, gpus: what there is.

    Raises:
        UsageError: the model runs on a GPU and there is none.
    """
    if settings.provider not in (CUDA, TENSORRT):
        return {"size": max(1, min(workers or cores, cores)), "num_cpus": 1}
    if not gpus:
        raise UsageError(
            f"the model runs on {settings.provider} and Ray has no GPU; expected one: use a cluster with GPUs"
        )
    return {"size": min(workers or gpus, gpus), "num_cpus": 1, "num_gpus": 1}


def _read(row: Row, work: Any) -> Iterator[Row]:
    """Read the parts of a unit; ``work`` is a reference to source and units, one for all tasks."""
    import ray

    source, units = ray.get(work)
    for part, block in zip(units[row["unit"]], source.read(units[row["unit"]]), strict=True):
        yield _packed(part, block)


class PartPredictor:
    """One actor: a Predictor and what to do with it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, row: Row) -> Row:
        """Predict a part."""
        part, block = pickle.loads(row["packed"])
        return _packed(part, self._job.predict(block))


def _write(row: Row, job: Job) -> Row:
    """Write a part's results and return what is to be told of it."""
    part, results = pickle.loads(row["packed"])
    index, (rows, bad) = job.write(part, results)
    return {"part": index, "rows": rows, "bad": bad}


def _packed(*values: Any) -> Row:
    return {"packed": pickle.dumps(values, protocol=5)}


def run_on_ray(job: Job, source: Source, units: list[list[Part]], workers: int | None) -> Iterator[tuple[int, Report]]:
    """Yield number and report of finished parts, in any order.

    Connects to the cluster that RAY_ADDRESS names or that this machine belongs to, or starts one here for the run.

    Args:
        job: what to do; threads inside one operator are set to 1 where the settings leave them open, because the
            actors already fill the cores.
        source: the rows.
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
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
        try:
            ray.init("auto", **quiet)
        except ConnectionError:  # no cluster runs here, and RAY_ADDRESS names none
            cores = (workers or usable_cores()) + 1  # one for reading and writing
            ray.init("local", num_cpus=cores, include_dashboard=False, **quiet)
    chatter, context = logging.getLogger("ray.data"), ray.data.DataContext.get_current()
    before = chatter.level, context.enable_progress_bars, context.target_max_block_size
    chatter.setLevel(logging.ERROR)  # a plan and a time for each run, and that bars are off
    context.enable_progress_bars, context.target_max_block_size = False, 1  # each row goes on as soon as it is there
    try:
        there = ray.cluster_resources()
        options = actor_options(job.predictor.settings, workers, int(there.get("CPU", 1)) - 1, int(there.get("GPU", 0)))
        pool = ray.data.ActorPoolStrategy(size=min(options.pop("size"), sum(map(len, units))))
        rows = ray.data.from_items(
            [{"unit": at} for at in range(len(units))], override_num_blocks=min(len(units), _TASKS)
        )
        rows = rows.flat_map(_read, fn_args=(ray.put((source, units)),))
        rows = rows.map(PartPredictor, fn_constructor_args=(job,), compute=pool, **options)
        for row in rows.map(_write, fn_args=(job,)).iter_rows():
            yield row["part"], (row["rows"], row["bad"])
    except ray.exceptions.RayError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, NormdeployError):
            cause = getattr(cause, "cause", None) or cause.__cause__
        raise cause or error from None
    finally:
        chatter.level, context.enable_progress_bars, context.target_max_block_size = before
        if started:
            ray.shutdown()
