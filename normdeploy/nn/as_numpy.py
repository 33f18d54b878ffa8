"""A tensor's values on the host."""

from __future__ import annotations

import onnx_ir as ir
import torch

from normdeploy.array_types import Array


def to_numpy(tensor: torch.Tensor) -> Array:
    """Return a tensor's values as an array on the host; bfloat16 and float8 as their ml_dtypes types."""
    host = tensor.detach().cpu().contiguous()
    try:
        return host.numpy()
    except TypeError:  # a dtype numpy itself does not have
        return ir.tensor(host).numpy()
