"""How a Triton server shall run a model: instances, GPUs, batching, labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from normdeploy.errors import InputError, UsageError
from normdeploy.ort.specs import TensorSpec


@dataclass(frozen=True)
class Serving:
    """What the server is told beyond the model itself.

    Args:
        instances: how many of it run at once; on GPUs, on each.
        gpus: numbers of the GPUs; empty for all that the server sees. Of a model on the CPU there are none.
        queue_delay: microseconds that a request may wait for others to form a batch with.
        preferred: batch sizes to wait for; empty for whatever has come.
        labels: a text file with one class name per line, for the single output.

    Raises:
        UsageError: a number below its least.
    """

    instances: int = 1
    gpus: tuple[int, ...] = ()
    queue_delay: int = 0
    preferred: tuple[int, ...] = ()
    labels: Path | None = None

    def __post_init__(self) -> None:
        if (
            self.instances < 1
            or self.queue_delay < 0
            or min(self.preferred, default=1) < 1
            or min(self.gpus, default=0) < 0
        ):
            raise UsageError(
                f"instances={self.instances}, gpus={list(self.gpus)}, queue_delay={self.queue_delay}, "
                f"preferred={list(self.preferred)}; expected at least 1 instance, sizes of at least 1 and no negative "
                "numbers: correct them"
            )

    def instance_group(self, *, gpu: bool, device: int) -> str:
        """Return the configuration's instance group.

        Args:
            gpu: the model runs on CUDA.
            device: the GPU that its plan chose.

        Raises:
            UsageError: GPUs for a model on the CPU.
        """
        if self.gpus and not gpu:
            raise UsageError(
                f"gpus={list(self.gpus)} for a model that runs on the CPU here; expected none: package with a plan for "
                "CUDA, or on a machine where CUDA is usable"
            )
        numbers = self.gpus or ((device,) if gpu and device else ())
        chosen = f" gpus: {ints(numbers)}" if numbers else ""
        return f"instance_group [ {{ count: {self.instances} kind: {'KIND_GPU' if gpu else 'KIND_CPU'}{chosen} }} ]"

    def batching(self, *, batched: bool, largest: int) -> list[str]:
        """Return the configuration's dynamic batching, if the model takes batches.

        Args:
            batched: it takes any number of samples.
            largest: the largest batch the server may form.

        Raises:
            UsageError: batching was asked of a model that takes none, or of more samples than the largest batch.
        """
        if not batched:
            if self.preferred or self.queue_delay:
                raise UsageError(
                    f"preferred={list(self.preferred)}, queue_delay={self.queue_delay} for a model that fixes "
                    "its batch; expected neither: export it with a dynamic batch"
                )
            return []
        if max(self.preferred, default=0) > largest:
            raise UsageError(
                f"preferred={list(self.preferred)}, max_batch_size={largest}; expected sizes of at most that: raise "
                "max_batch_size (--max-batch)"
            )
        parts = [f"preferred_batch_size: {ints(self.preferred)}"] if self.preferred else []
        parts += [f"max_queue_delay_microseconds: {self.queue_delay}"] if self.queue_delay else []
        return [f"dynamic_batching {{ {' '.join(parts)} }}" if parts else "dynamic_batching {}"]

    def label_text(self, outputs: tuple[TensorSpec, ...]) -> str | None:
        """Return the labels, one per line; None without.

        Raises:
            InputError: the file is missing, or has not one line for each number of the output.
            UsageError: the model has several outputs.
        """
        if self.labels is None:
            return None
        if len(outputs) != 1:
            names = ", ".join(spec.name for spec in outputs)
            raise UsageError(f"labels for a model with the outputs {names}; expected one output: leave the labels out")
        try:
            lines = self.labels.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise InputError(
                f"{self.labels} cannot be read ({why}); expected one class name per line: check the path (--labels)"
            ) from error
        last = outputs[0].shape[-1] if outputs[0].shape else 1
        if isinstance(last, int) and len(lines) != last:
            raise InputError(
                f"{self.labels} has {len(lines)} lines for output {outputs[0]}; expected {last}, one per class"
            )
        return "\n".join(lines) + "\n"


def ints(values: Sequence[int]) -> str:
    """Return numbers as a list of protobuf's text format."""
    return "[" + ", ".join(map(str, values)) + "]"
