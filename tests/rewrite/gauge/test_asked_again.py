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


TURNED = """<ir_version: 8, opset_import: ["": 18]>
net (float[2, 3, 4] x) => (float[2, 3, 4] y, float[2, 3, 4] z)
<float[4] s = {2, 3, 4, 5}, float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 10}, float[3, 1] t = {1, 2, 3}> {
  k = Sigmoid (x)
  l = Mul (k, s)
  y = Sigmoid (l)
  a = Transpose <perm = [0, 2, 1]> (x)
  b = MatMul (a, w)
  c = Transpose <perm = [0, 2, 1]> (b)
  d = Add (c, t)
  e = Transpose <perm = [0, 2, 1]> (d)
  r = Relu (e)
  f = MatMul (r, w)
  g = Transpose <perm = [0, 2, 1]> (f)
  z = Add (g, l)
}"""
"""A map between two Transposes, beside one that stays; what it leaves behind is a way there and back."""


def test_a_way_there_and_back_is_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    right = remove_maps.MoveAffine.move

    def noting(self: remove_maps.MoveAffine, graph: ir.Graph, around: tuple[ir.Value, ...] = ()) -> bool:
        asked.append(len(around))
        return right(self, graph, around)

    monkeypatch.setattr(remove_maps.MoveAffine, "move", noting)
    result = rewrite(ir.from_proto(parser.parse_model(TURNED)))
    operators = [node.op_type for node in result.model.graph]
    assert operators.count("Transpose") == 2  # both between the products are gone
    assert asked == [0]
    assert [row.action for row in result.ledger if row.kind == "affine map"].count("kept") == 1
