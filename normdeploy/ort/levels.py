"""onnxruntime's graph optimization levels, under one spelling; onnxruntime itself is imported when it is asked."""

from __future__ import annotations

from typing import Any, Literal, get_args

Optimization = Literal["disable", "basic", "extended", "layout", "all"]
OPTIMIZATIONS: tuple[Optimization, ...] = get_args(Optimization)
"""From the least to the most."""

LEVEL_NAMES: dict[str, str] = {
    "disable": "ORT_DISABLE_ALL",
    **{level: f"ORT_ENABLE_{level.upper()}" for level in OPTIMIZATIONS[1:]},
}
"""Level -> its name in ``onnxruntime.GraphOptimizationLevel``."""


def available_levels() -> tuple[str, ...]:
    """Return those that the onnxruntime in use has: older ones lack "layout"."""
    import onnxruntime

    return tuple(level for level, name in LEVEL_NAMES.items() if hasattr(onnxruntime.GraphOptimizationLevel, name))


def graph_level(level: str) -> Any:
    """Return onnxruntime's own value for a level that it has."""
    import onnxruntime

    return getattr(onnxruntime.GraphOptimizationLevel, LEVEL_NAMES[level])
