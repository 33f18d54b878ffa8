"""Tables of which sizes decide the part that is read: a wrong number that no tried size reads is found all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import normdeploy as nd
from normdeploy.graph import load_graph
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.hints import unchanged

SIZES = [{"x": (2, n, 4)} for n in (3, 5, 6)]
HEAD = "g (float[N,T,4] x) => (float[N,T,4] y) { n = Shape<start = 1, end = 2>(x) %s }"
WAYS = {
    "rows of positions": "f = Squeeze(n) i = Range(zero, f, one) rows = Gather(table, i) y = Add(x, rows)",
    "rows cut off": "rows = Slice(table, from, n, from) y = Mul(x, rows)",
    "cut, then moved": "rows = Slice(table, from, n, from) r = Unsqueeze(rows, from) y = Add(x, r)",
    "moved, then cut": """t = Transpose<perm = [1, 0]>(table) rows = Slice(t, from, n, along)
        r = Transpose<perm = [1, 0]>(rows) y = Add(x, r)""",
    "positions cut off, then looked up": "i = Slice(order, from, n, from) rows = Gather(table, i) y = Add(x, rows)",
    "scaled behind": "rows = Slice(table, from, n, from) r = Mul(rows, half) y = Add(x, r)",
}
TABLE = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
KNOWN = {
    "zero": np.int64(0),
    "one": np.int64(1),
    "from": np.array([0]),
    "along": np.array([1]),
    "half": np.float32(0.3),
    "order": np.arange(40),
}


@pytest.mark.parametrize("way", sorted(WAYS))
def test_the_rest_of_a_table_that_sizes_cut_is_compared_too(way: str, write: Callable[..., Path]):
    body = HEAD % WAYS[way]
    known = {name: value for name, value in KNOWN.items() if name in body}
    source = load_graph(write(body, "source", table=TABLE, **known))
    assert check_derivation(
        source, load_graph(write(body, "same", table=TABLE, **known)), unchanged(source), SIZES
    ).confirmed
    for row in (1, 39):
        table = TABLE.copy()
        table[row, 2] += 1
        report = check_derivation(
            source, load_graph(write(body, "wrong", table=table, **known)), unchanged(source), SIZES
        )
        assert not report.confirmed, row


def test_wrong_positions_that_no_tried_size_reads_are_found(write: Callable[..., Path]):
    body = HEAD % WAYS["positions cut off, then looked up"]
    source = load_graph(write(body, "source", table=TABLE, order=KNOWN["order"], **{"from": KNOWN["from"]}))
    order = np.arange(40)
    order[[38, 39]] = 39, 38
    wrong = load_graph(write(body, "wrong", table=TABLE, order=order, **{"from": KNOWN["from"]}))
    assert not check_derivation(source, wrong, unchanged(source), SIZES).confirmed


def test_the_verdict_names_the_row(write: Callable[..., Path]):
    body = HEAD % WAYS["rows of positions"]
    known = {"zero": KNOWN["zero"], "one": KNOWN["one"]}
    wrong = TABLE.copy()
    wrong[39, 2] += 1
    files = [write(body, name, table=table, **known) for name, table in (("right", TABLE), ("wrong", wrong))]
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    assert nd.verify(files[0], files[0], args=x, level="quick").check("derivation").status == "pass"
    check = nd.verify(*files, args=x, level="quick").check("derivation")
    assert check.status == "fail"
    assert f"is {wrong[39, 2]:.9g} at [39, 2]; expected" in check.detail
