"""The ledger: what became of every normalization and every affine map of the input graph."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Action = Literal["folded", "fused", "merged", "kept"]
ACTIONS: tuple[Action, ...] = get_args(Action)


@dataclass(frozen=True)
class LedgerRow:
    """One normalization or affine map found in the input graph.

    Args:
        where: the module path in the user's model, or the node's name where the graph never was torch.
        kind: what it was, in the field's words: "BatchNormalization", "LayerNormalization", "affine map", ...
        action: "folded" into a neighbour's weights, "fused" into a single operator, "merged" with a parallel or
            serial branch, or "kept".
        into: what took it (module path or node name, or the operator it was fused as); empty when kept.
        reason: for "kept", a sentence a user can act on; otherwise a short note, may be empty.
        site: names of the output values of the region in the input graph, for the verifier's mutants.
        detail: float64 facts about the site for other rooms (axis, epsilon, ...); not part of equality.
        chain: for a map that is kept because what is asked of it contradicts itself: every operator that takes part in
            the contradiction, in the order of the graph, with what it asks.
    """

    where: str
    kind: str
    action: Action
    into: str = ""
    reason: str = ""
    site: tuple[str, ...] = ()
    detail: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    chain: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"action is {self.action!r}; expected one of {ACTIONS}")
        if self.chain and self.action != "kept":
            raise ValueError(f"row {self.where!r} is {self.action} with a chain; only a kept row has one")
        if self.action == "kept" and not self.reason:
            raise ValueError(f"row {self.where!r} is kept without a reason; every kept row needs one")

    def to_dict(self) -> dict[str, Any]:
        """Return the serialized fields; ``chain`` only where there is one."""
        fields: dict[str, Any] = {
            "where": self.where,
            "kind": self.kind,
            "action": self.action,
            "into": self.into,
            "reason": self.reason,
        }
        return fields | {"chain": list(self.chain)} if self.chain else fields


@dataclass
class Ledger:
    """All rows, in graph order; counts add up to what the input graph held."""

    rows: list[LedgerRow] = field(default_factory=list)

    def add(self, row: LedgerRow) -> None:
        """Append one row."""
        self.rows.append(row)

    def extend(self, rows: Iterable[LedgerRow]) -> None:
        """Append several rows."""
        self.rows.extend(rows)

    def __iter__(self) -> Iterator[LedgerRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> LedgerRow:
        return self.rows[index]

    @property
    def kept(self) -> list[LedgerRow]:
        """The rows of what stayed, each with its reason."""
        return [row for row in self.rows if row.action == "kept"]

    def counts(self) -> dict[str, int]:
        """Return the number of rows per action, every action present."""
        found = Counter(row.action for row in self.rows)
        return {action: found.get(action, 0) for action in ACTIONS}

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return ``{"rows": [...], "counts": {...}}`` as JSON."""
        return json.dumps({"rows": [row.to_dict() for row in self.rows], "counts": self.counts()}, indent=indent)

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        from normdeploy.report.fragments import ledger

        return ledger([row.to_dict() for row in self.rows])
