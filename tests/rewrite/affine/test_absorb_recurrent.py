"""LSTM, GRU and RNN take the map in front of their input sequence into the weights of that input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

settings.load_profile("affine")

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SIZE, HIDDEN = 3, 2


def recurrent(g, x, rng, kind, *, directions=1, bias=True, state=None, **attributes):
    """Y of one operator over x [seq, batch, SIZE]."""
    rows = GATES[kind] * HIDDEN
    weight, recurrence = rng.normal(size=(directions, rows, SIZE)), rng.normal(size=(directions, rows, HIDDEN))
    operands = [x, weight, recurrence]
    if bias or state is not None:
        operands.append(rng.normal(size=(directions, 2 * rows)) if bias else None)
    if state is not None:
        operands += [None, state]
    direction = "bidirectional" if directions == 2 else "forward"
    return g.op(kind, *operands, name="net", hidden_size=HIDDEN, direction=direction, **attributes)


@given(
    st.sampled_from(sorted(GATES)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([np.float64, np.float32, np.float16]),
    st.integers(0, 2**32 - 1),
)
def test_in_front_of_a_recurrent_operator(graph, fold, kind, bias, shifted, stateful, late_reset, dtype, seed):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = g.op("Mul", g.input("x", [4, 5, SIZE]), rng.normal(size=SIZE))
    if shifted:
        x = g.op("Add", x, rng.normal(size=SIZE))
    attributes = {"linear_before_reset": int(late_reset)} if kind == "GRU" else {}
    state = g.input("h", [1, 5, HIDDEN]) if stateful else None
    y = recurrent(g, x, rng, kind, bias=bias, state=state, **attributes)
    g.output(y)
    assert fold(g).folded().agree_exactly(g.feeds(rng)).ops == {kind: 1}


@pytest.mark.parametrize("kind", sorted(GATES))
def test_both_directions_take_it(graph, fold, kind):
    rng = np.random.default_rng(0)
    g = graph()
    scale, shift = rng.normal(size=SIZE), rng.normal(size=SIZE)
    x = g.op("Add", g.op("Mul", g.input("x", [4, 5, SIZE]), scale), shift)
    g.output(recurrent(g, x, rng, kind, directions=2))
    before = {item.name: item for item in g.initializers}
    result = fold(g).folded()
    names = list(result.after.graph.node[0].input)
    rows = GATES[kind] * HIDDEN
    old = {name: np.frombuffer(item.raw_data).reshape(tuple(item.dims)) for name, item in before.items()}
    weight, bias = (old[name] for name in g.nodes[-1].input[1:4:2])
    expected = bias.copy()
    expected[:, :rows] += np.einsum("dgi,i->dg", weight, shift)
    np.testing.assert_allclose(result.weight(names[1]), weight * scale, rtol=1e-14)
    np.testing.assert_allclose(result.weight(names[3]), expected, rtol=1e-13, atol=1e-13)


def test_refusals(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Mul", g.input("x", [4, 5, SIZE]), rng.normal(size=(4, 1, 1)))
    g.output(recurrent(g, x, rng, "LSTM"))
    fold(g).kept("LSTM 'net' takes nothing that varies along another axis than its channels").agree(g.feeds(rng))
    g = graph()
    h = g.op("Mul", g.input("h", [1, 5, HIDDEN]), rng.normal(size=HIDDEN))
    g.output(recurrent(g, g.input("x", [4, 5, SIZE]), rng, "GRU", state=h))
    fold(g).kept("GRU 'net' reads it as something else than its input sequence").agree(g.feeds(rng))
    g = graph()
    x = g.op("Mul", g.input("x", [4, 5, SIZE]), rng.normal(size=SIZE))
    weights = g.input("w", [1, HIDDEN, SIZE]), rng.normal(size=(1, HIDDEN, HIDDEN))
    g.output(g.op("RNN", x, *weights, name="net", hidden_size=HIDDEN))
    fold(g).kept("RNN 'net' has a weight that is computed at run time").agree(g.feeds(rng))
    for kind, words in (
        ("Mul", None),
        ("Add", "RNN 'net' has a bias that is computed at run time, which cannot take a shift"),
    ):
        g = graph()
        x = g.op(kind, g.input("x", [4, 5, SIZE]), rng.normal(size=SIZE))
        weights = [rng.normal(size=(1, HIDDEN, size)) for size in (SIZE, HIDDEN)]
        g.output(g.op("RNN", x, *weights, g.input("b", [1, 2 * HIDDEN]), name="net", hidden_size=HIDDEN))
        result = fold(g).agree(g.feeds(rng))
        if words is None:
            result.folded()
        else:
            result.kept(words)


@pytest.mark.parametrize("kind", sorted(GATES))
@pytest.mark.parametrize("one_number", [True, False])
def test_a_weight_stored_in_integers(graph, fold, kind, one_number):
    rng = np.random.default_rng(0)
    rows = GATES[kind] * HIDDEN
    g = graph(dtype=np.float32, opset=19)
    stored = g.constant(rng.integers(-127, 127, (1, rows, SIZE)).astype(np.int8), "w")
    weight = g.op("DequantizeLinear", stored, rng.uniform(0.01, 0.1, rows), axis=1)
    x = g.op("Mul", g.input("x", [4, 5, SIZE]), np.array(-0.7) if one_number else rng.normal(size=SIZE))
    x = g.op("Add", x, rng.normal(size=SIZE))
    g.output(g.op(kind, x, weight, rng.normal(size=(1, rows, HIDDEN)), name="net", hidden_size=HIDDEN))
    result = fold(g).agree(g.feeds(rng), 2e-5)
    if one_number:
        assert result.folded().ops == {"DequantizeLinear": 1, kind: 1}
    else:
        # the scale stays; the shift, divided by it, goes into the bias
        assert f"{kind} 'net' has integer weights without a step per input" in result.reasons
        assert result.actions == ["kept"]
