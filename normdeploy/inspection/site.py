"""A normalization that evaluates with stored statistics, however it is spelled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats


@dataclass(frozen=True)
class StoredNorm:
    """y = scale (x - mean) / sqrt(variance + epsilon) + shift with stored statistics (epsilon may be outside the root).

    Args:
        where: module path or node name.
        variance: stored variance, float64, of the shape it is stored in.
        epsilon: what keeps the root from zero; 0 if there is none.
        mean: stored mean, or None where the graph does not show it.
        scale: likewise.
        shift: likewise.
        outside: whether epsilon is added to the standard deviation.
        dtype: what the norm computes in.
        x: the value it normalizes, where a graph was looked at.
        axis: x's channel axis; None where it is unknown or the statistics vary along several.
    """

    where: str
    variance: Floats
    epsilon: float
    mean: Floats | None = None
    scale: Floats | None = None
    shift: Floats | None = None
    outside: bool = False
    dtype: ir.DataType = ir.DataType.FLOAT
    x: ir.Value | None = None
    axis: int | None = None

    @property
    def factor(self) -> Floats:
        """1 / sqrt(variance + epsilon), flat; NaN or infinity where that is what it computes."""
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = self.variance.reshape(-1)
            result: Floats = (
                1.0 / (np.sqrt(variance) + self.epsilon) if self.outside else 1.0 / np.sqrt(variance + self.epsilon)
            )
        return result

    @property
    def slope(self) -> Floats | None:
        """scale / sqrt(variance + epsilon) per channel, flat; None where scale is unknown or of another size."""
        if self.scale is None:
            return None
        scale = self.scale.reshape(-1)
        factor = self.factor
        if scale.size not in (1, factor.size):
            return None
        return np.asarray(scale * factor, dtype=np.float64)
