"""Parallel linear branches become one convolution (RepVGG, MobileOne, DBB, ACNet, RepViT; LoRA's cousins for images).

conv(x, W1) + conv(x, W2) + s * x + t + pool(x) = conv(x, W), where W is the sum of all kernels, each padded with zeros
to the union of the windows. A branch may be a chain of such operators (1x1 then 3x3, 1x1 then pool).

Merged where

1. the branches read one value x and nothing but their sum reads them;
2. their outputs have one size whatever the size of x, one number of channels, and their groups agree (identities,
   affine maps and pools fit any group);
3. inside a chain, zero padding never hides a bias (see :func:`.term.compose`); a pool divides by one number everywhere;
4. at least one branch is a convolution;
5. the sum fits the weights' dtype;
6. it costs less: what the sum and its intermediates move through memory against the multiply-adds of the union.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from normdeploy.rewrite.affine import cost
from normdeploy.rewrite.affine.constant import required
from normdeploy.rewrite.affine.region import Region
from normdeploy.rewrite.branches import chain
from normdeploy.rewrite.branches import term as terms
from normdeploy.rewrite.branches import tree as trees
from normdeploy.rewrite.branches.term import Term
from normdeploy.rewrite.branches.tree import Leaf, Tree
from normdeploy.rewrite.context import RewriteContext

RULE = "parallel convolutions into one"

_Branch = tuple[Leaf, Term]


def merge_parallel(context: RewriteContext, graph: ir.Graph, root: ir.Node) -> bool:
    """Merge the branches of the sum at ``root``; return whether the graph changed."""
    tree = trees.tree_at(root)
    if tree is None:
        return False
    options = [_options(leaf, graph) for leaf in tree.leaves]
    return any(_merge(context, graph, tree, branches) for branches in trees.sharing_a_source(tree, options))


def _options(leaf: Leaf, graph: ir.Graph) -> list[Term]:
    return chain.chains(leaf.value, graph, exclusive=chain.alone(leaf.value, leaf.reader))


def _merge(context: RewriteContext, graph: ir.Graph, tree: Tree, branches: Sequence[_Branch]) -> bool:
    chosen = _compatible(branches)
    if chosen is None:
        return False
    members, whole = chosen
    result = tree.root.outputs[0]
    joined = members[0][0].value if members[0][1].nodes else result
    if terms.cost_as_one(whole, joined) > _cost_now(members, result):
        return False
    like = chain.main_convolution(whole.nodes)
    if not terms.storable(whole, required(like, 1)):
        return False
    rest = [leaf for leaf in tree.leaves if all(leaf is not member for member, _ in members)]
    region = Region(graph)
    region.before = [*(node for _, term in members for node in term.nodes), *tree.nodes]
    node = chain.convolution(region, whole, like=like, result=result if not rest else joined, after=tree.root)
    region.same(result, trees.rebuild(region, tree, node.outputs[0], rest, after=node))
    feeds = chain.small_feeds(context, whole, [leaf.value for leaf in rest]) if context.check else None
    site = chain.site_of(like)
    return chain.commit(context, region, RULE, site, into=site, feeds=feeds)


def _compatible(branches: Sequence[_Branch]) -> tuple[list[_Branch], Term] | None:
    """Return the branches that add up with the widest convolution, and their sum."""
    ordered = sorted(branches, key=lambda branch: (not branch[1].convolutions, -max(branch[1].window.size)))
    if not ordered[0][1].convolutions:
        return None
    members = [ordered[0]]
    whole: Term | None = None
    for branch in ordered[1:]:
        longer = terms.add([(term, leaf.sign) for leaf, term in [*members, branch]])
        if longer is not None:
            members.append(branch)
            whole = longer
    return None if whole is None else (members, whole)


def _cost_now(members: Sequence[_Branch], result: ir.Value) -> float:
    sums = (len(members) - 1) * cost.pass_bytes(result)
    return sums + sum(terms.cost_now(term) for _, term in members)
