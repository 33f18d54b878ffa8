"""What a verdict was made with: versions, processor, digests."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch
from torch import nn
from torch.utils import _pytree as pytree

from normdeploy.nn.as_numpy import to_numpy
from normdeploy.ort.machine import this_machine
from normdeploy.ort.settings import WEB
from normdeploy.verification.sides.sessions import Setting
from normdeploy.web.host import current_host


def environment(settings: Sequence[Setting] = ()) -> dict[str, Any]:
    """Return versions and processor facts as plain data.

    Args:
        settings: under which the file ran; a browser's and its runtime's versions belong to those in one.
    """
    machine = this_machine()
    elsewhere = current_host().versions if any(setting.provider == WEB for setting in settings) else {}
    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "onnx": onnx.__version__,
            "onnx_ir": ir.__version__,
            "onnxruntime": ort.__version__,
            "numpy": np.__version__,
            **elsewhere,
        },
        "platform": platform.platform(),
        "processor": {"name": machine.processor, "features": list(machine.instructions), "cores": machine.cores},
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
