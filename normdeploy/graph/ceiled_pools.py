"""Pools that round their size up, shown to onnx's inference so that it infers what they return.

Where rounding up would start a last window behind the input and the padding in front of it, ``ceil_mode`` leaves that
window out, in torch and in every runtime: 5 elements padded by 1 on both sides, in twos, are 3. Below opset 22 onnx
infers 4. A function has an operator set of its own, and its inference is that set's.
"""

from __future__ import annotations

import onnx

_POOLS = frozenset({"AveragePool", "MaxPool", "LpPool"})
_RIGHT_FROM = 22
"""The version of the three from which on their size is inferred as it is."""

_DOMAIN = "normdeploy.pools"


def show_ceiled_pools(model: onnx.ModelProto) -> None:
    """Let the pools of a model, in bodies too, be calls of functions of the operator set that infers them, in place.

    Args:
        model: made for the inference alone.
    """
    if max((entry.version for entry in model.opset_import if not entry.domain), default=_RIGHT_FROM) >= _RIGHT_FROM:
        return
    waiting, before = [model.graph], len(model.functions)
    while waiting:
        for node in waiting.pop().node:
            if node.op_type in _POOLS and not node.domain and _rounds_up(node):
                _call(node, model)
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
    if len(model.functions) > before:
        model.opset_import.add(domain=_DOMAIN, version=1)


def _rounds_up(node: onnx.NodeProto) -> bool:
    return any(attribute.name == "ceil_mode" and attribute.i for attribute in node.attribute)


def _call(node: onnx.NodeProto, model: onnx.ModelProto) -> None:
    name, outputs = f"pool{len(model.functions)}", [f"y{at}" for at in range(len(node.output))]
    pool = onnx.NodeProto(op_type=node.op_type, input=["x"], output=outputs, attribute=node.attribute)
    function = model.functions.add(domain=_DOMAIN, name=name, input=["x"], output=outputs, node=[pool])
    function.opset_import.add(domain="", version=_RIGHT_FROM)
    node.op_type, node.domain = name, _DOMAIN
    del node.attribute[:]
