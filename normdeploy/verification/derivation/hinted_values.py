"""Which hints of a derivation are of a value of the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from normdeploy.graph.derivation import Derivation, Hint, dataflow_keys
from normdeploy.verification.derivation.gauges import ranked
from normdeploy.verification.derivation.relation import Relation, Target
from normdeploy.verification.derivation.value_facts import copied, fits

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
        self.keys = dataflow_keys(relation.file.graph)
        self.alike = Counter(key for value, key in self.keys.items() if copied(value) is value)
        self.there = {value.name: copied(value) for value in self.keys}

    def means(self, hint: Hint, value: ir.Value) -> bool:
        """Tell whether a hint can be of no other value: queries, keys and values of one norm are computed alike."""
        if hint.value in self.there:
            return self.there[hint.value] is copied(value)
        key = self.keys.get(value, "")
        return self.alike[key] == 1 and {other.value for other in self.by_key.get(key, ())} == {hint.value}

    def of(self, value: ir.Value) -> Iterator[tuple[Hint, Target]]:
        """Return the hints of a value, by its name or by how it is computed, and what they say that it stands for."""
        named, alike = self.by_name.get(str(value.name), []), self.by_key.get(self.keys.get(value, ""), [])
        for hint in [*named, *(hint for hint in alike if hint not in named)][:_MOST_HINTS]:
            w = self.named.get(hint.source)
            rank = None if w is None else self.relation.rank(w)
            if w is None or rank is None or not self.relation.alike(w, value):
                continue
            scale, shift = ranked(hint.scale, rank), ranked(hint.shift, rank)
            if scale is None or shift is None or not fits(scale, shift, self.relation.source.shapes(w)):
                continue
            yield hint, Target(w, scale, shift, hinted=True)
