"""ONNX operators in torch: one table from (domain, operator) to implementation.

What is missing here runs through onnx's own reference implementation (``normdeploy.graph.onnx_reference``).
"""

from __future__ import annotations

from normdeploy.graph.exact import AFFINE_DOMAIN
from normdeploy.graph.operators.call import Call, Implementation, Inputs, Result
from normdeploy.graph.operators.contrib import CONTRIB
from normdeploy.graph.operators.deformed import DEFORMED
from normdeploy.graph.operators.elementwise_operators import ELEMENTWISE
from normdeploy.graph.operators.integer_operators import INTEGERS
from normdeploy.graph.operators.linear_operators import LINEAR
from normdeploy.graph.operators.normalization import NORMALIZATION, affine
from normdeploy.graph.operators.pooling import POOLING
from normdeploy.graph.operators.qonnx import QONNX
from normdeploy.graph.operators.quantize_linear import QUANTIZED
from normdeploy.graph.operators.random import RANDOMS
from normdeploy.graph.operators.recurrent import RECURRENT
from normdeploy.graph.operators.reduction import REDUCTION
from normdeploy.graph.operators.resampling import RESAMPLING
from normdeploy.graph.operators.scattering import SCATTERING
from normdeploy.graph.operators.sequences import SEQUENCES
from normdeploy.graph.operators.shaping import SHAPING

_STANDARD: tuple[dict[str, Implementation], ...] = (
    DEFORMED,
    ELEMENTWISE,
    INTEGERS,
    LINEAR,
    NORMALIZATION,
    POOLING,
    QUANTIZED,
    RANDOMS,
    RECURRENT,
    REDUCTION,
    RESAMPLING,
    SCATTERING,
    SEQUENCES,
    SHAPING,
)

OPERATORS: dict[tuple[str, str], Implementation] = {
    **{("", name): implementation for table in _STANDARD for name, implementation in table.items()},
    (AFFINE_DOMAIN, "Affine"): affine,
    **CONTRIB,
    **QONNX,
}

__all__ = ["OPERATORS", "Call", "Implementation", "Inputs", "Result"]
