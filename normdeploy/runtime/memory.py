"""Peak memory and load time of one way to run a model, each in a fresh process.

In the measuring process itself every library is already loaded and the allocators hold what earlier work left behind;
only a process that does nothing else shows what a deployment needs. Run as
``python -m normdeploy.runtime.memory JOB.json``; prints one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from normdeploy.errors import ModelError
from normdeploy.runtime.backend import Array, open_backend
from normdeploy.runtime.settings import Settings

_TIMEOUT = 600.0


@dataclass(frozen=True)
class Footprint:
    """What one fresh process needed.

    Args:
        peak_bytes: the largest resident set, libraries included.
        added_bytes: how much of it came with loading the model and running it once.
        load_s: seconds to load the model (the libraries already imported).
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
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder) / "feeds.npz"
        np.savez(arrays, **dict(feeds))  # type: ignore[arg-type] # its stub types every keyword as allow_pickle
        job = Path(folder) / "job.json"
        fields = {"path": str(path.absolute()), "feeds": str(arrays), "settings": settings.to_dict()}
        job.write_text(json.dumps(fields), encoding="utf-8")
        result = subprocess.run(
            [sys.executable, "-m", "normdeploy.runtime.memory", str(job)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        )
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelError(f"measuring {path.name} in a fresh process failed: {last}; expected it to run there as here")
    return Footprint(**json.loads(result.stdout.splitlines()[-1]))


def main(job: Path) -> None:
    """Do one job and print its footprint as JSON."""
    fields = json.loads(job.read_text(encoding="utf-8"))
    settings = Settings.from_dict(fields["settings"])
    if settings.provider == "OpenVINO":
        import openvino  # noqa: F401 - its import belongs to the libraries, not to the model
    with np.load(fields["feeds"]) as loaded:
        feeds = {name: loaded[name] for name in loaded.files}
    before = peak_resident_bytes()
    start = time.perf_counter()
    backend = open_backend(fields["path"], settings)
    loaded_at = time.perf_counter()
    backend.run(feeds)
    done = time.perf_counter()
    peak = peak_resident_bytes()
    print(json.dumps(Footprint(peak, peak - before, loaded_at - start, done - loaded_at).to_dict()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
