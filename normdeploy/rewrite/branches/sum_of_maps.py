"""A sum of affine maps of one value is an affine map: (s x + t) + (s' x + t') = (s + s') x + (t + t').

x + x g, the mean of x and its BatchNorm, a lerp between a norm and a constant. A constant of the sum joins the shift
where the map can hold it. Other operands stay. The one map that is left answers for the ledger rows of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.graph import FLOATS, compress, constant64, module_path
from normdeploy.graph.edit import only_reader
from normdeploy.graph.operator_inputs import required
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.affine import AffineMap, affine_map, is_affine, new_affine, origins_of
from normdeploy.rewrite.affine.constant import loses_digits, storable
from normdeploy.rewrite.affine.replacement import Region
from normdeploy.rewrite.branches.tree import Leaf, Tree, one_number_each, rebuild, tree_at
from normdeploy.rewrite.rewrite_context import RewritePass


@dataclass(frozen=True)
class _Term:
    """A leaf of a sum as a map of a value.

    Args:
        leaf: it. source: the value. nodes: the maps in between, source first. map: what they do.
    """

    leaf: Leaf
    source: ir.Value
    nodes: tuple[ir.Node, ...]
    map: AffineMap


class AddMaps(RewritePass):
    """Write a sum of affine maps of one value as one.

    Args:
        context: checks each sum.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Add maps in every graph, operands before what reads them."""
        modified = False
        for graph in graphs_of(model):
            for node in list(graph):
                tree = tree_at(node) if node.graph is graph else None
                modified |= tree is not None and self._add(graph, tree)
        return ir.passes.PassResult(model, modified)

    def _add(self, graph: ir.Graph, tree: Tree) -> bool:
        by_source: dict[ir.Value, list[_Term]] = {}
        for leaf in tree.leaves:
            term = _term(graph, leaf)
            if term is not None:
                by_source.setdefault(term.source, []).append(term)
        for source, terms in by_source.items():
            if len(terms) == 1 or not any(term.nodes for term in terms):
                continue
            total = _total(terms)
            taken = {id(term.leaf) for term in terms}
            for leaf in tree.leaves:
                more = _with_constant(total, leaf, source)
                if more is not None and _fits(source, more):
                    total = more
                    taken.add(id(leaf))
            if _fits(source, total):
                self._write(graph, tree, terms, total, [leaf for leaf in tree.leaves if id(leaf) not in taken])
                return True
        return False

    def _write(
        self, graph: ir.Graph, tree: Tree, terms: Sequence[_Term], total: AffineMap, rest: Sequence[Leaf]
    ) -> None:
        nodes = [node for term in terms for node in term.nodes]
        origins = [origin for node in nodes for origin in origins_of(node)]
        region, root, source = Region(graph), tree.root, terms[0].source
        whole = new_affine(graph, source, total, like=nodes[0], origins=origins)
        region.adopt(whole, after=root)
        region.before = [*nodes, *tree.nodes]
        region.same(root.outputs[0], rebuild(region, root, whole.outputs[0], rest, after=whole))
        added = [array for leaf in tree.leaves if leaf not in rest and (array := constant64(leaf.value)) is not None]
        dims = np.broadcast_shapes(total.scale.shape, total.shift.shape, *(array.shape for array in added))
        feeds = {source: self.context.normal(dims)}
        feeds = one_number_each(self.context, rest, total.rank) | feeds
        region.commit(self.context, "affine maps of one value into one", module_path(whole), feeds)


def _term(graph: ir.Graph, leaf: Leaf) -> _Term | None:
    """Return a leaf as a map of the last value that something else reads, or that is no map of another."""
    value, reader, nodes = leaf.value, leaf.reader, list[ir.Node]()
    if value.shape is None or value.dtype not in FLOATS:
        return None
    mapping = AffineMap.of(1.0, 0.0, value.shape.rank())
    while True:
        node = value.producer()
        if node is None or node.graph is not graph or not is_affine(node) or only_reader(value) is not reader:
            return _Term(leaf, value, tuple(reversed(nodes)), mapping)
        mapping = affine_map(node).then(mapping)
        nodes.append(node)
        value, reader = required(node, 0), node


def _total(terms: Sequence[_Term]) -> AffineMap:
    with np.errstate(over="ignore", invalid="ignore"):  # a map that is not finite is not written
        scale = sum(term.leaf.sign * term.map.scale for term in terms)
        shift = sum(term.leaf.sign * term.map.shift for term in terms)
    return AffineMap(compress(np.asarray(scale)), compress(np.asarray(shift)))


def _with_constant(total: AffineMap, leaf: Leaf, source: ir.Value) -> AffineMap | None:
    """Return a map and a constant leaf as one; None where it is none, or no number per channel of what is mapped."""
    array = constant64(leaf.value)
    if array is None or array.ndim > total.rank:
        return None
    added = AffineMap.of(1.0, leaf.sign * array, total.rank)
    dims = (source.shape or ir.Shape(()))[-array.ndim or total.rank :]
    whole = total.then(added)
    fits = all(size in (1, dim) for size, dim in zip(array.shape, dims, strict=True))
    return whole if fits and len(whole.axes) <= 1 else None


def _fits(source: ir.Value, total: AffineMap) -> bool:
    """Tell whether the file can hold a map."""
    dtype = source.dtype or ir.DataType.FLOAT
    held = total.finite and storable(dtype, total.scale, total.shift)
    return held and not any(np.any(loses_digits(dtype, array)) for array in (total.scale, total.shift))
