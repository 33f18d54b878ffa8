"""Parallel and serial linear operators become one: conv(x, W1) + conv(x, W2) + s x + t + pool(x) = conv(x, W).

RepVGG, MobileOne, ACNet, DBB, RepViT, UniRepLKNet's dilated branches, LoRA adapters, linears in a row: at every sum,
and behind every operator with weights, the tree of sums and compositions in front of it (:mod:`.value_as_maps`) is
taken for one map.

Merged where

1. nothing else reads what lies between;
2. the maps compose and add (:mod:`.linear_map`), and at least one operator has weights (two in a row);
3. the result fits the weights' dtype;
4. it costs no more (:mod:`.multiply_adds`): a wide or dense kernel must save operators.

A merge leaves a row in the ledger, unless those of its norms tell of it. What does not merge leaves one that says why:
sums always, operators in a row where they would cost less as one. Those that would cost more (a depthwise kernel and a
1x1, a bottleneck) are meant to stay two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch

from normdeploy.errors import GraphError
from normdeploy.graph import module_path
from normdeploy.graph.edit import only_reader
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.affine import bytes_moved as passes
from normdeploy.rewrite.affine import is_affine, settle
from normdeploy.rewrite.affine.find_affine import is_bias
from normdeploy.rewrite.affine.replacement import Region
from normdeploy.rewrite.branches import multiply_adds, operator_as_map
from normdeploy.rewrite.branches import tree as trees
from normdeploy.rewrite.branches.operator_as_map import Frame, Reading
from normdeploy.rewrite.branches.tree import Leaf
from normdeploy.rewrite.branches.value_as_maps import Refusal, Search
from normdeploy.rewrite.branches.write_map import fits, has_own_bias, main_node, write
from normdeploy.rewrite.ledger import LedgerRow
from normdeploy.rewrite.rewrite_context import RewriteContext

PARALLEL, SERIAL = "parallel branches", "operators in a row"

_MERGED = "operators"
"""What a row's detail tells of a merge: of how many operators it became one."""


@dataclass(frozen=True)
class Site:
    """Linear operators that might be one.

    Args:
        root: the node that makes the result.
        frame: where the channels are.
        reading: what they compute together, or would but for the border; None where it is no one map.
        rest: other operands of the sum at ``root``.
        sums: the nodes of that sum.
        refused: what keeps some of them apart.
        maps_go: the affine maps among them cost nothing.
    """

    root: ir.Node
    frame: Frame
    reading: Reading | None
    rest: tuple[Leaf, ...] = ()
    sums: tuple[ir.Node, ...] = ()
    refused: tuple[Refusal, ...] = ()
    maps_go: bool = False

    @property
    def kind(self) -> str:
        """What the user reads."""
        return PARALLEL if self.sums else SERIAL

    @property
    def ratio(self) -> float:
        """What it costs as one operator, over what it costs now; infinite where it is no one map."""
        if self.reading is None:
            return float("inf")
        result = self.root.outputs[0]
        after = multiply_adds.of_map(self.reading.map, result, apart_bias=has_own_bias(self.reading, self.frame))
        after += len(self.rest) * multiply_adds.PASS * passes.elements(result)
        now = multiply_adds.of_nodes((*self.reading.nodes, *self.sums), maps_go=self.maps_go)
        return after / now if now else float("inf")


def sites(search: Search, root: ir.Node, *, paying: bool = False) -> Iterator[Site]:
    """Return what might become one operator and ends in ``root``.

    Args:
        search: the graph.
        root: the last operator.
        paying: leave out of a sum what makes the whole cost more.
    """
    tree = trees.tree_at(root)
    maps_go = search.maps_go
    pays = multiply_adds.pays(root.outputs[0], maps_go=maps_go) if paying else None
    for part in [] if tree is None else [part for frame in Frame for part in search.sums(tree, frame, pays=pays)]:
        if part.weighted:
            whole, refused = part.whole if part.whole is not None and part.whole.weighted else None, part.refused
            if whole is not None and whole.map.window.cuts:
                refused = (*refused, Refusal("all of them cut their input: cut it once, in front", whole.nodes))
                whole = None
            yield Site(root, part.frame, whole, tuple(part.rest), part.tree.nodes, refused, maps_go)
    if not operator_as_map.has_weights(root) and not is_bias(root):
        return
    result = root.outputs[0]
    reader = only_reader(result)
    if reader is not None and is_bias(reader):
        return  # asked again at the bias, which belongs to it
    frame = Frame.IMAGE if root.op_type == "Conv" else Frame.ROWS
    first = next(filter(operator_as_map.has_weights, _makers(root)), root) if is_bias(root) else root
    if not any(operator_as_map.may_be_map(maker) or trees.is_sum(maker) for maker in _makers(first)):
        return  # by itself
    found = search.of(result, frame)
    for reading in found.readings.values():
        several = len(reading.weighted) > 1 or any(is_standard(node, "Pad") for node in reading.nodes)
        if not several or reading.map.window.cuts:
            continue
        if reading.nodes[0].op_type != "Add" and not is_affine(reading.nodes[0]):
            yield Site(root, frame, reading, maps_go=maps_go)
    for refusal in found.refused.values():
        if refusal.weighted > 1 and refusal.reading is not None:
            yield Site(root, frame, refusal.reading, refused=(refusal,), maps_go=maps_go)


def _makers(node: ir.Node) -> list[ir.Node]:
    """Return the operators that make what another one reads."""
    made = [value.producer() for value in node.inputs if value is not None]
    return [maker for maker in made if maker is not None]


def merge(context: RewriteContext, search: Search, root: ir.Node) -> bool:
    """Merge what ends in ``root`` and costs least as one; return whether the graph changed."""
    found = sites(search, root, paying=True)
    possible = [site for site in found if site.ratio <= 1 and (site.sums or not site.refused)]
    for site in sorted(possible, key=lambda site: site.ratio):
        if site.reading is not None and fits(site.reading):
            return _merge(context, search, site, site.reading)
    return False


def _merge(context: RewriteContext, search: Search, site: Site, reading: Reading) -> bool:
    region, result = Region(search.graph), site.root.outputs[0]
    region.before = list(dict.fromkeys((*reading.nodes, *site.sums)))
    node = write(region, reading, site.frame, result=result, after=site.root)
    region.same(result, trees.rebuild(region, site.root, node.outputs[0], site.rest, after=node))
    where = module_path(main_node(reading))
    affine = [node for node in region.before if is_affine(node)]
    row, earlier = _row(context, site, where, region.before)
    feeds = _feeds(context, reading, site)
    try:
        region.commit(context, f"{site.kind} into one", where, feeds)
    except GraphError:
        region.discard()
        return False
    search.forget()
    for node in affine:
        settle(context.ledger, node, "merged", where, "part of a sum of linear branches")
    context.ledger.rows = [row for row in context.ledger if row not in earlier]
    if earlier or not affine:  # rows of maps tell of it
        context.ledger.add(row)
    return True


def _row(
    context: RewriteContext, site: Site, into: str, before: Sequence[ir.Node]
) -> tuple[LedgerRow, list[LedgerRow]]:
    """Return the row of a merge of the operators ``before``, and those of earlier merges that it takes the place of."""
    names = {str(value.name) for node in before for value in node.outputs}
    earlier = [row for row in context.ledger if _MERGED in row.detail and names & {*row.site}]
    number = len(before) - len(site.rest) + sum(row.detail[_MERGED] - 1 for row in earlier)  # what stays is added again
    where, name = module_path(site.root), str(site.root.outputs[0].name)
    reason, detail = f"{number} operators became one", {_MERGED: number}
    return LedgerRow(where, site.kind, "merged", into, reason, (name,), detail=detail), earlier


def explain(context: RewriteContext, search: Search, root: ir.Node, said: set[ir.Node]) -> None:
    """Give what ends in ``root`` and stays apart its ledger row.

    Args:
        context: takes the row.
        search: the graph, which has not changed since.
        root: the last operator.
        said: operators that have a row; completed in place.
    """
    for site in sites(search, root):
        if root in said:
            return
        if site.ratio > 1 and not site.sums:
            continue
        if site.refused:
            reason = site.refused[0].why
        elif site.reading is None:
            continue
        elif not fits(site.reading):
            reason = "as one operator its weights would overflow float16; export in float32, or rescale"
        elif site.ratio == float("inf"):
            reason = "the sizes of its operands are not known: give the model input shapes"
        else:
            reason = (
                f"as one operator it would cost {site.ratio:.2f} times as much, with "
                f"{site.reading.map.multiply_adds} multiply-adds per element"
            )
        held = () if site.reading is None else site.reading.nodes
        said.update(*(refusal.nodes for refusal in site.refused), held)
        name = str(site.root.outputs[0].name)
        context.ledger.add(LedgerRow(module_path(site.root), site.kind, "kept", "", reason, (name,)))
        return


def _feeds(context: RewriteContext, reading: Reading, site: Site) -> dict[ir.Value, torch.Tensor]:
    """Draw inputs of the check: few rows, or as many positions as show both borders and an interior.

    What padding, strides and ceil_mode make of a size depends on its remainder by the strides alone; a Slice may name
    places of the size there is.
    """
    whole = any(is_standard(node, "Slice") for node in reading.nodes)
    window, mapping, shape = reading.map.window, reading.map, reading.source.shape
    if site.frame is Frame.ROWS:
        rank = 2 if shape is None else shape.rank()
        dims = [*([2, 3] * rank)[: rank - 1], mapping.ins]
    else:
        dims = [1, mapping.ins]
        for axis, (known, stride) in enumerate(zip(mapping.sizes, window.stride, strict=True)):
            size = max(window.reach, 2) + axis  # sizes differ by axis so that swapped axes show
            if known is not None:
                size = known if whole else min(size + (known - size) % stride, known)
            dims.append(size)
    drawn = {reading.source: context.normal(dims)}
    return trees.one_number_each(context, site.rest, len(dims)) | drawn
