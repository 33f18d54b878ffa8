"""What a verdict was made with: versions, processor, threads, digests."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch
from torch import nn
from torch.utils import _pytree as pytree

from normdeploy.verification.sides.values import to_numpy

_FEATURES = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
    "i8mm",
    "sve",
)


def environment() -> dict[str, Any]:
    """Return versions and processor facts as plain data."""
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
        "processor": {"name": _processor(), "features": _features(), "cores": os.cpu_count()},
        "torch_threads": torch.get_num_threads(),
    }


def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return {}
    pairs = (line.split(":", 1) for line in path.read_text(errors="replace").splitlines() if ":" in line)
    found: dict[str, str] = {}
    for key, value in pairs:
        found.setdefault(key.strip(), value.strip())
    return found


def _processor() -> str:
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def _features() -> list[str]:
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return [feature for feature in _FEATURES if feature in flags]


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
