"""The float64 evaluator gives an operator the meaning of its graph's own operator set."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from old_forms import written
from old_operators import RANDOM, Case, NotRunnable, differences, published, redefined, run

from normdeploy.graph import Evaluator
from normdeploy.graph.operators.sequences import Parts

LEFT = {
    ("MaxUnpool", "output shape"): "onnx's reference implementation and onnxruntime put the values elsewhere",
    ("MaxRoiPool", ""): "has no float64 implementation",
}
"""What is left to onnx's reference implementation, which has it otherwise than onnxruntime; told apart at run time:
an ONNX reference counts as understood where its own file agrees with its float64 graph."""


def left(case: Case) -> bool:
    node = case.model.graph.node[0]
    words = {"", *(attribute.name for attribute in node.attribute), *(["output shape"] if len(node.input) == 3 else [])}
    return any(node.op_type == name and word in words for name, word in LEFT)


def numbers(case: Case, results: list[object]) -> bool:
    """Strings, sequences, optionals and floats below 16 bits are outside the evaluator's scope."""
    return all(isinstance(item, np.ndarray) and item.dtype.kind in "fiub" for item in (*case.feeds.values(), *results))


@pytest.mark.parametrize("op_type", [name for name in redefined() if name not in RANDOM])
def test_every_operator_at_every_version(op_type: str):
    problems = []
    for case in (*written(op_type), *published(op_type)):
        try:
            expected = list(run(case.model, case.feeds))
        except NotRunnable:
            continue
        kinds = {a.i for node in case.model.graph.node for a in node.attribute if a.name == "to"}
        if left(case) or not numbers(case, expected) or kinds & {8, 17, 18, 19, 20}:
            continue
        with torch.no_grad(), np.errstate(all="ignore"):
            found = Evaluator(ir.from_proto(case.model)).run(case.feeds)
        if any(isinstance(value, Parts) for value in found.values()):
            continue
        half = 10 in kinds or any(a.dtype == np.float16 for a in (*case.feeds.values(), *expected))
        half |= op_type == "DFT"  # onnxruntime adds the terms one by one in float32
        difference = differences(expected, [value.numpy() for value in found.values()], 1e-2 if half else 2e-4)
        if difference:
            problems.append(f"{case.name}: {difference}")
    assert not problems, "\n".join(problems)
