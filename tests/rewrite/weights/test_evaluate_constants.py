"""Constant expressions become constants, exactly; what must not be evaluated stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.graph import Evaluator, ExactTensor, constant64
from normdeploy.rewrite.infer import infer_missing_types
from normdeploy.rewrite.weights import EvaluateConstants


def graph(text: str, **weights: np.ndarray) -> ir.Model:
    """Build a model from ONNX text; ``weights`` become initializers."""
    model = ir.from_onnx_text(text)
    for name, array in weights.items():
        value = next(
            (v for node in model.graph.all_nodes() for v in node.inputs if v is not None and v.name == name), None
        )
        assert value is not None, name
        value.const_value = ir.tensor(array, name=name)
        value.dtype = value.const_value.dtype
        value.shape = ir.Shape(array.shape)
        model.graph.register_initializer(value)
    return model


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph.all_nodes()]


def weight_normalized(dtype: str, shape: tuple[int, ...]) -> str:
    dims = ",".join(map(str, shape))
    return f"""<ir_version: 10, opset_import: ["" : 18]>
    agraph ({dtype}[n,{shape[1]},9,9] x) => ({dtype}[n,o,p,q] y)
    <{dtype}[{dims}] v, {dtype}[{shape[0]},1,1,1] g, {dtype}[{shape[0]},1,1,1] norm,
     {dtype}[{dims}] unit, {dtype}[{dims}] w>
    {{
        norm = ReduceL2 <keepdims = 1> (v, axes)
        unit = Div (v, norm)
        w = Mul (unit, g)
        y = Conv (x, w)
    }}"""


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(["float", "float16", "double"]), st.integers(0, 2**31))
def test_a_normalized_weight_is_its_float64_value_rounded_once(outs, ins, dtype, seed):
    rng = np.random.default_rng(seed)
    numpy_dtype = {"float": np.float32, "float16": np.float16, "double": np.float64}[dtype]
    v = rng.standard_normal((outs, ins, 3, 3)).astype(numpy_dtype)
    g = rng.standard_normal((outs, 1, 1, 1)).astype(numpy_dtype)
    model = graph(weight_normalized(dtype, v.shape), v=v, g=g, axes=np.array([1, 2, 3], dtype=np.int64))
    EvaluateConstants()(model)
    assert operators(model) == ["Conv"]
    expected = g.astype(np.float64) * v.astype(np.float64)
    expected /= np.sqrt((v.astype(np.float64) ** 2).sum(axis=(1, 2, 3), keepdims=True))
    weight = model.graph.initializers["w"].const_value
    assert isinstance(weight, ExactTensor)
    np.testing.assert_allclose(weight.numpy64(), expected, rtol=1e-13, atol=1e-300)
    np.testing.assert_array_equal(weight.numpy(), weight.numpy64().astype(numpy_dtype))


def test_a_large_weight_is_evaluated_and_not_held():
    rng = np.random.default_rng(0)
    v = rng.standard_normal((128, 64, 3, 3)).astype(np.float32)
    g = rng.standard_normal((128, 1, 1, 1)).astype(np.float32)
    model = graph(weight_normalized("float", v.shape), v=v, g=g, axes=np.array([1, 2, 3], dtype=np.int64))
    EvaluateConstants()(model)
    weight = model.graph.initializers["w"].const_value
    assert v.size > 8192  # the size at which the exporter's own optimizer gives up
    assert weight.numpy64() is not weight.numpy64()
    # a later fold replaces the tensor of a source; the expression keeps the value it was read with
    first = weight.numpy64()
    np.testing.assert_allclose(
        first, g * v.astype(np.float64) / np.sqrt((v.astype(np.float64) ** 2).sum((1, 2, 3), keepdims=True)), rtol=1e-12
    )


def test_large_computed_positions_keep_their_numbers():
    """BEiT's table of relative positions: more integers than are held while weights are evaluated."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 50, (150, 150)), rng.integers(0, 40, (150, 1))
    model = graph(
        """<ir_version: 10, opset_import: ["" : 18]>
        agraph (float[90,n] x) => (float[22500,n] y)
        <int64[150,150] first, int64[150,1] second, int64[150,150] sum, int64[22500] flat>
        {
            sum = Add (first, second)
            flat = Reshape (sum, shape)
            y = Gather (x, flat)
        }""",
        first=first,
        second=second,
        shape=np.array([22500]),
    )
    EvaluateConstants()(model)
    (gather,) = model.graph
    positions = gather.inputs[1].const_value
    assert positions.dtype == ir.DataType.INT64
    np.testing.assert_array_equal(positions.numpy(), (first + second).reshape(-1))


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "standardized"])
def test_a_parametrized_convolution_of_torch_becomes_a_plain_one(kind):
    from normdeploy.exporting.trace import trace

    class Standardized(torch.nn.Conv2d):
        def forward(self, x):
            mean = self.weight.mean((1, 2, 3), keepdim=True)
            std = self.weight.std((1, 2, 3), keepdim=True)
            return torch.nn.functional.conv2d(x, (self.weight - mean) / (std + 2.0**-16), self.bias)

    torch.manual_seed(0)
    module = {
        "weight_norm": lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv2d(16, 64, 3)),
        "spectral_norm": lambda: torch.nn.utils.parametrizations.spectral_norm(torch.nn.Conv2d(16, 64, 3)),
        "standardized": lambda: Standardized(16, 64, 3),
    }[kind]().eval()
    x = torch.randn(2, 16, 6, 6)
    traced = trace(module, (x,))
    infer_missing_types(traced.model)  # as raising the operator set does in front of it
    EvaluateConstants()(traced.model)
    assert operators(traced.model) == ["Conv"]
    with torch.no_grad():
        expected = module.double()(x.double())
    got = Evaluator(traced.model).run(traced.feeds)[traced.output_names[0]]
    assert float((got - expected).abs().max()) <= 1e-12 * float(expected.abs().max())


def test_a_scale_written_from_four_buffers_becomes_two_vectors():
    rng = np.random.default_rng(1)
    vectors = {name: rng.random(5).astype(np.float32) + 0.5 for name in ("g", "b", "m", "v")}
    model = graph(
        """<ir_version: 10, opset_import: ["" : 18]>
        agraph (float[n,5] x) => (float[n,5] y)
        <float[5] a, float[5] c, float[5] r, float[5] s, float[5] p, float[n,5] z> {
            r = Add (v, e)
            s = Sqrt (r)
            a = Div (g, s)
            p = Mul (m, a)
            c = Sub (b, p)
            z = Mul (x, a)
            y = Add (z, c)
        }""",
        e=np.array(1e-5, dtype=np.float32),
        **vectors,
    )
    EvaluateConstants()(model)
    assert operators(model) == ["Mul", "Add"]
    scale = constant64(model.graph.initializers["a"])
    wide = {name: value.astype(np.float64) for name, value in vectors.items()}
    expected = wide["g"] / np.sqrt(wide["v"] + np.float64(np.float32(1e-5)))
    np.testing.assert_allclose(scale, expected, rtol=1e-14)


def test_shapes_count_as_constants_where_their_dimensions_are_static():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
    agraph (float[n,6,4,5] x) => (float[n,6,20] y)
    <int64[4] s, int64[1] n1, int64[1] c, int64[1] minus, int64[3] target, int64[1] zero, int64[1] one>
    {
        s = Shape (x)
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        minus = Constant <value_ints = [20]> ()
        n1 = Gather (s, zero)
        c = Gather (s, one)
        target = Concat <axis = 0> (n1, c, minus)
        y = Reshape (x, target)
    }""")
    EvaluateConstants()(model)
    assert operators(model) == ["Reshape"]
    np.testing.assert_array_equal(constant64(model.graph.node(0).inputs[1]), [-1, 6, 20])
    x = np.arange(2 * 6 * 20.0).reshape(2, 6, 4, 5)
    np.testing.assert_array_equal(Evaluator(model).run({"x": x})["y"].numpy(), x.reshape(2, 6, 20))


def test_a_minus_one_beside_a_dynamic_dimension_is_read_from_the_result():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
    agraph (float[n,4,6] x) => (float[n,4,2,3] y) <int64[1] n1, int64[3] k, int64[4] target>
    {
        n1 = Shape <start = 0, end = 1> (x)
        k = Constant <value_ints = [4, 2, -1]> ()
        target = Concat <axis = 0> (n1, k)
        y = Reshape (x, target)
    }""")
    EvaluateConstants()(model)
    assert operators(model) == ["Reshape"]
    np.testing.assert_array_equal(constant64(model.graph.node(0).inputs[1]), [-1, 4, 2, 3])


def test_a_target_with_two_dynamic_elements_stays_computed():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
    agraph (float[n,6,h,5] x) => (float[a,b,c] y) <int64[1] n1, int64[1] h1, int64[1] k, int64[3] target>
    {
        n1 = Shape <start = 0, end = 1> (x)
        h1 = Shape <start = 2, end = 3> (x)
        k = Constant <value_ints = [30]> ()
        target = Concat <axis = 0> (n1, h1, k)
        y = Reshape (x, target)
    }""")
    EvaluateConstants()(model)
    assert operators(model) == ["Shape", "Shape", "Concat", "Reshape"]
    x = np.arange(2 * 6 * 3 * 5.0).reshape(2, 6, 3, 5)
    np.testing.assert_array_equal(Evaluator(model).run({"x": x})["y"].numpy(), x.reshape(2, 3, 30))


def test_a_huge_expansion_of_a_small_constant_stays():
    model = graph(
        """<ir_version: 10, opset_import: ["" : 18]>
        agraph (float[1024,1024] x) => (float[1024,1024] y) <float[1024,1024] big>
        { big = Expand (one, size)
          y = Add (x, big) }""",
        one=np.ones(1, dtype=np.float32),
        size=np.array([1024, 1024], dtype=np.int64),
    )
    EvaluateConstants()(model)
    assert operators(model) == ["Expand", "Add"]


def test_random_numbers_are_not_drawn_at_export():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
    agraph (float[2,3] x) => (float[2,3] y) <float[2,3] noise, float[2,3] like>
    { like = Constant <value = float[2,3] {1, 1, 1, 1, 1, 1}> ()
      noise = RandomNormalLike (like)
      y = Add (x, noise) }""")
    EvaluateConstants()(model)
    assert operators(model) == ["RandomNormalLike", "Add"]


def test_a_quantized_weight_stays_quantized():
    model = graph(
        """<ir_version: 10, opset_import: ["" : 18]>
        agraph (float[n,4] x) => (float[n,3] y) <float[4,3] w>
        { w = DequantizeLinear (q, scale)
          y = MatMul (x, w) }""",
        q=np.ones((4, 3), dtype=np.int8),
        scale=np.array(0.1, dtype=np.float32),
    )
    EvaluateConstants()(model)
    assert operators(model) == ["DequantizeLinear", "MatMul"]


def test_an_initializer_the_caller_may_override_is_no_constant():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
    agraph (float[n,2] x, float[2] a) => (float[n,2] y) <float[2] a = {1, 2}, float[2] r>
    { r = Sqrt (a)
      y = Mul (x, r) }""")
    EvaluateConstants()(model)
    assert operators(model) == ["Sqrt", "Mul"]


def test_a_constant_that_is_a_graph_output_keeps_its_node_and_name():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
    agraph (float[n,2] x) => (float[n,2] y, float[2] r) <float[2] a = {1, 4}>
    { r = Sqrt (a)
      y = Mul (x, r) }""")
    EvaluateConstants()(model)
    assert operators(model) == ["Sqrt", "Mul"]
    assert [value.name for value in model.graph.outputs] == ["y", "r"]


def test_a_decision_that_rounding_takes_is_left_to_the_runtime():
    # float32(0.7) * 10 is 6.9999999 exactly and 7 after rounding: floor differs
    text = """<ir_version: 10, opset_import: ["" : 18]>
    agraph (float[n] x) => (float[n] y) <float[1] a = {%s}, float[1] ten = {10.0}, float[1] p, float[1] f>
    { p = Mul (a, ten)
      f = Floor (p)
      y = Mul (x, f) }"""
    model = ir.from_onnx_text(text % "0.7")
    EvaluateConstants()(model)
    assert operators(model) == ["Floor", "Mul"]
    model = ir.from_onnx_text(text % "0.75")
    EvaluateConstants()(model)
    assert operators(model) == ["Mul"]


def test_constants_inside_a_branch_are_evaluated_there():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
    agraph (float[2] x, bool c) => (float[2] y) <float[2] a = {1, 4}>
    {
        y = If (c) <then_branch = then () => (float[2] t) <float[2] r> { r = Sqrt (a) t = Mul (x, r) },
                    else_branch = other () => (float[2] e) { e = Identity (x) }>
    }""")
    EvaluateConstants()(model)
    assert sorted(operators(model)) == ["Identity", "If", "Mul"]
    feeds = {"x": np.array([3.0, 5.0], dtype=np.float32), "c": np.array(True)}
    np.testing.assert_array_equal(Evaluator(model).run(feeds)["y"].numpy(), [3.0, 10.0])


def test_running_twice_changes_nothing_more():
    rng = np.random.default_rng(0)
    v = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    model = graph(
        weight_normalized("float", v.shape), v=v, g=v[:, :1, :1, :1].copy(), axes=np.array([1, 2, 3], dtype=np.int64)
    )
    assert EvaluateConstants()(model).modified
    assert not EvaluateConstants()(model).modified


def test_a_large_weight_that_is_only_moved_is_not_loaded():
    rng = np.random.default_rng(0)
    w = rng.standard_normal((200, 300)).astype(np.float32)
    read = []

    def load() -> np.ndarray:
        read.append(1)
        return w.astype(np.float64)

    model = graph(
        """<ir_version: 10, opset_import: ["" : 18]>
        agraph (float[n,150] x) => (float[n,400] y) <float[300,200] t, float[150,400] r>
        { t = Transpose <perm = [1, 0]> (w)
          r = Reshape (t, shape)
          y = MatMul (x, r) }""",
        w=w,
        shape=np.array([150, 400]),
    )
    model.graph.initializers["w"].const_value = ExactTensor(load, ir.DataType.FLOAT, w.shape, "w")
    EvaluateConstants()(model)
    assert operators(model) == ["MatMul"]
    assert not read
    np.testing.assert_array_equal(constant64(model.graph.initializers["r"]), w.T.reshape(150, 400).astype(np.float64))


def test_a_moved_weight_may_be_computed_with():
    rng = np.random.default_rng(1)
    w = rng.standard_normal((200, 300)).astype(np.float32)
    model = graph(
        """<ir_version: 10, opset_import: ["" : 18]>
        agraph (float[n,300] x) => (float[n,200] y) <float[300,200] t, float[300,200] d, float[300,200] u>
        { t = Transpose <perm = [1, 0]> (w)
          d = Mul (t, t)
          u = Add (d, t)
          y = MatMul (x, u) }""",
        w=w,
    )
    EvaluateConstants()(model)
    assert operators(model) == ["MatMul"]
    wide = w.T.astype(np.float64)
    np.testing.assert_allclose(constant64(model.graph.initializers["u"]), wide * wide + wide, rtol=1e-15)


@pytest.mark.parametrize("rows", [100, 40_000])
def test_a_tied_table_is_not_stored_twice(rows: int) -> None:
    """The head reads the embedding transposed: a large one keeps its Transpose, a small one is worth a constant."""
    model = graph(
        """<ir_version: 10, opset_import: ["" : 18]>
        agraph (int64[n] ids) => (float[n,v] y) {
            e = Gather (table, ids)
            t = Transpose <perm = [1, 0]> (table)
            y = MatMul (e, t)
        }""",
        table=np.ones((rows, 8), dtype=np.float32),
    )
    infer_missing_types(model)
    EvaluateConstants()(model)
    kept = ["Gather", "Transpose", "MatMul"] if rows == 40_000 else ["Gather", "MatMul"]
    assert operators(model) == kept
