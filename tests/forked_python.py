"""Python programs that tests start, each a fork of one process that has imported torch and the package once.

What a program of ``python -c`` may do is possible: be killed, be stopped by Ctrl-C, replace what is imported. It ends
when its threads, its exit handlers and its streams are done. What comes then, the interpreter taking down all that was
imported, half a second, is left out where nothing was raised and nobody asks for it.

Workers of one run share the process, by a socket in the run's folder: importing takes five seconds. What a worker asks
for is done by a fork of its own.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
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
    """One process with everything imported, and its forks.

    Args:
        folder: of all who share the process.
    """

    def __init__(self, folder: Path) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        place = folder / "forks"
        with (folder / "forks.lock").open("w") as lock:  # one starts it, the others wait
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._socket = _connected(place) or self._started(place)
        self._answers = self._socket.makefile(encoding="utf-8")

    def _started(self, place: Path) -> socket.socket:
        # one thread, whatever the tests were given: torch starts others while it is imported
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        place.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place))
            listener.listen()
            number = listener.fileno()
            words = [sys.executable, __file__, str(number)]
            self._process = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, pass_fds=[number])
        connected = _connected(place)
        assert connected, "the process that forks ended"
        return connected

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
        asked = {"code": code, "words": words, "folder": str(folder), "environment": dict(environment or {})}
        self._socket.sendall(json.dumps({**asked, "timeout": timeout, "own_end": own_end}).encode() + b"\n")
        answer = json.loads(self._answers.readline())
        return subprocess.CompletedProcess(["python", "-c", code, *words], answer["code"], answer["out"], answer["err"])

    def ranks(self, file: Path, function: str, folder: Path) -> None:
        """Run a file's ``function(rank, folder)`` in two processes at once.

        Raises:
            AssertionError: one of them fails.
        """
        done = self.run(_RANKS, str(file), function, str(folder), folder=folder)
        assert done.returncode == 0, done.stderr

    def end(self) -> None:
        """End the process, if it is this worker's; who else asks it keeps his own fork."""
        self._answers.close()
        self._socket.close()
        if self._process is not None:
            self._process.communicate()


def _connected(place: Path) -> socket.socket | None:
    """Return a connection with a process that answers, or None."""
    found = socket.socket(socket.AF_UNIX)
    try:
        found.connect(str(place))
        if found.recv(1):
            return found
    except OSError:  # none was started, or it has ended
        pass
    found.close()
    return None


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
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        while listener in select.select([listener, sys.stdin], [], [])[0]:  # until who started it closes its input
            asking, _ = listener.accept()
            if not os.fork():
                _answer(asking)
                break
            asking.close()
        else:
            os._exit(0)


def _answer(asking: socket.socket) -> None:
    """Run one worker's programs, one by one; returns in each of them."""
    asking.sendall(b"+")
    for line in asking.makefile(encoding="utf-8"):
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
        asking.sendall(json.dumps(said).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    _serve()
