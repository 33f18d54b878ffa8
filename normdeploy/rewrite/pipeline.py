"""The pipeline: one tuple of passes that reads as the table of contents of this room."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from normdeploy.graph import WHERE, module_path, strip_traces
from normdeploy.graph.derivation import Derivation
from normdeploy.graph.garbage import rarely_collected
from normdeploy.graph.inlining import inline_functions
from normdeploy.graph.integer_weights import quantize_constants
from normdeploy.graph.threads import one_thread
from normdeploy.graph.walk import graphs_of, nodes_of
from normdeploy.rewrite.affine import NormTables, RecogniseAffine
from normdeploy.rewrite.blends import SplitBlends
from normdeploy.rewrite.branches import AddMaps, MergeBranches, MovePads
from normdeploy.rewrite.divide_first import DivideFirst
from normdeploy.rewrite.einsum_to_product import LowerEinsum
from normdeploy.rewrite.folds_of_one import FoldsOfOne
from normdeploy.rewrite.gauge.maps_into_bodies import EnterBodies
from normdeploy.rewrite.gauge.remove_maps import MoveAffine
from normdeploy.rewrite.identities import RemoveIdentities
from normdeploy.rewrite.infer import contradictions_named
from normdeploy.rewrite.integer import OnIntegers
from normdeploy.rewrite.ledger import Ledger
from normdeploy.rewrite.lower import (
    Clean,
    DropZeroBiases,
    GemmsOverRows,
    GuardOutputs,
    GuardPads,
    LowerAffine,
    LowerNorms,
    OneConcat,
    OneView,
    RemoveRoundTrips,
    WholeAgain,
)
from normdeploy.rewrite.names_of_scopes import NamesOfScopes
from normdeploy.rewrite.once_for_all import ComputeOnce
from normdeploy.rewrite.opset import RaiseOpset
from normdeploy.rewrite.qonnx_to_standard import LowerQonnx
from normdeploy.rewrite.recognise import RecogniseNorms
from normdeploy.rewrite.recognise.cast_likes import resolve_casts
from normdeploy.rewrite.repeated_numbers import ReadRepeatedNumbers
from normdeploy.rewrite.rewrite_context import RewriteContext
from normdeploy.rewrite.rules_of_others import OutsideRules
from normdeploy.rewrite.unexpand import DropExpansions
from normdeploy.rewrite.untile import UntileStatistics
from normdeploy.rewrite.weights import EvaluateConstants, FollowSizes
from normdeploy.rewrite.written_parts import JoinWrittenParts


@dataclass(frozen=True)
class RewriteResult:
    """What a rewriting yields.

    Args:
        model: the rewritten model, standard operators only.
        canonical: the model with every normalization recognised as one operator and nothing folded yet.
        ledger: what became of every normalization and affine map.
        derivation: which value stands for which, for the verifier to confirm.
    """

    model: ir.Model
    canonical: ir.Model
    ledger: Ledger
    derivation: Derivation = field(default_factory=Derivation)


class InlineFunctions(ir.passes.InPlacePass):
    """Write the functions that a model brings along where they are called."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Inline all of them."""
        modified = bool(model.functions)
        inline_functions(model)
        return ir.passes.PassResult(model, modified)


class ResolveCasts(ir.passes.InPlacePass):
    """Write each CastLike as the Cast or the nothing that it is, so that constants behind it can be evaluated."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Resolve them in every graph."""
        modified = False
        for graph in graphs_of(model):
            modified |= resolve_casts(graph)
        return ir.passes.PassResult(model, modified)


class QuantizeConstants(ir.passes.InPlacePass):
    """Write the integers of each weight that a file quantizes at every start."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Evaluate the quantizers of constants in every graph."""
        changed = sum(quantize_constants(graph, reciprocal=False) for graph in graphs_of(model))
        return ir.passes.PassResult(model, changed > 0)


class MarkBatchNorms(ir.passes.InPlacePass):
    """Write on each BatchNormalization where it stands in the user's model, as recognition does for the other norms."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Mark them in every graph."""
        for node in nodes_of(model):
            if node.op_type == "BatchNormalization":
                node.metadata_props[WHERE] = module_path(node)
        return ir.passes.PassResult(model, modified=False)


def understand(context: RewriteContext) -> tuple[ir.passes.PassBase, ...]:
    """Return the passes that lead to the canonical model."""
    evaluate, identities = EvaluateConstants(), RemoveIdentities()
    return (
        InlineFunctions(),
        RaiseOpset(),
        ResolveCasts(),
        LowerQonnx(),
        QuantizeConstants(),
        evaluate,
        FollowSizes(evaluate),
        identities,
        UntileStatistics(),
        DropExpansions(),
        ComputeOnce(evaluate),
        ReadRepeatedNumbers(),
        identities,
        OutsideRules(context),
        DivideFirst(),
        SplitBlends(),
        RecogniseNorms(context),
        MarkBatchNorms(),
    )


def transform(context: RewriteContext) -> tuple[ir.passes.PassBase, ...]:
    """Return the passes that lead from the canonical model to the final one."""
    move, trips = MoveAffine(context), RemoveRoundTrips()
    return (
        FoldsOfOne(),
        trips,
        OneView(),
        LowerEinsum(context),
        RecogniseAffine(context),
        LowerEinsum(context, several=True),
        AddMaps(context),
        MovePads(context),
        JoinWrittenParts(),
        MergeBranches(context, maps_go=True),
        move,
        NormTables(context),
        trips,
        MergeBranches(context),
        move,
        EnterBodies(context),
        *([OnIntegers(context)] if context.integer else []),
        LowerAffine(context),
        LowerNorms(),
        WholeAgain(),
        trips,
        OneView(),
        OneConcat(),
        DropZeroBiases(),
        GemmsOverRows(context),
        GuardPads(),
        Clean(),
        GuardOutputs(),
    )


def rewrite(
    model: ir.Model,
    *,
    approximate: bool = False,
    check: bool = True,
    highest_opset: int | None = None,
    integer: bool = False,
) -> RewriteResult:
    """Recognise every normalization, fold and merge what can be, and account for each.

    Args:
        model: any valid model; it is left as it is.
        approximate: allow rewrites that are not exact; each says so in the ledger.
        check: evaluate each rewrite before and after in float64 on random inputs.
        highest_opset: the operator set that the result may not exceed, if the model does not already (and at least 18,
            which the rules need); None for as high as its operators need.
        integer: write quantized layers on integers (:mod:`normdeploy.rewrite.integer`).

    Returns:
        the rewritten model, the canonical one and the ledger.

    Raises:
        RewriteError: a rewrite changed the function, or failed (a bug of ours); nothing is returned.
        GraphError: the graph's types or sizes contradict each other.
    """
    with rarely_collected(), one_thread():
        context = RewriteContext(approximate=approximate, check=check, highest_opset=highest_opset, integer=integer)
        return _rewrite(model, context)


def _apply(step: ir.passes.PassBase, work: ir.Model, given: ir.Model) -> None:
    with contradictions_named(given, type(step).__name__):
        step(work)


def _rewrite(model: ir.Model, context: RewriteContext) -> RewriteResult:
    work = model.clone()
    strip_traces(work)  # no file that ships has them, and they outweigh the graph
    order = {str(output.name): index for index, node in enumerate(nodes_of(work)) for output in node.outputs}
    context.carried.start(order)
    names = NamesOfScopes(work)
    for step in understand(context):
        _apply(step, work, model)
        names.settle(work)
    canonical = work.clone()
    for step in transform(context):
        _apply(step, work, model)
        names.settle(work)
        context.carried.settle()
    ordered = sorted(context.ledger, key=lambda row: max((order.get(name, -1) for name in row.site), default=-1))
    return RewriteResult(work, canonical, Ledger(ordered), context.carried.derivation(work))
