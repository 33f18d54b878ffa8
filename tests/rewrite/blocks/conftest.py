"""Fold a traced block, check it against eager float64, and hand back what is left."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator, constant64
from normdeploy.rewrite import Ledger, rewrite

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
NORMS = (*BATCH_NORMS, nn.LayerNorm, nn.GroupNorm)


def randomize(module: nn.Module) -> nn.Module:
    """Give every norm statistics and parameters far from their initial values, and every other vector some spread."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, BATCH_NORMS):
                part.running_mean.normal_(generator=generator)
                part.running_var.uniform_(0.5, 2.0, generator=generator)
            for name, parameter in part.named_parameters(recurse=False):
                if isinstance(part, NORMS) and name == "weight":
                    parameter.uniform_(0.5, 1.5, generator=generator)
                elif parameter.ndim < 2 or isinstance(part, NORMS):
                    parameter.normal_(generator=generator)
                elif "gamma" in name or "alpha" in name or "scale_" in name:
                    parameter.uniform_(0.5, 1.5, generator=generator)
                elif "beta" in name:
                    parameter.normal_(generator=generator)
    return module.eval()


@dataclass
class Folded:
    """What a block became.

    Args:
        model: the rewritten graph.
        ledger: what became of its norms and affine maps.
        passes: operators that still scale or shift by a constant that is larger than a number, biases left out.
    """

    model: ir.Model
    ledger: Ledger
    passes: list[str]

    @property
    def operators(self) -> Counter[str]:
        return Counter(node.op_type for node in self.model.graph)

    def kept(self) -> set[str]:
        return {row.where for row in self.ledger.kept}

    def actions(self) -> dict[str, str]:
        return {row.where: row.action for row in self.ledger}


def _constant_passes(graph: ir.Graph) -> list[str]:
    found = []
    for node in graph:
        if node.op_type not in ("Mul", "Div", "Add", "Sub", "BatchNormalization"):
            continue
        constants = [constant64(value) for value in node.inputs]
        if not any(array is not None and array.size > 1 for array in constants):
            continue
        producers = {value.producer().op_type for value in node.inputs if value is not None and value.producer()}
        if node.op_type == "Add" and "MatMul" in producers:
            continue
        found.append(f"{node.op_type} {node.name}")
    return found


@pytest.fixture(scope="session")
def fold():
    """Return a function: (module, inputs, kept=module paths that must stay) -> :class:`Folded`.

    ``dynamic_shapes={}`` traces with a fixed batch, in half the time: for what is nothing but convolutions.
    """

    def folded(
        module: nn.Module, *args: torch.Tensor, kept: set[str] = frozenset(), dynamic_shapes: Any = None
    ) -> Folded:
        module = randomize(module)
        wide = copy.deepcopy(module).double()
        traced = trace(module, args, dynamic_shapes=dynamic_shapes)
        result = rewrite(traced.model)
        with torch.no_grad():
            expected = wide(*(arg.double() for arg in args)).numpy()
        got = Evaluator(result.model).run(traced.feeds)[traced.output_names[0]].numpy()
        assert got.shape == expected.shape
        assert np.abs(got - expected).max() <= 1e-9 * np.abs(expected).max()
        paths = {name for name, part in module.named_modules() if isinstance(part, NORMS)}
        accounted = [row.where for row in result.ledger]
        missing = paths - set(accounted)
        assert not missing, f"not in the ledger: {missing}"
        assert all(accounted.count(path) == 1 for path in paths), accounted
        found = Folded(result.model, result.ledger, _constant_passes(result.model.graph))
        assert found.kept() == set(kept), [(row.where, row.reason) for row in result.ledger.kept]
        return found

    return folded
