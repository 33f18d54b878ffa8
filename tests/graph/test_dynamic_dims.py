"""Names and sizes of dynamic dimensions, also of those that other tools write."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from normdeploy.graph.dynamic_dims import names_of, size_at


@pytest.mark.parametrize(
    ("text", "names", "sizes", "size"),
    [
        ("batch", ("batch",), {"batch": 3}, 3),
        ("batch", ("batch",), {}, None),
        ("2*n + m//2", ("m", "n"), {"n": 5, "m": 7}, 13),
        ("2*n + m", ("m", "n"), {"n": 5}, None),
        ("n - 4", ("n",), {"n": 1}, -3),
        ("batch size", ("batch size",), {"batch size": 2}, 2),
        ("batch size", ("batch size",), {}, None),
        ("?", (), {}, None),
    ],
)
def test_a_dimension_is_its_names_and_has_a_size_where_they_have(text, names, sizes, size):
    dim = ir.SymbolicDim(text)
    assert names_of(dim) == names
    assert size_at(dim, sizes) == size


def test_what_has_no_name():
    assert names_of(4) == ()
    assert names_of(ir.SymbolicDim(None)) == ()
    assert size_at(ir.SymbolicDim(None), {}) is None
