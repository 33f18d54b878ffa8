"""A part of a graph as the reference of a comparison: in float64, and in float32 by torch's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.graph import Evaluator
from normdeploy.verification.sides.flat_values import Feeds, run_evaluator


class PartReference:
    """A part of a graph as a reference: float64 through the evaluator, eager's precision through torch's kernels.

    Args:
        model: the part. dtypes: of its outputs, as they are stored.
    """

    has_truth = True

    def __init__(self, model: ir.Model, dtypes: Sequence[np.dtype[Any]]) -> None:
        self.name = "a part of the graph"
        self.output_names: Sequence[str] = [str(value.name) for value in model.graph.outputs]
        self.graph: ir.Model | None = model
        self.evaluator = Evaluator(model)
        self._single = Evaluator(model, dtype=torch.float32)
        self._dtypes = dtypes

    def ready(self) -> AbstractContextManager[Any]:
        """Nothing to prepare."""
        return nullcontext()

    def truth(self, feeds: Feeds) -> list[Any]:
        """Return the outputs in float64."""
        return list(run_evaluator(self.evaluator, feeds).values())

    def native(self, feeds: Feeds) -> list[Any]:
        """Return the outputs in float32, operator by operator."""
        found = run_evaluator(self._single, feeds).values()
        return [array.astype(dtype) for array, dtype in zip(found, self._dtypes, strict=True)]
