"""What a verdict was made with: versions, processor, threads, digests."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch
from torch import nn
from torch.utils import _pytree as pytree

from normdeploy.ort.machine import this_machine
from normdeploy.verification.sides.values import to_numpy


def environment() -> dict[str, Any]:
    """Return versions and processor facts as plain data."""
    machine = this_machine()
    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "onnx": onnx.__version__,
            "onnx_ir": ir.__version__,
            "onnxruntime": ort.__version__,
            "numpy": np.__version__,
        },
        "platform": platform.platform(),
        "processor": {"name": machine.processor, "features": list(machine.instructions), "cores": machine.cores},
        "torch_threads": torch.get_num_threads(),
    }


def module_digest(model: nn.Module) -> str:
    """Return the SHA-256 of a module's state: sorted names, dtypes, shapes and bytes, one tensor at a time."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        for tensor in pytree.tree_leaves(value):  # torch.ao's linear layers keep weight and bias in a tuple
            if not isinstance(tensor, torch.Tensor):
                continue
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
            for part in _parts(tensor):
                digest.update(np.ascontiguousarray(to_numpy(part)).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return a tensor's numbers; of a quantized one integers, steps and zero points."""
    if not tensor.is_quantized:
        return [tensor]
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return [tensor.int_repr(), torch.tensor([tensor.q_scale(), tensor.q_zero_point()], dtype=torch.float64)]
    return [tensor.int_repr(), tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]
