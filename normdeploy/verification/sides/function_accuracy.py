"""How accurately the runtime's float32 kernels compute each function of one number."""

from __future__ import annotations

FUNCTIONS: dict[str, tuple[float, float]] = {
    "Sigmoid": (3.0, 1.0),
    "Tanh": (4.0, 0.0),
    "Gelu": (2.0, 4.0),
    "BiasGelu": (2.0, 4.0),
    "FastGelu": (4.0, 4.0),
    "QuickGelu": (4.0, 1.0),
    "Elu": (1.0, 1.0),
    "Selu": (2.0, 1.0),
    "Celu": (1.0, 1.0),
    "HardSwish": (1.0, 4.0),
    "HardSigmoid": (1.0, 1.0),
    "Mish": (4.0, 1.0),
    "Softplus": (4.0, 0.0),
    "Log": (3.0, 0.0),
    "Sin": (2.0, 0.5),
    "Cos": (2.0, 0.5),
    "GRU": (4.0, 1.0),
    "LSTM": (2.0, 0.5),
}
"""Operator to (r, a): its kernel errs by about r u max(|y|, a). Where a > 0 it is accurate absolutely, not relatively:
the runtime's logistic function is clamped, so that its smallest values carry no correct digit. Measured over all of
float32's useful range by ``benchmarks/calibrate_verifier.py --functions``; recurrent operators hold such functions, and
a saturated gate of a GRU keeps their error (7 u RMS of results up to 1)."""
