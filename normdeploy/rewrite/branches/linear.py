"""Parallel and serial products of one value become one: x A + x B + x = x (A + B + I), (x A + a) B + b = x (A B) + ....

LoRA adapters, re-parameterized linears, two Linears in a row, and an affine map or bias around any of them. On the last
axis of x, of any rank from 2; as a Gemm if all the products are, else as a MatMul with its bias Add.

Merged where

1. parallel: all read one value x, and nothing but their sum reads them; constants of the sum that vary along the last
   axis only become part of the bias; at least one is a product by a constant matrix;
2. serial: nothing else reads what stands between, and at least two are products;
3. the result fits the weights' dtype;
4. it costs less in passes and multiply-adds: a low-rank pair on its own stays a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.rewrite.affine import cost
from normdeploy.rewrite.affine.constant import dtype_of, integer, optional
from normdeploy.rewrite.affine.map import Array
from normdeploy.rewrite.affine.recognise import is_bias
from normdeploy.rewrite.affine.region import Region
from normdeploy.rewrite.branches import chain, product
from normdeploy.rewrite.branches import tree as trees
from normdeploy.rewrite.branches.product import Product, weight_of
from normdeploy.rewrite.branches.tree import Leaf, Tree
from normdeploy.rewrite.context import RewriteContext

PARALLEL = "parallel products into one"
SERIAL = "serial products into one"


def merge_parallel(context: RewriteContext, graph: ir.Graph, root: ir.Node) -> bool:
    """Merge the products in the sum at ``root``; return whether the graph changed."""
    tree = trees.tree_at(root)
    if tree is None:
        return False
    options = [
        product.chains(leaf.value, graph, exclusive=chain.alone(leaf.value, leaf.reader)) for leaf in tree.leaves
    ]
    return any(_merge(context, graph, tree, members) for members in trees.sharing_a_source(tree, options))


def _merge(context: RewriteContext, graph: ir.Graph, tree: Tree, members: list[tuple[Leaf, Product]]) -> bool:
    products = [item for _, item in members if item.products]
    if not products:
        return False
    head = products[0]
    members = [pair for pair in members if (pair[1].ins, pair[1].outs) == (head.ins, head.outs)]
    if len(members) < 2:
        return False
    taken = [leaf for leaf, _ in members]
    biases: list[tuple[Callable[[], Array], float]] = []
    for leaf in tree.leaves:
        vector = product.as_bias(leaf.value, head.outs)
        if vector is not None and _keeps_rank(leaf.value, head.source):
            biases.append((vector, leaf.sign))
            taken.append(leaf)
    whole = product.add([(item, leaf.sign) for leaf, item in members], biases)
    result = tree.root.outputs[0]
    now = sum(product.cost_now(item) for _, item in members) + (len(members) - 1) * cost.pass_bytes(result)
    now += len(biases) * cost.bias_bytes(result)
    if product.cost_as_one(whole, result) > now or not product.storable(whole):
        return False
    rest = [leaf for leaf in tree.leaves if all(leaf is not item for item in taken)]
    region = Region(graph)
    region.before = [*whole.nodes, *tree.nodes]
    merged = _emit(region, whole, result=result, after=tree.root)
    region.same(result, trees.rebuild(region, tree, merged.outputs[0], rest, after=merged))
    site = chain.site_of(_main(whole))
    feeds = _feeds(context, whole) if context.check and not rest else None
    return chain.commit(context, region, PARALLEL, site, into=site, feeds=feeds)


def merge_serial(context: RewriteContext, graph: ir.Graph, last: ir.Node) -> bool:
    """Merge the products that end in ``last``, a product or its bias Add; return whether the graph changed."""
    if last.op_type not in ("MatMul", "Gemm") and not (last.op_type == "Add" and is_bias(last)):
        return False
    result = last.outputs[0]
    if chain.alone(result) and is_bias(next(iter(result.uses())).node):
        return False  # asked again at the bias, which belongs to it
    found = [item for item in product.chains(result, graph, exclusive=True) if _is_serial(item)]
    gains = [(product.cost_now(item) - product.cost_as_one(item, result), item) for item in found]
    if not gains:
        return False
    gain, best = max(gains, key=lambda pair: pair[0])
    if gain <= 0 or not product.storable(best):
        return False
    region = Region(graph)
    region.before = list(best.nodes)
    region.same(result, _emit(region, best, result=result, after=last).outputs[0])
    site = chain.site_of(_main(best))
    feeds = _feeds(context, best) if context.check else None
    return chain.commit(context, region, SERIAL, site, into=site, feeds=feeds)


def _is_serial(item: Product) -> bool:
    """Tell whether a chain begins and ends with a product (or its bias), with one more in between."""
    return len(item.products) > 1 and item.nodes[0] in item.products


def _keeps_rank(constant: ir.Value, source: ir.Value) -> bool:
    return constant.shape is not None and source.shape is not None and constant.shape.rank() <= source.shape.rank()


def _main(whole: Product) -> ir.Node:
    """Return the product with the most weights, which lends its name."""
    return max(whole.products, key=lambda node: _elements(weight_of(node)))


def _elements(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.size


def _emit(region: Region, whole: Product, *, result: ir.Value, after: ir.Node) -> ir.Node:
    """Make the one product, with its bias; return the node that makes the result."""
    like = _main(whole)
    weight = weight_of(like)
    dtype = dtype_of(weight)
    stem = str(weight.name).removesuffix(".weight")
    if product.is_gemm(whole):
        return _gemm(region, whole, like, result=result, after=after)
    matrix = region.constant(whole.matrix, (whole.ins, whole.outs), dtype, name=str(weight.name), succeeds=weight)
    node = ir.Node(
        "",
        "MatMul",
        [whole.source, matrix],
        outputs=[ir.Value(shape=result.shape, type=result.type)],
        name=like.name,
        metadata_props=dict(like.metadata_props),
    )
    region.adopt(node, after=after)
    if whole.bias is None:
        return node
    bias = region.constant(whole.bias, (whole.outs,), dtype, name=f"{stem}.bias")
    value = region.insert("Add", [node.outputs[0], bias], after=node, like=result).outputs[0]
    made = value.producer()
    assert made is not None
    return made


def _gemm(region: Region, whole: Product, like: ir.Node, *, result: ir.Value, after: ir.Node) -> ir.Node:
    weight, addend = weight_of(like), optional(like, 2)
    dtype = dtype_of(weight)
    transposed = bool(integer(like, "transB", 0))

    def stored() -> Array:
        matrix = whole.matrix()
        return np.ascontiguousarray(matrix.T) if transposed else matrix

    shape = (whole.outs, whole.ins) if transposed else (whole.ins, whole.outs)
    inputs: list[ir.Value | None] = [
        whole.source,
        region.constant(stored, shape, dtype, name=str(weight.name), succeeds=weight),
    ]
    if whole.bias is not None:
        stem = str(weight.name).removesuffix(".weight")
        name = f"{stem}.bias" if addend is None else str(addend.name)
        inputs.append(region.constant(whole.bias, (whole.outs,), dtype, name=name, succeeds=addend))
    node = ir.Node(
        "",
        "Gemm",
        inputs,
        attributes=[ir.AttrInt64("transB", 1)] if transposed else [],
        outputs=[ir.Value(shape=result.shape, type=result.type)],
        name=like.name,
        metadata_props=dict(like.metadata_props),
    )
    return region.adopt(node, after=after)


def _feeds(context: RewriteContext, whole: Product) -> dict[ir.Value, torch.Tensor]:
    """Draw a few rows: what the last axis does is the same for each."""
    shape = whole.source.shape
    assert shape is not None
    dims: Sequence[int] = [2, 3, 2, 2, 2, 2][: shape.rank() - 1]
    return {whole.source: torch.from_numpy(context.rng.standard_normal([*dims, whole.ins]))}
