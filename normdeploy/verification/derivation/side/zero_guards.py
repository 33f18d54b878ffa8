"""Small numbers that keep a result from being 0 in front of a pole: log(1 - p + 1e-10), 1 / (x - 1 + 1e-12).

Where p is 1, floating point makes 1 - p = 0 exactly, and the small number decides: -23 or -inf. As one shift,
1 + 1e-10, it is gone once that is stored as a float32, though this is the number's one rounding. Half a unit of the
sum explains nothing there: what is stored has to hold the small number itself, up to :data:`SHARE` of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.gauges import unit_roundoff
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind

SHARE = 2.0**-6
"""By how much of the small number what is stored may be off."""

_MOST = 256
"""Values that are looked through for a pole; behind more, one is taken to be there."""

_POLES = {"Log": 0, "Reciprocal": 0, "Sqrt": 0, "Div": 1, "Pow": 0, "Acosh": 0, "Atanh": 0, "ReduceLogSum": 0}
"""Operators that are steep without bound somewhere, by the place of the operand."""

_HIDES = frozenset({"Softmax", "LogSoftmax"})
"""Operators to which a shift of all that they read makes no difference."""


def guard_beside(side: Side, value: ir.Value, small: Floats, large: Floats) -> float:
    """Return the size of a small number that is added beside a large one and guards a pole; 0 where none does.

    Args:
        side: the graph. value: the sum, in which the numbers count as they are. small: one number everywhere.
        large: what is added besides.
    """
    first = abs(float(small.reshape(-1)[0])) if small.size else 0.0
    if not first or not np.isfinite(first) or (small != small.reshape(-1)[0]).any():
        return 0.0
    most = float(np.abs(large[np.isfinite(large)]).max(initial=0.0))
    lost = _is_lost(side, value, np.array(first), np.array(most))
    return first if lost and meets_a_pole(side, value) else 0.0


def _is_lost(side: Side, value: ir.Value, small: Floats, large: Floats) -> npt.NDArray[np.bool_]:
    """Tell which small numbers a value's type does not hold in a sum with large ones."""
    small = np.abs(small)
    return np.asarray((small > 0) & (small * SHARE < unit_roundoff(side.type_of(value)) * np.abs(large)))


def smaller_guard(*guards: float) -> float:
    """Return the smallest of several guards; 0 where there is none."""
    return min((guard for guard in guards if guard), default=0.0)


def lost_guard(have: Floats, want: Floats, guard: float) -> str:
    """Return in a clause that stored numbers do not hold a guard; "" if they do, or there is none.

    Args:
        have: as stored. want: as they should be. guard: in their units.
    """
    off = np.abs(have - want)
    if not guard or not (off > SHARE * guard).any():
        return ""
    return _told(guard)


def lost_bound(side: Side, value: ir.Value, have: Floats, want: Floats, scale: Floats, shift: Floats) -> str:
    """Return in a clause that stored numbers have lost a bound that keeps from 0 what has a pole behind it.

    Args:
        side: the source. value: its bounded value. have: bounds as stored. want: of the source, = scale have + shift.
    """
    try:
        have, want, scale, shift = np.broadcast_arrays(have, want, scale, shift)
    except ValueError:  # other shapes are told elsewhere
        return ""
    lost = _is_lost(side, value, want, shift)
    lost &= np.abs(have * scale + shift - want) > SHARE * np.abs(want)
    return _told(float(np.abs(want[lost]).min())) if lost.any() and meets_a_pole(side, value) else ""


def _told(guard: float) -> str:
    return f"{guard:.3g}, which keeps from 0 what has a pole behind it, is lost in the rounding of a sum"


def meets_a_pole(side: Side, value: ir.Value) -> bool:
    """Tell whether a value may come to an operator that is steep without bound, with no weights in between."""
    seen = {value}
    queue = [value]
    for read in queue:
        for use in read.uses():
            node = use.node
            if _POLES.get(kind(node)) == use.idx and not _is_smooth_power(side, node):
                return True
            if _ends(node):
                continue
            queue += [made for made in node.outputs if made not in seen]
            seen.update(node.outputs)
        if len(seen) > _MOST:
            return True
    return False


def _ends(node: ir.Node) -> bool:
    """Tell whether nothing is exactly 0 behind an operator, or what is added in front of it drops out."""
    weighs = has(node, Trait.WEIGHS | Trait.NORMALIZES) and kind(node) not in ("Mul", "Pow", "BatchNormalization")
    return weighs or kind(node) in _HIDES


def _is_smooth_power(side: Side, node: ir.Node) -> bool:
    """Tell whether an operator is a Pow by integers from 0 on."""
    read = inputs_of(node)
    power = side.constant(read[1]) if kind(node) == "Pow" and len(read) > 1 else None
    return power is not None and bool(((power >= 0) & (power == np.rint(power))).all())
