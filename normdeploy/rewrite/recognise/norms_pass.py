"""The pass that replaces every statistics-computing norm by one operator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import onnx_ir as ir
import torch

from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, WHERE, module_path
from normdeploy.graph.edit import drop_unread, take_out, take_place
from normdeploy.graph.traits import Trait, has
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.ledger import LedgerRow
from normdeploy.rewrite.opset import raise_opset
from normdeploy.rewrite.recognise.batch_statistics import in_training_mode, over_the_batch
from normdeploy.rewrite.recognise.body_shapes import infer_bodies
from normdeploy.rewrite.recognise.builder import Builder, free_stem
from normdeploy.rewrite.recognise.cast_likes import resolve_casts
from normdeploy.rewrite.recognise.emit import emit, emittable, needs_rms
from normdeploy.rewrite.recognise.hypothesis import Norm
from normdeploy.rewrite.recognise.largest_norm import Found, best_of, operators_for, passes_over_data, without_kernel
from normdeploy.rewrite.recognise.ledger_rows import (
    companions_row,
    fused_row,
    kept_row,
    missed_row,
    repeated_row,
    stock_row,
    training_row,
    unshaped_row,
)
from normdeploy.rewrite.recognise.norm_grammar import repeated
from normdeploy.rewrite.recognise.norm_region import GraphRegions
from normdeploy.rewrite.recognise.probe import Probe
from normdeploy.rewrite.rewrite_context import RMS_OPSET, STATISTIC, TOLERANCE, RewriteContext, RewritePass

RULE = "recognise norms"
RMS_IR_VERSION = 11
"""The format version that came with it."""

_APPROXIMATE = (
    "approximate: epsilon {0:.3g} outside the root became {0:.3g} squared inside; the relative change is about "
    "{0:.3g} over a row's standard deviation"
)


@dataclass
class _Outcome:
    """What was found so far, in graph order."""

    rows: list[LedgerRow] = field(default_factory=list)
    handled: set[ir.Node] = field(default_factory=set)
    modified: bool = False

    def add(self, row: LedgerRow, nodes: list[ir.Node]) -> None:
        """Take a row, unless its nodes belong to one already."""
        if not self.handled & set(nodes):
            self.handled.update(nodes)
            self.rows.append(row)


class RecogniseNorms(RewritePass):
    """Replace every normalization that computes statistics, in any spelling, by the fastest single operator.

    1. A region qualifies by what it computes (``search``); its spelling does not matter.
    2. A region over the batch is left as written and reported.
    3. What no hypothesis matches to 1e-10 in float64 is left as written.
    4. Epsilon outside the root takes its exact short form; plain LayerNormalization only if ``context.approximate``.
    5. Each replacement is checked in float64 where it happens.

    Args:
        context: ledger, options, check. Each norm gets one row.
    """

    def __init__(self, context: RewriteContext) -> None:
        super().__init__(context)
        self._unsolved = ""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the main graph of ``model`` and the bodies of its If, Loop and Scan nodes."""
        # nodes that nothing reads must not count as users of a region's values
        modified = drop_unread(model)
        outcome = _Outcome(modified=infer_bodies(model) or modified)
        for graph in graphs_of(model):
            self._visit(model, graph, outcome)
        self.context.ledger.extend(outcome.rows)
        return ir.passes.PassResult(model, outcome.modified)

    def _visit(self, model: ir.Model, graph: ir.Graph, outcome: _Outcome) -> None:
        """Treat every seed of one graph; what a body captures from outside is an input like any other."""
        outcome.modified |= resolve_casts(graph)
        for node in graph:
            if in_training_mode(node):
                outcome.add(training_row(node), [node])
        regions = GraphRegions(graph)
        for seed in regions.seeds():
            if seed.graph is graph and seed not in outcome.handled and self._treat(model, regions, seed, outcome):
                regions = GraphRegions(graph)

    def _treat(self, model: ir.Model, regions: GraphRegions, seed: ir.Node, outcome: _Outcome) -> bool:
        """Decide about one seed; return whether the graph changed."""
        found, missed = best_of(regions, seed, self.context.rng, outcome.handled)
        if found is None:
            if has(seed, Trait.NORMALIZES):
                seed.metadata_props[WHERE] = module_path(seed)
                outcome.add(stock_row(seed), [seed])
            elif missed is not None:
                outcome.add(missed_row(seed, missed), missed.region.between(missed.y))
            elif nodes := regions.unshaped(seed):
                outcome.add(unshaped_row(seed), nodes)
            return False
        inside = found.region.between(found.y)
        if outcome.handled & set(inside):
            return False
        kept = self._kept(model, seed, found)
        if kept is not None:
            _mark_statistics(found, inside)
            outcome.add(kept, inside)
            return False
        where, further = module_path(seed), repeated(inside)
        outcome.add(self._replace(model, seed, found, outcome), inside)
        outcome.rows += [repeated_row(root, found, where) for root in further]
        return True

    def _kept(self, model: ir.Model, seed: ir.Node, found: Found) -> LedgerRow | None:
        norm, _ = self._admit_approximation(found)
        if over_the_batch(norm, found.region.x, model.graph):
            return companions_row(seed, found)
        reason = emittable(norm, found.region.x)
        if not reason and needs_rms(norm) and not self._spelled(model):
            self._raise_for_rms(model)
        return kept_row(seed, found, reason) if reason else None

    def _raise_for_rms(self, model: ir.Model) -> None:
        """Raise the graph to where RMSNormalization is; it stays, and says why, where an operator of it cannot be."""
        try:
            raise_opset(model, RMS_OPSET)
        except GraphError as error:
            self._unsolved = str(error)
        else:
            model.ir_version = max(model.ir_version, RMS_IR_VERSION)

    def _spelled(self, model: ir.Model) -> str:
        """Return why the result may not have RMSNormalization, which ``LowerNorms`` then spells; empty if it may."""
        highest = self.context.highest_opset
        if highest is not None and max(highest, model.opset_imports.get("", 0)) < RMS_OPSET:
            return f"the result may have {highest} at most"
        return self._unsolved

    def _replace(self, model: ir.Model, seed: ir.Node, found: Found, outcome: _Outcome) -> LedgerRow:
        region, y = found.region, found.y
        graph = seed.graph
        if not isinstance(graph, ir.Graph):
            raise ValueError(f"node {seed.name!r} belongs to no graph")
        inside = region.between(y)
        where = module_path(seed)
        norm, note = self._admit_approximation(found)
        spelled = self._spelled(model) if needs_rms(norm) else ""
        # constants that a side node still computes are worth writing down, even around the same operators
        computed = [node for node in region.side if node.outputs[0].dtype in FLOATS]
        planned = operators_for(found)
        longer = passes_over_data(planned) > passes_over_data(region.freed(y))
        longer &= not any(without_kernel(node) for node in inside)
        if not note and (longer or (not computed and _same_operators(planned, inside))):
            for node in inside:
                if has(node, Trait.NORMALIZES):
                    node.metadata_props[WHERE] = where
            _mark_statistics(found, inside)
            return fused_row(where, found, inside, note, spelled=spelled)
        builder = Builder(free_stem(model, y.name or "norm"), region.x.dtype or ir.DataType.FLOAT)
        result = emit(norm, region.x, builder, instance=found.instance)
        row = fused_row(where, found, builder.nodes, note, spelled=spelled)
        for constant in builder.constants:
            graph.register_initializer(constant)
        graph.insert_before(_producer(y), builder.nodes)
        for node in builder.nodes:
            node.metadata_props[WHERE] = where
        if not note:
            self._check(where, found, inside, builder, result)
        result.type, result.shape = y.type, y.shape
        take_place(result, y)
        take_out([*region.side, *region.shape_nodes, *region.nodes])
        outcome.handled.update(builder.nodes)
        outcome.modified = True
        return row

    def _admit_approximation(self, found: Found) -> tuple[Norm, str]:
        norm = found.norm
        if not (norm.outside and self.context.approximate):
            return norm, ""
        inner = Norm(norm.blocks, norm.centred, False, norm.epsilon**2, norm.scale, norm.shift)
        return inner, _APPROXIMATE.format(norm.epsilon)

    def _check(self, where: str, found: Found, inside: list[ir.Node], builder: Builder, result: ir.Value) -> None:
        region = found.region
        probe = Probe(region)
        x = torch.from_numpy(self.context.rng.standard_normal(probe.shape))
        feeds = {**probe.feeds, region.x: x}
        # the attribute epsilon is float32: its rounding moves the result by half of u epsilon / (v + epsilon)
        rounding = 2.0**-25 * min(1.0, found.norm.epsilon)
        self.context.check_region(
            RULE,
            where,
            [*region.side, *inside],
            builder.nodes,
            list(feeds),
            [(found.y, result)],
            tolerance=TOLERANCE + rounding,
            feeds=feeds,
        )


def _mark_statistics(found: Found, inside: list[ir.Node]) -> None:
    """Mark what is computed on statistics of a norm that stays as it is written: no affine map of its own."""
    shape = found.region.x.shape
    for node in inside:
        if not has(node, Trait.NORMALIZES) and node.outputs[0].shape not in (None, shape):
            node.metadata_props[STATISTIC] = "1"


def _same_operators(left: list[ir.Node], right: list[ir.Node]) -> bool:
    return Counter(node.op_type for node in left) == Counter(node.op_type for node in right)


def _producer(value: ir.Value) -> ir.Node:
    producer = value.producer()
    if producer is None:
        raise ValueError(f"value {value.name!r} is computed by no node")
    return producer
