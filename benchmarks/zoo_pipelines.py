"""What makes an ONNX file better: ours and its peers, each by its own defaults, each in a process of its own.

    python benchmarks/zoo_pipelines.py PIPELINE SOURCE TARGET

runs one and prints what it took, as JSON: processor seconds and the peak of resident memory over what the libraries
hold before. All start from the file that `torch.onnx.export` writes (where torch cannot write one, from the graph as
we trace it), so that what differs is theirs.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.metadata
import importlib.util
import json
import multiprocessing
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from normdeploy.conformance import adapters

LIMIT = 600  # seconds of processor time for one file: what takes longer is not a tool that one waits for


@dataclass(frozen=True)
class Pipeline:
    """A peer. Args: optimize: writes TARGET from SOURCE. load: imports it. package: whose version is told."""

    optimize: Callable[[str, str], None]
    load: str
    package: str

    @property
    def here(self) -> bool:
        """Whether it is installed."""
        return importlib.util.find_spec(self.load) is not None

    @property
    def version(self) -> str:
        """The installed version."""
        return importlib.metadata.version(self.package)


def _extended(source: str, target: str) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = target
    options.log_severity_level = 4
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _onnxsim(source: str, target: str) -> None:
    import onnx
    import onnxsim

    onnx.save(onnxsim.simplify(onnx.load(source))[0], target)


OURS = "normdeploy"
PIPELINES = {
    "onnxruntime": Pipeline(_extended, "onnxruntime", "onnxruntime"),
    "onnxslim": Pipeline(adapters.onnxslim, "onnxslim", "onnxslim"),
    "onnxsim": Pipeline(_onnxsim, "onnxsim", "onnxsim"),
    "onnxoptimizer": Pipeline(adapters.onnxoptimizer, "onnxoptimizer", "onnxoptimizer"),
    "onnxscript": Pipeline(adapters.onnxscript, "onnxscript", "onnxscript"),
    OURS: Pipeline(adapters.normdeploy_fold, "normdeploy", "normdeploy"),
}


def run(name: str, source: Path, target: Path) -> dict[str, Any]:
    """Run a pipeline in a process of its own, forked from this one: what is imported here it need not import.

    Returns:
        ``seconds`` of the processor and the ``peak`` in bytes, or ``failed`` with what it raised or how it ended.
    """
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)
    process = context.Process(target=_in_child, args=(name, str(source), str(target), writing))
    process.start()
    writing.close()
    found: dict[str, Any] = {}
    with suppress(EOFError):  # it ended without a word
        found = reading.recv()
    process.join()
    if "failed" in found or (found and target.exists()):
        return found
    return {"failed": f"exit code {process.exitcode}"}


def _in_child(name: str, source: str, target: str, pipe: Connection) -> None:
    try:
        pipe.send(measured(name, source, target))
    except Exception as error:  # a tool may raise whatever it likes
        pipe.send({"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"})


@contextmanager
def _warm(pipeline: Pipeline) -> Iterator[None]:
    """Run the pipeline on a small file first: imports are not what is measured."""
    import onnx

    graph = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 2] x) => (float[1, 2] y) { y = Relu(x) }'
    )
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "small.onnx", Path(folder) / "better.onnx"
        onnx.save(graph, source)
        pipeline.optimize(str(source), str(target))
        yield


def measured(name: str, source: str, target: str) -> dict[str, Any]:
    """Run a pipeline in this process; return its seconds and its peak of memory."""
    from verdict_cost import taken
    from verify_cost import Peak, resident

    warnings.filterwarnings("ignore")  # the libraries' own
    allowed = resource.getrlimit(resource.RLIMIT_CPU)[1]  # of what the network's own process was given
    limit = LIMIT if allowed == resource.RLIM_INFINITY else min(LIMIT, allowed - 5)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    pipeline = PIPELINES[name]
    with _warm(pipeline):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # memory that was freed before would be taken without being counted
        peak, before = Peak(), resident()
        with peak.watched():
            seconds, _ = taken(lambda: pipeline.optimize(source, target))
    return {"seconds": seconds, "peak": peak.bytes - before}


def main() -> int:
    """Run the pipeline that the command line names."""
    print(json.dumps(measured(*sys.argv[1:])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
