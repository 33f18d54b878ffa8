"""Peak memory and load time of one way to run a model, each in a fresh process.

In the measuring process itself every library is already loaded and the allocators hold what earlier work left behind;
only a process that does nothing else shows what a deployment needs. Run as
``python -m normdeploy.runtime.memory JOB.json``; prints one JSON object.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from normdeploy.array_types import Array
from normdeploy.errors import ModelError
from normdeploy.ort.settings import Settings
from normdeploy.runtime.backend import open_backend

if TYPE_CHECKING:
    from normdeploy.runtime.module_peers import ModuleContestant

Loaded = TypeVar("Loaded")
_TIMEOUT = 600.0


@dataclass(frozen=True)
class Footprint:
    """What one fresh process needed.

    Args:
        peak_bytes: the largest resident set, libraries included.
        added_bytes: how much of it came with loading the model and running it once.
        load_s: seconds to load the model (the libraries already imported); for a compiled module, to compile it.
        first_run_s: seconds of the first run.
    """

    peak_bytes: int
    added_bytes: int
    load_s: float
    first_run_s: float

    def to_dict(self) -> dict[str, float]:
        """Return the fields as a dict."""
        return asdict(self)


def peak_resident_bytes() -> int:
    """Return the largest resident set of this process so far.

    Linux's ``VmHWM`` counts from the program's start; ``ru_maxrss``, the fallback elsewhere, is kilobytes on Linux and
    bytes on macOS and on Linux also counts the parent's memory at the fork.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure_footprint(path: Path, settings: Settings, feeds: Mapping[str, Array]) -> Footprint:
    """Load and run ``path`` once in a fresh process.

    Args:
        path: the ONNX file.
        settings: how to run it.
        feeds: the arrays of the one run.

    Raises:
        ModelError: the process failed; its last line says why.
    """
    return _fresh({"path": str(path.absolute()), "settings": settings.to_dict()}, feeds, path.name)


def measure_module_footprint(contestant: ModuleContestant, feeds: Mapping[str, Array], threads: int) -> Footprint:
    """Build a torch module and call it once in a fresh process; compiling counts as loading.

    Args:
        contestant: the module, eager or compiled. One without an origin travels by pickle.
        feeds: the arrays of the one call.
        threads: torch's threads.

    Raises:
        ModelError: the process failed, or the module's class cannot be found from another process.
    """
    fields: dict[str, Any] = {
        "compiled": contestant.compiled,
        "threads": threads,
        "device": contestant.device,
        "channels_last": contestant.channels_last,
    }
    if contestant.origin is not None:
        return _fresh({**fields, "origin": contestant.origin.to_dict()}, feeds, contestant.name)
    home = type(contestant.module).__module__
    if home == "__main__":
        raise ModelError(
            f"{type(contestant.module).__name__} is defined in __main__, where another process cannot find it; "
            "expected a SOURCE (file.py:Name), or a class of an importable module"
        )
    with tempfile.TemporaryDirectory() as folder:
        pickled = Path(folder) / "module.pickle"
        try:
            pickled.write_bytes(pickle.dumps(contestant.module))
        except Exception as error:  # whatever the module's members raise
            raise ModelError(
                f"{type(contestant.module).__name__} cannot be pickled for another process: {error}; expected a SOURCE"
            ) from error
        return _fresh({**fields, "pickle": str(pickled)}, feeds, contestant.name)


def _fresh(fields: Mapping[str, Any], feeds: Mapping[str, Array], name: str) -> Footprint:
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder) / "feeds.npz"
        np.savez(arrays, **dict(feeds))  # type: ignore[arg-type] # its stub types every keyword as allow_pickle
        job = Path(folder) / "job.json"
        job.write_text(json.dumps({**fields, "feeds": str(arrays)}), encoding="utf-8")
        try:
            result = subprocess.run(
                [sys.executable, "-m", "normdeploy.runtime.memory", str(job)],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            )
        except subprocess.TimeoutExpired as error:
            raise ModelError(f"measuring {name} in a fresh process took more than {_TIMEOUT:.0f} s") from error
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelError(f"measuring {name} in a fresh process failed: {last}; expected it to run there as here")
    return Footprint(**json.loads(result.stdout.splitlines()[-1]))


def main(job: Path) -> None:
    """Do one job and print its footprint as JSON."""
    fields = json.loads(job.read_text(encoding="utf-8"))
    with np.load(fields["feeds"]) as loaded:
        feeds = {name: loaded[name] for name in loaded.files}
    found = _file_footprint(fields, feeds) if "path" in fields else _module_footprint(fields, feeds)
    print(json.dumps(found.to_dict()))


def _file_footprint(fields: Mapping[str, Any], feeds: Mapping[str, Array]) -> Footprint:
    settings = Settings.from_dict(fields["settings"])
    if settings.provider == "OpenVINO":
        import openvino  # noqa: F401 - its import belongs to the libraries, not to the model
    return _measured(lambda: open_backend(fields["path"], settings), lambda backend: backend.run(feeds))


def _module_footprint(fields: Mapping[str, Any], feeds: Mapping[str, Array]) -> Footprint:
    import torch

    from normdeploy.exporting.module.mode import evaluation_mode
    from normdeploy.runtime.module_peers import ModuleContestant, ModuleSource

    if fields["compiled"]:
        import torch._dynamo
        import torch._inductor.compile_fx  # the compiler belongs to the libraries
    torch.set_num_threads(fields["threads"])

    def make() -> Callable[[], object]:
        if "origin" in fields:
            module = ModuleSource.from_dict(fields["origin"]).build()
        else:
            module = pickle.loads(Path(fields["pickle"]).read_bytes())  # written by the process that asks
        stack.enter_context(evaluation_mode(module, fast=True))
        contestant = ModuleContestant("", module, fields["compiled"], None, fields["device"], fields["channels_last"])
        return contestant.prepare(feeds, fields["threads"]).call

    with ExitStack() as stack:
        return _measured(make, lambda run: run())


def _measured(load: Callable[[], Loaded], run: Callable[[Loaded], object]) -> Footprint:
    before = peak_resident_bytes()
    start = time.perf_counter()
    loaded = load()
    loaded_at = time.perf_counter()
    run(loaded)
    done = time.perf_counter()
    peak = peak_resident_bytes()
    return Footprint(peak, peak - before, loaded_at - start, done - loaded_at)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
