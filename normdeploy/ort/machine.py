"""The features of this machine that a measured plan depends on."""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from normdeploy.ort.installed import BUILDS, version_of

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
_PACKAGES = (*BUILDS, "onnxruntime-ep-openvino", "openvino")
_PROC_GPUS = Path("/proc/driver/nvidia/gpus")
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_CGROUPS = Path("/sys/fs/cgroup")


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
    """Return how many logical cores this process may keep busy: its affinity mask, and its container's quota.

    A quota of 1.5 cores counts as 2: one thread would leave half a core idle.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_of(Path("/proc/self/cgroup"), _CGROUPS)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def quota_of(membership: Path, root: Path) -> float | None:
    """Return the cores that the control groups of this process allow, by time; None where none limits them.

    Version 2 has ``cpu.max`` ("quota period" in microseconds, or "max"), version 1 ``cpu.cfs_quota_us`` (-1: none) and
    ``cpu.cfs_period_us``. Each group from the process's own up to the root may limit it; the smallest counts. Inside a
    container the groups are mounted so that its own is the root, whatever the path in ``/proc/self/cgroup`` says.

    Args:
        membership: ``/proc/self/cgroup``: lines "number:controllers:path"; of version 2 "0::path".
        root: where the groups are mounted.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",") if controllers else []
        if names and "cpu" not in names:
            continue
        bases = [root] if not names else [root / controllers, root / "cpu"]
        for base in bases:
            group = base / path.lstrip("/")
            limits = [_limit(folder) for folder in (group, *group.parents) if folder.is_relative_to(base)]
            found += [limit for limit in limits if limit is not None]
    return min(found, default=None)


def _limit(group: Path) -> float | None:
    """Return one control group's cores, None without a limit."""
    try:
        if (group / "cpu.max").is_file():
            quota, _, period = (group / "cpu.max").read_text(encoding="ascii").strip().partition(" ")
        else:
            quota = (group / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (group / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
    except OSError:
        return None
    if not quota.isdigit() or not (period or "100000").isdigit():  # "max" and -1 are no limits
        return None
    return int(quota) / int(period or 100_000)


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
    processor, instructions = _processor()
    versions = {name: version for name in _PACKAGES if (version := version_of(name)) is not None}
    return Machine(processor, platform.machine(), instructions, usable_cores(), _gpu(), tuple(sorted(versions.items())))


def _gpu() -> str:
    """Return the first GPU's name, or ""; torch, slow to import, is asked only where there may be one."""
    for file in sorted(_PROC_GPUS.glob("*/information")):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                return value.strip()
    if sys.platform == "linux" and not any(Path(name).exists() for name in _GPU_DEVICES):
        return ""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
