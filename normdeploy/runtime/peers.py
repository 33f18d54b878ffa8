"""The other ways to run the same ONNX file: as it is, onnxslim, onnxsim, OpenVINO.

Every maker returns what it needs to be timed or raises; a peer that is not installed, or that fails on this network,
is skipped by name with the reason, and never silently.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from normdeploy.errors import GraphError, MissingDependencyError, UsageError, in_one_line
from normdeploy.ort.machine import reduced_precision, this_machine
from normdeploy.ort.providers import float32_options
from normdeploy.ort.settings import OPENVINO_RUNTIME, Settings
from normdeploy.runtime.contestant import OPENVINO, OPENVINO_EXACT, PLAIN, SIMPLIFIED, SLIM, FileContestant


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingDependencyError(f"{package} is not installed; expected the extra: pip install 'normdeploy[peers]'")


def slimmed(path: Path, folder: Path) -> Path:
    """Write what onnxslim makes of ``path``."""
    _require("onnxslim")
    import onnx
    import onnxslim

    target = folder / f"{path.stem}.slim.onnx"
    result = onnxslim.slim(str(path))
    if result is None:
        raise GraphError("onnxslim returned nothing")
    onnx.save(result, target)
    return target


def simplified(path: Path, folder: Path) -> Path:
    """Write what onnxsim makes of ``path``."""
    _require("onnxsim")
    import onnx
    import onnxsim

    target = folder / f"{path.stem}.sim.onnx"
    result, same = onnxsim.simplify(onnx.load(path))
    if not same:
        raise GraphError("onnxsim's own check found its result different")
    onnx.save(result, target)
    return target


def _told_float32(path: Path, label: str) -> FileContestant:
    if not reduced_precision(this_machine()):
        raise UsageError(f"the same as {OPENVINO} here: this processor computes in no less than float32")
    settings = Settings(provider=OPENVINO_RUNTIME, options=float32_options(OPENVINO_RUNTIME))
    return FileContestant(OPENVINO_EXACT + label, path, settings)


def file_peers(
    path: Path, folder: Path, label: str, wanted: Sequence[str], settings: Settings, plain: str
) -> Iterator[FileContestant | tuple[str, str]]:
    """Yield the peers that start from an ONNX file; a (name, reason) pair for each that is skipped.

    Args:
        path: the plain ONNX file.
        folder: where derived files are written.
        label: appended to the names where there are several references; may be empty.
        wanted: which of `PEERS`.
        settings: how onnxruntime runs them: on the device of what they are compared with.
        plain: the name of the file as it is.
    """
    makers: dict[str, Callable[[], FileContestant]] = {
        PLAIN: lambda: FileContestant(plain, path, settings),
        SLIM: lambda: FileContestant(SLIM + label, slimmed(path, folder), settings),
        SIMPLIFIED: lambda: FileContestant(SIMPLIFIED + label, simplified(path, folder), settings),
        OPENVINO: lambda: FileContestant(OPENVINO + label, path, Settings(provider=OPENVINO_RUNTIME)),
        OPENVINO_EXACT: lambda: _told_float32(path, label),
    }
    for name, make in makers.items():
        if name not in wanted:
            continue
        try:
            if name in (OPENVINO, OPENVINO_EXACT):
                _require("openvino")
            yield make()
        except Exception as error:  # a peer may fail in any way on a network; the benchmark goes on and says so
            yield plain if name == PLAIN else name + label, in_one_line(error)
