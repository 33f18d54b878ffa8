"""Tiny graphs for the doctor's tests: a linear operator and a normalization with stored statistics behind it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper


def model_of(nodes, inputs, outputs, initializers, opset=20) -> ir.Model:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in initializers.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    proto = onnx.shape_inference.infer_shapes(proto)
    onnx.checker.check_model(proto)
    return ir.from_proto(proto)


def linear_batchnorm(
    *, mean=None, variance=None, scale=None, shift=None, epsilon=1e-5, bias=None, weight=None, channels=6, half=False
) -> ir.Model:
    """Gemm -> BatchNormalization over (N, channels), with trained-looking numbers where none are given."""
    rng = np.random.default_rng(7)
    kind, dtype = (TensorProto.FLOAT16, np.float16) if half else (TensorProto.FLOAT, np.float32)
    given = {
        "w": rng.standard_normal((4, channels)) if weight is None else weight,
        "scale": rng.uniform(0.5, 1.5, channels) if scale is None else scale,
        "shift": rng.standard_normal(channels) if shift is None else shift,
        "mean": rng.standard_normal(channels) if mean is None else mean,
        "variance": rng.uniform(0.5, 2.0, channels) if variance is None else variance,
    }
    if bias is not None:
        given["b"] = bias
    arrays = {name: np.asarray(value, dtype) for name, value in given.items()}
    nodes = [
        helper.make_node("Gemm", ["x", "w"] + (["b"] if bias is not None else []), ["h"], name="linear"),
        helper.make_node(
            "BatchNormalization", ["h", "scale", "shift", "mean", "variance"], ["y"], name="norm", epsilon=epsilon
        ),
    ]
    return model_of(nodes, [("x", kind, ["batch", 4])], [("y", kind, ["batch", channels])], arrays)


def handwritten(
    *, mean, variance, scale, shift, epsilon=1e-5, root="Sqrt", order="div", x_shape=("batch", 6), outside=False
) -> ir.Model:
    """The spelled-out form, in several spellings.

    Args:
        root: "Sqrt" or "Pow".
        order: "div" (x - m) / r * g; "first" g (x - m) / r; "reciprocal" (x - m) * (1 / r) * g; "combined"
            (x - m) * (g / r).
    """
    arrays = {"m": mean, "v": variance, "g": scale, "b": shift, "e": epsilon, "half": 0.5}
    arrays = {name: np.asarray(value, np.float32) for name, value in arrays.items()}
    node = helper.make_node
    rooted = (lambda a, c: node("Sqrt", [a], [c])) if root == "Sqrt" else (lambda a, c: node("Pow", [a, "half"], [c]))
    nodes = (
        [rooted("v", "r0"), node("Add", ["r0", "e"], ["r"])]
        if outside
        else [
            node("Add", ["v", "e"], ["ve"]),
            rooted("ve", "r"),
        ]
    )
    nodes.append(node("Sub", ["x", "m"], ["c"], name="centre"))
    if order == "div":
        nodes += [node("Div", ["c", "r"], ["n"], name="norm"), node("Mul", ["g", "n"], ["s"])]
    elif order == "first":
        nodes += [node("Mul", ["g", "c"], ["n"]), node("Div", ["n", "r"], ["s"], name="norm")]
    elif order == "reciprocal":
        nodes += [node("Reciprocal", ["r"], ["q"]), node("Mul", ["c", "q"], ["n"], name="norm")]
        nodes += [node("Mul", ["n", "g"], ["s"])]
    else:
        nodes += [node("Div", ["g", "r"], ["q"]), node("Mul", ["c", "q"], ["s"], name="norm")]
    nodes.append(node("Add", ["s", "b"], ["y"]))
    shape = list(x_shape)
    return model_of(nodes, [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)], arrays)
