"""OpenVINO's core: one for the process, kept to its end.

Each core that has compiled gives the thread a signal stack of its own, and gives back the one that it found when it is
deleted. Of two cores, deleted in the order in which they were made, the second gives back the first's, which is freed:
the next signal that has a handler, Ctrl-C among them, ends the process (seen in 2026.4.1; docs/upstream/openvino.md).
"""

from __future__ import annotations

from typing import Any

from normdeploy.errors import MissingDependencyError
from normdeploy.runtime.made_once import Lazy


def _core() -> Any:
    try:
        import openvino
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "provider 'OpenVINO' needs the package openvino, which is not installed; "
            "expected the extra 'peers': pip install 'normdeploy[peers]', or load without a plan"
        ) from error
    return openvino.Core()


_the_core = Lazy(_core)


def openvino_core() -> Any:
    """Return the process's ``openvino.Core``.

    Raises:
        MissingDependencyError: openvino is not installed.
    """
    return _the_core.get()
