"""What decides on shapes beside the sizes that a graph is followed at: what is fed, or nothing, where all are fixed."""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from normdeploy.verification.derivation.operands import inputs_of, kind

_FOUND = frozenset({"NonZero", "Compress", "Unique", "NonMaxSuppression", "StringSplit"})
"""Operators whose result is as large as what they find."""

_SHAPED = {
    "Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2), "Slice": (1, 2, 3, 4), "Tile": (1,),
    "Pad": (1, 3), "Resize": (2, 3), "Upsample": (1,), "TopK": (1,), "OneHot": (1,), "Split": (1,), "Squeeze": (1,),
    "SplitToSequence": (1,), "SequenceAt": (1,), "Unsqueeze": (1,), "CenterCropPad": (1,), "MaxUnpool": (2,),
    "Col2Im": (1, 2), "AffineGrid": (1,), "DFT": (1, 2), "STFT": (1, 3), "Loop": (0, 1), "Scan": (),
    **{f"Reduce{name}": (1,) for name in ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")},
    **{f"{name}Window": (0,) for name in ("Hann", "Hamming", "Blackman")},
}  # fmt: skip
"""Operators the shape of whose result depends on the numbers of some operands, by their places."""


def is_open(node: ir.Node, follows: Callable[[ir.Value], bool], opened: Collection[ir.Value]) -> bool:
    """Tell whether the shapes of an operator's results depend on what is fed.

    Args:
        node: the operator. follows: whether a value is a constant, or follows from sizes.
        opened: values in front of it whose shapes do.
    """
    inputs = inputs_of(node)
    if any(value in opened for value in inputs if value is not None):
        return True
    places = range(len(inputs)) if kind(node) in _FOUND else _SHAPED.get(kind(node), ())
    read = [inputs[place] for place in places if place < len(inputs)]
    return any(value is not None and not follows(value) for value in read)


def of_fixed_sizes(graph: ir.Graph) -> bool:
    """Tell whether a graph declares the sizes of all its inputs: it is run at these alone."""
    return all(value.shape is not None and value.shape.is_static() for value in graph.inputs)
