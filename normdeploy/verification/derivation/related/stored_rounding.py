"""Stored numbers against what they should be: the one rounding, another tool's rounding, or wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array, Floats
from normdeploy.verification.derivation.gauges import noise_of, radius
from normdeploy.verification.derivation.related.memory_order import by_rows, lies_by_columns

_CHUNK = 1 << 16
"""Numbers that are looked at at once: their copies in float64 stay in a processor's cache."""

_OTHER_ROUNDING, _OF_THE_LARGEST = 16.0, 4.0
"""Half units by which numbers folded in their own precision may lie off: of each number (a root, a quotient, products,
each rounded), and of the tensor's largest (a sum that cancels)."""

_LAST_BIT = 2.5
"""Half units within which a number and its neighbour lie."""

_NEAR = 2.0**-10
"""How far off, of its terms, a number is itself wrong; further off it may be what another scale or shift asks for."""

_LAST: dict[ir.DataType | None, float] = {
    ir.DataType.FLOAT16: float(np.finfo(np.float16).max),
    **dict.fromkeys((ir.DataType.FLOAT, None), float(np.finfo(np.float32).max)),
}
"""The last number of a type, of float32 for numbers that were computed."""

_ROWS, _SMALL = 8, 1 << 12
"""Rows by which an array of more numbers than these is told to be another one altogether."""


@dataclass(frozen=True)
class Wrong:
    """A stored number is not what it should be.

    Args:
        told: a clause, or what finds it where it is asked for: most guesses are wrong, and nobody asks why.
        rounding: none is further off than another order of rounding explains.
        near: none is so far off that another scale or shift may be meant.
        last: none but the last numbers of the type, where infinities are expected. In a mask of scores they do the same
            where no row is masked whole, so that samples judge them.
        among_right: most numbers around it are right, or the weights beside it: so this one is wrong.
        certain: nothing else can be meant, whatever it is held against.
        node: the operator of a body that holds it. parts: the operators that are looked at as one, with those behind.
    """

    told: str | Callable[[], str]
    rounding: bool = False
    node: ir.Node | None = None
    parts: tuple[ir.Node, ...] = ()
    among_right: bool = False
    near: bool = False
    last: bool = False
    certain: bool = False

    @property
    def text(self) -> str:
        """What is wrong, as a clause."""
        return self.told if isinstance(self.told, str) else self.told()

    def of(self, what: str, *, parts: tuple[ir.Node, ...] = ()) -> Wrong:
        """Return the same of what holds the number."""
        return replace(self, told=lambda: f"{what}: {self.text}", parts=parts)


def worst(found: Iterable[Wrong | None]) -> Wrong | None:
    """Return one of several that are wrong, one which no rounding explains if there is one; None if none is."""
    return min((wrong for wrong in found if wrong is not None), key=lambda wrong: wrong.rounding, default=None)


def compare(
    have: Array,
    dtype: ir.DataType | None,
    want: Array,
    factor: Floats | None = None,
    *,
    slack: Floats | float = 0.0,
    size: Floats | float = 0.0,
    products: bool = False,
    other: Floats | None = None,
    place: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple,
) -> Wrong | None:
    """Hold stored numbers against ``want * factor``.

    Args:
        have: as stored. dtype: what in.
        want: of the same shape, or to be broadcast to it. factor: broadcasts against both.
        slack: how far off each may be beyond half a unit.
        size: of the terms that were summed, where they are larger than the result.
        products: each is a product of stored numbers, in which nothing cancels.
        other: how far off each may be by another order of rounding, where that is not told by its type.
        place: where the file holds a number, by its index here.
    """
    if have.dtype.kind not in "fV" and str(have.dtype) != "bfloat16":
        whole = want if factor is None else want * factor
        same = have.shape == np.shape(whole) and np.array_equal(have, whole)
        return None if same else Wrong("is not the same integers")
    if have.ndim == 0:
        have, want = have.reshape(1), np.asarray(want).reshape(1)
        factor = None if factor is None else factor.reshape(1)
    try:
        whole = np.broadcast_to(want, have.shape)
        factors = None if factor is None else np.broadcast_to(factor, have.shape)
        slacks, sizes = np.broadcast_to(slack, have.shape), np.broadcast_to(size, have.shape)
    except ValueError:
        return Wrong(f"has shape {list(have.shape)}; expected {list(np.shape(want))}")
    others = None if other is None else np.broadcast_to(other, have.shape)
    if lies_by_columns(have):
        return compare(
            have.T,
            dtype,
            whole.T,
            None if factors is None else factors.T,
            slack=slacks.T,
            size=sizes.T,
            products=products,
            other=None if others is None else others.T,
            place=lambda at: place(at[::-1]),
        )
    numbers = _Numbers(have, dtype, by_rows(whole), factors, slacks, sizes, products, others)
    if numbers.are_others():
        return Wrong(lambda: numbers.differ(place).text)
    found = numbers.differ(place)
    return found if found.text else None


@dataclass(frozen=True)
class _Numbers:
    """Stored numbers and what they should be, in arrays of one shape (:func:`compare`)."""

    have: Array
    dtype: ir.DataType | None
    want: Array
    factors: Floats | None
    slacks: Floats
    sizes: Floats
    products: bool
    others: Floats | None

    def are_others(self) -> bool:
        """Tell by a few rows whether numbers differ by more than any rounding explains; False says nothing."""
        if self.have.size <= _SMALL or not self.want.size:
            return False
        rows = slice(0, None, max((len(self.have) - 1) // (_ROWS - 1), 1))
        expected = self._expected(rows)
        if self._are_plainly(rows, expected):
            return False
        off, good, allowed = self._judged(rows, expected)
        if good.all():  # of these the largest number is not looked for
            return False
        most = [float(max(array.max(), -array.min())) for array in (self.want, self.sizes)]
        most[0] *= 1.0 if self.factors is None else float(np.abs(self.factors).max())
        with np.errstate(invalid="ignore"):
            return bool((~good & (off > allowed + self._of_the_largest(most))).any())

    @cached_property
    def _most(self) -> tuple[float, float]:
        """The largest number that is expected, and the largest of the terms."""
        each = [np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in map(self._expected, self._cuts())]
        return float(np.max(each, initial=0.0)), float(np.max(self.sizes, initial=0.0))

    def _cuts(self) -> Iterator[slice]:
        """Yield rows that are looked at at once."""
        rows = max(_CHUNK // max(self.have.size // max(len(self.have), 1), 1), 1)
        return (slice(start, start + rows) for start in range(0, len(self.have), rows))

    def differ(self, place: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Wrong:
        """Return how they differ, in no text if they do not, and whether another order of rounding explains it."""
        have = self.have
        worst, furthest, count, beyond, near, last = "", 0.0, 0, 0, True, True
        index: tuple[int, ...] = ()
        alone: tuple[int, ...] = ()
        for cut in self._cuts():
            expected = self._expected(cut)
            if self._are_plainly(cut, expected):
                continue
            off, good, allowed = self._judged(cut, expected)
            if good.all():
                continue
            count += int((~good).sum())
            with np.errstate(divide="ignore", invalid="ignore"):
                far = np.where(good, 0.0, np.nan_to_num(off / allowed, nan=np.inf))
            if far.max() > furthest:
                furthest = float(far.max())
                at = tuple(int(i) for i in np.unravel_index(int(np.argmax(far)), far.shape))
                index = (at[0] + cut.start, *at[1:])
                worst = f"is {float(have[index]):.9g} at {{}}; expected {expected[at]:.12g}"
            out = ~(off <= allowed + self._of_the_largest(self._most)) & ~good
            beyond += int(out.sum())
            last &= bool((~out | self._are_last(cut, expected)).all())
            if beyond == 1 and out.any():
                alone = tuple(int(i) for i in np.unravel_index(int(np.argmax(out)), out.shape))
                alone = (alone[0] + cut.start, *alone[1:])
            reach = allowed + _NEAR * np.maximum(np.abs(expected), self.sizes[cut])
            near &= bool((good | ((off <= reach) & np.isfinite(expected))).all())  # nothing is near an infinity
        if not count:
            return Wrong("", rounding=True)
        copies = self._are_copies()
        text = f"{worst.format(list(place(index)))} ({count} of {have.size} numbers differ)"
        lone = near and (copies or 0 < 2 * beyond < have.size)
        lone = lone or (beyond == 1 and self._no_scale_moves(alone))
        return Wrong(text, not (beyond or copies), among_right=lone, near=near, last=bool(beyond) and last)

    def _no_scale_moves(self, at: tuple[int, ...]) -> bool:
        """Tell whether a number, all others being right, is none that another scale of a result or an operand makes.

        That moves all of a row, or of a column. A number of the same row and column is right, or one of each.
        """
        if self.have.ndim < 2:
            return False
        expected = self._expected(slice(at[0], at[0] + 1))[0]
        if not np.isfinite(expected[at[1:]]):
            return False
        row, column = expected != 0, self._column(at[1]) != 0
        both = int(row[at[1]].sum())
        return both > 1 or (int(row.sum()) > both and int(column.sum()) > both)

    def _column(self, place: int) -> Floats:
        return np.concatenate([self._expected(cut)[:, place] for cut in self._cuts()])

    def _are_plainly(self, at: slice, expected: Floats) -> bool:
        """Tell whether some rows are what is expected, or the float32 nearest to it: the plain case, told fast."""
        stored = self.have[at]
        if self.factors is None and stored.dtype == self.want.dtype and np.array_equal(stored, self.want[at]):
            return True
        return self.dtype == ir.DataType.FLOAT and _is_rounding_of(stored, expected)

    def _are_copies(self) -> bool:
        """Tell whether most numbers are, to the last bit of float64, what is expected, and another is not.

        Another tool's arithmetic rounds each number of a tensor. Where the most are copies, a single one that is off by
        some units (8 of float16 are 1 %) is no rounding; of one number alone nothing can be told, nor of a last bit.
        """
        same = numbers = 0
        further = False
        for cut in self._cuts():
            expected, stored = self._expected(cut), self.have[cut].astype(np.float64)
            kept = expected != 0  # zeros stay zeros in any arithmetic
            numbers += int(kept.sum())
            same += int((kept & (stored == expected)).sum())
            unit = np.maximum(radius(expected, self.dtype), self.slacks[cut])
            further |= bool((np.abs(stored - expected) > _LAST_BIT * unit).any())
        return further and 2 * same > numbers

    def _expected(self, at: slice | Array) -> Floats:
        found = self.want[at].astype(np.float64, copy=False)
        return found if self.factors is None else found * self.factors[at]

    def _judged(self, at: slice | Array, expected: Floats) -> tuple[Floats, Array, Floats]:
        """Return how far off numbers are, which are right, and how far another order of rounding may move them."""
        stored = self.have[at].astype(np.float64)
        with np.errstate(invalid="ignore"):
            slack = self.slacks[at] + noise_of(np.abs(expected) + self.sizes[at])
            slack = np.where(np.isfinite(expected) & np.isfinite(slack), slack, 0.0)  # no rounding makes an infinity
            off = np.abs(stored - expected)
            half = radius(stored, self.dtype) * (1 + 1e-6)
            good = (off <= half + slack) | (stored == expected) | (np.isnan(stored) & np.isnan(expected))
        by_type = radius(expected, self.dtype) * _OTHER_ROUNDING + slack
        return off, good, by_type if self.others is None else self.others[at]

    def _are_last(self, at: slice, expected: Floats) -> Array:
        """Tell which numbers are the type's last one where an infinity is expected."""
        stored = self.have[at].astype(np.float64)
        are: Array = np.isinf(expected) & (stored == np.sign(expected) * _LAST.get(self.dtype, np.nan))
        return are

    def _of_the_largest(self, most: Sequence[float]) -> float:
        return 0.0 if self.products else float(_OF_THE_LARGEST * radius(np.array(most), self.dtype).max())


def _is_rounding_of(have: Array, expected: Floats) -> bool:
    """Tell whether each number is the float32 nearest to what is expected; of a number beyond float32's none is."""
    with np.errstate(over="raise"), suppress(FloatingPointError):
        return bool((expected.astype(np.float32) == have).all())
    return False
