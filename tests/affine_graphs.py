"""Small ONNX graphs from numpy, and the comparison of a graph with its rewriting by onnx's own reference evaluator."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import HealthCheck, Phase, settings
from onnx import TensorProto, helper, numpy_helper
from reference_operators import evaluate

from normdeploy.graph import constant64
from normdeploy.rewrite import Ledger, RewriteResult, rewrite
from normdeploy.rewrite.branches.merge import PARALLEL, SERIAL

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "")
QUICK = PROFILE == "quick"
"""While working: few examples, and what fails is not made smaller. CONTRIBUTING.md names both."""
EXAMPLES = {"quick": 4, "thorough": 100}.get(PROFILE, 6)
settings.register_profile(
    "affine",
    deadline=None,
    max_examples=EXAMPLES,
    phases=(Phase.explicit, Phase.generate) if QUICK else tuple(Phase),
    suppress_health_check=[HealthCheck.too_slow],
)

_TYPES = {np.dtype(np.float64): TensorProto.DOUBLE, np.dtype(np.float32): TensorProto.FLOAT,
          np.dtype(np.float16): TensorProto.FLOAT16, np.dtype(np.int64): TensorProto.INT64,
          np.dtype(np.int8): TensorProto.INT8, np.dtype(np.bool_): TensorProto.BOOL}  # fmt: skip


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
