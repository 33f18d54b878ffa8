"""Small ONNX graphs from numpy, and the comparison of a graph with its rewriting by onnx's own reference evaluator."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from hypothesis import HealthCheck, Phase, settings
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch.nn import functional

from normdeploy.graph import constant64
from normdeploy.rewrite import Ledger, RewriteResult, rewrite
from normdeploy.rewrite.branches.merge import PARALLEL, SERIAL

QUICK = os.environ.get("HYPOTHESIS_PROFILE") == "quick"
"""While working: few examples, and what fails is not made smaller. CONTRIBUTING.md names it."""
settings.register_profile(
    "affine",
    deadline=None,
    max_examples=4 if QUICK else 20,
    phases=(Phase.explicit, Phase.generate) if QUICK else tuple(Phase),
    suppress_health_check=[HealthCheck.too_slow],
)

_TYPES = {np.dtype(np.float64): TensorProto.DOUBLE, np.dtype(np.float32): TensorProto.FLOAT,
          np.dtype(np.float16): TensorProto.FLOAT16, np.dtype(np.int64): TensorProto.INT64,
          np.dtype(np.int8): TensorProto.INT8, np.dtype(np.bool_): TensorProto.BOOL}  # fmt: skip


class Conv(OpRun):
    """Conv by torch: onnx's own is slow."""

    def _run(self, x, w, b=None, **attributes):
        spatial = x.ndim - 2
        strides, dilations = attributes["strides"] or [1] * spatial, attributes["dilations"] or [1] * spatial
        pads = list(attributes["pads"] or [0] * 2 * spatial)
        if attributes["auto_pad"] in ("SAME_UPPER", "SAME_LOWER"):
            for axis, (size, kernel, step, gap) in enumerate(
                zip(x.shape[2:], w.shape[2:], strides, dilations, strict=True)
            ):
                total = max((-(-size // step) - 1) * step + (kernel - 1) * gap + 1 - size, 0)
                sides = total // 2, total - total // 2
                pads[axis], pads[axis + spatial] = sides if attributes["auto_pad"] == "SAME_UPPER" else sides[::-1]
        widths = [width for axis in reversed(range(spatial)) for width in (pads[axis], pads[axis + spatial])]
        padded = functional.pad(torch.from_numpy(np.array(x)), widths)
        bias = None if b is None else torch.from_numpy(np.array(b))
        run = getattr(functional, f"conv{spatial}d")
        weight, groups = torch.from_numpy(np.array(w)), attributes["group"] or 1
        return (run(padded, weight, bias, tuple(strides), 0, tuple(dilations), groups).numpy(),)


class ConvTranspose(OpRun):
    """ConvTranspose by torch: onnx's own fails on groups."""

    def _run(self, x, w, b=None, **attributes):
        spatial = x.ndim - 2
        pads = list(attributes["pads"] or [0] * 2 * spatial)
        bias = None if b is None else torch.from_numpy(np.array(b))
        full = getattr(functional, f"conv_transpose{spatial}d")(
            torch.from_numpy(np.array(x)),
            torch.from_numpy(np.array(w)),
            bias,
            tuple(attributes["strides"] or [1] * spatial),
            0,
            tuple(attributes["output_padding"] or [0] * spatial),
            attributes["group"] or 1,
            tuple(attributes["dilations"] or [1] * spatial),
        ).numpy()
        window = [slice(pads[axis], size - pads[axis + spatial]) for axis, size in enumerate(full.shape[2:])]
        return (np.ascontiguousarray(full[(slice(None), slice(None), *window)]),)


def _windows(x, attributes):
    """Return a pool's kernel, strides, dilations and the padding that all its windows fit into, by torch's order."""
    spatial = x.ndim - 2
    assert attributes.get("auto_pad") in (None, "NOTSET")
    kernel, pads = attributes["kernel_shape"], list(attributes["pads"] or [0] * 2 * spatial)
    strides, dilations = attributes["strides"] or [1] * spatial, attributes["dilations"] or [1] * spatial
    widths, given = [], []
    for axis in reversed(range(spatial)):
        before, after = pads[axis], pads[axis + spatial]
        free = x.shape[axis + 2] + before + after - (kernel[axis] - 1) * dilations[axis] - 1
        count = free // strides[axis] + 1
        if attributes["ceil_mode"] and free % strides[axis] and count * strides[axis] < x.shape[axis + 2] + before:
            count += 1  # a further window that begins inside
        widths += [before, after + max((count - 1) * strides[axis] - free, 0)]
        given += [before, after]
    return kernel, tuple(strides), tuple(dilations), widths, given


class MaxPool(OpRun):
    """MaxPool by torch: onnx's own fails on padding of one side."""

    def _run(self, x, **attributes):
        kernel, strides, dilations, widths, _ = _windows(x, attributes)
        padded = functional.pad(torch.from_numpy(np.array(x)), widths, value=-float("inf"))
        run = getattr(functional, f"max_pool{x.ndim - 2}d")
        return (run(padded, tuple(kernel), strides, 0, dilations).numpy(),)


class AveragePool(OpRun):
    """AveragePool by torch's convolution: sums of values over sums of what counts."""

    def _run(self, x, **attributes):
        kernel, strides, dilations, widths, given = _windows(x, attributes)
        run = getattr(functional, f"conv{x.ndim - 2}d")
        ones = torch.ones(1, 1, *kernel, dtype=torch.from_numpy(np.array(x)).dtype)
        values = torch.from_numpy(np.array(x)).reshape(-1, 1, *x.shape[2:])
        counted = torch.ones_like(values)
        if attributes["count_include_pad"]:
            counted = functional.pad(counted, given, value=1.0)
            counted = functional.pad(counted, [wide - own for wide, own in zip(widths, given, strict=True)])
        else:
            counted = functional.pad(counted, widths)
        sums, counts = (
            run(item, ones, None, strides, 0, dilations) for item in (functional.pad(values, widths), counted)
        )
        mean = (sums / counts).numpy()
        return (mean.reshape(*x.shape[:2], *mean.shape[2:]),)


class GlobalMaxPool(OpRun):
    """GlobalMaxPool by numpy: onnx's own takes the wrong axes unless there are two."""

    def _run(self, x):
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class Mean(OpRun):
    """Mean by numpy: onnx's own adds in place, and fails where the first operand is not the largest."""

    def _run(self, *operands):
        return (sum(operands) / np.asarray(len(operands), operands[0].dtype),)


class Pad(OpRun):
    """Pad by numpy: onnx's own knows no negative widths."""

    def _run(self, x, pads, value=None, axes=None, mode=None):
        widths = np.zeros((x.ndim, 2), np.int64)
        named = np.arange(x.ndim) if axes is None else axes
        widths[named] = pads.reshape(2, -1).T
        cut = tuple(
            slice(max(-low, 0), size - max(-high, 0)) for size, (low, high) in zip(x.shape, widths, strict=True)
        )
        options = {"constant_values": 0 if value is None else value} if mode in (None, "constant") else {}
        return (np.pad(x[cut], np.maximum(widths, 0), mode=mode or "constant", **options),)


OPERATORS = [Conv, ConvTranspose, MaxPool, AveragePool, GlobalMaxPool, Mean, Pad]


def evaluate(
    proto: onnx.ModelProto, feeds: dict[str, np.ndarray], operators: Sequence[type[OpRun]] = ()
) -> list[np.ndarray]:
    """Evaluate a graph by onnx's reference evaluator, convolutions by torch."""
    return ReferenceEvaluator(proto, new_ops=list(operators or OPERATORS)).run(None, feeds)


def widened(proto: onnx.ModelProto, exact: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """Return a graph of float32 or float16 in float64.

    Args:
        proto: its stored constants are taken as they are.
        exact: unrounded constants to use in place of stored ones, by name.
    """
    wide = onnx.ModelProto()
    wide.CopyFrom(proto)
    narrow = (TensorProto.FLOAT, TensorProto.FLOAT16)
    for item in wide.graph.initializer:
        if item.data_type in narrow:
            array = numpy_helper.to_array(item) if exact is None else exact[item.name]
            item.CopyFrom(numpy_helper.from_array(np.asarray(array, np.float64), item.name))
    del wide.graph.value_info[:]
    for info in (*wide.graph.input, *wide.graph.output):
        if info.type.tensor_type.elem_type in narrow:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    return wide


class GraphBuilder:
    """A graph in one float type; numpy arrays among the operands become initializers, None an empty name."""

    def __init__(self, *, dtype: Any = np.float64, opset: int = 18) -> None:
        self.dtype, self.opset = np.dtype(dtype), opset
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.stated: list[onnx.ValueInfoProto] = []
        self.sizes: dict[str, list[Any]] = {}

    def input(self, name: str, shape: list[Any], dtype: Any = None) -> str:
        kind = _TYPES[np.dtype(dtype or self.dtype)]
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        self.sizes[name] = shape
        return name

    def known(self, value: str, *shape: Any) -> str:
        """State a value's shape, as a file may where inference does not find it."""
        self.stated.append(helper.make_tensor_value_info(value, _TYPES[self.dtype], list(shape)))
        return value

    def constant(self, array: Any, name: str | None = None) -> str:
        array = np.asarray(array)
        if array.dtype.kind == "f":
            array = array.astype(self.dtype)
        name = name or f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def op(self, op_type: str, *operands: Any, outputs: int = 1, name: str | None = None, **attributes: Any) -> Any:
        names = []
        for operand in operands:
            if operand is None:
                names.append("")
            elif isinstance(operand, str):
                names.append(operand)
            else:
                names.append(self.constant(operand))
        stem = name or f"{op_type.lower()}_{len(self.nodes)}"
        results = [f"{stem}_out{'' if index == 0 else index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op_type, names, results, name=stem, **attributes))
        return results[0] if outputs == 1 else results

    def batch_norm(self, x: str, channels: int, rng: np.random.Generator, *, positive: bool = False,
                   name: str | None = None, **attributes: Any) -> str:  # fmt: skip
        scale = rng.uniform(0.5, 2.0, channels) * (1 if positive else rng.choice([-1, 1], channels))
        operands = [scale, rng.normal(size=channels), rng.normal(size=channels), rng.uniform(0.2, 3.0, channels)]
        return self.op("BatchNormalization", x, *operands, name=name, **attributes)

    def output(self, value: str, dtype: Any = None, shape: list[Any] | None = None) -> None:
        kind = _TYPES[np.dtype(dtype or self.dtype)]
        self.outputs.append(helper.make_tensor_value_info(value, kind, shape))

    def proto(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.initializers, value_info=self.stated)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        inferred = {item.name: item for item in onnx.shape_inference.infer_shapes(model).graph.output}
        for item in model.graph.output:
            item.CopyFrom(inferred[item.name])
        onnx.checker.check_model(model)
        return model

    def feeds(self, rng: np.random.Generator, **sizes: int) -> dict[str, np.ndarray]:
        result = {}
        for info in self.inputs:
            shape = [size if isinstance(size, int) else sizes[size] for size in self.sizes[info.name]]
            if info.type.tensor_type.elem_type == TensorProto.INT64:
                result[info.name] = rng.integers(0, 3, shape)
            else:
                result[info.name] = rng.normal(size=shape).astype(self.dtype)
        return result


class Folding:
    """What came out of one rewriting, and whether it computes the same."""

    def __init__(self, proto: onnx.ModelProto, result: RewriteResult) -> None:
        self.before, self.result = proto, result
        # what becomes of norms and maps; a branch that stays apart is the business of tests/rewrite/branches
        self.ledger = Ledger([row for row in result.ledger if row.kind not in (PARALLEL, SERIAL)])
        self.after = ir.to_proto(result.model)
        onnx.checker.check_model(self.after, full_check=True)

    @property
    def ops(self) -> Counter[str]:
        """Operators that are left."""
        return Counter(node.op_type for node in self.after.graph.node)

    def weight(self, name: str) -> np.ndarray:
        """The stored value of an initializer."""
        found = {item.name: item for item in self.after.graph.initializer}
        return numpy_helper.to_array(found[name])

    def run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Evaluate the rewritten graph."""
        return evaluate(self.after, feeds)

    @property
    def actions(self) -> list[str]:
        return [row.action for row in self.ledger]

    @property
    def reasons(self) -> str:
        """All reasons, in one string."""
        return "\n".join(row.reason for row in self.ledger)

    def agree(self, feeds: dict[str, np.ndarray], tolerance: float = 1e-10) -> Folding:
        """Compare both graphs' outputs by the reference evaluator, in their own type: names, shapes, values."""
        assert [item.name for item in self.before.graph.output] == [item.name for item in self.after.graph.output]
        assert [item.name for item in self.before.graph.input] == [item.name for item in self.after.graph.input]
        self._compare(self.before, self.after, feeds, tolerance)
        return self

    def agree_exactly(self, feeds: dict[str, np.ndarray], tolerance: float = 1e-10) -> Folding:
        """Compare both graphs in float64, whatever they store: the algebra is exact, each weight rounded once."""
        exact = {}
        for name, value in self.result.model.graph.initializers.items():
            array = constant64(value)
            if array is not None:
                exact[name] = array
        for item in self.after.graph.initializer:
            stored = numpy_helper.to_array(item)
            if item.name in exact and stored.dtype.kind == "f":
                np.testing.assert_array_equal(stored, exact[item.name].astype(stored.dtype))
        types = [[item.type.tensor_type.elem_type for item in p.graph.output] for p in (self.before, self.after)]
        assert types[0] == types[1]
        wide = {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in feeds.items()}
        self._compare(widened(self.before), widened(self.after, exact), wide, tolerance)
        return self

    def _compare(
        self, before: onnx.ModelProto, after: onnx.ModelProto, feeds: dict[str, np.ndarray], tolerance: float
    ) -> None:
        expected, got = (evaluate(proto, feeds) for proto in (before, after))
        for old, new in zip(expected, got, strict=True):
            assert old.shape == new.shape
            assert old.dtype == new.dtype
            scale = max(float(np.abs(old).max(initial=0.0)), 1e-300)
            assert float(np.abs(old.astype(np.float64) - new.astype(np.float64)).max(initial=0.0)) <= tolerance * scale

    def folded(self, count: int = 1) -> Folding:
        """Every row is folded, and there are ``count``."""
        assert self.actions == ["folded"] * count, [(row.where, row.action, row.reason) for row in self.ledger]
        return self

    def kept(self, *words: str) -> Folding:
        """There is exactly one row, it is kept, and its reason holds the words."""
        assert self.actions == ["kept"], [(row.where, row.action, row.into) for row in self.ledger]
        for word in words:
            assert word in self.reasons
        return self


def fold_proto(builder: GraphBuilder) -> Folding:
    proto = builder.proto()
    return Folding(proto, rewrite(ir.from_proto(proto)))
