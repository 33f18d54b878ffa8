"""The features of this machine that a measured plan depends on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

# instruction sets that onnxruntime's and OpenVINO's kernels choose by; other flags do not change what runs
_FLAGS = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve",
)  # fmt: skip
_REDUCED = (
    ("bfloat16", frozenset({"avx512_bf16", "amx_bf16", "bf16"})),
    ("float16", frozenset({"avx512_fp16", "asimdhp"})),
)
"""(precision, instruction sets that compute in it)."""
_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-ep-openvino", "openvino")


@dataclass(frozen=True)
class Machine:
    """Processor, usable cores, GPU and runtime versions.

    Args:
        processor: the processor's model name.
        architecture: as ``platform.machine`` says.
        instructions: the instruction sets that kernels choose by, sorted.
        cores: logical cores this process may use.
        gpu: the first CUDA device's name, or "".
        packages: installed runtimes and their versions.
    """

    processor: str
    architecture: str
    instructions: tuple[str, ...]
    cores: int
    gpu: str
    packages: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict; ``from_dict`` inverts it."""
        return {**asdict(self), "instructions": list(self.instructions), "packages": dict(self.packages)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Machine:
        """Build from ``to_dict``'s form."""
        given = dict(values)
        given["instructions"] = tuple(given["instructions"])
        given["packages"] = tuple(sorted(given["packages"].items()))
        return cls(**given)

    def differences(self, other: Machine) -> list[str]:
        """Return what differs, each as a phrase "cores: 2 here, 16 there" (``self`` is here, ``other`` there)."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [f"{key}: {mine[key]} here, {theirs[key]} there" for key in mine if mine[key] != theirs[key]]


def reduced_precision(machine: Machine) -> tuple[str, ...]:
    """Return in which of "bfloat16" and "float16" the machine's processor computes."""
    return tuple(precision for precision, needed in _REDUCED if needed & set(machine.instructions))


def usable_cores() -> int:
    """Return the logical cores this process may run on (its affinity mask where the system has one)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> tuple[str, tuple[str, ...]]:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor() or "unknown", ()
    fields: dict[str, str] = {}
    for line in cpuinfo.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return fields.get("model name", "unknown"), tuple(sorted(flags & set(_FLAGS)))


@cache
def this_machine() -> Machine:
    """Return the features of the machine this process runs on."""
    import torch

    processor, instructions = _processor()
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
    return Machine(processor, platform.machine(), instructions, usable_cores(), gpu, tuple(sorted(versions.items())))
