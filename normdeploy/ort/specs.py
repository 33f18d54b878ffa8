"""Name, type and shape of a model's inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from normdeploy.errors import GraphError

Array = np.ndarray[Any, np.dtype[Any]]

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    "tensor(string)": "object",
    **{f"tensor({kind}{bits})": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class TensorSpec:
    """Name, numpy dtype and shape of one input or output; a dimension is a size, a word, or None when unnamed."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


def session_spec(argument: Any) -> TensorSpec:
    """Return the spec of a session's input or output (onnxruntime's ``NodeArg``).

    Raises:
        GraphError: it is no tensor of a type that numpy has.
    """
    dtype = _DTYPES.get(argument.type)
    if dtype is None:
        raise GraphError(
            f"{argument.name!r} is a {argument.type}; expected a tensor of a type numpy has: "
            "keep that value inside the graph and export it as float32 or an integer"
        )
    return TensorSpec(argument.name, dtype, tuple(argument.shape))
