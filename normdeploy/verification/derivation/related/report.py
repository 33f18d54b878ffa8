"""What the checker found: the operators of a file, and what is known of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from normdeploy.array_types import Floats, Shape
from normdeploy.graph import module_path
from normdeploy.graph.derivation import Exact, Hint
from normdeploy.graph.walk import Returned, values_read
from normdeploy.verification.derivation.related.relation import Target
from normdeploy.verification.derivation.related.stored_rounding import Wrong


@dataclass
class Row:
    """One operator of the file.

    Args:
        node: it. identity: the identity that holds for all inputs; "" where none is known.
        reason: why not. wrong: the number that is not what it should be, where all else fits.
        against: the result that is wrong, and what it was held against.
        guessed: nothing but the numbers around it says that it was held against the right ones.
        unlike: it was held against numbers that no rounding makes of its own, which another scale may.
    """

    node: ir.Node
    identity: str = ""
    reason: str = ""
    wrong: Wrong | None = None
    against: tuple[ir.Value, Target] | None = None
    guessed: bool = False
    unlike: bool = False

    def take(self, wrong: Wrong, against: tuple[ir.Value, Target], *, sure: bool) -> bool:
        """Keep what is wrong, unless another rounding explains what it was held against elsewhere.

        Args:
            wrong: what was found. against: of which result, and what it was held against.
            sure: nothing else can be meant; so it is where most numbers are what they were held against.

        Returns:
            whether no rounding explains it.
        """
        sure |= wrong.certain
        known = (sure or wrong.rounding or wrong.among_right) and not wrong.last
        self.unlike |= not wrong.rounding
        if known and (self.wrong is None or (wrong.rounding and not self.wrong.rounding)):
            self.wrong, self.reason, self.against = wrong, wrong.text, against
            self.guessed = not (sure or wrong.rounding)
        return not wrong.rounding

    def held_against(self, value: ir.Value) -> tuple[Target, ...]:
        """Return what one of its results was held against, of which nothing but numbers differs; () if nothing was."""
        return self.against[1:] if self.against is not None and self.against[0] is value else ()

    @property
    def is_close(self) -> bool:
        """It holds numbers that another order of rounding explains."""
        return self.wrong is not None and self.wrong.rounding

    @property
    def is_wrong(self) -> bool:
        """It holds a number that is wrong, whatever stands behind it."""
        return self.wrong is not None and not self.guessed

    @property
    def is_unlike(self) -> bool:
        """It holds other numbers than all that it was held against, and no rounding explains them."""
        return self.unlike and not self.is_close

    @property
    def name(self) -> str:
        """What the operator is called in the file."""
        return str(self.node.name or self.node.outputs[0].name)

    @property
    def where(self) -> str:
        """Where it stands in the module."""
        return module_path(self.node if self.wrong is None or self.wrong.node is None else self.wrong.node)

    @property
    def result(self) -> str:
        """Name of its first result."""
        return str(self.node.outputs[0].name)


@dataclass
class Report:
    """What is known of a file.

    Args:
        rows: its operators that outputs depend on, in order.
        to_be_seen: results of operators that samples have to show at work (:mod:`.to_be_seen`).
        lost: results of such operators of the source, which the file is not known to have.
        bodies, bodies_of_source: those that are confirmed, by the names of what they return.
        outputs: names of the outputs that are not confirmed to be the source's.
        follows: but for the operators that are open, the outputs would be the source's.
        used: hints and unrounded constants of the derivation that were needed, these with their numbers.
        sizes: shapes of values of the file at a few assignments of sizes, by name; () where they are not known.
        confirmed_by_others: results of the operators that other hints confirm. Where these hints contradict one of
            them, they are not of this file: of what else they contradict, last digits alone count.
    """

    rows: list[Row] = field(default_factory=list)
    to_be_seen: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    bodies: Collection[Returned] = ()
    bodies_of_source: Collection[Returned] = ()
    outputs: list[str] = field(default_factory=list)
    follows: bool = False
    used: Mapping[Hint | Exact, Floats | None] = field(default_factory=dict)
    sizes: Mapping[str, Sequence[Shape]] = field(default_factory=dict)
    confirmed_by_others: Collection[str] = ()

    @property
    def confirmed(self) -> bool:
        """Every output is the source's, for every input."""
        return not self.outputs

    @property
    def nearly(self) -> bool:
        """Outputs are the source's for every input, but for last digits of numbers that another rounding explains."""
        wrong = {part: row.wrong for row in self.open if row.wrong for part in (*row.wrong.parts, row.node)}
        return self.follows and all(row.node in wrong and wrong[row.node].rounding for row in self.open)

    @property
    def open(self) -> list[Row]:
        """The operators that nothing is known of."""
        return [row for row in self.rows if not row.identity]

    @property
    def contradicted(self) -> list[Row]:
        """The operators that hold a wrong number each, where all else makes the outputs the source's; [] otherwise.

        Of operators that are one, as a product and the sum behind it, the first stands for them.
        """
        wrong = {part: row.wrong for row in self.open if row.wrong for part in (*row.wrong.parts, row.node)}
        if not self.follows or any(row.node not in wrong for row in self.open):
            return []
        first: dict[int, Row] = {}
        refuted = any(row.result in self.confirmed_by_others for row in self.open)
        for row in self.open:
            found = wrong[row.node]
            if refuted and (row.result in self.confirmed_by_others or not found.rounding):
                continue
            first.setdefault(id(found), replace(row, wrong=found, reason=found.text))
        return list(first.values())


def rows_behind(rows: Mapping[ir.Node, Row], outputs: Iterable[ir.Value]) -> list[Row]:
    """Return the rows of the operators that some values depend on, in the order of the rows.

    Args:
        rows: of all operators. outputs: the values.
    """
    seen: set[ir.Node] = set()
    queue = [value.producer() for value in outputs]
    while queue:
        node = queue.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        queue += [value.producer() for value in values_read(node)]
    return [row for node, row in rows.items() if node in seen]
