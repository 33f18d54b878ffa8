"""What onnxruntime loses when it fuses a sum into a grouped convolution is given to the graph by a copy."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from affine_graphs import GraphBuilder

from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite


def model(channels: int, groups: int, *, output: bool) -> ir.Model:
    """Two convolutions of one input, each with a BatchNormalization that becomes its bias, and their sum."""
    rng = np.random.default_rng(0)
    g = GraphBuilder(dtype=np.float32)
    x = g.input("x", ["N", channels, 8, 8])
    branches = []
    for name in ("first", "second"):
        weight = rng.normal(size=(channels, channels // groups, 3, 3))
        convolved = g.op("Conv", x, weight, group=groups, pads=[1] * 4, name=name)
        branches.append(g.batch_norm(convolved, channels, rng, name=f"{name}.norm"))
    g.output(g.op("Add", *branches))
    if output:
        g.output(branches[0])
    return ir.from_proto(g.proto())


@pytest.mark.parametrize(("channels", "groups"), [(3, 3), (6, 3), (5, 5), (8, 8)])
@pytest.mark.parametrize("output", [True, False])
def test_a_summed_convolution_that_is_an_output_loads_and_computes_the_same(channels, groups, output):
    source = model(channels, groups, output=output)
    result = rewrite(source)
    assert {row.action for row in result.ledger} <= {"folded", "merged"}
    names = [value.name for value in source.graph.outputs]
    assert [value.name for value in result.model.graph.outputs] == names
    x = np.random.default_rng(1).normal(size=(2, channels, 8, 8)).astype(np.float32)
    expected = Evaluator(source).run({"x": x})
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        data = ir.to_proto(result.model).SerializeToString()
        session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        for name, got in zip(names, session.run(names, {"x": x}), strict=True):
            np.testing.assert_allclose(got, expected[name].numpy(), rtol=1e-4, atol=1e-4)
    assert ("Identity" in {node.op_type for node in result.model.graph}) == output
