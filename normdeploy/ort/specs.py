"""Name, type and shape of a model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normdeploy.errors import GraphError
from normdeploy.onnxfile.outline import read_outline
from normdeploy.onnxfile.schema import ELEMENTS

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

    def takes(self, shape: Sequence[int]) -> bool:
        """Tell whether a shape has the declared rank and the sizes that are declared as numbers."""
        return len(shape) == len(self.shape) and all(
            not isinstance(size, int) or size == given for size, given in zip(self.shape, shape, strict=True)
        )

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


def file_specs(path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return inputs and outputs as the file declares them, without making a session.

    Raises:
        GraphError: a value that is no tensor of a known type and rank.
    """
    graph = read_outline(path).proto.graph
    weights = {tensor.name for tensor in graph.initializer}
    return (
        tuple(_declared(value) for value in graph.input if value.name not in weights),
        tuple(_declared(value) for value in graph.output),
    )


def _declared(value: Any) -> TensorSpec:
    tensor = value.type.tensor_type
    if tensor.elem_type not in ELEMENTS or not tensor.HasField("shape"):
        raise GraphError(f"{value.name!r} has no declared type and rank; expected both: export it again")
    sizes = (
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param if dim.HasField("dim_param") else None
        for dim in tensor.shape.dim
    )
    return TensorSpec(value.name, ELEMENTS[tensor.elem_type][0], tuple(sizes))
