"""A Pad of zeros that became a convolution's own padding is confirmed for every input; another border is not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.verification.derivation.checker import check_derivation

HEAD = '<ir_version: 10, opset_import: ["": 20]> '


def graph(body: str, pads: list[int], value: float, sizes: str) -> ir.Model:
    proto = onnx.parser.parse_model(f"{HEAD} g (float[{sizes}] x) => (float[N,M,A,B] y) {{ {body} }}")
    rng = np.random.default_rng(0)
    numbers = {"w": rng.standard_normal((3, 2, 3, 3), np.float32), "b": rng.standard_normal(3, np.float32)}
    numbers |= {"p": np.array(pads), "v": np.float32(value)}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(part), name) for name, part in numbers.items())
    return ir.from_proto(proto)


@pytest.mark.parametrize("size", [9, 3000])
@pytest.mark.parametrize(
    ("pads", "value", "holds"),
    [
        ([0, 0, 1, 0, 0, 0, 2, 1], 0.0, True),
        ([0, 0, 1, 0, 0, 0, 2, 0], 0.0, False),  # another width, and another size
        ([0, 0, 2, 0, 0, 0, 1, 1], 0.0, False),  # one row moved
        ([0, 0, 1, 0, 0, 0, 2, 1], 0.01, False),  # another border
    ],
)
def test_a_pad_in_front_of_a_convolution(size, pads, value, holds):
    source = graph("q = Pad (x, p, v) y = Conv <strides = [2, 1]> (q, w, b)", pads, value, f"1,2,{size},{size}")
    file = graph("y = Conv <strides = [2, 1], pads = [1, 0, 2, 1]> (x, w, b)", pads, value, f"1,2,{size},{size}")
    found = check_derivation(source, file, Derivation((Hint("y", "y"),)), [{"x": (1, 2, size, size)}])
    assert found.confirmed == holds
