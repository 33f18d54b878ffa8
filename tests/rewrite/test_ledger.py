"""Ledger rows: what they hold, and what of it is serialized."""

from __future__ import annotations

import json

import numpy as np
import pytest
from affine_graphs import GraphBuilder, fold_proto

from normdeploy.rewrite.ledger import Ledger, LedgerRow


def test_only_a_kept_row_has_a_chain() -> None:
    with pytest.raises(ValueError, match="only a kept row"):
        LedgerRow("a", "affine map", "folded", "b", chain=("Relu 'r'",))


def test_a_chain_is_serialized_only_where_there_is_one() -> None:
    with_chain = LedgerRow("a", "affine map", "kept", reason="its shift cannot leave", chain=("Relu 'r'", "Conv 'c'"))
    without = LedgerRow("b", "affine map", "kept", reason="nobody tried")
    rows = json.loads(Ledger([with_chain, without]).to_json())["rows"]
    assert rows[0]["chain"] == ["Relu 'r'", "Conv 'c'"]
    assert "chain" not in rows[1]


def test_a_kept_map_names_both_ends_of_its_chain() -> None:
    """x is given, and the Relu behind the map takes no shift: whatever is tied in between, these two contradict."""
    g = GraphBuilder()
    shifted = g.op("Add", g.op("Mul", g.input("x", ["N", 3]), np.array([0.5, 2.0, 3.0])), np.ones(3))
    g.output(g.op("MatMul", g.op("Relu", shifted, name="act"), np.eye(3) + 1))
    (row,) = fold_proto(g).ledger.kept
    assert row.chain[0] == "the graph input 'x' is given"
    assert row.chain[-1].startswith("Relu 'act' ")
    assert row.to_dict()["chain"] == list(row.chain)
