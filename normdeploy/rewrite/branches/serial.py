"""Convolutions in a row become one: 1x1 then kxk, kxk then 1x1, or any two that read no zeros in between.

y = B * (A * x + a) + b = (B A) * x + (b + B a), where the kernels convolve and the channels multiply.

Merged where

1. nothing else reads what stands between them;
2. the second reads no zero padding, or the first is one unpadded tap without bias (the zeros around its result are then
   what it makes of the zeros around x);
3. strides, dilations and groups compose (see :func:`.term.compose`);
4. it costs less: a bottleneck whose product has more multiply-adds than its two factors stays as it is, unless the
   intermediate it saves weighs more.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.rewrite.affine.constant import required
from normdeploy.rewrite.affine.region import Region
from normdeploy.rewrite.branches import chain
from normdeploy.rewrite.branches import term as terms
from normdeploy.rewrite.context import RewriteContext

RULE = "serial convolutions into one"


def merge_serial(context: RewriteContext, graph: ir.Graph, last: ir.Node) -> bool:
    """Merge the convolutions that end in the Conv ``last``; return whether the graph changed."""
    if last.op_type != "Conv" or last.domain not in ("", "ai.onnx"):
        return False
    result = last.outputs[0]
    found = [term for term in chain.chains(result, graph, exclusive=True) if _is_serial(term)]
    cheaper = [term for term in found if terms.cost_as_one(term, result) <= terms.cost_now(term)]
    if not cheaper:
        return False
    best = min(cheaper, key=lambda term: terms.cost_as_one(term, result) - terms.cost_now(term))
    like = chain.main_convolution(best.nodes)
    if not terms.storable(best, required(like, 1)):
        return False
    region = Region(graph)
    region.before = list(best.nodes)
    region.same(result, chain.convolution(region, best, like=like, result=result, after=last).outputs[0])
    site = chain.site_of(like)
    feeds = chain.small_feeds(context, best) if context.check else None
    return chain.commit(context, region, RULE, site, into=site, feeds=feeds)


def _is_serial(term: terms.Term) -> bool:
    """Tell whether a chain is made of convolutions alone, at least two: a map or a pool is not worth a wider kernel."""
    return len(term.nodes) > 1 and len(term.convolutions) == len(term.nodes)
