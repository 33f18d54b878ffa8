"""Operators without a torch implementation here run through onnx's reference implementation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph.operators.resampling import resampled_size
from normdeploy.graph.support_vectors import SVMClassifier

_LIMITS = {"no_more": np.zeros(1, np.int64), "no_overlap": np.zeros(1), "no_score": np.full(1, -np.inf)}
"""What a NonMaxSuppression whose limits are left out reads in their place: no score is too low, as in onnxruntime."""

_SINCE = {"RoiAlign": 16, "ScatterElements": 11}
"""The operator sets whose words :func:`_as_of` uses."""


def _with_float(node: onnx.NodeProto, floats: torch.dtype) -> onnx.NodeProto:
    """Promote the float dtypes that a node names in its attributes."""
    double = onnx.TensorProto.DOUBLE if floats == torch.float64 else onnx.TensorProto.FLOAT
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype") and attribute.i in (
            onnx.TensorProto.FLOAT,
            onnx.TensorProto.FLOAT16,
            onnx.TensorProto.BFLOAT16,
        ):
            attribute.i = double
    return node


def reference_session(node: ir.Node, opset: int, floats: torch.dtype) -> ReferenceEvaluator:
    """Return a reference evaluator of a model that holds this one node.

    Raises:
        GraphError: the operator is unknown to onnx.
    """
    proto = _as_of(_with_float(ir.to_proto(node), floats), opset)
    inputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(name for name in proto.input if name)]
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
    graph = onnx.GraphProto(name="one_node", node=[proto], input=inputs, output=outputs)
    since = 0 if node.domain else _SINCE.get(proto.op_type, 0)
    imports = [onnx.OperatorSetIdProto(domain=node.domain, version=max(opset, since))]
    model = onnx.ModelProto(ir_version=10, graph=graph, opset_import=imports)
    try:
        session = ReferenceEvaluator(model, new_ops=[SVMClassifier])
    except Exception as error:  # the reference raises plain RuntimeError, NotImplementedError and its own classes
        raise GraphError(
            f"operator {node.domain or 'ai.onnx'}::{node.op_type} ({node.name}) has no reference implementation "
            f"({error}); expected a standard ONNX operator"
        ) from error
    for operator in session.rt_nodes_:
        # attributes come as NumPy's float32, and float32 times a Python float is float32: a cubic Resize's weights, say
        for name, value in vars(operator).items():
            if isinstance(value, np.float32):
                setattr(operator, name, float(value))
    return session


def _as_of(proto: onnx.NodeProto, opset: int) -> onnx.NodeProto:
    """Say in today's words what a node of an older operator set says; the reference implementation knows those only."""
    if proto.op_type == "RoiAlign" and opset < 16:
        _set(proto, "coordinate_transformation_mode", "output_half_pixel")
    if proto.op_type == "NonMaxSuppression":  # the reference implementation takes an absent limit for an array
        given = [*proto.input, *[""] * (2 + len(_LIMITS) - len(proto.input))]
        proto.input[:] = [*given[:2], *(name or limit for name, limit in zip(given[2:], _LIMITS, strict=True))]
    if proto.op_type == "Scatter":
        proto.op_type = "ScatterElements"
    return proto


def _set(proto: onnx.NodeProto, name: str, value: str) -> None:
    kept = [attribute for attribute in proto.attribute if attribute.name != name]
    del proto.attribute[:]
    proto.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])


_SCALES = 2


def _keep_sizes(node: ir.Node, feeds: dict[str, npt.NDArray[np.generic]]) -> None:
    """Give a Resize the scales whose sizes, rounded down in float64, are those that a runtime rounds down in float32.

    5 times 1.8 is 9 in float32 and 8.9999998 in float64, because the stored scale is a little below 1.8.
    """
    x, value = node.inputs[0], node.inputs[_SCALES]
    if x is None or value is None or not feeds.get(str(value.name), np.empty(0)).size:
        return
    scales = np.array(feeds[str(value.name)], np.float64)
    shape = feeds[str(x.name)].shape
    sizes = np.array([shape[axis] for axis in node.attributes.get_ints("axes", range(len(shape)))])
    stored = np.array([resampled_size(size, scale) for size, scale in zip(sizes, scales, strict=True)])
    kept = np.floor(sizes * scales) == stored
    if node.attributes.get_string("coordinate_transformation_mode", "") == "align_corners":
        kept[:] = False  # corners are aligned to the last element, which is that of the rounded size
    exact = stored / sizes
    exact = np.where(np.floor(sizes * exact) == stored, exact, np.nextafter(exact, np.inf))
    feeds[str(value.name)] = np.where(kept, scales, exact)


def _keep_vectors(node: ir.Node, feeds: dict[str, npt.NDArray[np.generic]]) -> None:
    """Give a NonMaxSuppression its limits as vectors of one: the reference implementation indexes the scalars too."""
    for value in node.inputs[2:]:
        if value is not None and str(value.name) in feeds:
            feeds[str(value.name)] = feeds[str(value.name)].reshape(-1)


def _numbers(result: object, node: ir.Node) -> Tensor:
    """Return a result as a tensor.

    Raises:
        GraphError: it is text.
    """
    made = np.array(result)
    if made.dtype.kind in "USO":
        raise GraphError(
            f"operator {node.op_type} ({node.outputs[0].name}) makes text; expected numbers: convert a classifier with "
            "integers for its labels"
        )
    return torch.from_numpy(made)


def run_reference(session: ReferenceEvaluator, node: ir.Node, inputs: list[Tensor | None]) -> list[Tensor]:
    """Evaluate one node by the reference implementation; gradients stop here. Empty stands for an output left out."""
    feeds: dict[str, npt.NDArray[np.generic]] = {}
    for value, tensor in zip(node.inputs, inputs, strict=True):
        if value is not None and tensor is not None:
            feeds[str(value.name)] = tensor.detach().numpy()
    if node.op_type == "Resize" and len(node.inputs) > _SCALES:
        _keep_sizes(node, feeds)
    if node.op_type == "NonMaxSuppression":
        _keep_vectors(node, feeds)
        for name, limit in _LIMITS.items():
            feeds.setdefault(name, limit)
    wanted = [str(output.name) for output in node.outputs if output.name]
    with np.errstate(all="ignore"):  # a sigmoid that saturates through exp's overflow is right, and NumPy warns of it
        results = session.run(wanted, feeds)
    found = iter(result if isinstance(result, Tensor) else _numbers(result, node) for result in results)
    return [next(found) if output.name else torch.empty(0) for output in node.outputs]
