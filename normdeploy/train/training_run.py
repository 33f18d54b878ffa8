"""One training between its epochs: the network, the optimizer, what was reached."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from normdeploy.errors import ModelError, UsageError
from normdeploy.nn.population import Recalibrated, recalibrate
from normdeploy.nn.unregistered import full_state, load_full_state, set_mode, trainable
from normdeploy.parsing.recipe import TrainSection
from normdeploy.train.checkpoint import Checkpoint
from normdeploy.train.data import Split, Splits, batches
from normdeploy.train.history import Epoch, History
from normdeploy.train.optimizer import learning_rate, make_optimizer
from normdeploy.train.provenance import Parts
from normdeploy.train.score import loss_of, score
from normdeploy.train.world import World, choose_precision


class Run:
    """State of one training.

    Args:
        model: on the world's device; its BatchNorms synchronized where there are many processes.
        splits: the data.
        settings: how to train.
        world: the processes that train together.
        parts: what decides the result (`normdeploy.train.provenance`).

    Raises:
        ModelError: the model has nothing to train.
        UsageError: the precision is not for this device.
    """

    def __init__(self, model: nn.Module, splits: Splits, settings: TrainSection, world: World, parts: Parts) -> None:
        self.model, self.splits, self.settings, self.world = model, splits, settings, world
        self.parts = parts | {"processes": str(world.size)}
        self.train_data, self.valid = splits.train.to(world.device), splits.valid.to(world.device)
        self.tensors = [tensor for _, tensor in trainable(model)]
        if not self.tensors:
            raise ModelError(f"{type(model).__name__} has no tensor with requires_grad; expected something to train")
        self.optimizer = make_optimizer(self.tensors, settings)
        self.precision = choose_precision(settings.precision, world.device)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self.precision == torch.float16)
        # batch statistics need two samples in each process: a smaller last batch is left out
        self.least = 2 * world.size
        if settings.batch_size < self.least:
            raise UsageError(
                f"[train] batch_size = {settings.batch_size} for {world.size} processes; expected at least two samples "
                "each: "
                "raise it"
            )
        whole, rest = divmod(len(splits.train), settings.batch_size)
        self.steps_per_epoch = whole + (rest >= self.least)
        if self.steps_per_epoch == 0:
            raise ModelError(
                f"{len(splits.train)} training samples for {world.size} processes; expected at least two each"
            )
        self.history = History()
        self.epochs_done = 0
        self.best_state: dict[str, Tensor] = {}

    def resume(self, path: str | os.PathLike[str], *, again: bool) -> None:
        """Go on from the checkpoint at ``path`` where there is one.

        Raises:
            UsageError: it belongs to another training, and ``again`` (train from the start then) is false.
        """
        held = Checkpoint.load(path, self.parts, again=again)
        if held is None:
            return
        try:
            load_full_state(self.model, held.state)
            self.optimizer.load_state_dict(held.optimizer)
            self.scaler.load_state_dict(held.scaler)
            self.history = History.from_json(held.history)
        except (KeyError, ValueError, TypeError, RuntimeError, AttributeError) as error:
            raise UsageError(
                f"{path} holds no whole state of this training ({error}); expected what normdeploy wrote: delete it, "
                "or train from the start (normdeploy train --again, fit(..., again=True)), which replaces it"
            ) from error
        self.epochs_done, self.best_state = held.epochs_done, held.best_state

    def keep(self, path: str | os.PathLike[str]) -> None:
        """Write the checkpoint."""
        Checkpoint(
            parts=self.parts,
            epochs_done=self.epochs_done,
            state={key: value.cpu() for key, value in full_state(self.model).items()},
            best_state=self.best_state,
            optimizer=self.optimizer.state_dict(),
            scaler=self.scaler.state_dict(),
            history=self.history.to_json(),
        ).save(path)

    def out_of_patience(self) -> bool:
        """Tell whether the validation loss has not improved for ``patience`` epochs."""
        patience = self.settings.patience
        return bool(patience and self.history.epochs and self.epochs_done - self.history.best.number >= patience)

    def epoch(self, on_step: Callable[[float], None]) -> Epoch:
        """Train one epoch, validate, remember the tensors if they are the best so far."""
        began = time.perf_counter()
        # seeded per epoch: a resumed run draws what the uninterrupted one would have drawn. All processes draw the same
        # order and the same augmentation, each its own dropout
        seed = (self.settings.seed * 1_000_003 + self.epochs_done) * 1009
        torch.manual_seed(seed + self.world.rank)
        generator = torch.Generator().manual_seed(seed)
        set_mode(self.model, training=True)
        losses, rate = [], 0.0
        for number, batch in enumerate(
            batches(self.train_data, self.settings.batch_size, generator, at_least=self.least)
        ):
            rate = learning_rate(
                self.epochs_done * self.steps_per_epoch + number,
                self.settings.epochs * self.steps_per_epoch,
                peak=self.settings.lr,
                warmup=self.settings.warmup,
            )
            losses.append(self._step(batch, rate, generator))
            on_step(losses[-1])
        self.world.agree(full_state(self.model).values())
        reached = score(self.model, self.valid, self.splits.task)
        self.epochs_done += 1
        seconds = time.perf_counter() - began
        epoch = Epoch(self.epochs_done, sum(losses) / len(losses), reached.loss, reached.accuracy, rate, seconds)
        self.history.epochs.append(epoch)
        if self.history.best is epoch:
            self.best_state = {key: value.cpu().clone() for key, value in full_state(self.model).items()}
        return epoch

    def _step(self, batch: Split, rate: float, generator: torch.Generator) -> float:
        """Take one step with ``batch``, of which this process computes its share; return the whole batch's loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        mine = self.world.share(self._augmented(batch, generator))
        with torch.autocast(self.world.device.type, self.precision, enabled=self.precision != torch.float32):
            output = self.model(mine.inputs)
        loss = loss_of(self.splits.task, output, mine.targets, label_smoothing=self.settings.label_smoothing)
        # shares may differ by a row: weighted so, the sum over processes is the mean over the batch
        loss = loss * (len(mine) / len(batch))
        value = float(self.world.total(loss.detach().clone()))
        if not math.isfinite(value):
            raise ModelError(
                f"the training loss is {value} in epoch {self.epochs_done + 1}; expected a finite number: "
                "lower lr, raise warmup or check the data"
            )
        for tensor in self.tensors:
            tensor.grad = None
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
        self.world.add_gradients(self.tensors)
        self.scaler.unscale_(self.optimizer)
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.tensors, self.settings.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return value

    def recalibrate(self) -> list[Recalibrated]:
        """Replace running statistics by those of all training data, each process passing its share of it."""
        size = self.settings.batch_size
        # no process may get a batch without statistics, and no sample shall be left out
        while 0 < len(self.train_data) % size < self.least:
            size += 1
        # as training saw the data: statistics of images that were never shifted belong to another network
        generator = torch.Generator().manual_seed(self.settings.seed)
        whole = (self._augmented(batch, generator) for batch in batches(self.train_data, size))
        return recalibrate(self.model, (self.world.share(batch).inputs for batch in whole))

    def _augmented(self, batch: Split, generator: torch.Generator) -> Split:
        augment = self.splits.augment
        return batch if augment is None else Split(augment(batch.inputs, generator), batch.targets)
