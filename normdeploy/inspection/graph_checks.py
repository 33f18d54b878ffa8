"""All checks of a graph: what a deployed file computes, whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.errors import NormdeployError
from normdeploy.graph import Evaluator, module_path
from normdeploy.graph.inlining import inline_functions
from normdeploy.graph.onnx_files import declared
from normdeploy.graph.sizes_of_inputs import asked_sizes
from normdeploy.graph.traits import Trait, has
from normdeploy.inspection.companions import Dependence, arises_at, batched_inputs, dependence
from normdeploy.inspection.conventions import check_conventions
from normdeploy.inspection.findings import Finding
from normdeploy.inspection.graph_sites import Constants, stored_norms
from normdeploy.inspection.holders import running_layernorm
from normdeploy.inspection.neighbours import check_neighbours
from normdeploy.inspection.site import StoredNorm
from normdeploy.inspection.stored_numbers import check_stored_numbers
from normdeploy.inspection.stored_statistics import check_statistics
from normdeploy.ort.made_inputs import make_inputs
from normdeploy.ort.specs import TensorSpec
from normdeploy.rewrite.infer import contradictions_named, infer_missing_types
from normdeploy.rewrite.ledger import Ledger
from normdeploy.rewrite.pipeline import understand
from normdeploy.rewrite.rewrite_context import RewriteContext

# in float64, one sample's outputs agree to far less unless it is mixed with its companions
_MIXED = 1e-9
_BATCH, _SPATIAL, _LENGTH = 3, 32, 8  # sizes of example inputs
_AVERAGES = ("Reduce", "BatchNormalization", "MeanVarianceNormalization", "Einsum", "MatMul", "Gemm")


def check_graph(model: ir.Model, feeds: Mapping[str, Array] | None = None) -> Iterator[Finding]:
    """Yield what is wrong or risky in the normalizations of a graph.

    Args:
        model: the graph as traced or loaded; left as it is.
        feeds: example inputs by name; random ones where not given.

    Raises:
        GraphError: the graph's types or sizes contradict each other.
    """
    with contradictions_named(model, "inspect"):
        yield from _found(model.clone(), feeds)


def _found(model: ir.Model, feeds: Mapping[str, Array] | None) -> Iterator[Finding]:
    inline_functions(model)
    infer_missing_types(model)
    constants = Constants(model)
    for site in stored_norms(model, constants):
        if _varies_by_row(site):
            yield running_layernorm(site.where, ["mean", "variance"], site.variance.shape)
            continue
        yield from check_statistics(site)
        yield from check_neighbours(site, constants)
    yield from check_stored_numbers(model)
    yield from _random(model, constants)
    canonical, ledger = _recognised(model)
    yield from _mixes_samples(canonical, ledger, dict(feeds or example_feeds(model.graph)))
    values = {str(value.name): value for node in _nodes(model) for value in node.outputs}
    values |= {str(value.name): value for graph in model.graphs() for value in graph.inputs}
    for row in ledger:
        yield from check_conventions(row, values)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of the graph and of the bodies in it."""
    yield from ir.traversal.RecursiveGraphIterator(model.graph)


def _recognised(model: ir.Model) -> tuple[ir.Model, Ledger]:
    context = RewriteContext(check=False)
    work = model.clone()
    for step in understand(context):
        step(work)
    return work, context.ledger


def _varies_by_row(site: StoredNorm) -> bool:
    """Whether stored statistics vary along other axes than the scale does, the last axis not among them."""
    if site.x is None or site.x.shape is None or site.variance.ndim < 2 or site.variance.shape[-1] != 1:
        return False
    rank = len(site.x.shape)
    rows = _varying(site.variance.shape, rank)
    affine = [_varying(array.shape, rank) for array in (site.scale, site.shift) if array is not None]
    by_batch = 0 in rows
    return by_batch or bool(rows and any(affine) and not any(axes & rows for axes in affine))


def _varying(shape: tuple[int, ...], rank: int) -> set[int]:
    return {axis + rank - len(shape) for axis, size in enumerate(shape) if size > 1}


def _random(model: ir.Model, constants: Constants) -> Iterator[Finding]:
    for node in _nodes(model):
        if node.op_type == "Dropout" and len(node.inputs) > 2 and constants.scalar(node.inputs[2]) == 1:
            yield Finding(
                "error",
                "random",
                module_path(node),
                "this Dropout is in training mode: deployed outputs are random",
                "export in evaluation mode; pass training=self.training to F.dropout",
            )
        elif has(node, Trait.RANDOM):
            yield Finding(
                "warning",
                "random",
                module_path(node),
                f"{node.op_type} draws random numbers in the deployed graph: the same input gives different outputs",
                "if it is noise for training only, guard it with self.training; if it is meant, give it as an input",
            )


def _mixes_samples(model: ir.Model, ledger: Ledger, feeds: dict[str, Array]) -> Iterator[Finding]:
    places = [
        module_path(node)
        for node in _nodes(model)
        if node.op_type == "BatchNormalization" and int(node.attributes.get_int("training_mode", 0) or 0) == 1
    ]
    places += [row.where for row in ledger if row.kind == "batch statistics"]
    inputs = [
        (str(value.name), [dim if isinstance(dim, int) else str(dim.value) for dim in value.shape or ()])
        for value in model.graph.inputs
        if str(value.name) in feeds
    ]
    batched, static = batched_inputs(inputs)
    evaluator = Evaluator(model)
    outputs = _batched_outputs(model.graph, static)
    try:
        shown = dependence(lambda given: evaluator.run(given, fetch=outputs), feeds, batched, static, tolerance=_MIXED)
        node = arises_at(model, feeds, batched, static) if shown is not None and not places else None
    except NormdeployError as error:
        yield Finding(
            "note",
            "not-run",
            "",
            f"the graph was not run to see whether samples of a batch affect each other: {error}",
            "give example inputs of your own; normdeploy verify compares batches too",
        )
        shown, node = None, None
    else:
        if shown is None and (static or 2) > 1:
            return  # it was tried, and no sample affects another
    for place in dict.fromkeys(places):
        yield batch_statistics(place, shown)
    if places or shown is None:
        return
    where = "" if node is None else module_path(node)
    if node is not None and node.op_type.startswith(_AVERAGES):
        yield batch_statistics(where, shown)
        return
    yield Finding(
        "warning",
        "batch-dependence",
        where,
        f"samples of a batch affect each other here: {shown}",
        "if that is not meant, find the operator that works along the batch axis",
        detail={"largest": shown.largest},
    )


def _batched_outputs(graph: ir.Graph, static: int | None) -> list[str]:
    """Return the outputs that may carry the batch on axis 0: not those declared of another length there."""
    names: list[str] = []
    for value in graph.outputs:
        first = value.shape[0] if value.shape is not None and len(value.shape) else None
        if not isinstance(first, int) or first == static:
            names.append(str(value.name))
    return names


def batch_statistics(where: str, shown: Dependence | None) -> Finding:
    """Return the finding for a normalization with the statistics of the batch it is given."""
    seen = f": {shown}" if shown is not None else ""
    return Finding(
        "error",
        "batch-statistics",
        where,
        f"it normalizes with the statistics of the batch it is given, so deployed outputs of a sample depend on its "
        f"companions{seen}",
        "keep running statistics (track_running_stats=True, or population statistics) and export in evaluation mode; "
        "pass training=self.training to functional forms",
        detail={} if shown is None else {"largest": float(np.nan_to_num(shown.largest, posinf=1e300))},
    )


def example_feeds(graph: ir.Graph) -> dict[str, Array]:
    """Return one random value per graph input: floats N(0, 1), ids within the tables they index, flags true.

    Args:
        graph: its dynamic dimensions become what constants ask of them, or small sizes, the same name the same size.
    """
    inputs = [value for value in graph.inputs if value.name is not None and value.name not in graph.initializers]
    sizes = asked_sizes(graph)

    def size_of(spec: TensorSpec, axis: int) -> int:
        image = len(spec.shape) >= 4 and axis >= 2
        return sizes.setdefault(str(spec.shape[axis]), _BATCH if axis == 0 else _SPATIAL if image else _LENGTH)

    flags = {str(value.name): 1.0 for value in inputs if value.dtype == ir.DataType.BOOL}
    ids = {str(value.name): _vocabulary(value) for value in inputs}
    return make_inputs([declared(value) for value in inputs], size_of, seed=0, ones=flags, ids=ids)


def _vocabulary(value: ir.Value) -> int:
    """Return how many ids an integer input may take: the rows of the tables that it indexes."""
    rows = [
        int(table.shape[0])
        for use in value.uses()
        if use.node.op_type == "Gather" and use.idx == 1
        for table in use.node.inputs[:1]
        if table is not None and table.shape is not None and isinstance(table.shape[0], int)
    ]
    return min(rows, default=2)
