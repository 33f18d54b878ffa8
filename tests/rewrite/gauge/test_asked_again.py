"""What has changed since maps were asked is asked about again, and nothing else."""

import onnx_ir as ir
import pytest
from onnx import parser

from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite import rewrite
from normdeploy.rewrite.gauge import remove_maps

TWO_HALVES = """<ir_version: 8, opset_import: ["": 18]>
net (float[1, 2, 4, 4] x, float[1, 2, 4, 4] u) => (float[1, 2, 4, 4] y, float[1, 2, 4, 4] z)
<float[2] s = {2, 3}, float[2] t = {1, 1}, float[2] m = {0, 0}, float[2] v = {1, 1},
 float[2, 2, 3, 1] k = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3},
 float[2, 2, 1, 1] w = {1, 2, 3, 4}> {
  a = Conv <pads = [1, 0, 1, 0]> (x, k)
  b = Conv (x, w)
  c = Add (a, b)
  n = BatchNormalization (c, s, t, m, v)
  e = Sigmoid (n)
  p = BatchNormalization (e, s, t, m, v)
  y = Sigmoid (p)
  q = BatchNormalization (u, s, t, m, v)
  z = Sigmoid (q)
}"""
"""Branches that merge beside a map that no operator takes."""


def test_maps_that_nothing_new_reaches_are_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The branches of one half merge; of the other half, and behind an activation, nothing is new."""
    asked: list[list[str]] = []
    right = remove_maps.Search

    def noting(*args: object, **options: object) -> remove_maps.Search:
        search = right(*args, **options)  # type: ignore[arg-type] # passed on as they come
        asked.append(sorted(str(node.outputs[0].name) for node in search._order))
        return search

    monkeypatch.setattr(remove_maps, "Search", noting)
    result = rewrite(ir.from_proto(parser.parse_model(TWO_HALVES)))
    assert len(graphs_of(result.model)) == 1
    assert [node.op_type for node in result.model.graph].count("Conv") == 1
    assert asked[0] == ["n", "p", "q"]
    assert all(names == [] for names in asked[1:]), asked
    assert sum(row.action == "kept" and row.kind != "parallel branches" for row in result.ledger) == 2
