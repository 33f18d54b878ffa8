"""Run by path in a process of its own by `inference`: models from standard input, what onnx infers to standard output.

Only the standard library and onnx's compiled part are loaded, once; each model is then inferred in a fork, which a file
may end. Where there is no fork, the process itself infers, and is started again after a file that ended it.
"""

import contextlib
import importlib.util
import os
import struct
import sys
from types import ModuleType

FAILED = 3
"""Exit code where onnx raised an error; its words are what comes back."""

ASKED = struct.Struct("<Q??QQ")
"""Before a model: its size, whether types are checked and contradictions raised, seconds and bytes that it may take."""

ANSWERED = struct.Struct("<iQ")
"""Before what comes back: the exit code (negative: the signal that ended the process) and the size."""

_SIZE = struct.Struct("<Q")


def _limit(seconds: int, memory: int) -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on Windows; an outer limit may be lower still
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _inferred(onnx: ModuleType, model: bytes, check_type: bool, strict: bool) -> tuple[int, bytes]:
    try:
        return 0, onnx.shape_inference.infer_shapes(model, check_type, strict, True)
    except Exception as error:
        return FAILED, str(error).encode()


def _in_a_fork(onnx: ModuleType, model: bytes, check_type: bool, strict: bool, *limits: int) -> tuple[int, bytes]:
    """Infer in a fork. It says what it has to say on one pipe, C++'s last words too, and the result's size last."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.dup2(writer, 2)
            _limit(*limits)
            code, result = _inferred(onnx, model, check_type, strict)
            with open(writer, "wb") as stream:  # noqa: PTH123 - a descriptor
                stream.write(result if code else result + _SIZE.pack(len(result)))
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, "rb") as stream:  # noqa: PTH123 - a descriptor
        said = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        return code, said
    (size,) = _SIZE.unpack(said[-_SIZE.size :])
    return 0, said[len(said) - _SIZE.size - size : -_SIZE.size]


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
    while len(head := sys.stdin.buffer.read(ASKED.size)) == ASKED.size:
        size, check_type, strict, *limits = ASKED.unpack(head)
        model = sys.stdin.buffer.read(size)
        if hasattr(os, "fork"):
            code, said = _in_a_fork(onnx, model, check_type, strict, *limits)
        else:
            code, said = _inferred(onnx, model, check_type, strict)
        sys.stdout.buffer.write(ANSWERED.pack(code, len(said)) + said)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
