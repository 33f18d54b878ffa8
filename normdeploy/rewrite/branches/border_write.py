"""A border that is written into a padded value, moved in front of the 1x1 convolution whose bias it repeats.

The diverse branch block pads what a 1x1 convolution and its norm make of x with what they would make of zeros::

    y = norm(conv(x));  z = pad(y);  z[:, :, :p] = v;  z[:, :, -p:] = v;  ...     with v = norm(conv(0))

which is traced to a chain of ScatterND, slices, transposes and computed indices. It is norm(conv(pad(x))), pad with
zeros: an ordinary Pad, which whatever reads z can take in.

What the chain writes is not read off its operators. It only moves elements, so it is run on arrays of distinct numbers,
as the gauge engine does: which cells of z are which cells of y, and what the others hold whatever y holds. Where a
spatial size is dynamic, it is run for several, two of them larger than any number among its constants.

Done where

1. y is made of x by operators that look at one position at a time (1x1 convolutions, norms, affine maps), which nothing
   else reads;
2. in the middle of z stands y, and around it one number per channel: what those operators make of zeros.

Source: X. Ding et al., Diverse Branch Block, 2021, section 3.2 (padding after a BatchNorm).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, constant64, constant_tensor, evaluate_region, module_path
from normdeploy.rewrite.affine.map import Array
from normdeploy.rewrite.affine.region import Region
from normdeploy.rewrite.branches.read import Frame, Reading
from normdeploy.rewrite.branches.search import Search
from normdeploy.rewrite.branches.tree import alone
from normdeploy.rewrite.context import RewriteContext
from normdeploy.rewrite.ledger import LedgerRow

RULE = "a border written behind a convolution"
KIND = "written border"

_ENDS = frozenset({"ScatterND", "ScatterElements", "Concat", "Where", "Pad"})
_MOVES = _ENDS | {"Slice", "Transpose", "Expand", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Gather", "Tile"}
_LARGEST = 512
"""Nodes of one chain."""

_SIZES = ((1, 2), (2, 1), (3, 5))
"""Spatial sizes for which a chain of dynamic size is run, in turn along its axes; larger ones come on top."""

_AS_ZERO = 1e-12
"""Largest difference of two float64 numbers, relative to the largest of their kind, that are one."""
