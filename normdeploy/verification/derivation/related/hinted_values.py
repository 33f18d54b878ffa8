"""Which hints of a derivation are of a value of the file."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.verification.derivation.gauges import ranked
from normdeploy.verification.derivation.related.meant import Meant
from normdeploy.verification.derivation.related.relation import Relation, Target
from normdeploy.verification.derivation.side.value_facts import fits

_MOST_HINTS = 32
"""How many hints are tried for one value."""


class Hinted:
    """The hints of a derivation, by the file's values.

    Args:
        relation: the two graphs. derivation: hints, none of them believed.
    """

    def __init__(self, relation: Relation, derivation: Derivation) -> None:
        self.relation = relation
        self.named = {value.name: value for node in relation.source.nodes for value in node.outputs if value.name}
        self.by_name, self.by_key = derivation.by_name(), derivation.by_key()
        self.meant = Meant(relation.file.graph, derivation.hints)

    def of(self, value: ir.Value) -> Iterator[tuple[Hint, Target]]:
        """Return the hints of a value, by its name or by how it is computed, and what they say that it stands for."""
        named, alike = self.by_name.get(str(value.name), []), self.by_key.get(self.meant.key(value), [])
        for hint in [*named, *(hint for hint in alike if hint not in named)][:_MOST_HINTS]:
            w = self.named.get(hint.source)
            rank = None if w is None else self.relation.rank(w)
            rows = w is not None and not self.relation.alike(w, value)
            if w is None or rank is None or (rows and not self.relation.same_rows(w, value)):
                continue
            scale, shift = ranked(hint.scale, rank), ranked(hint.shift, rank)
            if scale is None or shift is None or not fits(scale, shift, self.relation.source.shapes(w)):
                continue
            yield hint, Target(w, scale, shift, hinted=True, rows=rows)
