"""When a graph's numbers are those that a call of the module hands to torch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from normdeploy.verification.mutation.known_numbers import GroupNorm
from normdeploy.verification.sides.call_record import NormCall
from normdeploy.verification.sides.flat_values import UNIT_ROUNDOFF


def rounded(found: float, number: float) -> bool:
    """Tell whether one number is another, rounded to float32."""
    return abs(found - number) <= UNIT_ROUNDOFF["float32"] * abs(number)


def same_norm(call: NormCall, kind: str, held: Sequence[Tensor | None], epsilon: float) -> bool:
    """Tell whether a call is of a norm of some kind, with its numbers and epsilon."""
    if call.kind != kind or not rounded(epsilon, call.epsilon):
        return False
    size = call.groups or call.size
    if size and (held[0] is None or held[0].numel() != size):
        return False
    padded = [*held, *[None] * (len(call.numbers) - len(held))]
    neutral = (1.0, 0.0, 0.0, 1.0)
    return all(equal(own, there, one) for own, there, one in zip(padded, call.numbers, neutral, strict=False))


def same_group(call: NormCall, group: GroupNorm, held: Tensor | None, epsilon: float) -> bool:
    """Tell whether a call is of a group norm, with its groups (numbers of ``held``), scale, shift and epsilon.

    Groups of one number each say nothing: whatever a mutant does, 0 is left of them, and at other sizes is not.
    """
    if call.kind != "GroupNormalization" or held is None or held.numel() != call.groups or call.size < 2:
        return False
    same = equal(group.scale, call.numbers[0], 1.0) and equal(group.shift, call.numbers[1], 0.0)
    return same and rounded(epsilon, call.epsilon)


def equal(held: Tensor | None, given: Tensor | None, neutral: float) -> bool:
    """Tell whether two operands hold the same numbers in the same order; an absent one is neutral throughout."""
    if held is None or given is None:
        known = held if given is None else given
        return known is None or bool((known.detach() == neutral).all())
    return held.numel() == given.numel() and bool((held.reshape(-1) == given.detach().cpu().double().reshape(-1)).all())


def take(operands: list[Tensor | float], number: Tensor) -> bool:
    """Take the first operand out that is a number of the graph; False where none is."""
    for place, operand in enumerate(operands):
        if isinstance(operand, Tensor):
            alike = (one for one in (operand, _once(operand)) if one.numel() == number.numel())
            found = any(equal(number, one, 0.0) for one in alike)
        else:  # a Python number, which the file holds rounded
            away = (number - operand).abs()
            found = number.numel() == 1 and bool((away <= UNIT_ROUNDOFF["float32"] * abs(operand)).all())
        if found:
            del operands[place]
            return True
    return False


def _once(operand: Tensor) -> Tensor:
    """Return what was expanded as it was before."""
    for axis, step in enumerate(operand.stride()):
        operand = operand.narrow(axis, 0, 1) if step == 0 and operand.shape[axis] > 1 else operand
    return operand
