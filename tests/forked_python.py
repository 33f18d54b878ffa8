"""Python programs that tests start, each a fork of one process that has imported torch and the package once.

What a program of ``python -c`` may do is possible: be killed, be stopped by Ctrl-C, replace what is imported. It ends
when its threads, its exit handlers and its streams are done. What comes then, the interpreter taking down all that was
imported, half a second, is left out where nothing was raised and nobody asks for it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

IMPORTED = (
    "torch.onnx", "onnx", "onnxscript", "matplotlib.figure", "typer.testing", "training_scripts",
    *(f"normdeploy.{name}" for name in ("api", "cli.app", "exporting.trace", "rewrite", "train")),
)  # fmt: skip
"""None starts a thread, as onnxruntime and pyarrow do: a fork has one, and waits at its end for those it has not."""
_RANKS = """
import runpy, sys
from torch.multiprocessing import start_processes
file, function, folder = sys.argv[1:]
start_processes(runpy.run_path(file)[function], (folder,), nprocs=2, start_method="fork")
"""


class ForkedPython:
    """One process with everything imported, and its forks."""

    def __init__(self) -> None:
        # one thread, whatever the tests were given: torch starts others while it is imported
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        words, pipe = [sys.executable, __file__], subprocess.PIPE
        self._process = subprocess.Popen(words, env=environment, text=True, stdin=pipe, stdout=pipe)

    def run(
        self,
        code: str,
        *words: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        timeout: float = 100,
        own_end: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run code as ``python -c`` runs it.

        Args:
            code: the program.
            words: its arguments.
            folder: where it runs.
            environment: variables besides those of this process.
            timeout: after so many seconds it is killed.
            own_end: let the interpreter take down what was imported.
        """
        assert self._process.stdin
        assert self._process.stdout
        asked = {"code": code, "words": words, "folder": str(folder), "environment": dict(environment or {})}
        print(json.dumps({**asked, "timeout": timeout, "own_end": own_end}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return subprocess.CompletedProcess(["python", "-c", code, *words], answer["code"], answer["out"], answer["err"])

    def ranks(self, file: Path, function: str, folder: Path) -> None:
        """Run a file's ``function(rank, folder)`` in two processes at once.

        Raises:
            AssertionError: one of them fails.
        """
        done = self.run(_RANKS, str(file), function, str(folder), folder=folder)
        assert done.returncode == 0, done.stderr

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


def _become(asked: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Be, in a fork, a Python that has just been started."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((nothing, *streams)):
        os.dup2(stream, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a shell starts in the background
    os.chdir(asked["folder"])
    os.environ.update(asked["environment"])
    sys.argv[:], sys.path[0] = ["-c", *asked["words"]], ""
    try:
        exec(compile(asked["code"], "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if asked["own_end"] or not isinstance(end.code, int | None):
            raise
        _leave(end.code or 0)
    if not asked["own_end"]:
        _leave(0)


def _leave(code: int) -> None:
    """End this process as the interpreter does, but for what was imported."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _wait(child: int, seconds: float) -> int:
    """Return a fork's exit code, minus the number of the signal that ended it."""
    until = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.005)


def _serve() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    from torch.onnx import _constants
    from torch.onnx._internal.exporter._registration import ONNXRegistry
    from torch_tables import made_once

    tables = made_once(lambda: None)
    tables.__enter__()  # and for all forks: half of an export is reading them
    logging.disable(logging.WARNING)  # that torchvision is not installed
    ONNXRegistry.from_torchlib(opset_version=_constants.ONNX_DEFAULT_OPSET)
    logging.disable(logging.NOTSET)
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208 - of the kernel
        raise AssertionError(f"one of {IMPORTED} starts a thread")
    gc.collect()
    gc.freeze()  # else each fork's last collection goes through, and so copies, all that was imported
    for line in sys.stdin:
        asked = json.loads(line)
        streams = [os.memfd_create(name) for name in ("out", "err")]
        child = os.fork()
        if not child:
            _become(asked, streams)
            return
        said = {"code": _wait(child, asked["timeout"])}
        for name, stream in zip(("out", "err"), streams, strict=True):
            os.lseek(stream, 0, os.SEEK_SET)
            said[name] = os.read(stream, os.fstat(stream).st_size).decode(errors="replace")
            os.close(stream)
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
