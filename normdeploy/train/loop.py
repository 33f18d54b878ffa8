"""The training loop."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from normdeploy.nn.hidden import load_full_state, move, set_mode, trainable
from normdeploy.nn.inference import leave_inference
from normdeploy.nn.population import Recalibrated
from normdeploy.nn.sync import plain, synchronized
from normdeploy.recipe import TrainSection
from normdeploy.train.data import Splits
from normdeploy.train.history import History
from normdeploy.train.progress import TrainingProgress
from normdeploy.train.run import Run
from normdeploy.train.score import Score, score
from normdeploy.train.weights import save_weights
from normdeploy.train.world import World, joined_world


@dataclass(frozen=True)
class TrainResult:
    """A trained model and how it became one.

    Args:
        model: on the CPU, in evaluation mode, with the tensors of the best epoch; ready to export.
        history: every epoch.
        valid: score of the kept epoch on the validation data.
        test: score of the kept epoch on the test data.
        seconds: time of all epochs.
        resumed_at: epochs that an interrupted run had done already.
        device: where it was trained.
        processes: how many trained together.
        recalibrated: each normalization whose running statistics were replaced by population statistics.
    """

    model: nn.Module
    history: History
    valid: Score
    test: Score
    seconds: float
    resumed_at: int
    device: str
    processes: int
    recalibrated: list[Recalibrated]

    def metadata(self) -> dict[str, str]:
        """Return what is written beside the weights, all strings (the safetensors header holds nothing else)."""
        return {
            "test_accuracy": f"{self.test.accuracy:.4f}",
            "test_loss": f"{self.test.loss:.6f}",
            "test_count": str(self.test.count),
            "valid_accuracy": f"{self.valid.accuracy:.4f}",
            "epochs": str(len(self.history.epochs)),
            "kept_epoch": str(self.history.best.number),
            "seconds": f"{self.seconds:.1f}",
            "device": self.device,
            "processes": str(self.processes),
            "torch": torch.__version__,
            **({"recalibrated": self._recalibration()} if self.recalibrated else {}),
        }

    def _recalibration(self) -> str:
        furthest = max(self.recalibrated, key=lambda row: row.mean_distance)
        return (
            f"{len(self.recalibrated)} normalizations; the running means were off by up to "
            f"{furthest.mean_distance:.3f} deviations ({furthest.path})"
        )


def fit(
    model: nn.Module | Callable[[], nn.Module],
    splits: Splits,
    settings: TrainSection | None = None,
    *,
    device: str = "auto",
    weights: str | os.PathLike[str] | None = None,
    history: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    metadata: Mapping[str, str] | None = None,
    show: bool = True,
) -> TrainResult:
    """Train ``model``; keep the epoch with the lowest validation loss.

    Under torchrun all processes train together: each batch is shared between them, statistics of stock and own
        BatchNorms are
    those of the whole batch, the first process writes the files.

    Args:
        model: the network, or what builds it (then ``settings.seed`` decides its initial weights too). Hand-written
            normalizations in plain Python classes are trained, moved, switched and saved like everything else.
        splits: the data.
        settings: see `normdeploy.recipe.TrainSection`.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:NUMBER"``.
        weights: where to write the trained weights (an existing file is replaced).
        history: where to write the epochs as JSON; a plot is drawn beside it (``.png``). Existing files are replaced.
        checkpoint: where the state is kept after each epoch; a later call with the same model, data and settings goes
            on from there. It is deleted at the end.
        metadata: further strings for the header of the weights.
        show: draw a progress bar.

    Raises:
        UsageError: a setting, the device or the checkpoint is unusable.
        ModelError: there is nothing to train, or the loss is no longer a finite number.
    """
    settings = settings or TrainSection()
    with joined_world(device) as world:
        torch.manual_seed(settings.seed)
        network = model if isinstance(model, nn.Module) else model()
        leave_inference(network)
        move(network, world.device)
        if world.size > 1:
            synchronized(network)
        run = Run(network, splits, settings, world)
        if checkpoint is not None:
            if world.first:
                _remove_torn(Path(checkpoint))
            run.resume(checkpoint)
        resumed_at = run.epochs_done
        _epochs(run, checkpoint, show=show and world.first)
        result = _finish(run, resumed_at)
    if world.first:
        name = type(network).__name__
        if weights is not None:
            described = {
                **result.metadata(),
                "settings": json.dumps(asdict(settings)),
                "model": name,
                **(metadata or {}),
            }
            save_weights(network, weights, metadata=described, overwrite=True)
        if history is not None:
            run.history.save(history, overwrite=True)
            run.history.plot(Path(history).with_suffix(".png"), title=name, overwrite=True)
        if checkpoint is not None:
            Path(checkpoint).unlink(missing_ok=True)
    return result


def _epochs(run: Run, checkpoint: str | os.PathLike[str] | None, *, show: bool) -> None:
    """Train epoch after epoch, keeping the state after each."""
    steps, done = run.settings.epochs * run.steps_per_epoch, run.epochs_done * run.steps_per_epoch
    with TrainingProgress(type(run.model).__name__, steps, done=done, shown=show) as progress:
        while run.epochs_done < run.settings.epochs and not run.out_of_patience():
            progress.epoch(run.epoch(progress.step))
            if checkpoint is not None and run.world.first:
                run.keep(checkpoint)


def _finish(run: Run, resumed_at: int) -> TrainResult:
    """Take the best epoch's tensors, put plain modules back, recalibrate if asked, judge, and come home to the CPU."""
    network, world = run.model, run.world
    load_full_state(network, run.best_state)
    if world.size > 1:
        plain(network)
    recalibrated = run.recalibrate() if run.settings.recalibrate else []
    valid = score(network, run.valid, run.splits.task)
    test = score(network, run.splits.test.to(world.device), run.splits.task)
    for _, tensor in trainable(network):
        tensor.grad = None
    move(network, "cpu")
    set_mode(network, training=False)
    return TrainResult(
        network,
        run.history,
        valid,
        test,
        seconds=run.history.seconds,
        resumed_at=resumed_at,
        device=_device_name(world),
        processes=world.size,
        recalibrated=recalibrated,
    )


def _device_name(world: World) -> str:
    return torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu"


def _remove_torn(checkpoint: Path) -> None:
    """Delete what a killed process was writing beside ``checkpoint``."""
    for torn in checkpoint.parent.glob(f".{checkpoint.name}.*.part*"):
        torn.unlink(missing_ok=True)
