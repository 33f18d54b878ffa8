"""What torch's operators on quantized tensors compute, in floats: the function itself, and a grid to end on.

``torch.ops.quantized.conv2d(x, packed, scale, zero)`` is conv2d(x, w) + b on what x and w stand for, quantized. Other
functions of torch take quantized tensors, too: some move or choose elements and leave them on their grid, others
average or cut and are rounded to the grid they came from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from normdeploy.exporting.quantized.quantizers import Grid, OnGrids

_UNSIGNED = (0, 255)


@dataclass(frozen=True)
class Packed:
    """The weights of a quantized layer.

    Args:
        weight: integers, int8. grid: what they stand for. bias: in floats.
        stride, padding, dilation, output_padding, groups: of a convolution.
    """

    weight: Tensor
    grid: Grid
    bias: Tensor | None
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    groups: int = 1


def packed(source: Any) -> Packed:
    """Return the weights that torch keeps in an object of its own (``Conv2dPackedParamsBase``), or a `Packed` itself.

    Raises:
        NotImplementedError: they are kept in float16, or in another way that is not known here.
    """
    given = getattr(source, "packed", source)
    if isinstance(given, Packed):
        return given
    weight, bias = given.unpack()
    if not weight.is_quantized:
        raise NotImplementedError(f"weights packed as {weight.dtype}")
    if weight.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric):
        axis = weight.q_per_channel_axis()
        scale, zero = weight.q_per_channel_scales().float(), weight.q_per_channel_zero_points().int()
    else:
        axis, scale, zero = None, torch.tensor(weight.q_scale()), torch.tensor(weight.q_zero_point(), dtype=torch.int32)
    found = Packed(weight.int_repr(), Grid(scale, zero, axis, -128, 127), None if bias is None else bias.detach())
    if "Linear" in given._type().qualified_name():
        return found
    return replace(
        found,
        stride=tuple(given.stride()),
        padding=tuple(given.padding()),
        dilation=tuple(given.dilation()),
        output_padding=tuple(given.output_padding()),
        groups=int(given.groups()),
    )


def _to(scale: Any, zero: Any) -> Grid:
    return Grid(scale, zero, None, *_UNSIGNED)


def _identity(x: Tensor) -> Tensor:
    return x


def _convolve(mode: OnGrids, x: Tensor, source: Any, axes: int, transposed: bool) -> Tensor:
    found = packed(source)
    weight = found.weight
    if weight.dim() == axes + 3:  # convolutions along one axis are packed as along two
        weight = weight.squeeze(2)
    stride, padding, dilation, output_padding = (
        list(values)[-axes:] for values in (found.stride, found.padding, found.dilation, found.output_padding)
    )
    whole = mode.primitives.restored(weight, found.grid)
    if transposed:
        function: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
        return function(x, whole, found.bias, stride, padding, output_padding, found.groups, dilation)  # type: ignore[no-any-return]
    function = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    return function(x, whole, found.bias, stride, padding, dilation, found.groups)  # type: ignore[no-any-return]


def _conv(axes: int, after: Callable[[Tensor], Tensor], *, transposed: bool = False) -> Callable[..., Tensor]:
    def run(mode: OnGrids, x: Tensor, source: Any, *rest: Any) -> Tensor:
        return mode.rounded(after(_convolve(mode, x, source, axes, transposed)), _to(*rest[-2:]))

    return run


def _conv_add(after: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(mode: OnGrids, x: Tensor, other: Tensor, source: Any, scale: float, zero: int) -> Tensor:
        return mode.rounded(after(_convolve(mode, x, source, 2, False) + other), _to(scale, zero))

    return run


def _linear(after: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(mode: OnGrids, x: Tensor, source: Any, scale: float, zero: int, *extra: Any) -> Tensor:
        found = packed(source)
        whole = mode.primitives.restored(found.weight, found.grid)
        return mode.rounded(after(F.linear(x, whole, found.bias), *extra), _to(scale, zero))

    return run


def _binary(function: Callable[[Any, Any], Tensor], after: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(mode: OnGrids, a: Any, b: Any, scale: float | None = None, zero_point: int | None = None) -> Tensor:
        if scale is None or zero_point is None:
            raise NotImplementedError("arithmetic of a quantized tensor and a number: it changes the grid")
        return mode.rounded(after(function(a, b)), _to(scale, zero_point))

    return run


def _cat(after: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(
        mode: OnGrids,
        parts: list[Tensor],
        dim: int = 0,
        scale: float | None = None,
        zero_point: int | None = None,
    ) -> Tensor:
        grid = mode.grid_of(parts[0]) if scale is None else _to(scale, zero_point or 0)
        assert grid is not None
        return mode.rounded(after(torch.cat(list(parts), dim)), grid)

    return run


def _batch_norm(after: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(
        mode: OnGrids,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        eps: float,
        scale: float,
        zero: int,
    ) -> Tensor:
        return mode.rounded(after(F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)), _to(scale, zero))

    return run


def _unary(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(mode: OnGrids, x: Tensor, *rest: Any, **named: Any) -> Tensor:
        scale = named.get("output_scale", rest[-2] if len(rest) > 1 else None)
        zero = named.get("output_zero_point", rest[-1] if rest else None)
        return mode.rounded(function(x, *rest[:-2]), _to(scale, zero))

    return run


def _leaky(x: Tensor, slope: float, inplace: bool = False) -> Tensor:
    del inplace
    return F.leaky_relu(x, slope)


def _relu6(mode: OnGrids, x: Tensor, inplace: bool = False) -> Tensor:
    del inplace
    grid = mode.grid_of(x)
    assert grid is not None
    return mode.rounded(F.relu6(x), grid)


def _layer_norm(x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, shape, weight, bias, eps)


def _group_norm(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return F.group_norm(x, groups, weight, bias, eps)


def _instance_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return F.instance_norm(x, None, None, weight, bias, True, 0.0, eps)


OPERATORS: dict[str, Callable[..., Any]] = {
    **{f"conv{n}d": _conv(n, _identity) for n in (1, 2, 3)},
    **{f"conv{n}d_relu": _conv(n, F.relu) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _conv(n, _identity, transposed=True) for n in (1, 2, 3)},
    "conv2d_add": _conv_add(_identity),
    "conv2d_add_relu": _conv_add(F.relu),
    "linear": _linear(_identity),
    "linear_relu": _linear(F.relu),
    "linear_leaky_relu": _linear(F.leaky_relu),
    "linear_tanh": _linear(torch.tanh),
    "add": _binary(torch.add, _identity),
    "add_relu": _binary(torch.add, F.relu),
    "mul": _binary(torch.mul, _identity),
    "mul_relu": _binary(torch.mul, F.relu),
    "matmul": _binary(torch.matmul, _identity),
    "cat": _cat(_identity),
    "cat_relu": _cat(F.relu),
    **{f"batch_norm{n}": _batch_norm(_identity) for n in ("", "1d", "2d", "3d")},
    **{f"batch_norm{n}_relu": _batch_norm(F.relu) for n in ("", "1d", "2d", "3d")},
    "hardswish": _unary(F.hardswish),
    "sigmoid": _unary(torch.sigmoid),
    "leaky_relu": _unary(_leaky),
    "softmax": _unary(F.softmax),
    "layer_norm": _unary(_layer_norm),
    "group_norm": _unary(_group_norm),
    "instance_norm": _unary(_instance_norm),
    "relu6": _relu6,
}


def operator_of(func: Any) -> Callable[..., Any] | None:
    """Return what an operator of ``torch.ops.quantized`` is; None for any other function.

    Raises:
        NotImplementedError: it is one that is not known here.
    """
    name = str(getattr(getattr(func, "_overloadpacket", func), "_qualified_op_name", ""))
    if not name.startswith("quantized::"):
        return None
    found = OPERATORS.get(name.removeprefix("quantized::"))
    if found is None:
        raise NotImplementedError(f"torch.ops.{name.replace('::', '.')} has no form in floats here")
    return found


KEEPS = frozenset({
    "relu", "relu_", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool2d", "max", "min", "amax", "amin",
    "flatten", "view", "reshape", "permute", "transpose", "t", "movedim", "contiguous", "squeeze", "unsqueeze",
    "clone", "detach", "detach_", "__getitem__", "select", "narrow", "chunk", "split", "unbind", "expand", "repeat",
    "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "pad", "to", "cpu", "stack", "cat", "dropout",
    "max_pool1d_with_indices", "max_pool2d_with_indices", "view_as", "reshape_as", "flip", "index_select",
    "boolean_dispatch", "fn", "_max_pool2d", "_max_pool1d", "_max_pool3d", "_adaptive_max_pool2d", "identity",
    "concat", "concatenate", "swapaxes", "T", "mT",
})  # fmt: skip
"""Functions after which the elements are some of those that were there (or 0)."""
ROUNDS = frozenset({
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "mean", "interpolate", "upsample", "upsample_nearest", "upsample_bilinear", "hardtanh", "hardtanh_", "relu6",
    "clamp", "clamp_", "leaky_relu", "leaky_relu_", "threshold", "_threshold", "clip",
})  # fmt: skip
"""Functions whose results torch rounds to the grid of what they read."""
OWN = {"sigmoid": (1 / 256, 0), "tanh": (2 / 256, 128), "hardsigmoid": (1 / 256, 0)}
"""Functions whose results have a grid of their own: step and zero point, in quint8."""


def of_quantized(
    mode: OnGrids, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], grid: Grid
) -> Any:
    """Run a function of torch on tensors that stand for quantized ones.

    Raises:
        NotImplementedError: what it does to quantized tensors is not known here.
    """
    result = func(*args, **kwargs)
    name = getattr(func, "__name__", "")
    if name == "__get__":  # attributes: shapes, dtypes, and transposed views
        name = getattr(getattr(func, "__self__", None), "__name__", name)
        return mode.on(result, grid) if isinstance(result, Tensor) and name in KEEPS else result
    tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    if not tensors:
        return result

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        if name in OWN:
            return mode.rounded(leaf, _to(*OWN[name]))
        return mode.rounded(leaf, grid) if name in ROUNDS else mode.on(leaf, grid)

    if name not in KEEPS and name not in ROUNDS and name not in OWN:
        raise NotImplementedError(f"torch's {name or func} of a quantized tensor has no form in floats here")
    return pytree.tree_map(place, result)
