"""Run by path in a process of its own by `inference`: models from standard input, what onnx infers to standard output.

Only the standard library and onnx's compiled part are loaded, once; models are then inferred in a fork, which answers
until a file ends it. A fork for each model would take 2 ms of processor time, twenty times what a small one's inference
does. Where there is no fork, the process itself infers, and is started again after a file that ended it.
"""

import contextlib
import importlib.util
import math
import mmap
import os
import struct
import sys
from types import ModuleType

FAILED = 3
"""Code where onnx raised an error; its words are what comes back."""

AGAIN = 4
"""Code where a model failed behind others in a process: whether by itself, is seen when it is asked about again."""

ASKED = struct.Struct("<Q??QQ")
"""Before a model: its size, whether types are checked and contradictions raised, seconds and bytes that it may take."""

ANSWERED = struct.Struct("<iQ")
"""Before what comes back: the exit code (negative: the signal that ended the process) and the size."""

_LARGE = 1 << 24
"""Bytes of a model after which a process ends: what it leaves in memory would count against the next one's limit."""

_LAST_WORDS = 1 << 12
"""Bytes of what C++ says when it ends."""


def _limit(seconds: int, memory: int) -> None:
    """Let this process take so many more seconds, and no more than so much memory."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on Windows; an outer limit may be lower still
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        used = resource.getrusage(resource.RUSAGE_SELF)
        until = math.ceil(used.ru_utime + used.ru_stime) + seconds
        for limit, allowed in ((resource.RLIMIT_CPU, until), (resource.RLIMIT_AS, memory)):
            resource.setrlimit(limit, (allowed, resource.getrlimit(limit)[1]))  # for this model: the next has others


def _inferred(onnx: ModuleType, model: bytes, check_type: bool, strict: bool) -> tuple[int, bytes]:
    try:
        return 0, onnx.shape_inference.infer_shapes(model, check_type, strict, True)
    except Exception as error:
        return FAILED, str(error).encode()


class _State:
    """What a fork has at work, seen by its parent when it ends."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 2)

    @property
    def at_work(self) -> bool:
        """A model is asked about and not answered."""
        return bool(self._shared[0])

    @at_work.setter
    def at_work(self, value: bool) -> None:
        self._shared[0] = value

    @property
    def used(self) -> bool:
        """A model was answered before."""
        return bool(self._shared[1])

    @used.setter
    def used(self, value: bool) -> None:
        self._shared[1] = value


def _answer(onnx: ModuleType, state: _State | None = None) -> int:
    """Answer until the input ends, and return 0; `AGAIN` where another process is to go on.

    Args:
        onnx: its compiled part. state: of this fork; None where there are none.
    """
    with open(0, "rb", closefd=False, buffering=0) as asked, open(1, "wb", closefd=False) as answers:
        while len(head := asked.read(ASKED.size) or b"") == ASKED.size:
            if state is not None:
                state.at_work = True
            size, check_type, strict, *limits = ASKED.unpack(head)
            model = bytearray()
            while len(model) < size and (more := asked.read(size - len(model))):
                model += more
            if state is not None:
                _limit(*limits)
            code, said = _inferred(onnx, bytes(model), check_type, strict)
            if code and state is not None and state.used:
                return AGAIN
            answers.write(ANSWERED.pack(code, len(said)) + said)
            if state is not None:
                state.at_work, state.used = False, True
            answers.flush()
            if size > _LARGE and state is not None:
                return AGAIN
    return 0


def _in_forks(onnx: ModuleType) -> None:
    """Answer in a fork, and in another one each time that a model ended it: what C++ said last is the answer then."""
    state = _State()
    while True:
        state.at_work = state.used = False
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            os.dup2(writer, 2)
            code = 1
            try:
                code = _answer(onnx, state)
            finally:
                os._exit(code)
        os.close(writer)
        with open(reader, "rb") as stream:  # noqa: PTH123 - a descriptor
            said = stream.read()[-_LAST_WORDS:]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not code:
            return
        if state.at_work:
            code, said = (AGAIN, b"") if state.used else (code, said)
            with open(1, "wb", closefd=False) as answers:
                answers.write(ANSWERED.pack(code, len(said)) + said)


def main(library: str) -> None:
    """Answer until the input ends: models whose types and shapes are asked for, each behind an ``ASKED``.

    Args:
        library: path of onnx's compiled part.
    """
    spec = importlib.util.spec_from_file_location("onnx_cpp2py_export", library)
    assert spec is not None
    assert spec.loader is not None
    onnx = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(onnx)
    onnx.defs.has_schema("Relu", "")  # makes all schemas, which every fork would make again
    if hasattr(os, "fork"):
        _in_forks(onnx)
    else:
        _answer(onnx)


if __name__ == "__main__":
    main(sys.argv[1])
