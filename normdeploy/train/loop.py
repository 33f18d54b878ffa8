"""The training loop."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from normdeploy.errors import kept_when_stopped
from normdeploy.nn.inference_tensors import leave_inference
from normdeploy.nn.population import Recalibrated
from normdeploy.nn.sync import plain, synchronized
from normdeploy.nn.unregistered import load_full_state, move, set_mode, trainable
from normdeploy.parsing.recipe import TrainSection
from normdeploy.train import provenance
from normdeploy.train.data import Splits
from normdeploy.train.history import History
from normdeploy.train.progress_bar import TrainingProgress
from normdeploy.train.score import Score, score
from normdeploy.train.trained_weights import save_weights
from normdeploy.train.training_run import Run
from normdeploy.train.world import World, joined_world
from normdeploy.unfinished import clear_dead


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
    again: bool = False,
    parts: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
    show: bool = True,
) -> TrainResult:
    """Train ``model``; keep the epoch with the lowest validation loss.

    Under torchrun all processes train together: each batch is shared between them, statistics of stock and own
    BatchNorms are those of the whole batch, the first process writes the files.

    Args:
        model: the network, or what builds it (then ``settings.seed`` decides its initial weights too). Hand-written
            normalizations in plain Python classes are trained, moved, switched and saved like everything else.
        splits: the data.
        settings: see `normdeploy.parsing.recipe.TrainSection`.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:NUMBER"``.
        weights: where to write the trained weights (an existing file is replaced).
        history: where to write the epochs as JSON; a plot is drawn beside it (``.png``). Existing files are replaced.
        checkpoint: where the state is kept after each epoch; a later call with the same code, data and settings goes
            on from there, one with others is refused. It is deleted at the end.
        again: with other code, data or settings than the checkpoint's, train from the start.
        parts: what decides the result beyond the network, its code, the data and the settings, by name.
        metadata: further strings for the header of the weights.
        show: draw a progress bar.

    Raises:
        UsageError: a setting or the device is unusable, or the checkpoint belongs to another training.
        ModelError: there is nothing to train, or the loss is no longer a finite number.

    >>> import torch
    >>> from normdeploy.parsing.recipe import TrainSection
    >>> from normdeploy.train.data import Split, Splits
    >>> x = torch.randn(32, 3)
    >>> split = Split(x, (x[:, 0] > 0).long())
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2))
    >>> result = fit(net, Splits(split, split, split), TrainSection(epochs=2), device="cpu", show=False)
    >>> len(result.history.epochs)
    2
    """
    settings = settings or TrainSection()
    with joined_world(device) as world:
        torch.manual_seed(settings.seed)
        network = model if isinstance(model, nn.Module) else model()
        leave_inference(network)
        move(network, world.device)
        if world.size > 1:
            synchronized(network)
        decides = {
            **provenance.of_network(network, model, splits),
            **provenance.of_data(splits),
            **provenance.of_settings(settings),
            **(parts or {}),
        }
        run = Run(network, splits, settings, world, decides)
        if checkpoint is not None:
            if world.first:
                clear_dead(Path(checkpoint))
            run.resume(checkpoint, again=again)
        resumed_at = run.epochs_done
        run_epochs(run, checkpoint, show=show and world.first)
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


def run_epochs(run: Run, checkpoint: str | os.PathLike[str] | None, *, show: bool) -> None:
    """Train epoch after epoch, keeping the state after each."""
    steps, done = run.settings.epochs * run.steps_per_epoch, run.epochs_done * run.steps_per_epoch
    with TrainingProgress(type(run.model).__name__, steps, done=done, shown=show) as progress:
        if run.world.size > 1 and (paths := _draws_by_itself(run.model)):
            progress.note(
                f"{', '.join(paths[:3])}{' and others' if len(paths) > 3 else ''}: each of the {run.world.size} "
                "processes draws its own dropout, so this training ends in other weights than one process's"
            )
        with kept_when_stopped(lambda: _kept(run, checkpoint)):
            while run.epochs_done < run.settings.epochs and not run.out_of_patience():
                progress.epoch(run.epoch(progress.step))
                if checkpoint is not None and run.world.first:
                    run.keep(checkpoint)


def _kept(run: Run, checkpoint: str | os.PathLike[str] | None) -> str:
    if checkpoint is None or not Path(checkpoint).is_file():
        return "no epoch was finished and nothing is kept"
    return f"{checkpoint} keeps {run.epochs_done} of {run.settings.epochs} epochs; the same command goes on from there"


def _draws_by_itself(model: nn.Module) -> list[str]:
    """Return the paths of dropouts that drop something."""
    kinds = nn.modules.dropout._DropoutNd
    return [path for path, module in model.named_modules() if isinstance(module, kinds) and module.p > 0]


def _finish(run: Run, resumed_at: int) -> TrainResult:
    """Take the best epoch's tensors, recalibrate if asked, put plain modules back, judge, and come home to the CPU."""
    network, world = run.model, run.world
    load_full_state(network, run.best_state)
    # before the plain modules are back: the pass shall normalize with whole batches, as training did
    recalibrated = run.recalibrate() if run.settings.recalibrate else []
    if world.size > 1:
        plain(network)
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
