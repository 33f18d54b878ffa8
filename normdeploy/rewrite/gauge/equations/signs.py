"""Which signs unknowns may have: products of powers that have to be positive are linear equations over two elements.

Most ask for the sign of one unknown, and are taken as arrays. Where several are open (the factors of a product in front
of a Relu), one of them is tied to the others, whatever signs these turn out to have: elimination over GF(2), exact, so
that no order of asking loses a solution.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from normdeploy.rewrite.gauge.equations.expression_rows import Equation, Ints, Rows, across
from normdeploy.rewrite.gauge.equations.insertion import grown

Flags8 = npt.NDArray[np.int8]
Stated = tuple[Equation, int]
"""An equation, and a row of it."""


@dataclass(frozen=True)
class SignMark:
    """What was required at some time: how much was noted down, stated and tied by then."""

    journal: int
    stated: int
    tied: int


@dataclass(frozen=True)
class _Tied:
    """The sign of an unknown is that of a product of others, times ``sign``."""

    others: frozenset[int]
    sign: int
    because: tuple[Stated, ...]


@dataclass
class Signs:
    """Requirements of signs.

    Args:
        known: sign by unknown; 0 where either will do, as far as it is tied to none.
    """

    known: Flags8 = field(default_factory=lambda: np.ones(1, np.int8))
    _by: Ints = field(default_factory=lambda: np.full(1, -1, np.int64))
    _row: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    _is_tied: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(1, bool))
    _named: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(1, bool))
    _stated: list[Equation] = field(default_factory=list)
    _tied: dict[int, _Tied] = field(default_factory=dict)
    _because: dict[int, tuple[Stated, ...]] = field(default_factory=dict)
    _journal: list[tuple[Ints, Flags8]] = field(default_factory=list)

    def grow(self, size: int) -> None:
        """Make room for more unknowns."""
        for name in ("known", "_by", "_row", "_is_tied", "_named"):
            setattr(self, name, grown(getattr(self, name), size))

    def mark(self) -> SignMark:
        """Return a mark of what is required now."""
        return SignMark(len(self._journal), len(self._stated), len(self._tied))

    def rollback(self, mark: SignMark) -> None:
        """Take back what was required since a mark."""
        for unknowns, old in reversed(self._journal[mark.journal :]):
            self.known[unknowns] = old
        for unknown in list(self._tied)[mark.tied :]:
            del self._tied[unknown]
            self._is_tied[unknown] = False
        del self._journal[mark.journal :], self._stated[mark.stated :]

    def concerns(self, unknowns: Ints) -> npt.NDArray[np.bool_]:
        """Tell which unknowns something is required of."""
        return np.asarray((self.known[unknowns] != 0) | self._named[unknowns])

    def require(
        self, left: Rows, origin: Ints, stated: Equation, bound: Ints | None = None
    ) -> tuple[Ints, tuple[Stated, ...]] | None:
        """Require that expressions are positive.

        Args:
            left: one per row, by unknowns none of which stands for an expression of others.
            origin: the row of ``stated`` that each comes from.
            stated: what was stated.
            bound: an unknown in each row that stands for an expression from now on; better it is tied than another.

        Returns:
            the rows that contradict, as far as they were found, and all that the first contradicts; None for none.
        """
        self._stated.append(stated)
        while len(left):
            odd = left.coefficients % 2 != 0
            signs = np.where(odd, self.known[left.unknowns], 1).astype(np.int8)
            open_ = signs == 0
            product = (across(np.multiply, np.where(open_, 1, signs)) * np.sign(left.constant)).astype(np.int8)
            count = across(np.add, open_.astype(np.int64))
            wrong = np.flatnonzero((count == 0) & (product <= 0))
            if wrong.size:
                at = int(wrong[0])
                because = (reason for unknown in left.unknowns[at][odd[at]].tolist() for reason in self._why(unknown))
                return origin[wrong], tuple(dict.fromkeys(because))
            alone = (count == 1) & ~across(np.logical_or, open_ & self._is_tied[left.unknowns])
            if not alone.any():
                rest = np.flatnonzero(count)
                return self._eliminate(left.at(rest), origin[rest], stated, None if bound is None else bound[rest])
            unknowns = left.unknowns[alone, np.argmax(open_[alone], axis=1)]
            unknowns, first = np.unique(unknowns, return_index=True)
            self._set(unknowns, product[alone][first], origin[alone][first])
            rest = np.flatnonzero(count)
            left, origin, bound = left.at(rest), origin[rest], None if bound is None else bound[rest]
        return None

    def settled(self, signs: Flags8) -> Flags8:
        """Return a sign for every unknown, given those of unknowns that are tied to none: they may have any."""
        known = self.known[: len(signs)]
        found = np.where(known != 0, known, np.where(signs < 0, -1, 1)).astype(np.int8)
        for unknown, tied in reversed(self._tied.items()):  # what it is tied to was open then
            if not self.known[unknown]:
                found[unknown] = tied.sign * int(np.prod(found[list(tied.others)]))
        return found

    @property
    def any_tied(self) -> bool:
        """Whether a sign hangs on others."""
        return bool(self._tied)

    def _set(self, unknowns: Ints, signs: Flags8, rows: Ints) -> None:
        self._journal.append((unknowns, self.known[unknowns]))
        self.known[unknowns] = signs
        self._by[unknowns], self._row[unknowns] = len(self._stated) - 1, rows

    def _why(self, unknown: int) -> tuple[Stated, ...]:
        """Return who required the sign of an unknown."""
        index = int(self._by[unknown])
        if not self.known[unknown] or not 0 <= index < len(self._stated):
            return ()
        own = self._stated[index], int(self._row[unknown])
        further = self._because.get(unknown, ())
        return further if own in further else (own,)  # what was said of it before it was taken back does not count

    def _eliminate(
        self, left: Rows, origin: Ints, stated: Equation, bound: Ints | None
    ) -> tuple[Ints, tuple[Stated, ...]] | None:
        """Require what is left, row by row."""
        for at, row in enumerate(origin.tolist()):
            odd = left.coefficients[at] % 2 != 0
            sign, because = int(np.sign(left.constant[at])), [(stated, row)]
            asked, open_ = set(left.unknowns[at][odd].tolist()) - {0}, set[int]()
            while asked:
                unknown = asked.pop()
                if self.known[unknown]:
                    sign *= int(self.known[unknown])
                    because += self._why(unknown)
                elif (tied := self._tied.get(unknown)) is not None:
                    sign *= tied.sign
                    because += tied.because
                    asked ^= tied.others
                else:
                    open_ ^= {unknown}
            if not open_ and sign <= 0:
                return origin[at : at + 1], tuple(dict.fromkeys(because))
            if len(open_) == 1:
                (unknown,) = open_
                self._because[unknown] = tuple(dict.fromkeys(because))
                self._set(np.array([unknown]), np.array([sign], np.int8), np.array([row]))
            elif open_:
                one = int(bound[at]) if bound is not None and int(bound[at]) in open_ else max(open_)
                self._tied[one] = _Tied(frozenset(open_ - {one}), sign, tuple(dict.fromkeys(because)))
                self._is_tied[one] = True
                self._named[list(open_)] = True
        return None
