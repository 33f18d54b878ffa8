"""Layers and quantizers that the file has on integers: equal to the source's on every integer of their range.

=============  ======================================================================================================
sums           ConvInteger, MatMulInteger: the layer's weights are their integers times a number per channel
               (:mod:`.integer_sums`)
levels         integers computed from sums, or from other integers, are those of a quantizer (:mod:`.sum_levels`)
moves, casts   the same elements at the same places; integers as floats, floats that are integers as what they are
=============  ======================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.graph import FLOATS
from normdeploy.verification.derivation.gauges import Claim, placed
from normdeploy.verification.derivation.integers.forward_functions import ends
from normdeploy.verification.derivation.integers.integer_sums import KINDS, layers, sums_of
from normdeploy.verification.derivation.integers.integer_values import bounds_of, number
from normdeploy.verification.derivation.integers.known_integers import Known, Whole
from normdeploy.verification.derivation.integers.on_intervals import Leaf, Pieces, between, leaves_of, pieces
from normdeploy.verification.derivation.integers.paths import Path
from normdeploy.verification.derivation.integers.rearranged import alike_moves, same_move
from normdeploy.verification.derivation.integers.spans import ENDS, Unclear
from normdeploy.verification.derivation.integers.stepwise import Scaled, scaled
from normdeploy.verification.derivation.integers.sum_levels import compare_levels
from normdeploy.verification.derivation.integers.uniform import quantized
from normdeploy.verification.derivation.related.relation import Finding, Proof, Relation
from normdeploy.verification.derivation.related.stored_rounding import Wrong
from normdeploy.verification.derivation.side.operands import inputs_of, kind

_BYTES = (ir.DataType.UINT8, ir.DataType.INT8)


@dataclass(frozen=True)
class _Origin:
    """Where a function of integers starts in both graphs.

    Args:
        leaf: of the file. path: in the source, as steps of the leaf. assumed: that it is the same is not confirmed.
    """

    leaf: Leaf
    path: Path
    assumed: bool


class OnIntegers:
    """Goes through the file's operators on integers, in order.

    Args:
        relation: what is known of the two graphs.

    Attributes:
        together: operators that compute one value, by the last of them, where that is not what it should be.
    """

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.whole = Whole(relation.source)
        self.origins: dict[ir.Value, list[_Origin]] = {}
        self.together: dict[ir.Node, tuple[ir.Node, ...]] = {}

    def visit(self, node: ir.Node) -> Finding:
        """Find what an operator of the file computes; "" where it is none on integers."""
        value = node.outputs[0]
        for read in node.inputs:
            if read is not None and read.is_graph_input() and read not in self.whole.by_file:
                self._adopt(read, assumed=False)
        try:
            if kind(node) in KINDS:
                return self._sums(node, value)
            self._adopt(value, assumed=False)
            if value in self.whole.by_file:
                return ""
            laws = (self._cast, self._moved, self._quantized, self._levels)
            found = next((finding for law in laws if (finding := law(node, value))), "")
            if value not in self.whole.by_file:
                self._adopt(value, assumed=True)
            return found
        except Unclear as error:
            return f"{kind(node)}: {error}"

    def _adopt(self, value: ir.Value, *, assumed: bool) -> None:
        """Take integers of which another law shows that they are the source's, or of which that is assumed."""
        if self._type(value) not in _BYTES:
            return
        for w, claim in self.relation.by_file.get(value, ()):
            if claim.is_identity and claim.assumed == assumed:
                least, most = ENDS[self._type(value)]
                low, high, _ = bounds_of(self.relation.file, value)
                known = Known(value, 1.0, 0, assumed=claim.assumed)
                self._take(w, known, int(max(low, least)), int(min(high, most)))

    def _take(self, w: ir.Value, known: Known, low: int, high: int) -> None:
        self.whole.ranges[known.value] = low, high
        self.whole.add(w, known)

    def _type(self, value: ir.Value) -> ir.DataType:
        return self.relation.file.type_of(value) or ir.DataType.UNDEFINED

    # -- casts and moves

    def _cast(self, node: ir.Node, value: ir.Value) -> Finding:
        x = node.inputs[0] if node.inputs else None
        if kind(node) == "DequantizeLinear" and x in self.whole.by_file:
            return self._dequantized(node, value)
        if kind(node) != "Cast" or x is None:
            return ""
        if self._type(value) in FLOATS:
            return self._as_floats(node, x, value)
        if self._type(x) not in FLOATS or self._type(value) not in _BYTES:
            return ""
        least, most = ENDS[self._type(value)]
        for w, claim in self.relation.by_file.get(x, ()):
            low, high, whole = bounds_of(self.relation.source, w)
            if claim.is_identity and whole and least <= low and high <= most:
                self._take(w, Known(value, 1.0, 0, assumed=claim.assumed), int(low), int(high))
                return Proof("floats that are integers", (), (node,))
        return ""

    def _as_floats(self, node: ir.Node, x: ir.Value, value: ir.Value) -> Finding:
        claims: list[tuple[ir.Value, Claim]] = []
        for origin in self.origins.get(x, ()):
            scale, shift = np.ones(1), np.zeros(1)
            for step in origin.path.steps:
                assert isinstance(step, Scaled)  # of a layer
                scale, shift = scale * step.times / step.by, shift * step.times / step.by + step.add
            rank, axis = origin.leaf.rank, origin.leaf.axis
            scale, shift = placed(scale, axis, rank), placed(shift, axis, rank)
            claims.append((origin.path.value, Claim(value, scale, shift, origin.assumed)))
        for w, known in self.whole.by_file.get(x, {}).items():
            if self.relation.source.type_of(w) in FLOATS:
                step_ = np.array(known.step)
                claims.append((w, Claim(value, step_, -step_ * known.zero, known.assumed)))
        return Proof("integers as floats", tuple(claims), (node,)) if claims else ""

    def _dequantized(self, node: ir.Node, value: ir.Value) -> Finding:
        """Read w = step (v - zero) from y = s (v - z): w = (step / s) y + step (z - zero)."""
        inputs, file = inputs_of(node), self.relation.file
        unit, origin = number(file, inputs[1]), number(file, inputs[2]) if len(inputs) > 2 else 0.0
        if unit is None or origin is None or inputs[0] is None or node.attributes.get_int("block_size", 0) != 0:
            return ""
        claims = [
            (w, Claim(value, np.array(known.step / unit), np.array(known.step * (origin - known.zero)), known.assumed))
            for w, known in self.whole.by_file[inputs[0]].items()
            if self.relation.source.type_of(w) in FLOATS
        ]
        return Proof("integers as floats", tuple(claims), (node,)) if claims else ""

    def _moved(self, node: ir.Node, value: ir.Value) -> Finding:
        read = node.inputs[0] if node.inputs else None
        if read is None or read not in self.whole.by_file:
            return ""
        found = False
        for w, known in list(self.whole.by_file[read].items()):
            for usage in w.uses():
                if usage.idx == 0 and same_move(self.relation, usage.node, node):
                    fact = Known(value, known.step, known.zero, known.exact, known.assumed)
                    self._take(usage.node.outputs[0], fact, *self.whole.ranges[read])
                    found = True
        return Proof("moves the same integers", (), (node,)) if found else ""

    def _quantized(self, node: ir.Node, value: ir.Value) -> Finding:
        if kind(node) not in ("QuantizeLinear", "Clip") or self._type(value) not in _BYTES:
            return ""
        found: tuple[ir.Node, ...] = ()
        low, high, _ = bounds_of(self.relation.file, value)
        for w, known, nodes in quantized(self.relation, value):
            self._take(w, known, int(low), int(high))
            found = nodes
        return Proof("the same quantizer", (), found) if found else ""

    # -- sums

    def _sums(self, node: ir.Node, value: ir.Value) -> Finding:
        sums = sums_of(self.relation.file, node)
        shapes = self.relation.file.shapes(value)
        if sums is None or not shapes:
            return f"{kind(node)}: its weights, its zero points or its size are not known"
        dtype = self._type(sums.data)
        low, high = sums.range(*self.whole.ranges.get(sums.data, ENDS.get(dtype, ENDS[ir.DataType.INT64])))
        if low.min() < ENDS[ir.DataType.INT32][0] or high.max() > ENDS[ir.DataType.INT32][1]:
            return f"{kind(node)}: its sums may leave the range of int32"
        leaf = Leaf(value, ir.DataType.INT32, sums.axis, len(shapes[0]), low, high)
        found = self.origins.setdefault(value, [])
        for w, claim in self.relation.by_file.get(value, ()):  # the source has them on integers itself
            if claim.is_identity:
                found.append(_Origin(leaf, Path(w, (), leaf.rank, leaf.axis, len(low)), claim.assumed))
        if found:
            return ""
        wrong: Wrong | None = None
        for w, known in self.whole.by_file.get(sums.data, {}).items():
            if known.zero == sums.zero:
                for layer in layers(self.relation.source, sums, w, known.step, exact=known.exact):
                    path = Path(layer.value, layer.steps, leaf.rank, leaf.axis, len(low))
                    found.append(_Origin(leaf, path, known.assumed or layer.wrong is not None))
                    wrong = wrong or layer.wrong
        if any(not origin.assumed for origin in found) or (found and wrong is None):
            return Proof("sums of integers: W = d (u - v)", (), (node,))
        return wrong or f"no layer of the source has the integers of {kind(node)}"

    # -- levels

    def _levels(self, node: ir.Node, value: ir.Value) -> Finding:
        """Confirm integers that are computed from sums, or from other integers."""
        if self._type(value) not in _BYTES:
            return ""
        file = self.relation.file
        leaves = leaves_of(file, value, lambda v: v in self.origins or v in self.whole.by_file)
        if len(leaves) != 1:
            return ""
        nodes, cuts = between(file, value, leaves[0]), dict[int, Pieces]()
        wrong: Finding = f"no quantizer of the source has the integers of {value.name!r}"
        claims: list[tuple[ir.Value, Claim]] = []
        for origin in self._origins(leaves[0]):
            axis = origin.leaf.axis
            try:
                cuts[axis] = cuts[axis] if axis in cuts else pieces(file, value, origin.leaf)
            except Unclear as error:
                wrong = f"{kind(node)}: {error}" if isinstance(wrong, str) and wrong else wrong
                continue
            for end in ends(self.relation.source, origin.path):
                compared = compare_levels(value, cuts[axis], end, assumed=origin.assumed)
                moves = None if compared is None else alike_moves(self.relation, end.path.moves, value)
                if moves is None or compared is None:
                    continue
                known, differs = compared
                moved = moves[-1].outputs[0] if moves else value
                fact = Known(moved, known.step, known.zero, known.exact, known.assumed)
                self._take(end.value, fact, int(cuts[axis].value.min()), int(cuts[axis].value.max()))
                nodes = (*nodes, *moves)
                if (known.step, known.zero) == (1.0, 0) and self.relation.source.type_of(end.value) not in FLOATS:
                    claims.append((end.value, Claim(moved, np.ones(()), np.zeros(()), known.assumed)))
                if differs is None:
                    wrong = ""
                elif isinstance(wrong, str) and wrong:
                    wrong = differs
        if wrong:
            for w, claim in claims:
                self.relation.add(w, claim)
            self.together[node] = nodes
            return wrong
        return Proof("equal on every integer of the range", tuple(claims), nodes)

    def _origins(self, leaf: ir.Value) -> Iterator[_Origin]:
        """Return what a value of the file is in the source."""
        yield from self.origins.get(leaf, ())
        shapes = self.relation.file.shapes(leaf)
        if leaf not in self.whole.by_file or not shapes:
            return
        rank = len(shapes[0])
        for axis in dict.fromkeys((1 - rank, -1)) if rank > 1 else (-1,):
            sizes = {shape[axis] for shape in shapes}
            channels = sizes.pop() if len(sizes) == 1 else 1
            low, high = (np.full(channels, end, np.int64) for end in self.whole.ranges[leaf])
            for w, known in self.whole.by_file[leaf].items():
                steps = (scaled(add=-known.zero), scaled(known.step, exact=known.exact))
                start = Leaf(leaf, self._type(leaf), axis, rank, low, high)
                yield _Origin(start, Path(w, steps, rank, axis, channels), known.assumed)
