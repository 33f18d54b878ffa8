"""Where a training runs and in which precision: one process, or as many as torchrun started."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from normdeploy.errors import UsageError
from normdeploy.train.data import Split


def choose_device(name: str = "auto") -> torch.device:
    """Return the device called ``"auto"`` (a GPU where there is one), ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Raises:
        UsageError: the name is none of these, or there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in {"cpu", "cuda"} or (number and not number.isdecimal()):
        raise UsageError(f"device {name!r}; expected auto, cpu, cuda or cuda:NUMBER: correct --device")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"device {name!r}, but torch {torch.__version__} sees {torch.cuda.device_count()} GPUs; "
            "expected one that is there: use --device auto"
        )
    return torch.device(name)


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products and convolutions; weights and optimizer stay float32.

    Args:
        name: ``"float32"``, ``"bfloat16"``, ``"float16"``; or ``"auto"``: bfloat16 on a GPU that has it, float16 on
            other GPUs, float32 on CPU.
        device: where the training runs.

    Raises:
        UsageError: float16 on CPU, whose range is too small to train in without loss scaling, which is for GPUs.
    """
    if name == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    if name == "float16" and device.type != "cuda":
        raise UsageError(
            "[train] precision = 'float16' on CPU; expected float32 or bfloat16 there: use precision = 'auto'"
        )
    dtype: torch.dtype = getattr(torch, name)
    return dtype


@dataclass(frozen=True)
class World:
    """This process among those that train together.

    Args:
        rank: its number, from 0; the first one writes files and shows progress.
        size: how many there are.
        device: where this one computes.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and shows."""
        return self.rank == 0

    def share(self, batch: Split) -> Split:
        """Return this process's rows of a batch: every ``size``-th one."""
        if self.size == 1:
            return batch
        return Split(batch.inputs[self.rank :: self.size], batch.targets[self.rank :: self.size])

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of ``value`` over all processes (a collective call)."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def add_gradients(self, tensors: Sequence[Tensor]) -> None:
        """Replace each gradient by its sum over all processes, in one collective call."""
        if self.size == 1:
            return
        gradients = [t.grad if t.grad is not None else torch.zeros_like(t) for t in tensors]
        flat = self.total(torch.cat([g.flatten() for g in gradients]))
        for tensor, part in zip(tensors, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            tensor.grad = part.view_as(tensor)

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the first one's values (hand-written running statistics differ between them)."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)


@contextmanager
def joined_world(device: str = "auto") -> Iterator[World]:
    """Join the processes that torchrun started (gloo on CPU, nccl on GPU), or be alone; leave them at the end.

    Args:
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:NUMBER"``; of many processes each takes the GPU of its
            local number.

    Raises:
        UsageError: the device is not there, or the environment of torchrun is incomplete.
    """
    if dist.is_available() and dist.is_initialized():  # somebody else's group: use it, leave it
        yield World(dist.get_rank(), dist.get_world_size(), _local_device(device))
        return
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(0, 1, choose_device(device))
        return
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UsageError(
            f"WORLD_SIZE is {size} but {', '.join(missing)} is not set; expected the environment of torchrun: start "
            "with torchrun"
        )
    where = _local_device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    # Its functions keep the group there is at their import as a default argument, and torch.optim imports it late: then
    # the group outlives destroy_process_group, and its threads abort the process at its exit, now and then.
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), where)
    finally:
        dist.destroy_process_group()


def _local_device(device: str) -> torch.device:
    chosen = choose_device(device)
    number: int | None = chosen.index  # torch's stubs forget that there may be none
    if chosen.type == "cuda" and number is None:
        return choose_device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
    return chosen
