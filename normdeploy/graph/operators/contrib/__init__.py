"""Operators of com.microsoft that onnxruntime's optimizers and tools write, by their definitions, in torch.

Source: onnxruntime, docs/ContribOperators.md; where it leaves a question open, what the CPU kernel does
(``tests/graph/contrib``). An attribute that no kernel of the CPU honours is refused, not guessed.
"""

from __future__ import annotations

from normdeploy.graph.operators.call import Implementation
from normdeploy.graph.operators.contrib.attention import ATTENTION
from normdeploy.graph.operators.contrib.dense import DENSE
from normdeploy.graph.operators.contrib.moving import MOVING
from normdeploy.graph.operators.contrib.nchwc import NCHWC
from normdeploy.graph.operators.contrib.packed import PACKED
from normdeploy.graph.operators.contrib.qlinear import QLINEAR
from normdeploy.graph.operators.contrib.row_operators import ROWS
from normdeploy.graph.traits import MICROSOFT

BLOCKED_DOMAIN = "com.microsoft.nchwc"

CONTRIB: dict[tuple[str, str], Implementation] = {
    **{
        (MICROSOFT, name): implementation
        for table in (ATTENTION, DENSE, MOVING, PACKED, QLINEAR, ROWS)
        for name, implementation in table.items()
    },
    **{(BLOCKED_DOMAIN, name): implementation for name, implementation in NCHWC.items()},
}

__all__ = ["BLOCKED_DOMAIN", "CONTRIB"]
