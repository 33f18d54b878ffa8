"""Which build of onnxruntime is installed: one, and no second one over it; and what it can read.

Every build (onnxruntime, onnxruntime-gpu, ...) is a package of its own for pip and unpacks into the same folder, so
that the one that was unpacked last wins: beside onnxruntime, onnxruntime-gpu is a CPU build without a word. That is why
no build is among normdeploy's hard dependencies; the extras ``cpu`` and ``gpu`` each bring one.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import warnings

from normdeploy.errors import MissingDependencyError

BUILDS = (
    "onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-training",
    "onnxruntime-training-cpu", "onnxruntime-rocm", "onnxruntime-migraphx", "onnxruntime-qnn", "onnxruntime-cann",
)  # fmt: skip


class InstallationWarning(UserWarning):
    """What is installed does not work together."""


def version_of(distribution: str) -> str | None:
    """Return an installed distribution's version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_builds() -> dict[str, str]:
    """Return name and version of each installed build of onnxruntime."""
    return {name: version for name in BUILDS if (version := version_of(name)) is not None}


def conflict() -> str:
    """Return what is wrong with the installed builds and the remedy; empty where there is at most one."""
    builds = installed_builds()
    if len(builds) < 2:
        return ""
    names = " and ".join(f"{name} {version}" for name, version in builds.items())
    keep = next((name for name in builds if name != "onnxruntime"), "onnxruntime")
    return (
        f"{names} are installed into one folder, where the last one unpacked wins; expected one build: "
        f"pip uninstall -y {' '.join(builds)}, then pip install {keep}"
    )


def require_onnxruntime() -> None:
    """Check that onnxruntime is there, and warn where two builds are.

    Raises:
        MissingDependencyError: no build is installed.

    Warns:
        InstallationWarning: several are.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingDependencyError(
            "onnxruntime is not installed; expected one of its builds: pip install 'normdeploy[cpu]', or "
            "'normdeploy[gpu]' on a machine with an NVIDIA GPU"
        )
    if problem := conflict():
        warnings.warn(problem, InstallationWarning, stacklevel=3)


NEWEST = 23
"""The newest operator set that folding writes of its own accord (for RMSNormalization)."""

_PROBE = """
    <ir_version: 11, opset_import: ["" : 23]>
    probe (float[n, 1] x) => (float[n, 1] y) <float[1] g = {1}> { y = RMSNormalization (x, g) }
"""


@functools.cache
def highest_opset() -> int | None:
    """Return the operator set that a file for the onnxruntime in use may not exceed; None if it reads all we write.

    onnxruntime 1.22 refuses operator set 23 and the file format that came with it.
    """
    import onnxruntime
    from onnx import parser

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = parser.parse_model(_PROBE).SerializeToString()
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # it raises classes of its own, none of them public
        return NEWEST - 1
    return None
