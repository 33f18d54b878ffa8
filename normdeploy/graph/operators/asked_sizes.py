"""How large an operator's result gets that a few numbers of the graph can make huge: known before it is computed.

Range, ConstantOfShape, Pad and Tile count for themselves, where they work out their sizes anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from math import prod

from torch import Tensor

from normdeploy.graph.operators.call import Call, Inputs, need, optional
from normdeploy.graph.operators.evaluation_limits import MOST_ELEMENTS, require_elements
from normdeploy.graph.traits import Trait, has, is_standard

Asked = Callable[[Call, Inputs], Sequence[int]]


def require_result(call: Call, inputs: Inputs) -> None:
    """Refuse an operator whose result would have more than ``limits.MOST_ELEMENTS``, and four times its operands.

    Raises:
        TooMuchError: it would.
    """
    node = call.node
    asked = _ASKED.get(node.op_type) if is_standard(node) else None
    if asked is None and has(node, Trait.BROADCASTS):
        asked = _broadcast
    # nothing that these make of small operands is large, and most operands are small
    if asked in (_broadcast, _product, _taken) and prod(max(1, x.numel()) for x in _given(inputs)) <= MOST_ELEMENTS:
        return
    if asked is not None:
        # of operands that are that large already nothing is blown up
        most = max(MOST_ELEMENTS, 4 * sum(x.numel() for x in _given(inputs)))
        require_elements(f"operator {node.op_type} ({node.name})", asked(call, inputs), most)


def _given(inputs: Inputs) -> list[Tensor]:
    return [x for x in inputs if x is not None]


def _numbers(inputs: Inputs, index: int) -> list[int]:
    found = optional(inputs, index)
    return [] if found is None else [int(size) for size in found.reshape(-1).tolist()]


def _broadcast(_: Call, inputs: Inputs) -> list[int]:
    shapes = [reversed(x.shape) for x in _given(inputs)]
    return [0 if 0 in sizes else max(sizes) for sizes in zip_longest(*shapes, fillvalue=1)]


def _expand(_: Call, inputs: Inputs) -> list[int]:
    pairs = zip_longest(reversed(need(inputs, 0).shape), reversed(_numbers(inputs, 1)), fillvalue=1)
    return [max(pair) for pair in pairs]


def _product(call: Call, inputs: Inputs) -> list[int]:
    """Return the size of a product of matrices, its batches brought to one shape."""
    a, b = need(inputs, 0), need(inputs, 1)
    batches = zip_longest(reversed(a.shape[:-2]), reversed(b.shape[:-2]), fillvalue=1)
    rows = a.shape[-1 if call.attr("transA", 0) else -2] if a.dim() > 1 else 1
    columns = b.shape[-2 if call.attr("transB", 0) else -1] if b.dim() > 1 else 1
    return [*(max(pair) for pair in batches), rows, columns]


def _taken(call: Call, inputs: Inputs) -> list[int]:
    x, indices = need(inputs, 0), need(inputs, 1)
    axis = call.attr("axis", 0) % max(x.dim(), 1)
    return [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]


def _resized(call: Call, inputs: Inputs) -> list[int]:
    x = need(inputs, 0)
    sizes = _numbers(inputs, 3)
    upsample = call.node.op_type == "Upsample" or len(inputs) == 2
    factors = optional(inputs, 1 if upsample else 2)
    scales = call.attr("scales") if factors is None else factors.reshape(-1).tolist()
    axes = call.attr("axes", range(x.dim()))
    found = list(x.shape)
    for at, axis in enumerate(axes):
        if at < len(sizes):
            found[axis] = sizes[at]
        elif scales is not None and at < len(scales):
            # an infinite factor is the implementation's to refuse
            found[axis] = int(min(max(found[axis] * scales[at], 0.0), 2.0**62)) if scales[at] == scales[at] else 0
    return found


def _one_hot(_: Call, inputs: Inputs) -> list[int]:
    return [need(inputs, 0).numel(), *_numbers(inputs, 1)]


def _window(_: Call, inputs: Inputs) -> list[int]:
    return _numbers(inputs, 0)


def _mel(_: Call, inputs: Inputs) -> list[int]:
    return [prod(_numbers(inputs, 0)), prod(_numbers(inputs, 1))]


def _image(_: Call, inputs: Inputs) -> list[int]:
    return [*need(inputs, 0).shape[:2], *_numbers(inputs, 1)]


def _size_input(index: int) -> Asked:
    return lambda _, inputs: _numbers(inputs, index)


def _drawn(call: Call, inputs: Inputs) -> list[int]:
    return list(call.attr("shape", []))


def _drawn_samples(call: Call, inputs: Inputs) -> list[int]:
    return [need(inputs, 0).shape[0], call.attr("sample_size", 1)]


def _transform(call: Call, inputs: Inputs) -> list[int]:
    x, axis = need(inputs, 0), _numbers(inputs, 2)
    at = (axis[0] if axis else call.attr("axis", 1 if call.opset < 20 else -2)) % x.dim()
    length = _numbers(inputs, 1)
    return [length[0] if n == at and length else size for n, size in enumerate(x.shape)] + [2]


def _padded(call: Call, inputs: Inputs) -> list[int]:
    """Return the input's size with the pads that a window slides over."""
    x, pads = need(inputs, 0), list(call.attr("pads", []))
    rank = x.dim() - 2
    if len(pads) != 2 * rank:
        return list(x.shape)
    return [*x.shape[:2], *(n + pads[at] + pads[at + rank] for at, n in enumerate(x.shape[2:]))]


def _spread(call: Call, inputs: Inputs) -> list[int]:
    """Return a transposed convolution's result at its largest."""
    x, w = need(inputs, 0), need(inputs, 1)
    rank = x.dim() - 2
    stride, dilation, more = (
        list(call.attr(name, [default] * rank))
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    sizes = [
        (n - 1) * s + d * (k - 1) + 1 + p
        for n, s, d, k, p in zip(x.shape[2:], stride, dilation, w.shape[2:], more, strict=True)
    ]
    return [x.shape[0], w.shape[1] * call.attr("group", 1), *call.attr("output_shape", sizes)[-rank:]]


def _regions(call: Call, inputs: Inputs) -> list[int]:
    """Return the samples that a RoiAlign averages: a grid in each cell, by default one for each pixel of the region."""
    x, regions, grid = need(inputs, 0), need(inputs, 1), call.attr("sampling_ratio", 0)
    cells = [call.attr("output_height", 1), call.attr("output_width", 1)]
    grids = [grid, grid]
    if grid <= 0 and regions.numel():
        scaled = call.attr("spatial_scale", 1.0) * regions
        spans = (scaled[:, [3, 2]] - scaled[:, [1, 0]]).abs().amax(0)
        grids = [int(min(float(span), 2.0**31)) // max(cell, 1) + 1 for span, cell in zip(spans, cells, strict=True)]
    return [regions.shape[0], x.shape[1], *cells, *grids]


def _pooled_regions(call: Call, inputs: Inputs) -> list[int]:
    return [need(inputs, 1).shape[0], need(inputs, 0).shape[1], *call.attr("pooled_shape", [])]


def _ngrams(call: Call, inputs: Inputs) -> list[int]:
    """Return a TfIdfVectorizer's result; its counts are places in the pool, and a loop runs from one to the next."""
    pool = max(len(call.attr("pool_int64s", [])), len(call.attr("pool_strings", [])))
    if any(not 0 <= count <= pool for count in call.attr("ngram_counts", [])):
        raise ValueError(f"ngram_counts lead out of the pool of {pool}")
    places, terms = max(need(inputs, 0).numel(), 1), max(call.attr("ngram_indexes", []), default=0) + 1
    turns = max(call.attr("max_gram_length", 1), 1) * (max(call.attr("max_skip_count", 0), 0) + 1)
    return [places, max(terms, turns)]


_ASKED: dict[str, Asked] = {
    "Expand": _expand,
    "MatMul": _product,
    "Gemm": _product,
    "Gather": _taken,
    "Resize": _resized,
    "Upsample": _resized,
    "OneHot": _one_hot,
    "HannWindow": _window,
    "HammingWindow": _window,
    "BlackmanWindow": _window,
    "MelWeightMatrix": _mel,
    "Col2Im": _image,
    "CenterCropPad": _size_input(1),
    "MaxUnpool": _size_input(2),
    "AffineGrid": _size_input(1),
    "RandomNormal": _drawn,
    "RandomUniform": _drawn,
    "Multinomial": _drawn_samples,
    "DFT": _transform,
    "Conv": _padded,
    "MaxPool": _padded,
    "AveragePool": _padded,
    "ConvTranspose": _spread,
    "LpPool": _padded,
    "RoiAlign": _regions,
    "MaxRoiPool": _pooled_regions,
    "TfIdfVectorizer": _ngrams,
}
