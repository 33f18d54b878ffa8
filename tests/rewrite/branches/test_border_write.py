"""A border that repeats a convolution's bias is a Pad in front of it, however it is written; any other stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from close_arrays import close

from normdeploy.rewrite.branches import MovePads


def move(n) -> list[str]:
    MovePads(n.context)(n.model)
    return n.operators()


def point(n, bias, kernel: int = 1):
    rng = np.random.default_rng(0)
    return n.op("Conv", n.x, n.constant(rng.standard_normal((len(bias), 4, kernel, kernel))), n.constant(bias))


def around(n, y, value, widths=(1, 2), sizes=(6, 7)):
    """Write ``value`` around y, [n, C, h, w], by joining it with constants."""
    columns = np.broadcast_to(np.reshape(value, (1, -1, 1, 1)), (1, len(value), sizes[0], widths[1]))
    wide = n.op("Concat", n.constant(columns), y, n.constant(columns), axis=3)
    rows = np.broadcast_to(np.reshape(value, (1, -1, 1, 1)), (1, len(value), widths[0], sizes[1] + 2 * widths[1]))
    return n.op("Concat", n.constant(rows), wide, n.constant(rows), axis=2)


def scattered(n, y, value, at=0, sizes=(6, 7)):
    """Pad y with zeros, and write ``value`` into one row by ScatterND, as slice assignment is traced."""
    padded = n.op("Pad", y, n.constant(np.array([0, 0, 1, 0, 0, 0, 0, 0])))
    turned = n.op("Transpose", padded, perm=[2, 1, 0, 3])
    row = np.broadcast_to(np.reshape(value, (1, -1, 1, 1)), (1, len(value), 1, sizes[1]))
    return n.op(
        "Transpose", n.op("ScatterND", turned, n.constant(np.array([[at]])), n.constant(row)), perm=[2, 1, 0, 3]
    )


BIAS = np.array([0.5, -2.0, 3.0])


def test_joined_constants_become_a_pad(net):
    n = net((1, 4, 6, 7))
    n.end(n.op("Relu", around(n, point(n, BIAS), BIAS)))
    before = n.run()
    assert move(n) == ["Pad", "Conv", "Relu"]
    close(n.run(), before)
    assert n.graph.node(0).inputs[1].const_value.numpy().tolist() == [0, 0, 1, 2, 0, 0, 1, 2]
    assert list(n.graph.node(1).outputs[0].shape)[2:] == [8, 11]


def test_a_row_written_by_scatter_becomes_a_pad(net):
    n = net((1, 4, 6, 7))
    n.end(scattered(n, point(n, BIAS), BIAS))
    name, before = n.graph.outputs[0].name, n.run()
    assert move(n) == ["Pad", "Conv"]
    assert n.graph.outputs[0].name == name
    close(n.run(), before)
    assert len(n.context.ledger) == 0


def test_what_is_written_may_be_computed_from_sizes(net):
    """The number of columns is the size of a range of indices, as slice assignment is traced by another exporter."""
    n = net((1, 4, 6, 7))
    padded = n.op("Pad", point(n, BIAS), n.constant(np.array([0, 0, 1, 0, 0, 0, 0, 0])))
    size = n.op("Gather", n.op("Shape", padded), n.constant(np.array(3)))
    columns = n.op("Range", n.constant(np.array(0)), size, n.constant(np.array(1)))
    for value in (size, columns):
        value.dtype = ir.DataType.INT64
    target = n.op("Concat", n.constant(np.array([1, 3, 1])), n.op("Shape", columns), axis=0)
    for value in (target, *(node.outputs[0] for node in n.graph if node.op_type == "Shape")):
        value.dtype = ir.DataType.INT64
    row = n.op("Transpose", n.op("Expand", n.constant(BIAS.reshape(1, 3, 1, 1)), target), perm=[2, 1, 0, 3])
    turned = n.op("Transpose", padded, perm=[2, 1, 0, 3])
    written = n.op("ScatterND", turned, n.constant(np.array([[0]])), row)
    n.end(n.op("Transpose", written, perm=[2, 1, 0, 3]))
    before = n.run()
    assert move(n) == ["Pad", "Conv"]
    close(n.run(), before)


def test_a_norm_in_between_and_a_constant_pad(net):
    n = net(("n", 4, "h", "w"))
    scale, shift = np.full(3, 2.0), np.array([1.0, 1.0, 1.0])
    n.x.shape = n.x.shape
    conv = n.op(
        "Conv", n.x, n.constant(np.random.default_rng(1).standard_normal((3, 4, 1, 1))), shape=("n", 3, "h", "w")
    )
    normed = n.affine(conv, scale, shift)
    pads = n.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    n.end(n.op("Pad", normed, pads, n.constant(np.array(1.0)), shape=("n", 3, "h + 2", "w + 2")))
    before = n.run()
    assert move(n) == ["Pad", "Conv", "Affine"]
    close(n.run(), before)


def test_sizes_that_two_borders_read_are_no_part_of_either(net):
    """A batch of any size is asked for once, and what is written into both results is repeated to it."""
    n = net((1, 4, 6, 7))
    rows = n.op("Shape", n.x, start=0, end=1)
    target = n.op("Concat", rows, n.constant(np.array([3, 1, 7])), axis=0)
    for value in (rows, target):
        value.dtype = ir.DataType.INT64
    ends = []
    for bias in (BIAS, BIAS[::-1] * 2):
        row = n.op("Expand", n.constant(bias.reshape(1, 3, 1, 1)), target)
        ends.append(n.op("Concat", row, point(n, bias), row, axis=2))
    n.end(*(n.op("Relu", value) for value in ends))
    before = n.run()
    assert move(n) == ["Pad", "Conv", "Pad", "Conv", "Relu", "Relu"]
    close(n.run(), before)


STAYS = ["zero padding", "padding with minus infinity", "another reader", "graph output", "kernel", "varies", "shifted",
         "other values", "another row", "rounded"]  # fmt: skip


@pytest.mark.parametrize("case", STAYS)
def test_what_is_no_border_of_zeros_stays(net, case):
    n = net((1, 4, 6, 7))
    y = point(n, BIAS, kernel=3 if case == "kernel" else 1)
    extra = []
    if case == "zero padding":
        value = n.op("Pad", y, n.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1])))
    elif case == "padding with minus infinity":
        value = n.op("Pad", y, n.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1])), n.constant(np.array(-np.inf)))
    elif case == "varies":
        column = np.random.default_rng(2).standard_normal((1, 3, 6, 1))
        value = n.op("Concat", n.constant(column), y, axis=3)
    elif case == "shifted":  # a roll: nothing of y is lost, but it does not stand where it stood
        pieces = [
            n.op("Slice", y, n.constant(np.array([a])), n.constant(np.array([b])), n.constant(np.array([3])))
            for a, b in ((3, 7), (0, 3))
        ]
        value = around(n, n.op("Concat", *pieces, axis=3), BIAS)
    elif case == "kernel":
        value = around(n, y, BIAS, sizes=(4, 5))
    elif case == "another row":
        value = scattered(n, y, BIAS, at=3)
    elif case == "rounded":
        value = scattered(n, y, BIAS * (1 + 1e-6))
    else:
        value = around(n, y, BIAS + (case == "other values"))
    if case == "another reader":
        extra = [n.op("Relu", y)]
    elif case == "graph output":
        extra = [y]
    n.end(value, *extra)
    text = n.operators()
    assert move(n) == text
    rows = [(row.kind, row.action, row.reason) for row in n.context.ledger]
    if case == "rounded":
        ((kind, action, reason),) = rows
        assert (kind, action) == ("written border", "kept")
        assert "is not what it makes of zeros (the difference is 1e-06 of its size)" in reason
    else:
        assert rows == []


def test_a_wrong_border_would_not_ship(net, monkeypatch):
    from normdeploy.errors import RewriteError
    from normdeploy.rewrite.branches import border_write

    n = net((1, 4, 6, 7))
    n.end(scattered(n, point(n, BIAS), BIAS + 1))
    monkeypatch.setattr(border_write, "_SAME", 10.0)
    with pytest.raises(RewriteError, match="a border written behind a convolution"):
        move(n)
