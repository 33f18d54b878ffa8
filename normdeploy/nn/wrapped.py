"""Tensors that a transform of torch.func (vmap, grad and kin) wraps while it runs a function."""

from __future__ import annotations

import torch
from torch import Tensor


def is_wrapped(tensor: Tensor) -> bool:
    """Tell whether a tensor is one that lies nowhere in memory: a part of what is mapped over, say."""
    if tensor.layout is not torch.strided:
        return False
    try:
        tensor.untyped_storage()
    except NotImplementedError:  # torch has no public question
        return True
    return False
