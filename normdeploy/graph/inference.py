"""onnx's shape inference, in a process of its own: some files end the process it runs in, and no caller can catch it.

Its C++ code believes what a file says. Of random graphs that onnx.checker takes, one in two hundred ended it: a Slice
of a dimension that came out negative, a Split into more parts than it lists, a type that is not there, sizes that ask
for more memory than there is (docs/upstream/onnx.md). What it infers comes back through a pipe.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
from onnx import onnx_cpp2py_export

from normdeploy.errors import GraphError
from normdeploy.graph import infer_apart

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
    """

    def __init__(self, said: str, expected: str) -> None:
        super().__init__(f"the graph's shapes cannot be inferred: {said}; expected {expected}")
        self.said = said


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
    limits = str(_SECONDS), str(_MEMORY + _COPIES * len(sent))
    words = [sys.executable, "-I", "-S", str(Path(infer_apart.__file__)), str(onnx_cpp2py_export.__file__)]
    words += [str(int(check_type)), str(int(strict)), *limits]
    try:
        done = subprocess.run(words, input=sent, capture_output=True, check=False)
    except OSError as error:  # a process that may start no other, as one that has changed its user
        raise NotInferredError(str(error), "to be allowed to start Python again, for onnx") from error
    if not done.returncode:
        inferred = onnx.ModelProto()
        inferred.ParseFromString(done.stdout)
        return inferred
    said = " ".join(done.stderr.decode(errors="replace").split())
    if done.returncode != infer_apart.FAILED:
        said = f"onnx ended its process with code {done.returncode} ({said[-200:]})"
    raise NotInferredError(said, "types and sizes that fit each other: export the model again")
