"""Which dimensions of the example arguments are dynamic in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from normdeploy.errors import InputError

BATCH = "batch"
Spec = dict[int, Any] | None


def batch_shapes(tensors: Sequence[torch.Tensor]) -> list[Spec]:
    """Return the default: dimension 0, named "batch", of every tensor as long there as the first tensor with one.

    Args:
        tensors: example arguments; scalars have no batch.

    Returns:
        One ``{0: "batch"}`` or None per tensor.
    """
    sizes = [tensor.shape[0] if tensor.ndim else None for tensor in tensors]
    size = next((value for value in sizes if value is not None), None)
    return [{0: BATCH} if value is not None and value == size else None for value in sizes]


def user_shapes(dynamic_shapes: Any, paths: Sequence[tuple[Any, ...]], parameters: Sequence[str]) -> list[Spec]:
    """Spread ``dynamic_shapes``, given in the structure of the arguments, over the flat tensors.

    Args:
        dynamic_shapes: a mapping by parameter name or a sequence in parameter order, nested as the arguments are;
            each tensor has a mapping (dimension -> name, ``Dim``, hint or None), a sequence of those, or None.
        paths: (parameter, key, ...) of each tensor.
        parameters: parameter names in order.

    Raises:
        InputError: its structure does not fit the arguments.
    """
    if not isinstance(dynamic_shapes, Mapping):
        if not isinstance(dynamic_shapes, Sequence) or len(dynamic_shapes) > len(parameters):
            raise InputError(
                f"dynamic_shapes is {dynamic_shapes!r}; expected one entry per argument {list(parameters)}: "
                'for example {"x": {0: "batch"}}'
            )
        dynamic_shapes = dict(zip(parameters, dynamic_shapes, strict=False))
    unknown = set(dynamic_shapes) - {path[0] for path in paths} - set(parameters)
    if unknown:
        raise InputError(
            f"dynamic_shapes names {sorted(map(str, unknown))}; expected names among {list(parameters)}: correct them"
        )
    return [_spec_at(dynamic_shapes, path) for path in paths]


def _spec_at(spec: Any, path: tuple[Any, ...]) -> Spec:
    for depth, key in enumerate(path):
        if spec is None:
            return None
        if isinstance(spec, Mapping):
            spec = spec.get(key)
        elif isinstance(spec, Sequence) and not isinstance(spec, str) and isinstance(key, int) and key < len(spec):
            spec = spec[key]
        else:
            where = ".".join(str(part) for part in path[: depth + 1])
            raise InputError(f"dynamic_shapes has {spec!r} around {where}; expected the structure of the arguments")
    if spec is None:
        return None
    if isinstance(spec, Mapping):
        return {int(axis): dim for axis, dim in spec.items()}
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return dict(enumerate(spec))
    raise InputError(f"dynamic_shapes has {spec!r} for {path}; expected a mapping of dimensions such as {{0: 'batch'}}")


def _is_dynamic(dim: object) -> bool:
    return dim is not None and not isinstance(dim, int) and dim != torch.export.Dim.STATIC


def widened(tensors: Sequence[torch.Tensor], specs: Sequence[Spec]) -> list[torch.Tensor]:
    """Return the tensors with every dynamic dimension of size 1 doubled, and of size 0 as two of zeros.

    The trace would hold for these two sizes alone.
    """
    result: list[torch.Tensor] = []
    for tensor, spec in zip(tensors, specs, strict=True):
        wide = tensor
        for axis, dim in (spec or {}).items():
            if not _is_dynamic(dim) or not -wide.ndim <= axis < wide.ndim:
                continue
            if wide.shape[axis] == 1:
                wide = torch.cat([wide, wide], dim=axis)
            elif wide.shape[axis] == 0:
                wide = wide.new_zeros([2 if i == axis % wide.ndim else n for i, n in enumerate(wide.shape)])
        result.append(wide)
    return result


def fixed_after_all(names: Sequence[str], specs: Sequence[Spec], graph: ir.Graph) -> list[str]:
    """Say which dimensions the trace fixed though they were asked for as dynamic; torch says nothing of it.

    Args:
        names: of the arguments' tensors. specs: what was asked for. graph: the trace, an input for each tensor.
    """
    notes: list[str] = []
    for name, spec, value in zip(names, specs, graph.inputs, strict=True):
        shape = list(value.shape or ())
        for axis, dim in (spec or {}).items():
            if not _is_dynamic(dim) or dim == torch.export.Dim.AUTO or not -len(shape) <= axis < len(shape):
                continue
            if isinstance(shape[axis], int):
                notes.append(
                    f"dimension {axis} of {name!r} is fixed at the example's size {shape[axis]}, though it was asked "
                    "for as dynamic: forward takes as many steps as the example has there (a loop over it, or a size "
                    "that becomes a Python number)"
                )
    return notes
