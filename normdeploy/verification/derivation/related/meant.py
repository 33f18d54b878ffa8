"""Which value of the file a row of a derivation is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import onnx_ir as ir

from normdeploy.graph.derivation import Exact, Hint, dataflow_keys
from normdeploy.verification.derivation.side.value_facts import copied


class Meant:
    """The values of a file that the rows of a derivation can be of, by their names and by how they are computed.

    Args:
        graph: the file's. rows: of the derivation.
    """

    def __init__(self, graph: ir.Graph, rows: Iterable[Hint | Exact]) -> None:
        self._keys = dataflow_keys(graph)
        self._alike = Counter(key for value, key in self._keys.items() if copied(value) is value)
        self._there = {value.name: copied(value) for value in self._keys}
        self._names: dict[str, set[str]] = {}
        for row in rows:
            self._names.setdefault(row.key, set()).add(row.value)
        self._named = set().union(*self._names.values())

    def key(self, value: ir.Value) -> str:
        """Return how a value is computed (:func:`normdeploy.graph.derivation.dataflow_keys`)."""
        return self._keys.get(value, "")

    def only(self, row: Hint | Exact, value: ir.Value) -> bool:
        """Tell whether a row can be of no other value: queries, keys and values of one norm are computed alike.

        A value that another row names is that row's: branches that were merged are computed as one of them was.
        """
        if row.value in self._there:
            return self._there[row.value] is copied(value)
        key = self.key(value)
        return value.name not in self._named and self._alike[key] == 1 and self._names.get(key) == {row.value}

    def another(self, row: Hint | Exact, value: ir.Value) -> bool:
        """Tell whether a row is of another value of the file, by its name."""
        return row.value in self._there and self._there[row.value] is not copied(value)
