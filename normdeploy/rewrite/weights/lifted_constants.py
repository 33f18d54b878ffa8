"""Constants that are operators become initializers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from normdeploy.graph.edit import constant_of, take_place
from normdeploy.graph.traits import is_standard

_NUMBERS = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
"""What a Constant may hold in place of a tensor, and the type that it has."""

_STRINGS = ("value_string", "value_strings")


def lift_constants(nodes: Sequence[ir.Node]) -> bool:
    """Make each Constant an initializer of its name, but what is an output of its graph; tell whether there was one.

    onnx_ir's pass does the same; it asks of each tensor which of several protocols it follows, and that took as long as
    evaluating all of a graph's constants.
    """
    found = False
    for node in nodes:
        if not is_standard(node, "Constant") or len(node.attributes) != 1 or node.outputs[0].is_graph_output():
            continue
        result, graph = node.outputs[0], node.graph
        name, attribute = next(iter(node.attributes.items()))
        if attribute.is_ref() or not (name == "value" or name in _NUMBERS or name in _STRINGS):
            continue
        tensor = attribute.value
        if name in _NUMBERS:
            tensor = ir.Tensor(np.array(tensor, _NUMBERS[name]), name=result.name)
        elif name in _STRINGS:
            tensor = ir.StringTensor(np.array(tensor, np.bytes_), name=result.name)
        constant = constant_of(tensor, str(result.name))
        assert isinstance(graph, ir.Graph)
        graph.register_initializer(constant)
        take_place(constant, result, named=False)
        graph.remove(node, safe=True)
        found = True
    return found
