"""A file on integers against the one written again: one other number, attribute or wire, and it is another file."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from integer_layers import LAYER
from onnx import helper, numpy_helper, parser

from normdeploy.rewrite import rewrite
from normdeploy.verification.mutation.same_file import same_graph


def source(epsilon: float = 1e-5):
    rng = np.random.default_rng(0)
    model = parser.parse_model(LAYER)
    constants = {
        "s": np.float32(0.02), "t": np.float32(0.03), "zero": np.uint8(0), "origin": np.uint8(0),
        "zeros": np.zeros(3, np.int8),
        "whole": rng.integers(-127, 128, (3, 2, 3, 3)).astype(np.int8),
        "steps": rng.uniform(0.001, 0.01, 3).astype(np.float32),
        "scale": np.float32([1, -0.7, 0.4]), "shift": np.float32([0.1, 0.2, 0.3]),
        "mean": np.float32([0.3, -0.1, 0]), "variance": np.float32([0.5, 1.5, 0.9]),
    }  # fmt: skip
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items())
    model.graph.node[3].attribute.append(helper.make_attribute("epsilon", epsilon))
    return ir.from_proto(model)


def written(epsilon: float = 1e-5):
    return ir.from_proto(ir.to_proto(rewrite(source(epsilon), integer=True).model))


def test_the_same_reference_is_written_alike_and_another_is_not():
    assert same_graph(written(), written())
    assert not same_graph(written(), written(epsilon=0.1))
    plain = ir.from_proto(ir.to_proto(rewrite(source()).model))
    assert not same_graph(written(), plain)


@pytest.mark.parametrize("of", ["weight", "factor", "addend", "divisor", "level"])
def test_one_other_number_is_another_file(of):
    wrong = written()
    name = next(name for name in wrong.graph.initializers if f".{of}" in name)
    value = wrong.graph.initializers[name]
    array = value.const_value.numpy().copy()
    array.reshape(-1)[0] += 1
    value.const_value = ir.tensor(array, name=name)
    assert not same_graph(written(), wrong)


def test_another_attribute_is_another_file():
    wrong = written()
    node = next(node for node in wrong.graph if node.op_type == "ConvInteger")
    node.attributes["pads"] = ir.AttrInt64s("pads", [0, 0, 2, 2])
    assert not same_graph(written(), wrong)
