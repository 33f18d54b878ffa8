"""What some operators of the file return, over all its runs in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array
from normdeploy.graph import constant_tensor
from normdeploy.graph.linear_view import linear_of
from normdeploy.graph.operator_evaluation import as_constant, promote
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.verification.derivation.side.competing_constants import fills, taken_fills
from normdeploy.verification.derivation.to_be_seen import SATURATING
from normdeploy.verification.sides.clip_bounds import computed_operand, extreme_bound, reached_of_bounds
from normdeploy.verification.sides.flat_values import Feeds
from normdeploy.verification.sides.taken_parts import taken_parts
from normdeploy.verification.sides.unmet_weights import nonzero_channels

NEGATED = -1
"""In place of an operand's place: its negative, which is all that an Abs returns of numbers below 0."""

_NEAR = 64.0
"""How many times a number is what it is added to, at most, where it shows what it does."""


_OF_SIZES = frozenset({"Div", "Mod", "Sign", "BitShift", "Floor", "Ceil", "Round"})
"""Operators that are watched where they decide on sizes: 0 for all sizes below some number shows nothing."""


_DECIMALS = 9
"""Digits behind the point beyond which what a saturating operator returns counts for nothing beside numbers near 1."""

_EXTREMES = frozenset({"Max", "Min"})
"""Operators that have to return something else than they read, too, where numbers of theirs are asked for."""

_HOLDING = frozenset({"If", "Loop"})
"""Operators that hold what runs on some inputs alone."""


@dataclass
class Watch:
    """What operators returned in every run of the file in float64.

    An operator acts where it returns something else than what it reads, both answers, or several numbers.

    Args:
        names: of the operators' first results; by these each of them is known below.
        runs: how many there were.
        acted: those that were seen to act.
        ran: all that returned anything, with their nodes.
        answers: the one answer that an operator of booleans gave so far.
        same: the operands that an operator's result was equal to in every run so far, by place.
        numbers: the one number that all of a result was in every run so far, None if it was not; of a sum the number
            that keeps it from 0.
        values: all values of the run at hand.
        ends: of the integers that some quantizers among them make; these act where both were reached. Of what reads a
            table the rows; it acts where each was chosen. Of what has weights of its own the channels that it reads;
            it acts where each was something else than 0. Of a Clip the sides of its own bounds; it acts where something
            lay beyond each, of a Max or a Min near it besides. Of what takes the largest, the numbers that were put in
            (:mod:`.competing_constants`); it acts where each was taken. Of an If or a Loop its parts
            (:mod:`.taken_parts`); it acts where each was reached.
        reached: those that were.
    """

    names: frozenset[str]
    ends: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reached: dict[str, set[int]] = field(default_factory=dict)
    runs: int = 0
    acted: set[str] = field(default_factory=set)
    ran: dict[str, ir.Node] = field(default_factory=dict)
    answers: dict[str, bool] = field(default_factory=dict)
    same: dict[str, set[int]] = field(default_factory=dict)
    numbers: dict[str, float | None] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)

    def copied(self) -> Watch:
        """Return one that goes on from here, apart from this."""
        same = {name: set(places) for name, places in self.same.items()}
        again = replace(self, acted=set(self.acted), ran=dict(self.ran), answers=dict(self.answers), same=same)
        again.numbers, again.values = dict(self.numbers), {}
        again.reached = {name: set(ends) for name, ends in self.reached.items()}
        return again

    def begin(self, feeds: Feeds) -> None:
        """Begin a run."""
        self.runs += 1
        self.values = {name: promote(array, torch.float64) for name, array in feeds.items()}

    def enter(self, known: Mapping[str, Tensor]) -> None:
        """See what a body is fed."""
        self.values.update(known)

    def __call__(self, node: ir.Node, results: list[Tensor]) -> None:
        """See what an operator returns."""
        for value, result in zip(node.outputs, results, strict=False):
            if value.name:
                self.values[value.name] = result
        name = str(node.outputs[0].name)
        if name not in self.names or name in self.acted or (node.op_type in _HOLDING and name not in self.ends):
            return
        if node.op_type not in _HOLDING and not results[0].numel():
            return
        self.ran[name] = node
        whole = True
        if name in self.ends:
            reached = (
                taken_parts(node, self._held) if node.op_type in _HOLDING else self._reached(name, node, results[0])
            )
            self.reached.setdefault(name, set()).update(reached)
            whole = self.reached[name].issuperset(self.ends[name])
            if node.op_type not in _EXTREMES:
                self.acted.update({name} if whole else ())
                return
        if results[0].dtype is torch.bool:
            first = bool(results[0].reshape(-1)[0])
            if bool((results[0] != first).any()) or self.answers.setdefault(name, first) != first:
                self.acted.add(name)
            return
        if has(node, Trait.ADDS):
            self._see_sum(name, node)
            return
        made = results[0]
        if is_standard(node, *SATURATING):
            read = self._held(node.inputs[0])
            made = made.round(decimals=_DECIMALS) if read is None else _as_far_as_it_counts(read, made)
        same = {place for place, value in enumerate(node.inputs) if same_tensor(self._held(value), made)}
        if node.op_type == "Abs" and same_tensor(self._held(node.inputs[0]), -results[0]):
            same.add(NEGATED)
        self.same[name] = self.same.get(name, same) & same
        number = _one_number(made, of_sizes=node.op_type in _OF_SIZES)
        if self.numbers.setdefault(name, number) != number:
            self.numbers[name] = None
        if whole and not self.same[name] and self.numbers[name] is None:
            self.acted.add(name)

    def _reached(self, name: str, node: ir.Node, result: Tensor) -> set[int]:
        """Return which of an operator's ends this run reached."""
        ends = self.ends[name]
        if node.op_type == "Clip" or extreme_bound(node):
            read = self._held(computed_operand(node))
            return set() if read is None else reached_of_bounds(node, read)
        if fills(node):
            return taken_fills(node, self._held(node.inputs[0]), result)
        linear = linear_of(node)
        if linear is not None:
            data = self._held(linear.value(linear.data))
            return set() if data is None else nonzero_channels(linear, data)
        made = result.numpy() if node.op_type != "Gather" else self._rows(node, len(ends))
        return {end for end in ends if (made == end).any()}

    def _rows(self, node: ir.Node, count: int) -> Array:
        """Return the rows of a table that an operator read."""
        index = self._held(node.inputs[1])
        return np.zeros(0, np.int64) if index is None else np.unique(index.numpy()) % count

    def _see_sum(self, name: str, node: ir.Node) -> None:
        """See whether a number that keeps a sum from 0 was ever large beside what it is added to."""
        read = [held for held in map(self._held, node.inputs) if held is not None]
        small = min(read, key=lambda held: float(held.abs().max()), default=None)
        if small is None or len(read) != 2:
            return
        other = read[1] if read[0] is small else read[0]
        self.numbers[name] = size = float(small.abs().max())
        if bool((other.abs() <= _NEAR * size).any()):
            self.acted.add(name)

    def _held(self, value: ir.Value | None) -> Tensor | None:
        if value is None or not value.name:
            return None
        constant = constant_tensor(value)
        return self.values.get(value.name) if constant is None else as_constant(constant, torch.float64)

    @property
    def idle(self) -> Mapping[str, ir.Node]:
        """The operators that returned what they read, one answer, or one number everywhere, in every run."""
        return {name: node for name, node in self.ran.items() if name not in self.acted}


def _as_far_as_it_counts(read: Tensor, made: Tensor) -> Tensor:
    """Return what a saturating operator returned to so many digits, or what it read where it is that to as many."""
    near = read.to(made.dtype)
    if bool(((made - near).abs() <= 10.0**-_DECIMALS * near.abs().clamp(min=1.0)).all()):
        return near
    return made.round(decimals=_DECIMALS)


def _one_number(made: Tensor, *, of_sizes: bool) -> float | None:
    """Return the number that all elements of a tensor are; None where they differ, or are no floats and no sizes."""
    if not of_sizes and not (made.is_floating_point() and made.dim()):
        return None
    first = made.reshape(-1)[0]
    return float(first) if bool((made == first).all()) else None


def same_tensor(read: Tensor | None, made: Tensor) -> bool:
    """Tell whether a tensor is another one, repeated where that is smaller: the same numbers, NaN included."""
    read = None if read is None else spread_over(read, made)
    if read is None:
        return False
    if read.dtype != made.dtype:  # torch compares no unsigned integers with others; NumPy does
        return bool((np.asarray(read.numpy()) == np.asarray(made.numpy())).all())
    return bool(((read == made) | ((read != read) & (made != made))).all())


def spread_over(read: Tensor, made: Tensor) -> Tensor | None:
    """Return an operand in the shape of the result that is computed of it; None where it has no such shape."""
    try:
        return read.expand(made.shape)
    except RuntimeError:
        return None
