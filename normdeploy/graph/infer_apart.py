"""Run by path in a process of its own by `inference`: a model from standard input, what onnx infers to standard output.

Only the standard library and onnx's compiled part are loaded: the process starts in some 20 ms, where ``import onnx``
takes ten times as long.
"""

import contextlib
import importlib.util
import sys

FAILED = 3
"""Exit code where onnx raised an error; what it said is on standard error."""


def main(library: str, check_type: bool, strict: bool, seconds: int, memory: int) -> int:
    """Infer the types and shapes of the model on standard input; return the exit code.

    Args:
        library: path of onnx's compiled part.
        check_type: as onnx.shape_inference.infer_shapes has it.
        strict: likewise ``strict_mode``.
        seconds: processor time it may take.
        memory: bytes of address space it may take.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on Windows; an outer limit may be lower still
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    spec = importlib.util.spec_from_file_location("onnx_cpp2py_export", library)
    assert spec is not None
    assert spec.loader is not None
    onnx = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(onnx)
    try:
        inferred = onnx.shape_inference.infer_shapes(sys.stdin.buffer.read(), check_type, strict, True)
    except Exception as error:
        sys.stderr.write(str(error))
        return FAILED
    sys.stdout.buffer.write(inferred)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *(bool(int(flag)) for flag in sys.argv[2:4]), *map(int, sys.argv[4:6])))
