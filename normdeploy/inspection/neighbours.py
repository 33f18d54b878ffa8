"""Checks of a normalization and the linear operator in front of it: redundant bias, weight range after the fold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from normdeploy.graph import module_path
from normdeploy.inspection.findings import Finding
from normdeploy.inspection.graph_sites import Constants
from normdeploy.inspection.site import Array, StoredNorm

# the fold costs this many bits of a per-tensor int8 weight before it is worth a word
_BITS = 2.0
_WEIGHTED = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1}


def check_neighbours(site: StoredNorm, constants: Constants) -> Iterator[Finding]:
    """Yield what concerns the linear operator whose only reader is the normalization."""
    if site.x is None or len(site.x.uses()) != 1 or site.x.is_graph_output():
        return
    producer = site.x.producer()
    if producer is None:
        return
    if producer.op_type == "Add":
        yield from _added_bias(site, producer, constants)
        return
    if producer.op_type not in _WEIGHTED or site.axis != _WEIGHTED[producer.op_type]:
        return
    bias = constants.value(producer.inputs[2]) if len(producer.inputs) > 2 else None
    if bias is not None and np.any(bias != 0):  # exporters write zeros for a layer without bias
        yield _redundant(site, module_path(producer))
    yield from _wider(site, producer, constants)


def _added_bias(site: StoredNorm, add: ir.Node, constants: Constants) -> Iterator[Finding]:
    """A product by a constant and its bias: how linear layers on more than two axes are exported."""
    for value, other in (add.inputs, reversed(add.inputs)):
        product = None if value is None else value.producer()
        if product is not None and product.op_type == "MatMul" and other in constants:
            bias = constants.value(other)
            rank = None if site.x is None or site.x.shape is None else len(site.x.shape)
            if bias is not None and bias.size > 1 and np.any(bias != 0) and rank is not None and site.axis == rank - 1:
                yield _redundant(site, module_path(product))


def _redundant(site: StoredNorm, producer: str) -> Finding:
    return Finding(
        "note",
        "redundant-bias",
        producer,
        f"its bias is cancelled by the mean of {site.where!r} behind it in training, and absorbed by it in deployment: "
        "outputs do not depend on it",
        "build the layer with bias=False; nothing changes for deployment",
        detail={"norm": site.where},
    )


def _per_channel(node: ir.Node, weight: Array) -> Array | None:
    """Return max |w| per output channel."""
    if node.op_type == "Gemm":
        axis = 0 if node.attributes.get_int("transB", 0) else 1
    elif node.op_type == "Conv":
        axis = 0
    else:
        if node.attributes.get_int("group", 1) != 1:
            return None
        axis = 1
    others = tuple(index for index in range(weight.ndim) if index != axis)
    return np.asarray(np.abs(weight).max(axis=others))


def _wider(site: StoredNorm, producer: ir.Node, constants: Constants) -> Iterator[Finding]:
    weight = constants.value(producer.inputs[1])
    slope = site.slope
    ranges = None if weight is None else _per_channel(producer, weight)
    if ranges is None or slope is None or slope.size != ranges.size or not np.all(np.isfinite(slope)):
        return
    folded = ranges * np.abs(slope)
    if not np.any(folded > 0) or not np.any(ranges > 0):
        return
    before, after = _spread(ranges), _spread(folded)
    bits = float(np.log2(after / before))
    if bits < _BITS:
        return
    widest = int(np.argmax(folded))
    yield Finding(
        "note",
        "wider-weights",
        module_path(producer),
        f"folding {site.where!r} into it widens its weight range: the widest channel ({widest}) becomes {after:.3g} "
        f"times the typical one, before {before:.3g}; float32 outputs are unaffected, int8 weights with one scale per "
        f"tensor lose about {bits:.1f} bits in the other channels",
        "quantize weights per channel, or equalize channels before quantizing",
        detail={"before": before, "after": after, "bits": bits, "channel": widest},
    )


def _spread(ranges: Array) -> float:
    positive = ranges[ranges > 0]
    return float(positive.max() / np.median(positive))
