"""The parts of a run spread over a Ray cluster by Ray Data, one actor per worker (extra: ray).

Ray Data hands part descriptions to a pool of actors; each actor holds one Predictor, reads its own rows and writes its
own part files, so no row travels through the driver. An actor that dies is replaced and its part is made again: parts
appear whole or not at all, and only the driver's journal makes them count. All workers must see the same files.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from normdeploy.errors import MissingDependencyError
from normdeploy.runtime.bulk.journal import PartReport
from normdeploy.runtime.bulk.source import Part
from normdeploy.runtime.bulk.work import Job
from normdeploy.runtime.machine import usable_cores


class PartWorker:
    """One actor: a Predictor and what to do with it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Predict the described parts and return their reports."""
        described = [dict(zip(batch, map(int, values), strict=True)) for values in zip(*batch.values(), strict=True)]
        reports = [dataclasses.asdict(self._job.run(Part(**fields))) for fields in described]
        return {name: np.array([report[name] for report in reports]) for name in reports[0]}


def run_on_ray(job: Job, parts: Sequence[Part], workers: int | None) -> Iterator[PartReport]:
    """Yield the reports of finished parts, in any order.

    Connects to the running cluster, or starts one on this machine and stops it afterwards.

    Args:
        job: what to do; threads inside one operator are set to 1 where the settings leave them open, because the
            workers already fill the cores.
        parts: which parts.
        workers: how many actors; by default one per core this process may use.

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
    if not parts:
        return
    count = min(workers or usable_cores(), len(parts))
    if not job.predictor.settings.threads:
        predictor = job.predictor.with_settings(dataclasses.replace(job.predictor.settings, threads=1))
        job = dataclasses.replace(job, predictor=predictor)
    started = not ray.is_initialized()
    if started:
        # it calls the plain fact that an actor's arguments lie in the object store an error; real ones are raised
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        ray.init(num_cpus=count, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    chatter = logging.getLogger("ray.data")  # a plan and a time for each run, and that bars are off
    level = chatter.level
    chatter.setLevel(logging.ERROR)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        described = ray.data.from_items(
            [dataclasses.asdict(part) for part in parts], override_num_blocks=min(len(parts), 1000)
        )
        reports = described.map_batches(
            PartWorker,
            fn_constructor_args=(job,),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=count),
            num_cpus=1,
        )
        for row in reports.iter_rows():
            yield PartReport(**{name: int(value) for name, value in row.items()})
    finally:
        chatter.setLevel(level)
        if started:
            ray.shutdown()
