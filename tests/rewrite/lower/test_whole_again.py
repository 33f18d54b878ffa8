"""Parts that are joined as they were cut are the whole; any other order, part or axis stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from normdeploy.rewrite import rewrite
from normdeploy.verification.derivation.checker import check_derivation

NUMBERS = ", ".join([
    *(f"int64[1] k{number} = {{{number}}}" for number in (0, 1, 2, 3, 4, 9)),
    *(f"int64[2] t{a}{b} = {{{a}, {b}}}" for a, b in ((0, 1), (2, 2), (2, 3), (3, 2))),
    "int64[1] minus = {-1}, int64 s0 = {0}, int64 s1 = {1}, int64 last = {-1}, float two = {2.0}",
])  # fmt: skip


def parsed(body: str, shape: str, out: str) -> onnx.ModelProto:
    """Return a graph; Tanh and Exp around the parts move nothing."""
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> g (float[{shape}] x) => (float[{out}] y) <{NUMBERS}> '
        f"{{ h = Tanh (x) {body} y = Exp (j) }}"
    )


def both(body: str, shape: str, out: str) -> list[str]:
    """Rewrite a graph, compare what both compute, and return the operators of what it became."""
    source = parsed(body, shape, out)
    result = rewrite(ir.from_proto(source))
    target = ir.to_proto(result.model)
    onnx.checker.check_model(target, full_check=True)
    sizes = [{"x": tuple(size if dim == "n" else int(dim) for dim in shape.split(","))} for size in (2, 5)]
    for given in sizes:
        feeds = {"x": np.random.default_rng(0).normal(size=given["x"]).astype(np.float32)}
        want, have = (ReferenceEvaluator(proto).run(None, feeds)[0] for proto in (source, target))
        np.testing.assert_array_equal(want, have)
    assert check_derivation(ir.from_proto(source), result.model, result.derivation, sizes).confirmed
    return [node.op_type for node in result.model.graph]


WHOLE = {
    "a Split": "p, q = Split <axis = 1> (h, t22) j = Concat <axis = 1> (p, q)",
    "a Split from behind": "p, q = Split <axis = -1, num_outputs = 2> (h) j = Concat <axis = 2> (p, q)",
    "Slices": "p = Slice (h, k0, k3, k1) q = Slice (h, k3, k9, k1) j = Concat <axis = -2> (p, q)",
    "Slices from behind": "p = Slice (h, k0, minus, k1, k1) q = Slice (h, minus, k9, k1) j = Concat <axis = 1> (p, q)",
    "Slices of the first axis": "t = Transpose <perm = [1, 0, 2]> (h) p = Slice (t, k0, k1) q = Slice (t, k1, k4) "
    "c = Concat <axis = 0> (p, q) j = Transpose <perm = [1, 0, 2]> (c)",
    "Gathers": "p = Gather <axis = 1> (h, t01) q = Gather <axis = 1> (h, t23) j = Concat <axis = 1> (p, q)",
    "single indices": "a = Gather <axis = 1> (h, s0) b = Gather <axis = 1> (h, s1) p = Unsqueeze (a, k1) "
    "q = Unsqueeze (b, k1) r = Slice (h, k2, k3, k1) d = Gather <axis = 1> (h, last) s = Unsqueeze (d, k1) "
    "j = Concat <axis = 1> (p, q, r, s)",
    "parts of a part": "p, q = Split <axis = 1> (h, t22) u = Slice (p, k0, k1, k1) v = Slice (p, k1, k2, k1) "
    "c = Concat <axis = 1> (u, v) j = Concat <axis = 1> (c, q)",
}


@pytest.mark.parametrize("parts", WHOLE)
def test_the_whole(parts: str) -> None:
    shape = "n,3,4" if parts == "a Split from behind" else "n,4,3"
    assert both(WHOLE[parts], shape, shape) == ["Tanh", "Exp"]


OTHERS = {
    "another order": ("p, q = Split <axis = 1> (h, t22) j = Concat <axis = 1> (q, p)", "n,4,3"),
    "one part twice": ("p, q = Split <axis = 1> (h, t22) j = Concat <axis = 1> (p, p)", "n,4,3"),
    "parts that overlap": (
        "p = Slice (h, k0, k3, k1) q = Slice (h, k2, k4, k1) j = Concat <axis = 1> (p, q)",
        "n,5,3",
    ),
    "a part left out": ("p = Slice (h, k0, k1, k1) q = Slice (h, k2, k4, k1) j = Concat <axis = 1> (p, q)", "n,3,3"),
    "not from the start": ("p = Slice (h, k1, k2, k1) q = Slice (h, k2, k4, k1) j = Concat <axis = 1> (p, q)", "n,3,3"),
    "not to the end": ("p = Slice (h, k0, k2, k1) q = Slice (h, k2, k3, k1) j = Concat <axis = 1> (p, q)", "n,3,3"),
    "along another axis": ("p, q = Split <axis = 1> (h, t22) j = Concat <axis = 2> (p, q)", "n,2,6"),
    "of two values": ("z = Sin (x) p, q = Split <axis = 1> (h, t22) u, v = Split <axis = 1> (z, t22) "
                      "j = Concat <axis = 1> (p, v)", "n,4,3"),
    "indices in another order": ("p = Gather <axis = 1> (h, t32) q = Gather <axis = 1> (h, t01) "
                                 "j = Concat <axis = 1> (q, p)", "n,4,3"),
    "every second one": ("p = Slice (h, k0, k4, k1, k2) q = Slice (h, k1, k4, k1, k2) "
                         "j = Concat <axis = 1> (p, q)", "n,4,3"),
}  # fmt: skip


@pytest.mark.parametrize("parts", OTHERS)
def test_what_is_not_the_whole_stays(parts: str) -> None:
    body, out = OTHERS[parts]
    assert "Concat" in both(body, "n,4,3", out)


@pytest.mark.parametrize("order", ["(v, u)", "(u, u)"])
def test_the_checker_does_not_take_other_parts_for_the_whole(order: str) -> None:
    """Each half is scaled by two, which the product in front takes: the halves come back only in their order."""
    halves = "p, q = Split <axis = 1> (h, t22) u = Mul (p, two) v = Mul (q, two) j = Concat <axis = 1>"
    right, wrong = (parsed(f"{halves} {each}", "n,4,3", "n,4,3") for each in ("(u, v)", order))
    for proto in (right, wrong):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32) + 1, "w"))
        proto.graph.node[0].CopyFrom(onnx.helper.make_node("MatMul", ["w", "x"], ["h"]))
    result, sizes = rewrite(ir.from_proto(right)), [{"x": (size, 4, 3)} for size in (2, 5)]
    assert [node.op_type for node in result.model.graph] == ["MatMul", "Exp"]
    assert check_derivation(ir.from_proto(right), result.model, result.derivation, sizes).confirmed
    assert not check_derivation(ir.from_proto(wrong), result.model, result.derivation, sizes).confirmed
