"""Every operator of the evaluator against the ONNX standard's own conformance cases."""

import numpy as np
import onnx_ir as ir
import pytest
from published_cases import published_cases

from normdeploy.graph import Evaluator
from normdeploy.graph.operators import OPERATORS
from normdeploy.graph.operators.sequences import SEQUENCES
from normdeploy.graph.traits import Trait, kinds

RANDOM = {name for domain, name in kinds(Trait.RANDOM) if not domain}

ALIGNED = {
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
}
"""onnx aligns the corner to where an unrounded size would end; onnxruntime and torch to the last element there is."""

_NUMPY_KINDS = "fiub"


def _cases():
    for case in published_cases():
        nodes = case.model.graph.node
        if case.name in ALIGNED or len(nodes) != 1 or (nodes[0].domain, nodes[0].op_type) not in OPERATORS:
            continue
        if nodes[0].op_type in RANDOM:
            continue
        arrays = [array for ins, outs in case.data_sets for array in (*ins, *outs)]
        # strings, sequences, 8-bit floats and below come as other types: outside the evaluator's scope
        if all(isinstance(a, np.ndarray | np.generic) and a.dtype.kind in _NUMPY_KINDS for a in arrays):
            yield case


def _run(case):
    """Return (operator, failure text or None)."""
    node = case.model.graph.node[0]
    half = any(a.dtype == np.float16 for ins, outs in case.data_sets for a in (*ins, *outs))
    # expected values are float32, some written down with four digits; float16 cases carry float16 rounding
    tolerance = {"rtol": 2e-3, "atol": 1e-3} if half else {"rtol": 1e-5, "atol": 1e-6}
    if case.name == "test_averagepool_2d_ceil_last_window_starts_on_pad":
        tolerance = {"rtol": 1e-3, "atol": 0}
    if "gridsample_bicubic" in case.name:  # written down with four digits
        tolerance = {"rtol": 1e-3, "atol": 1e-3}
    evaluator = Evaluator(ir.from_proto(case.model))
    names = [value.name for value in case.model.graph.input]
    for ins, outs in case.data_sets:
        got = evaluator.run({name: np.asarray(array) for name, array in zip(names, ins, strict=True)})
        for value, expected in zip(got.values(), outs, strict=True):
            if tuple(value.shape) != expected.shape:
                return node.op_type, f"{case.name}: shape {tuple(value.shape)}, expected {expected.shape}"
            # one of its elements is a half, which float32 rounds either way
            half_way = {"atol": 1} if node.op_type == "DynamicQuantizeLinear" and expected.dtype == np.uint8 else {}
            mine, theirs = value.numpy().astype(np.float64), expected.astype(np.float64)
            close = np.allclose(mine, theirs, equal_nan=True, **tolerance | half_way)
            if not close:
                return node.op_type, f"{case.name}: values differ"
    return node.op_type, None


def test_every_conformance_case_of_our_operators_holds():
    failures, covered = [], set()
    for case in _cases():
        operator, failure = _run(case)
        covered.add(operator)
        if failure:
            failures.append(failure)
    assert failures == []
    without_case = {name for domain, name in OPERATORS if domain == ""} - covered
    # an old pool and the runtime's own form have no case in the standard; those of casts are protobuf, those of
    # sequences are lists (both tested in test_evaluate.py); no case makes an optional (see verify/test_contrib.py)
    spelled = {"GlobalLpPool", "SimplifiedLayerNormalization", "Cast", "CastLike", "Optional"}
    assert without_case == {*spelled, *SEQUENCES, *RANDOM}


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose", "AveragePool", "BatchNormalization", "Gemm"])
def test_the_conformance_cases_include_the_operators_folding_rests_on(operator):
    assert sum(case.model.graph.node[0].op_type == operator for case in _cases()) >= 3
