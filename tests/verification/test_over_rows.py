"""Pointwise operators over rows: confirmed exactly where the file computes what the source does, by numbers.

The source works on values of three axes; the file on the same memory with two. Both are run by onnx's reference
implementation in float64, which shares no code with the checker.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.verification.derivation.checker import check_derivation

DRAW = np.random.default_rng(3)
WHOLE, ROWS = (2, 3, 4), (6, 4)
NUMBERS = {
    "back": np.array(WHOLE),
    "flat": np.array(ROWS),
    "half": np.array(0.5),
    "third": np.array(1 / 3),
    "low": np.array(-0.5),
    "lower": np.array(-1.0),
    "high": np.array(0.5),
    "row": DRAW.normal(size=4),
    "other_row": DRAW.normal(size=4),
    "deep_row": np.zeros((1, 1, 4)),
    "column": DRAW.normal(size=(2, 3, 1)),
    "flat_column": np.zeros((6, 1)),
    "positive": np.array([0.5, 1.0, 2.0, 3.0]),
    "mixed": np.array([0.5, -1.0, 2.0, 3.0]),
}
NUMBERS["deep_row"] = NUMBERS["row"].reshape(1, 1, 4)
NUMBERS["flat_column"] = NUMBERS["column"].reshape(6, 1)


@dataclass(frozen=True)
class Case:
    """An expression of ``a`` and ``b`` in the source, and of their rows in the file.

    Args:
        source, file: statements that end with g. gauge: by which the rows of g are scaled.
    """

    source: str
    file: str
    gauge: str = ""

    def graphs(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """Return both; the file's rows are Reshapes of the inputs."""
        read = "double[2,3,4] a, double[2,3,4] b"
        source = f"{self.source} y = Identity(g)"
        behind = f"g_whole = Reshape(g, back) y = Mul(g_whole, {self.gauge})" if self.gauge else "y = Reshape(g, back)"
        file = f"ar = Reshape(a, flat) br = Reshape(b, flat) {self.file} {behind}"
        made = []
        for body in (source, file):
            text = f'<ir_version: 10, opset_import: ["": 20]> n ({read}) => (double[2,3,4] y) {{ {body} }}'
            proto = onnx.parser.parse_model(text)
            words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
            proto.graph.initializer.extend(
                numpy_helper.from_array(array, name) for name, array in NUMBERS.items() if name in words
            )
            made.append(proto)
        return made[0], made[1]

    def agree(self) -> bool:
        """Tell whether both compute the same."""
        draw = np.random.default_rng(0)
        source, file = self.graphs()
        for scale in (1.0, 3.0):
            feeds = {name: scale * draw.normal(size=WHOLE) for name in "ab"}
            want, have = (ReferenceEvaluator(proto).run(None, feeds)[0] for proto in (source, file))
            if not np.allclose(want, have, rtol=1e-12, atol=1e-12):
                return False
        return True

    def confirmed(self, *, hinted: bool = True) -> bool:
        """Tell whether the checker confirms the file."""
        source, file = (ir.from_proto(proto) for proto in self.graphs())
        hints = [Hint("y", "y")]
        if hinted:
            scale = NUMBERS[self.gauge].reshape(1, 1, -1) if self.gauge else np.ones((1, 1, 1))
            hints += [Hint(name, "g", scale=scale) for name in ("g", "g_whole")]
            hints += [Hint(name, name) for name in ("s", "t")]
        report = check_derivation(source, file, Derivation(tuple(hints)), [{"a": WHOLE, "b": WHOLE}])
        return report.confirmed


RIGHT = {
    "an operator": Case("g = Gelu(a)", "g = Gelu(ar)"),
    "with an attribute": Case('g = Gelu<approximate = "tanh">(a)', 'g = Gelu<approximate = "tanh">(ar)'),
    "of two": Case("g = Max(a, b)", "g = Max(ar, br)"),
    "of two, turned": Case("g = Mul(a, b)", "g = Mul(br, ar)"),
    "in a row": Case("s = Sigmoid(a) t = Mul(s, a) g = Add(t, b)", "s = Sigmoid(ar) t = Mul(s, ar) g = Add(t, br)"),
    "with a number": Case("s = Abs(a) g = Pow(s, half)", "s = Abs(ar) g = Pow(s, half)"),
    "with a number per place": Case("s = Tanh(a) g = Max(s, row)", "s = Tanh(ar) g = Max(s, row)"),
    "with axes in front of it": Case("s = Tanh(a) g = Max(deep_row, s)", "s = Tanh(ar) g = Max(row, s)"),
    "with bounds": Case("g = Clip(a, low, high)", "g = Clip(ar, low, high)"),
    "a choice": Case("s = Less(a, b) g = Where(s, a, b)", "s = Less(ar, br) g = Where(s, ar, br)"),
    "a scale that passes": Case("s = Mul(a, positive) g = Relu(s)", "g = Relu(ar)", "positive"),
}
WRONG = {
    "another operator": Case("g = Gelu(a)", "g = Mish(ar)"),
    "another attribute": Case("g = Gelu(a)", 'g = Gelu<approximate = "tanh">(ar)'),
    "another operand": Case("g = Gelu(a)", "g = Gelu(br)"),
    "operands exchanged": Case("g = Sub(a, b)", "g = Sub(br, ar)"),
    "another number": Case("s = Tanh(a) g = Max(s, half)", "s = Tanh(ar) g = Max(s, third)"),
    "another number per place": Case("s = Tanh(a) g = Max(s, row)", "s = Tanh(ar) g = Max(s, other_row)"),
    "another bound": Case("g = Clip(a, low, high)", "g = Clip(ar, lower, high)"),
    "a number per row": Case("s = Tanh(a) g = Max(s, column)", "s = Tanh(ar) g = Max(s, half)"),
    "a scale that does not pass": Case("s = Mul(a, mixed) g = Relu(s)", "g = Relu(ar)", "mixed"),
    "a scale through a curve": Case("s = Mul(a, positive) g = Tanh(s)", "g = Tanh(ar)", "positive"),
    "one answer the other way": Case("s = Less(a, b) g = Where(s, a, b)", "s = Less(ar, br) g = Where(s, br, ar)"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_agrees_is_confirmed(name):
    assert RIGHT[name].agree()
    assert RIGHT[name].confirmed()


@pytest.mark.parametrize("name", WRONG)
def test_what_differs_is_not_confirmed(name):
    assert not WRONG[name].agree()
    assert not WRONG[name].confirmed()


def test_rows_in_another_order_are_others():
    """As many rows of the same length, and not in their order."""
    source, file = RIGHT["an operator"].graphs()
    node = next(node for node in file.graph.node if node.output[0] == "ar")
    node.input[0] = "turned"
    turn = onnx.helper.make_node("Transpose", ["a"], ["turned"], perm=[1, 0, 2])
    file.graph.node.insert(0, turn)
    hints = (Hint("g", "g"), Hint("y", "y"))
    report = check_derivation(ir.from_proto(source), ir.from_proto(file), Derivation(hints), [{"a": WHOLE, "b": WHOLE}])
    assert not report.confirmed


@pytest.mark.parametrize("name", ["an operator", "in a row", "a choice"])
def test_what_no_hint_names_is_found_nearby(name):
    assert RIGHT[name].confirmed(hinted=False)


def test_a_number_for_each_row_is_right_and_not_followed():
    """It is the same here, and the law is silent: what differs from row to row may be spread otherwise."""
    case = Case("s = Tanh(a) g = Max(s, column)", "s = Tanh(ar) g = Max(s, flat_column)")
    assert case.agree()
    assert not case.confirmed()


def test_where_sizes_vary_nothing_is_followed():
    source = '<ir_version: 10, opset_import: ["": 20]> n (double[N,3,4] a) => (double[N,3,4] g) { g = Gelu(a) }'
    file = (
        '<ir_version: 10, opset_import: ["": 20]> n (double[N,3,4] a) => (double[N,3,4] y) '
        "{ r = Reshape(a, flat) g = Gelu(r) y = Reshape(g, back) }"
    )
    protos = [onnx.parser.parse_model(text) for text in (source, file)]
    for name, numbers in {"flat": [-1, 4], "back": [-1, 3, 4]}.items():
        protos[1].graph.initializer.append(numpy_helper.from_array(np.array(numbers), name))
    hints = (Hint("g", "g"), Hint("y", "g"))
    report = check_derivation(
        *(ir.from_proto(proto) for proto in protos), Derivation(hints), [{"a": (2, 3, 4)}, {"a": (5, 3, 4)}]
    )
    assert not report.confirmed
