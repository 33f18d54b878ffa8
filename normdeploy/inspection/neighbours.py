"""Checks of a normalization and the linear operator in front of it: redundant bias, weight range after the fold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import module_path
from normdeploy.graph.edit import only_reader
from normdeploy.graph.linear_view import Form, Linear, linear_of
from normdeploy.graph.traits import is_standard
from normdeploy.inspection.findings import Finding
from normdeploy.inspection.graph_sites import Constants
from normdeploy.inspection.site import StoredNorm

# the fold costs this many bits of a per-tensor int8 weight before it is worth a word
_BITS = 2.0


def check_neighbours(site: StoredNorm, constants: Constants) -> Iterator[Finding]:
    """Yield what concerns the linear operator whose only reader is the normalization."""
    if site.x is None or only_reader(site.x) is None:
        return
    producer = site.x.producer()
    if producer is None:
        return
    if is_standard(producer, "Add"):
        yield from _added_bias(site, producer, constants)
        return
    linear, shape = linear_of(producer), producer.outputs[0].shape
    if linear is None or linear.form is Form.RECURRENT or linear.weight_steps is not None or linear.activation:
        return
    if linear.form is Form.PRODUCT and shape is None:
        return
    if site.axis != linear.result_axis(2 if shape is None else len(shape)):  # a convolution's is 1 at any rank
        return
    bias = constants.value(linear.value(linear.bias))
    if bias is not None and np.any(bias != 0):  # exporters write zeros for a layer without bias
        yield _redundant(site, module_path(producer))
    yield from _wider(site, linear, constants)


def _added_bias(site: StoredNorm, add: ir.Node, constants: Constants) -> Iterator[Finding]:
    """A product by a constant and its bias: how linear layers on more than two axes are exported."""
    for value, other in (add.inputs, reversed(add.inputs)):
        product = None if value is None else value.producer()
        if product is not None and is_standard(product, "MatMul") and other in constants:
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


def _per_channel(linear: Linear, weight: Floats) -> Floats | None:
    """Return max |w| per output channel."""
    if weight.ndim < 2:
        return None
    channels = linear.channels(weight.shape)
    assert channels.written is not None  # no recurrent operator
    found = np.zeros(channels.outs)
    np.maximum.at(found, np.broadcast_to(channels.written, weight.shape), np.abs(weight))
    return found


def _wider(site: StoredNorm, linear: Linear, constants: Constants) -> Iterator[Finding]:
    weight = constants.value(linear.value(linear.weight))
    slope = site.slope
    ranges = None if weight is None else _per_channel(linear, weight)
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
        module_path(linear.node),
        f"folding {site.where!r} into it widens its weight range: the widest channel ({widest}) becomes {after:.3g} "
        f"times the typical one, before {before:.3g}; float32 outputs are unaffected, int8 weights with one scale per "
        f"tensor lose about {bits:.1f} bits in the other channels",
        "quantize weights per channel, or equalize channels before quantizing",
        detail={"before": before, "after": after, "bits": bits, "channel": widest},
    )


def _spread(ranges: Floats) -> float:
    positive = ranges[ranges > 0]
    return float(positive.max() / np.median(positive))
