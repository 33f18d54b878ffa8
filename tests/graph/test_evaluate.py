"""The evaluator's promotion, fetching, replacing, hooks and control flow."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnxruntime_outputs import run_onnxruntime

from normdeploy.errors import GraphError, InputError
from normdeploy.graph import Evaluator, ExactTensor, evaluate_region

CHAIN = """
<ir_version: 10, opset_import: ["" : 20]>
chain (float[N, 3] x) => (float[N, 3] y)
<float[3] w = {0.1, 0.2, 0.3}>
{
  a = Mul(x, w)
  b = Exp(a)
  y = Sub(b, x)
}
"""


def test_floats_are_promoted_and_weights_are_not_rounded_again():
    model = ir.from_onnx_text(CHAIN)
    x = np.array([[1.0, 2.0, 3.0]]) / 3
    w = np.array([0.1, 0.2, 0.3], np.float32).astype(np.float64)
    got = Evaluator(model).run({"x": x})["y"]
    assert got.dtype == torch.float64
    np.testing.assert_allclose(got.numpy(), np.exp(x * w) - x, rtol=1e-15)


def test_float32_evaluation_stays_in_float32():
    got = Evaluator(ir.from_onnx_text(CHAIN), dtype=torch.float32).run({"x": np.ones((2, 3))})["y"]
    assert got.dtype == torch.float32


def test_fetch_names_intermediates_and_replace_overrides_them():
    evaluator = Evaluator(ir.from_onnx_text(CHAIN))
    x = np.ones((1, 3))
    assert set(evaluator.run({"x": x}, fetch=["a", "y"])) == {"a", "y"}
    forced = evaluator.run({"x": x}, replace={"a": torch.zeros(1, 3)})["y"]
    np.testing.assert_allclose(forced.numpy(), np.zeros((1, 3)), atol=1e-15)
    weightless = evaluator.run({"x": x}, replace={"w": torch.zeros(3)})["y"]
    np.testing.assert_allclose(weightless.numpy(), np.zeros((1, 3)), atol=1e-15)


def test_a_constant_that_is_exchanged_between_runs_is_the_new_one():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 20]> g (float[N] x) => (float[N] y)
        { c = Constant<value_float = 2.0>() y = Mul(x, c) }"""
    )
    evaluator, x = Evaluator(model), np.array([1.5])
    assert evaluator.run({"x": x})["y"].tolist() == evaluator.run({"x": x})["y"].tolist() == [3.0]
    node = model.graph.node(0)
    node.attributes["value_float"] = ir.AttrFloat32("value_float", 4.0)
    assert evaluator.run({"x": x})["y"].tolist() == [6.0]
    other = ir.Tensor(np.array([8.0], np.float32))
    del node.attributes["value_float"]
    node.attributes["value"] = ir.AttrTensor("value", other)
    assert evaluator.run({"x": x})["y"].tolist() == [12.0]


def test_an_initializer_that_is_exchanged_or_computed_on_each_use_is_the_new_one():
    model, x = ir.from_onnx_text(CHAIN), np.array([[1.0, 2.0, 3.0]])
    evaluator, weight = Evaluator(model), model.graph.initializers["w"]
    factors = [np.zeros(3), np.ones(3), np.full(3, 2.0)]
    drawn = iter(factors)
    held: list[ir.TensorProtocol] = [ir.Tensor(factor.astype(np.float32)) for factor in factors]
    held += [ExactTensor(lambda: next(drawn), ir.DataType.FLOAT, (3,), "w")] * 3
    for tensor, factor in zip(held, factors * 2, strict=True):
        weight.const_value = tensor
        np.testing.assert_allclose(evaluator.run({"x": x})["y"].numpy(), np.exp(x * factor) - x, rtol=1e-15)


def test_hook_sees_every_node_and_may_change_its_results():
    seen = []

    def hook(node, results):
        seen.append(node.op_type)
        return [result * 2 for result in results] if node.op_type == "Mul" else None

    evaluator = Evaluator(ir.from_onnx_text(CHAIN))
    x = np.ones((1, 3))
    doubled = evaluator.run({"x": x}, hook=hook)["y"]
    assert seen == ["Mul", "Exp", "Sub"]
    w = np.array([0.1, 0.2, 0.3], np.float32).astype(np.float64)
    np.testing.assert_allclose(doubled.numpy(), np.exp(2 * w)[None] - 1, rtol=1e-14)


def test_gradients_flow_to_the_inputs():
    x = torch.ones(1, 3, dtype=torch.float64, requires_grad=True)
    Evaluator(ir.from_onnx_text(CHAIN)).run({"x": x})["y"].sum().backward()
    w = np.array([0.1, 0.2, 0.3], np.float32).astype(np.float64)
    np.testing.assert_allclose(x.grad.numpy()[0], w * np.exp(w) - 1, rtol=1e-14)


def test_a_missing_feed_and_an_unknown_name_are_named():
    evaluator = Evaluator(ir.from_onnx_text(CHAIN))
    with pytest.raises(InputError, match="'x'"):
        evaluator.run({})
    with pytest.raises(GraphError, match="nowhere"):
        evaluator.run({"x": np.ones((1, 3))}, fetch=["nowhere"])


def test_random_operators_have_no_reference_value():
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { y = RandomNormalLike(x) }'
    )
    with pytest.raises(GraphError, match="random"):
        Evaluator(model).run({"x": np.ones(2)})


def test_operators_outside_the_table_run_through_the_reference_implementation():
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[1, 2, 2, 2] x) => (float[1, 8, 1, 1] y)'
        " { y = SpaceToDepth <blocksize = 2> (x) }"
    )
    x = np.arange(8, dtype=np.float64).reshape(1, 2, 2, 2)
    got = Evaluator(model).run({"x": x})["y"]
    assert got.dtype == torch.float64
    assert got.flatten().tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


IF = """
<ir_version: 10, opset_import: ["" : 20]>
choose (bool c, float[2] x) => (float[2] y)
<float[2] w = {2, 3}>
{
  y = If (c) <
    then_branch = yes () => (float[2] a) { a = Mul(x, w) },
    else_branch = no () => (float[2] b) { b = Add(x, w) }
  >
}
"""


@pytest.mark.parametrize(("condition", "expected"), [(True, [10, 15]), (False, [7, 8])])
def test_if_reads_values_of_the_outer_graph(condition, expected):
    got = Evaluator(ir.from_onnx_text(IF)).run({"c": np.array(condition), "x": np.array([5.0, 5.0])})["y"]
    assert got.tolist() == expected


LOOP = """
<ir_version: 10, opset_import: ["" : 20]>
repeat (float[2] x) => (float[2] y, float[K, 2] history)
<int64 n = {3}, float[2] w = {2, 0.5}>
{
  go = Constant <value = bool {1}> ()
  y, history = Loop (n, go, x) <
    body = step (int64 i, bool going, float[2] state) => (bool still, float[2] next, float[2] seen) {
      still = Identity(going)
      next = Mul(state, w)
      seen = Identity(next)
    }
  >
}
"""


def test_loop_agrees_with_onnxruntime():
    model = ir.from_onnx_text(LOOP)
    x = np.array([1.0, 8.0])
    got = Evaluator(model).run({"x": x})
    for value, expected in zip(got.values(), run_onnxruntime(model, {"x": x.astype(np.float32)}), strict=True):
        np.testing.assert_allclose(value.numpy(), expected)


def test_functions_are_inlined():
    model = ir.from_onnx_text(
        """
        <ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        g (float[2] x) => (float[2] y) { y = own.Twice(x) }
        <domain: "own", opset_import: ["" : 20]>
        Twice (a) => (b) { b = Add(a, a) }
        """
    )
    assert Evaluator(model).run({"x": np.array([1.0, 2.0])})["y"].tolist() == [2, 4]
    assert model.functions  # the caller's model is left as it was


def test_a_region_is_evaluated_from_values_to_values():
    model = ir.from_onnx_text(CHAIN)
    nodes = list(model.graph)
    (out,) = evaluate_region(
        nodes[1:],
        {nodes[0].outputs[0]: torch.zeros(1, 3), model.graph.inputs[0]: torch.ones(1, 3)},
        [nodes[2].outputs[0]],
    )
    assert out.tolist() == [[0.0, 0.0, 0.0]]
    with pytest.raises(GraphError, match="not fed"):
        evaluate_region(nodes[2:], {}, [nodes[2].outputs[0]])


def test_casts_between_floats_keep_the_precision_and_casts_to_integers_do_not():
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y, int64[2] z)'
        " { h = Cast <to = 10> (x) y = CastLike(h, x) z = Cast <to = 7> (x) }"
    )
    got = Evaluator(model).run({"x": np.array([1 / 3, -2.7])})
    assert got["y"].tolist() == [1 / 3, -2.7]
    assert got["z"].tolist() == [0, -2]


def test_one_element_of_a_vector_is_a_scalar():
    """What x.shape[1] is exported as."""
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[N, M] x) => (int64 y) <int64 at = {1}> { s = Shape(x) y = Gather(s, at) }
    """
    got = Evaluator(ir.from_onnx_text(text)).run({"x": np.ones((2, 5))})["y"]
    assert got.shape == ()
    assert int(got) == 5


SEQUENCES = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[N, 6] x) => (float[N, 3] a, float[N, 2] b, float[6, N] c, float[N, 8] d, int64 n, float[N] e)
<int64[3] sizes = {3, 2, 1}, int64 two = {2}, int64 one = {1}, int64 last = {-1}, int64 first = {0}>
{
    s = SplitToSequence <axis = 1> (x, sizes)
    a = SequenceAt (s, first)
    b = SequenceAt (s, one)
    rows = SplitToSequence <axis = 1, keepdims = 0> (x)
    c = ConcatFromSequence <axis = 0, new_axis = 1> (rows)
    e = SequenceAt (rows, last)
    halves = SplitToSequence <axis = 1> (x, two)
    h = SequenceAt (halves, last)
    both = SequenceConstruct (x, h)
    d = ConcatFromSequence <axis = 1> (both)
    n = SequenceLength (halves)
}
"""


def test_sequences_of_unequal_parts_agree_with_the_runtime():
    proto = ir.to_proto(ir.from_onnx_text(SEQUENCES))
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    got = Evaluator(ir.from_proto(proto)).run({"x": x})
    for value, expected in zip(got.values(), run_onnxruntime(proto, {"x": x}), strict=True):
        assert tuple(value.shape) == expected.shape
        np.testing.assert_array_equal(value.numpy(), expected.astype(value.numpy().dtype))


def test_gradients_flow_through_a_sequence():
    model = ir.from_onnx_text(SEQUENCES)
    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    Evaluator(model).run({"x": x}, fetch=["b"])["b"].sum().backward()
    expected = torch.zeros(2, 6, dtype=torch.float64)
    expected[:, 3:5] = 1
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize(("size", "begin"), [(1, 0), (3, 0), (3, 2)])
def test_a_window_far_larger_than_its_input_costs_what_the_input_costs(size: int, begin: int, counted: int):
    """A global pool written with a far larger window and ceil_mode: padded in full it would need 80 GB here."""
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 20]>'
        "g (float[N,2,H,W] x) => (float[N,2,P,Q] average, float[N,2,P,Q] largest) {"
        f" average = AveragePool<kernel_shape=[100000,100000], strides=[100000,100000], ceil_mode=1,"
        f" pads=[{begin},{begin},0,0], count_include_pad={counted}>(x)"
        f" largest = MaxPool<kernel_shape=[100000,100000], strides=[100000,100000], ceil_mode=1>(x) }}"
    )
    x = torch.randn(2, 2, size, size, dtype=torch.float64)
    average, largest = Evaluator(model).run({"x": x}).values()
    cells = (size + begin) ** 2 if counted else size**2
    torch.testing.assert_close(average, x.sum((2, 3), keepdim=True) / cells)
    torch.testing.assert_close(largest, x.amax((2, 3), keepdim=True))


SCAN = """
<ir_version: 10, opset_import: ["" : 20]>
run (float[2] start, float[3, 2] first, float[2, 3] second) => (float[2] last, float[2, K] sums, float[K, 2] products)
<float[2] w = {2, 0.5}>
{
  last, sums, products = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [1, 0],
      scan_output_axes = [1, 0], scan_output_directions = [0, 1],
      body = step (float[2] state, float[2] a, float[2] b) => (float[2] next, float[2] sum, float[2] product) {
        more = Add(a, b)
        next = Add(state, more)
        sum = Mul(next, w)
        product = Mul(a, b)
      }
  > (start, first, second)
}
"""


def test_scan_agrees_with_onnxruntime_on_axes_and_directions():
    model = ir.from_onnx_text(SCAN)
    rng = np.random.default_rng(0)
    shapes = {"start": (2,), "first": (3, 2), "second": (2, 3)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    got = Evaluator(model).run(feeds)
    for value, expected in zip(got.values(), run_onnxruntime(model, feeds), strict=True):
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-6)


def test_a_stand_in_computes_a_node_of_a_body_each_time_it_runs():
    model = ir.from_onnx_text(LOOP)
    node = next(n for n in model.graph.all_nodes() if n.op_type == "Mul")
    found = Evaluator(model).run({"x": np.array([1.0, 8.0])}, stand_ins={node: lambda values: values[0] + values[1]})
    np.testing.assert_allclose(found["y"].numpy(), [1 + 3 * 2, 8 + 3 * 0.5])


def test_a_scan_over_unequal_lengths_is_a_graph_error():
    feeds = {"start": np.zeros(2), "first": np.zeros((4, 2)), "second": np.zeros((2, 3))}
    with pytest.raises(GraphError, match="Scan"):
        Evaluator(ir.from_onnx_text(SCAN)).run(feeds)


@pytest.mark.parametrize(("start", "end"), [(-(2**63), -(2**63)), (-9, -9), (-100, -200), (-1, -100), (99, 1)])
@pytest.mark.parametrize("step", [-1, -3, -(2**63)])
def test_a_slice_backwards_starts_at_an_element(start, end, step):
    """The specification clamps its start to the elements, [0, n - 1], and its end to [-1, n - 1]."""
    size = 8
    first = min(max(start + size if start < 0 else start, 0), size - 1)
    last = min(max(end + size if end < 0 else end, -1), size - 1)
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 20]> g (float[8] x) => (float[m] y)
        <int64[1] start = {{{start}}}, int64[1] end = {{{end}}}, int64[1] axis = {{0}}, int64[1] step = {{{step}}}>
        {{ y = Slice(x, start, end, axis, step) }}"""
    )
    x = np.arange(8, dtype=np.float32)
    expected = x[list(range(first, last, step))]
    np.testing.assert_array_equal(Evaluator(model).run({"x": x})["y"].numpy(), expected)
    np.testing.assert_array_equal(run_onnxruntime(model, {"x": x})[0], expected)


@pytest.mark.parametrize("depth", ["int64 d = {4}", "int64[1] d = {4}"], ids=["a number", "a vector of one"])
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_one_hot_agrees_with_onnxruntime(axis: int, depth: str):
    """Its depth is a number or a vector of one, indices count from the end too, and one out of range names no class."""
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 20]> g (int64[2,3] x) => (float[A,B,C] y)
        <{depth}, float[2] v = {{0.25, 3.0}}> {{ y = OneHot<axis = {axis}>(x, d, v) }}"""
    )
    x = np.array([[0, 3, -1], [4, -4, -5]])
    np.testing.assert_array_equal(Evaluator(model).run({"x": x})["y"].numpy(), run_onnxruntime(model, {"x": x})[0])


AXIS_OUTSIDE = {
    "Softmax": (12, (3,), "y = Softmax (x)"),
    "LogSoftmax": (12, (2, 3), "y = LogSoftmax <axis = 2> (x)"),
    "Hardmax": (18, (2, 3), "y = Hardmax <axis = -3> (x)"),
    "LayerNormalization": (18, (2, 3), "s = Constant <value_float = 1.0> () y = LayerNormalization <axis = 3> (x, s)"),
    "ReduceMean": (17, (2, 3), "y = ReduceMean <axes = [2]> (x)"),
    "ArgMax": (18, (2, 3), "i = ArgMax <axis = 5> (x) y = Cast <to = 1> (i)"),
    "Gather": (18, (2, 3), "i = Constant <value_ints = [0]> () y = Gather <axis = 2> (x, i)"),
    "Squeeze": (12, (1, 3), "y = Squeeze <axes = [2]> (x)"),
    "Unsqueeze": (12, (2, 3), "y = Unsqueeze <axes = [4]> (x)"),
}


@pytest.mark.parametrize("what", AXIS_OUTSIDE)
def test_an_axis_that_a_value_does_not_have_is_refused_as_by_onnxruntime(what: str) -> None:
    opset, shape, nodes = AXIS_OUTSIDE[what]
    sizes = ",".join(map(str, shape))
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[{sizes}] x) => (float y) {{ {nodes} }}'
    model, array = ir.from_onnx_text(text), np.ones(shape, np.float32)
    model.graph.outputs[0].shape = None
    content = ir.serde.serialize_model(model).SerializeToString()
    with pytest.raises(Exception, match=r"(?i)axis|axes"):  # onnxruntime's classes of errors are private
        run_onnxruntime(content, {"x": array})
    with pytest.raises(GraphError, match=r"axis -?\d of a value of \d axes; expected one from"):
        Evaluator(model).run({"x": array})
