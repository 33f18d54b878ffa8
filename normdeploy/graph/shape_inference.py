"""onnx's shape inference, in processes of its own: some files end the process it runs in, and no caller can catch it.

Its C++ code believes what a file says. Of random graphs that onnx.checker takes, one in two hundred ended it: a Slice
of a dimension that came out negative, a Split into more parts than it lists, a type that is not there, sizes that ask
for more memory than there is (docs/upstream/onnx.md). The process starts when it is first needed; a fork of it answers
through a pipe until a model ends that. What failed behind other models is asked again in a fresh fork: no model is
refused for what another one left.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from contextlib import suppress
from threading import Lock
from typing import Any

import onnx
from onnx import onnx_cpp2py_export

from normdeploy.errors import GraphError
from normdeploy.graph import infer_apart
from normdeploy.graph.infer_apart import AGAIN, ANSWERED, ASKED, FAILED

_SECONDS = 200
"""Of processor time; 20,000 operators take less than two."""

_MEMORY = 2 * 2**30
"""Bytes, beside what the model's own size asks for."""

_COPIES = 16
"""How many times its own size a model may take: read, with what is inferred, and written."""


class NotInferredError(GraphError):
    """Types and shapes could not be inferred.

    Args:
        said: why, in onnx's words.
        expected: what was expected instead, and the remedy.
        refused: whether onnx read the model and raised an error of it; otherwise nothing is known of the model.
    """

    def __init__(self, said: str, expected: str, *, refused: bool = False) -> None:
        super().__init__(f"the graph's shapes cannot be inferred: {said}; expected {expected}")
        self.said, self.refused = said, refused


def infer_shapes(model: onnx.ModelProto, *, check_type: bool = False, strict: bool = False) -> onnx.ModelProto:
    """Return a model with the types and shapes that onnx infers, known numbers carried along.

    Args:
        model: the model, less than 2 GiB.
        check_type: raise where an input's type is none that its operator takes.
        strict: raise where anything cannot be inferred; otherwise it stays unknown.

    Raises:
        NotInferredError: onnx raised an error, its inference ended the process it ran in, or none can be started.
    """
    try:
        sent = model.SerializeToString()
    except ValueError as error:
        raise NotInferredError(str(error), "a model that protobuf can hold, less than 2 GiB") from error
    limits = _SECONDS, _MEMORY + _COPIES * len(sent)
    try:
        asked = ASKED.pack(len(sent), check_type, strict, *limits) + sent
        code, answer = _WORKER.ask(asked)
        if code == AGAIN:
            code, answer = _WORKER.ask(asked)
    except OSError as error:  # a process that may start no other, as one that has changed its user
        raise NotInferredError(str(error), "to be allowed to start Python again, for onnx") from error
    if not code:
        inferred = onnx.ModelProto()
        inferred.ParseFromString(answer)
        return inferred
    said = " ".join(answer.decode(errors="replace").split())
    if code != FAILED:
        said = f"onnx ended its process with code {code} ({said[-200:]})"
    expected = "types and sizes that fit each other: export the model again"
    raise NotInferredError(said, expected, refused=code == FAILED)


class _Worker:
    """The process that infers, started where there is none; a fork of ours starts its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._words: list[str] = []
        self._lock = Lock()

    def ask(self, asked: bytes) -> tuple[int, bytes]:
        """Send what is asked and return the exit code and what came back.

        Raises:
            OSError: no process can be started.
        """
        with self._lock:
            words = [sys.executable, "-I", "-S", str(infer_apart.__file__), str(onnx_cpp2py_export.__file__)]
            if self._process is None or words != self._words or self._process.poll() is not None:
                self.end()
                self._start(words)
            done = False
            try:
                answer = self._answer(asked)
                done = answer is not None
            finally:
                if not done:  # it died, or we are stopped while it is at work
                    code = self.end()
            return (code or 1, b"") if answer is None else answer

    def _start(self, words: list[str]) -> None:
        options: dict[str, Any] = {"process_group": 0} if os.name == "posix" else {}  # no Ctrl-C of ours reaches it
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0, **options
        )
        self._words = words

    def _answer(self, asked: bytes) -> tuple[int, bytes] | None:
        assert self._process is not None
        assert self._process.stdin is not None
        rest = memoryview(asked)
        try:
            while rest:
                rest = rest[self._process.stdin.write(rest) :]
        except BrokenPipeError:
            return None
        head = self._read(ANSWERED.size)
        if len(head) < ANSWERED.size:
            return None
        code, size = ANSWERED.unpack(head)
        body = self._read(size)
        return (code, body) if len(body) == size else None

    def _read(self, size: int) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        found = bytearray()
        while len(found) < size and (more := self._process.stdout.read(min(size - len(found), 1 << 20))):
            found += more
        return bytes(found)

    def end(self) -> int | None:
        """End the process and the fork that it has at work; return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        with suppress(ProcessLookupError, PermissionError):  # a program that gave up its rights: it ends with its pipe
            if os.name == "posix" and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
        with process:  # closes both pipes and waits
            return process.returncode

    def forget(self) -> None:
        """Leave the process to the one that started it: we are a fork of that one."""
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
            self._process.returncode = 0  # not ours to wait for
        self._process, self._lock = None, Lock()


_WORKER = _Worker()
atexit.register(_WORKER.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WORKER.forget)
