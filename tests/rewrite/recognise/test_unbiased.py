"""Variances divided by n - 1: exact with any size known, exact in the fewest passes where n is dynamic."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from node_kinds import kinds

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

C = 6
WIDE = torch.export.Dim("w", min=3, max=64)


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.g = torch.nn.Parameter(torch.rand(C) + 0.5)

    def forward(self, x):
        return self.function(x, self.g)


def rows(x, g):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-3).sqrt()


def rows_outside(x, g):
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3)


def rows_without_epsilon(x, g):
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


def style(x, g):
    """The statistics of AdaIN: unbiased over height and width."""
    hat = (x - x.mean((2, 3), keepdim=True)) / (x.var((2, 3), keepdim=True) + 1e-5).sqrt()
    return hat * g[:, None, None]


def groups(x, g):
    n, c, h, w = x.shape
    y = x.reshape(n, 3, -1)
    y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True) + 1e-3).sqrt()
    return y.reshape(n, c, h, w) * g[:, None, None]


def groups_outside(x, g):
    n, c, h, w = x.shape
    y = x.reshape(n, 3, -1)
    y = (y - y.mean(-1, keepdim=True)) / (y.std(-1, keepdim=True) + 1e-3)
    return y.reshape(n, c, h, w) * g[:, None, None]


IMAGE = {0: "n", 2: torch.export.Dim("h", min=3, max=64), 3: WIDE}
DYNAMIC = {
    "rows": (rows, (3, 5, 7), {0: "n", 2: WIDE}),
    "rows, epsilon outside": (rows_outside, (3, 5, 7), {0: "n", 2: WIDE}),
    "rows, no epsilon": (rows_without_epsilon, (3, 5, 7), {0: "n", 2: WIDE}),
    "height and width": (style, (2, C, 4, 5), IMAGE),
    "groups": (groups, (2, C, 4, 5), IMAGE),
    "groups, epsilon outside": (groups_outside, (2, C, 4, 5), IMAGE),
}


def test_without_epsilon_it_is_a_scale(sketch, reference):
    """(x - m) / sqrt(r v) is sqrt((n - 1) / n) times the biased form: one operator, whatever n is."""
    torch.manual_seed(0)
    result = rewrite(trace(Function(rows_without_epsilon), torch.randn(2, 5, C)).model)
    assert kinds(result.model) == ["LayerNormalization"]
    (scale,) = [value.const_value.numpy() for value in result.model.graph.initializers.values()]
    np.testing.assert_array_equal(scale, np.full(C, np.sqrt((C - 1) / C), np.float32))


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_dynamic_count_is_read_from_the_shape(name):
    function, shape, dynamic = DYNAMIC[name]
    torch.manual_seed(0)
    model = Function(function)
    program = trace(model, torch.randn(shape), dynamic_shapes={"x": dynamic})
    result = rewrite(program.model)
    onnx.checker.check_model(ir.to_proto(result.model))
    found = kinds(result.canonical)
    assert (found.count("ReduceMean"), found.count("Sqrt"), found.count("Expand")) == (2, 1, 0)
    rows_of_norms = [row for row in result.ledger if "Normalization" in row.kind]
    assert [(row.action, row.into) for row in rows_of_norms] == [("fused", "its shortest form")]
    assert "n is dynamic" in rows_of_norms[0].reason
    session = onnxruntime.InferenceSession(ir.to_proto(result.model).SerializeToString())
    model.double()
    for sizes in (shape, tuple(size + 2 if axis in dynamic else size for axis, size in enumerate(shape))):
        x = torch.randn(sizes, dtype=torch.float64) * 0.1
        with torch.no_grad():
            expected = model(x)
        (got,) = Evaluator(result.model).run({"x": x}).values()
        # epsilon and scale are stored in float32
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
        (run,) = session.run(None, {"x": x.numpy().astype(np.float32)})
        np.testing.assert_allclose(run, expected.numpy(), rtol=1e-4, atol=1e-4)


def test_a_group_with_epsilon_outside_the_root_takes_the_short_form():
    torch.manual_seed(0)
    model = Function(groups_outside)
    result = rewrite(trace(model, torch.randn(2, C, 4, 5)).model)
    assert kinds(result.canonical)[:6] == ["Reshape", "LayerNormalization", "Add", "Reciprocal", "Mul", "Reshape"]
    x = torch.randn(3, C, 4, 5, dtype=torch.float64)
    x[0] *= 1e-3  # rows whose spread is about epsilon
    with torch.no_grad():
        expected = model.double()(x)
    (got,) = Evaluator(result.model).run({"x": x}).values()
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", [rows_outside, groups_outside], ids=["rows", "groups"])
def test_a_short_form_from_a_file_is_recognised_as_what_it_is(function):
    """Folding a file of ours again changes nothing and says the same of it."""
    torch.manual_seed(0)
    shape = (2, 5, C) if function is rows_outside else (2, C, 4, 5)
    first = rewrite(trace(Function(function), torch.randn(shape)).model)
    stripped = ir.from_proto(ir.to_proto(first.model))
    for node in stripped.graph:
        node.metadata_props.clear()
    again = rewrite(stripped)
    assert kinds(again.model) == kinds(first.model)
    (row,) = [row for row in again.ledger if "Normalization" in row.kind]
    assert row.detail["outside"]
    count = C if function is rows_outside else C // 3 * 20
    assert row.detail["epsilon"] == pytest.approx(1e-3 * np.sqrt((count - 1) / count), rel=1e-6)


def test_what_changes_with_a_size_in_no_known_way_is_kept_with_that_reason():
    def odd(x, g):
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-3 * x.shape[-1]).sqrt()

    program = trace(Function(odd), torch.randn(3, 5, 7), dynamic_shapes={"x": {0: "n", 2: WIDE}})
    (row,) = [row for row in rewrite(program.model).ledger.kept if row.kind == "normalization"]
    assert "changes with the size of a dynamic dimension" in row.reason
