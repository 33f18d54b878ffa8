"""What happened in each epoch: JSON, and a plot."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field

from normdeploy.files import write_text, written_whole


@dataclass(frozen=True)
class Epoch:
    """One pass over the training data.

    Args:
        number: from 1.
        train_loss: mean over the steps, with augmentation and dropout as they were.
        valid_loss: on the validation data, in evaluation mode.
        valid_accuracy: see :class:`normdeploy.train.score.Score`.
        lr: learning rate of the last step.
        seconds: how long it took, validation included.
    """

    number: int
    train_loss: float
    valid_loss: float
    valid_accuracy: float
    lr: float
    seconds: float


@dataclass
class History:
    """All epochs of a training, in order."""

    epochs: list[Epoch] = field(default_factory=list)

    @property
    def best(self) -> Epoch:
        """The epoch of the lowest validation loss (the earliest of equals)."""
        return min(self.epochs, key=lambda epoch: epoch.valid_loss)

    @property
    def seconds(self) -> float:
        """Time of all epochs together, interruptions not counted."""
        return sum(epoch.seconds for epoch in self.epochs)

    def to_json(self) -> str:
        """Return ``{"schema": 1, "epochs": [...]}``."""
        return json.dumps({"schema": 1, "epochs": [asdict(epoch) for epoch in self.epochs]}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> History:
        """Read what :meth:`to_json` wrote."""
        return cls([Epoch(**row) for row in json.loads(text)["epochs"]])

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the JSON, whole or not at all."""
        write_text(path, self.to_json(), overwrite=overwrite)

    def plot(self, path: str | os.PathLike[str], *, title: str = "", overwrite: bool = False) -> None:
        """Draw losses and validation accuracy over the epochs (PNG, SVG or PDF by suffix)."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3.2), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        numbers = [epoch.number for epoch in self.epochs]
        left.plot(numbers, [epoch.train_loss for epoch in self.epochs], label="training")
        left.plot(numbers, [epoch.valid_loss for epoch in self.epochs], label="validation")
        left.axvline(self.best.number, color="grey", linewidth=0.8, linestyle=":", label="kept")
        left.set(xlabel="epoch", ylabel="loss", yscale="log")
        left.legend()
        right.plot(numbers, [epoch.valid_accuracy for epoch in self.epochs])
        right.set(xlabel="epoch", ylabel="validation accuracy")
        figure.suptitle(title)
        with written_whole(path, overwrite=overwrite) as temporary:
            figure.savefig(temporary, dpi=150)
