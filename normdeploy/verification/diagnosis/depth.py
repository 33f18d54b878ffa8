"""Error along the graph: every operator's result in the runtime against the same graph in float64."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.graph import Evaluator, bare_proto, module_path, weight_bytes
from normdeploy.verification.bounds.criteria import rms
from normdeploy.verification.family_case import Case
from normdeploy.verification.record.answers import Depth
from normdeploy.verification.sides.flat_values import run_evaluator
from normdeploy.verification.sides.sessions import Setting, open_session, run_session
from normdeploy.verification.sides.subgraph import array_type, opened

_POINTS = 120
_LARGEST = 256 * 1024**2
_SHOWN = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


def error_by_depth(model: ir.Model, case: Case, setting: Setting) -> list[Depth]:
    """Return RMS error over RMS value of up to 120 operators' results, in graph order.

    The runtime keeps every one of these values, so files above 256 MB of weights are left out (empty list).
    """
    if weight_bytes(model) > _LARGEST:
        return []
    nodes = [n for n in model.graph if n.outputs[0].name and _is_float_value(n.outputs[0])]
    if len(nodes) > _POINTS:
        picked = np.unique(np.linspace(0, len(nodes) - 1, _POINTS).astype(int))
        nodes = [nodes[i] for i in picked]
    names = [str(n.outputs[0].name) for n in nodes]
    if not names:
        return []
    session = open_session(bare_proto(opened(model, names)).SerializeToString(), setting)
    got = dict(zip(names, run_session(session, case.family.feeds, names), strict=True))
    truth = run_evaluator(Evaluator(model), case.family.feeds, fetch=names)
    points = []
    for node, name in zip(nodes, names, strict=True):
        y, o = truth[name], np.asarray(got[name], np.float64)
        if y.shape != o.shape:
            continue
        finite = np.isfinite(y) & np.isfinite(o)
        size = rms(y[finite])
        points.append(Depth(module_path(node), node.op_type, name, rms(o[finite] - y[finite]) / size if size else 0.0))
    return points


def _is_float_value(value: ir.Value) -> bool:
    # Without a type the runtime could not expose the value, and bfloat16 it cannot return; constants have no error
    producer = value.producer()
    computed = producer is not None and producer.op_type not in ("Constant", "ConstantOfShape")
    return computed and array_type(value) in _SHOWN
