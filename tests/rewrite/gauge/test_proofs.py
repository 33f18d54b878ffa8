"""A kept row carries why it must: restrictions that exist, tied to the map, of which none can be taken away in vain.

For each reason the operators that it names are looked up in the graph, the ties between them are walked, and the graph
is built again without the restriction: an operator that restricts becomes an Identity, a graph output that must stay
what it is gets an operator in front of it that takes any gauge. Then the map folds.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from normdeploy.rewrite.affine.affine_node import is_affine
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.gauge.conflicts.reasons import Reason
from normdeploy.rewrite.gauge.remove_maps import MoveAffine
from normdeploy.rewrite.pipeline import transform, understand
from normdeploy.rewrite.rewrite_context import RewriteContext


def conv(g, x, rng, ins=3, outs=3, **options):
    return g.op("Conv", x, rng.normal(size=(outs, ins, 1)), rng.normal(size=outs), **options)


def scaled(g, x, rng, *shape, negative=False, name=None):
    scale = rng.uniform(0.5, 2, shape)
    return g.op("Mul", x, -scale if negative else scale, name=name)


def images(g, name="x"):
    return g.input(name, ["N", 3, 4])


def gate(g, rng):
    """Sigmoid behind, a graph input in front."""
    g.output(conv(g, g.op("Sigmoid", scaled(g, images(g), rng, 3, 1), name="gate"), rng, name="end"))
    return {"Sigmoid 'gate'"}


def turned(g, rng):
    """A Relu behind a negative scale."""
    g.output(conv(g, g.op("Relu", scaled(g, images(g), rng, 3, 1, negative=True), name="cut"), rng, name="end"))
    return {"Relu 'cut'"}


def shifted(g, rng):
    """A Relu behind a shift."""
    x = g.op("Add", images(g), rng.normal(size=(3, 1)))
    g.output(conv(g, g.op("Relu", x, name="cut"), rng, name="end"))
    return {"Relu 'cut'"}


def padded(g, rng):
    """Zero padding behind a shift, of a size that is not known."""
    x = g.op("Add", g.input("x", ["N", 3, "L"]), rng.normal(size=(3, 1)))
    x = g.op("Pad", x, np.array([0, 0, 1, 0, 0, 1]), name="zeros")
    g.output(conv(g, x, rng, name="end"))
    return {"Pad 'zeros'"}


def pooled(g, rng):
    """A maximum in front of a negative scale."""
    y = g.op("MaxPool", conv(g, images(g), rng, name="first"), kernel_shape=[1], name="most")
    g.output(scaled(g, y, rng, 3, 1, negative=True))
    return {"MaxPool 'most'"}


def far(g, rng):
    """The restriction lies behind movements and a sum."""
    x = scaled(g, images(g), rng, 3, 1, negative=True)
    y = g.op("Identity", g.op("Transpose", x, perm=[0, 2, 1], name="turn"), name="same")
    y = g.op("Gather", y, np.array([1, 0, 3, 2]), axis=1, name="mix")
    y = g.op("Transpose", y, perm=[0, 2, 1], name="back")
    y = g.op("Add", y, conv(g, images(g, "z"), rng, name="aside"), name="sum")
    g.output(conv(g, g.op("LeakyRelu", y, name="cut"), rng, name="end"))
    return {"LeakyRelu 'cut'"}


def two_readers(g, rng):
    """One reader takes it, the other does not."""
    x = scaled(g, images(g), rng, 3, 1)
    g.output(conv(g, x, rng, name="end"))
    g.output(conv(g, g.op("Tanh", x, name="bend"), rng, name="other"))
    return {"Tanh 'bend'"}


GRAPHS = [gate, turned, shifted, padded, pooled, far, two_readers]


def settled(proto, monkeypatch) -> list[tuple[ir.Graph, ir.Node, Reason]]:
    """Return the graph, the map and the reason of each map that stays, when it is first asked."""
    found: list[tuple[ir.Graph, ir.Node, Reason]] = []
    right = MoveAffine._best

    def noting(self, graph, opaque, around):
        plan = right(self, graph, opaque, around)
        found.extend((graph, node, reason) for node, reason in plan.stays.items())
        return plan

    model, context = ir.from_proto(proto), RewriteContext()
    with monkeypatch.context() as patch:
        patch.setattr(MoveAffine, "_best", noting)
        for step in understand(context):
            step(model)
        for step in transform(context):
            step(model)
            if isinstance(step, MoveAffine):
                break
    return found


def stated(reason: Reason) -> set[str]:
    """Return how the operators of a chain are called, without what they ask."""
    return {" ".join(step.split(" ")[:2]) for step in reason.chain}


def connected(start: ir.Node, goal: ir.Node) -> bool:
    """Tell whether values lead from one operator to another, either way."""
    seen, queue = {start}, deque([start])
    while queue:
        node = queue.popleft()
        if node is goal:
            return True
        beside = [value.producer() for value in node.inputs if value is not None]
        beside += [usage.node for value in node.outputs for usage in value.uses()]
        for other in beside:
            if other is not None and other not in seen:
                seen.add(other)
                queue.append(other)
    return False


def hang_together(nodes: set[ir.Node]) -> bool:
    """Tell whether values lead from each of some operators to each other one, through these operators alone."""
    start = next(iter(nodes))
    seen, queue = {start}, deque([start])
    while queue:
        node = queue.popleft()
        beside = [value.producer() for value in node.inputs if value is not None]
        beside += [usage.node for value in node.outputs for usage in value.uses()]
        for other in nodes.intersection(item for item in beside if item is not None) - seen:
            seen.add(other)
            queue.append(other)
    return seen == nodes


def without(proto, name):
    """Return the graph with an operator replaced by Identity."""
    changed = type(proto)()
    changed.CopyFrom(proto)
    (node,) = [item for item in changed.graph.node if item.name == name]
    del node.attribute[:]
    del node.input[1:]
    node.op_type = "Identity"
    del changed.graph.value_info[:]
    for output in changed.graph.output:  # a Pad less is another size
        for dim in output.type.tensor_type.shape.dim[2:]:
            dim.Clear()
            dim.dim_param = f"{output.name}.size"
    return changed


@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
def test_a_reason_is_a_proof(graph, monkeypatch, make):
    rng = np.random.default_rng(0)
    g = graph()
    named = make(g, rng)
    proto = g.proto()
    ((inner, node, reason),) = settled(proto, monkeypatch)
    assert is_affine(node)
    existing = {describe(item): item for item in inner}
    restricting = {describe(item) for item in reason.nodes}
    assert named <= restricting <= set(existing)
    for other in reason.nodes:
        assert connected(node, other)
        assert describe(other) in reason.text
    for text in reason.chain:  # every step is an operator that is there, or a value at the border of the graph
        operator = next((name for name in existing if text.startswith(name)), "")
        border = text.startswith(("the graph input", "the graph output"))
        assert operator or border, text
        assert border or connected(node, existing[operator])
    # the chain is one: from the map to each restriction through what it names
    assert hang_together({node, *(item for name, item in existing.items() if name in stated(reason))})
    order = {describe(item): at for at, item in enumerate(inner)}
    places = [order[next(n for n in order if text.startswith(n))] for text in reason.chain
              if any(text.startswith(n) for n in order)]  # fmt: skip
    assert places == sorted(places)
    for name in named:
        again = settled(without(proto, name.split("'")[1]), monkeypatch)
        assert not again, [str(item[2]) for item in again]


def test_a_chain_names_every_tie_on_the_way(graph, monkeypatch):
    rng = np.random.default_rng(0)
    g = graph()
    far(g, rng)
    ((_, _, reason),) = settled(g.proto(), monkeypatch)
    assert any("Add 'sum'" in step for step in reason.chain)
    assert "tied by Add 'sum'" in reason.text
    # those that share a gauge between them state no equation, and stand in the chain too, in the order of the graph
    between = [step for step in reason.chain if step.startswith(("Transpose", "Gather", "Identity"))]
    assert between == ["Transpose 'turn'", "Gather 'mix'", "Transpose 'back'"]


def test_an_output_that_is_none_any_more(graph, fold):
    """The graph output is the restriction: behind a convolution the same map folds."""
    rng = np.random.default_rng(0)
    for ends, action in ((False, "kept"), (True, "folded")):
        g = graph()
        y = scaled(g, images(g), rng, 3, 1)
        g.output(conv(g, y, rng) if ends else y)
        result = fold(g).agree(g.feeds(rng, N=2))
        assert result.actions == [action]
        if not ends:
            result.kept("the graph output 'mul_0_out' must stay what it is", "the graph input 'x' is given")


def test_two_scales_that_meet_in_one_sum(graph, monkeypatch):
    """No operator restricts: the cycle does; with the same scale on both ways the map goes."""
    rng = np.random.default_rng(0)
    for same in (False, True):
        g = graph()
        factor = rng.uniform(0.5, 2, (3, 1))
        first = g.op("Mul", images(g), factor, name="first")
        second = g.op("Mul", images(g, "z"), factor if same else factor[::-1], name="second")
        g.output(conv(g, g.op("Add", first, second, name="sum"), rng, name="end"))
        found = settled(g.proto(), monkeypatch)
        assert bool(found) != same
        for _, _, reason in found:
            assert any("Add 'sum'" in step for step in reason.chain)
            assert "Add 'sum'" in reason.text


PRODUCTS = {
    "rows of an input": ("c = MatMul(x, b) y = Mul(c, s)", (4, 1), "the graph input 'x' is given"),
    "columns of an input": ("c = MatMul(x, b) y = Mul(c, s)", (1, 5), "the graph input 'z' is given"),
    "turned": (
        "c = MatMul(x, b) e = Transpose(c) f = Mul(e, r) y = Transpose(f)", (1, 4), "the graph input 'x' is given"
    ),
    "an equation": (
        'c = Einsum <equation = "ik,kj->ij"> (x, b) y = Mul(c, s)', (4, 1), "the graph input 'x' is given"
    ),
    "rows without weights": ("k = Gelu(x) c = MatMul(k, b) y = Mul(c, s)", (4, 1), "Gelu 'k' has no weights"),
    "rows that are one": (
        "j = MatMul(x, V) k = Clip(j, no, six) c = MatMul(k, b) y = Mul(c, s)", (4, 1),
        "Clip 'k' cuts all channels at the same values",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "varies", "said"), PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_has_the_rows_of_one_factor_and_the_columns_of_the_other(monkeypatch, body, varies, said):
    proto = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[4, 6] x, float[5, 7] z) => (float[4, 5] y) {{ a = MatMul(z, W) b = Transpose(a) {body} }}""")
    rng = np.random.default_rng(0)
    arrays = {"W": rng.normal(size=(7, 6)), "V": rng.normal(size=(6, 6)), "no": 0.0, "six": 6.0}
    arrays |= dict.fromkeys("sr", rng.uniform(2, 3, varies))
    for node in proto.graph.node:
        node.name = node.output[0]
    read = {name for node in proto.graph.node for name in node.input}
    for name, array in arrays.items():
        if name in read:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(array), name))
    ((_, _, reason),) = settled(proto, monkeypatch)
    assert f"in front of it {said}" in reason.text
    assert any(step.startswith(said) for step in reason.chain)
