"""Run a region in float64 at chosen sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Floats
from normdeploy.graph import evaluate_region
from normdeploy.graph.operators.evaluation_limits import MOST_PROBED, require_elements
from normdeploy.rewrite.recognise.norm_region import Region
from normdeploy.rewrite.recognise.trial_sizes import Sizes


class Probe:
    """A region as a function of arrays.

    Args:
        region: what to run.
        turn: which sizes its dynamic dimensions get, below ``sizes.TURNS``.

    Raises:
        TooMuchError: the declared sizes make more than ``limits.MOST_PROBED`` elements.
        GraphError: no such sizes were found, or what the region takes of constants and shapes does not run at them.
    """

    def __init__(self, region: Region, turn: int = 0) -> None:
        self.region = region
        sizes = Sizes(turn, region.x)
        self.shape = sizes.of(region.x)
        require_elements(f"the declared shape of {region.x.name!r}", self.shape, MOST_PROBED)
        self.feeds: dict[ir.Value, Tensor] = {}
        for node in region.shape_nodes:
            source = node.inputs[0]
            if source is None:
                raise ValueError(f"{node.op_type} {node.name!r} reads nothing")
            dims = sizes.of(source)
            start = node.attributes.get_int("start", 0)
            end = node.attributes.get_int("end", len(dims))
            whole = torch.tensor(int(np.prod(dims, dtype=np.int64)))
            self.feeds[node.outputs[0]] = whole if node.op_type == "Size" else torch.tensor(dims[slice(start, end)])
        self.static = not sizes.given
        wanted = [output for node in region.side for output in node.outputs]
        constants = evaluate_region(region.side, self.feeds, wanted)
        self._constants = dict(zip(wanted, constants, strict=True))

    def run(self, x: Floats, wanted: Sequence[ir.Value]) -> list[Floats]:
        """Return the wanted values of the region for one input.

        Args:
            x: float64 of shape :attr:`shape`.
            wanted: values computed inside.
        """
        with torch.no_grad():
            feeds = {**self._constants, **self.feeds, self.region.x: torch.from_numpy(np.asarray(x, order="C"))}
            found = evaluate_region(self.region.between(*wanted), feeds, wanted)
        return [item.numpy() for item in found]
