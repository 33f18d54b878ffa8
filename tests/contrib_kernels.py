"""One operator of com.microsoft, run by onnxruntime's own CPU kernel and by our evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as kernels

from normdeploy.graph import Evaluator
from normdeploy.ort.byte_products import saturates
from normdeploy.ort.machine import this_machine

Feeds = Mapping[str, np.ndarray | None]

KNOWN = {(schema.domain, schema.name) for schema in kernels.get_all_operator_schema()}
"""The operators of this onnxruntime: newer ones know more."""


def model(
    op: str,
    feeds: Feeds,
    *,
    outputs: int = 1,
    constants: Sequence[str] = (),
    domain: str = "com.microsoft",
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one node.

    Args:
        feeds: the node's inputs in order, None where one is left out. outputs: how many of the node's there are.
        constants: names of inputs that the model holds. attributes: the node's.
    """
    names = [f"y{place}" for place in range(outputs)]
    node = helper.make_node(
        op, [name if value is not None else "" for name, value in feeds.items()], names, domain=domain
    )
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    given = {name: value for name, value in feeds.items() if value is not None}
    graph = helper.make_graph(
        [node],
        op,
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in given.items()
            if name not in constants
        ],
        [onnx.ValueInfoProto(name=name) for name in names],
        [numpy_helper.from_array(value, name) for name, value in given.items() if name in constants],
    )
    imports = [helper.make_opsetid("", 20), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def fitting(weights: np.ndarray) -> np.ndarray:
    """Return weights of 8 bits whose products with uint8 the kernels of this processor add exactly.

    Where pairs of uint8 times int8 are added in 16 bits, weights of 7 bits fit: 2 * 255 * 64.
    """
    if weights.dtype != np.int8 or not saturates(this_machine()):
        return weights
    return weights >> 1


def kernel(proto: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    """Run a model by onnxruntime as it is."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = {item.name for item in session.get_inputs()}
    return list(session.run(None, {name: value for name, value in feeds.items() if name in wanted}))


def ours(proto: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    """Run a model by the evaluator, in float64."""
    wanted = {item.name for item in proto.graph.input}
    given = {name: value for name, value in feeds.items() if name in wanted and value is not None}
    found = Evaluator(ir.from_proto(proto)).run(given)
    return [found[item.name].numpy() for item in proto.graph.output]


def agree(
    op: str, feeds: Feeds, *, compared: int | None = None, steps: int = 0, rtol: float = 2e-5, **how: Any
) -> list[np.ndarray]:
    """Assert that our meaning of an operator is the kernel's.

    Args:
        compared: how many of the outputs. steps: by how many steps an integer may be off where float32 rounds a half
            the other way, in one element of twenty. rtol: of floats, of the largest value.

    Returns:
        what we computed.
    """
    if (domain := how.get("domain", "com.microsoft"), op) not in KNOWN:
        pytest.skip(f"onnxruntime {ort.__version__} has no {domain}:{op}")
    proto = model(op, feeds, **how)
    expected, got = kernel(proto, feeds), ours(proto, feeds)
    for place, (theirs, mine) in enumerate(zip(expected, got, strict=True)):
        if compared is not None and place >= compared:
            break
        assert mine.shape == theirs.shape, (place, mine.shape, theirs.shape)
        if theirs.dtype.kind != "f":
            assert mine.dtype == theirs.dtype
            off = np.abs(mine.astype(np.int64) - theirs.astype(np.int64))
            assert off.max(initial=0) <= steps
            assert np.count_nonzero(off) <= 0.05 * off.size + 1
        else:
            np.testing.assert_allclose(
                theirs, mine, rtol=rtol, atol=rtol * np.abs(mine[np.isfinite(mine)]).max(initial=1e-30)
            )
    return got
