"""``F.interpolate(mode="nearest")`` to a size: by Gather where onnxruntime's Resize would take a neighbour.

torch reads at floor(j n / m), onnxruntime at floor(j / (m / n)) with m / n rounded: of 28 -> 16 the first is exact, and
4 / (16 / 28) is 6.9999995, of which the floor is 6. Sizes that are dynamic are left to Resize.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.exporting.translations.attention_translation import ints, op

aten = torch.ops.aten

_SETTINGS: dict[str, Any] = {
    "mode": "nearest",
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
}


def places_read(n: int, m: int) -> list[int]:
    """Return where torch reads for each of m results of n, in float32."""
    places = np.floor(np.arange(m, dtype=np.float32) * (np.float32(n) / np.float32(m)))
    return [int(place) for place in places.clip(0, n - 1)]


def resized_elsewhere(n: int, m: int) -> bool:
    """Tell whether onnxruntime's Resize reads elsewhere than torch does, in float32 and in float64 alike."""
    resized = np.floor(np.arange(m, dtype=np.float32) / (np.float32(m) / np.float32(n))).clip(0, n - 1)
    double = np.floor(np.arange(m) * (n / m)).clip(0, n - 1)
    places = places_read(n, m)
    return bool((places == double).all() and (places != resized).any())


def _to_size(x: Any, output_size: Any) -> Any:
    given = list(x.shape)[2:] if x.shape is not None else []
    wanted = list(output_size) if isinstance(output_size, (list, tuple)) else []
    if len(given) == len(wanted) and all(isinstance(size, int) for size in (*given, *wanted)):
        pairs = list(zip(given, wanted, strict=True))
        if any(resized_elsewhere(n, m) for n, m in pairs):
            for axis, (n, m) in enumerate(pairs, 2):
                x = x if n == m else op.Gather(x, ints(*places_read(n, m)), axis=axis)
            return x
    sizes = op.Concat(op.Shape(x, end=2), op.Cast(output_size, to=ir.DataType.INT64), axis=0)
    return op.Resize(x, None, None, sizes, **_SETTINGS)


def _nearest(x: Any, output_size: Any, scales: Sequence[float | None]) -> Any:
    known = [scale for scale in scales if scale is not None]
    if known and len(known) == len(scales):
        return op.Resize(x, None, op.Constant(value_floats=[1.0, 1.0, *known]), None, **_SETTINGS)
    return _to_size(x, output_size)


def nearest_by_either(
    input: Any,  # noqa: A002 - the operator's own name for it, by which the exporter may pass it
    output_size: Any = None,
    scale_factors: Sequence[float] | None = None,
) -> Any:
    """Translate aten.upsample_nearest1d.vec and its like: a size or scales are given."""
    return _nearest(input, output_size, scale_factors or ())


def nearest_1d(self: Any, output_size: Any, scales: float | None = None) -> Any:
    """Translate aten.upsample_nearest1d."""
    return _nearest(self, output_size, (scales,))


def nearest_2d(self: Any, output_size: Any, scales_h: float | None = None, scales_w: float | None = None) -> Any:
    """Translate aten.upsample_nearest2d."""
    return _nearest(self, output_size, (scales_h, scales_w))


def nearest_3d(
    self: Any,
    output_size: Any,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Any:
    """Translate aten.upsample_nearest3d."""
    return _nearest(self, output_size, (scales_d, scales_h, scales_w))


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.upsample_nearest1d.vec: nearest_by_either,
    aten.upsample_nearest2d.vec: nearest_by_either,
    aten.upsample_nearest3d.vec: nearest_by_either,
    aten.upsample_nearest1d.default: nearest_1d,
    aten.upsample_nearest2d.default: nearest_2d,
    aten.upsample_nearest3d.default: nearest_3d,
}
"""The operators that are translated here."""
