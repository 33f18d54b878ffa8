"""Where a training runs and in which precision."""

from __future__ import annotations

import torch

from normdeploy.errors import UsageError


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
