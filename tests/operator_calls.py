"""How to call each operator of the table of traits once: attributes, and operands drawn at random.

The operands are float64 where an operator takes floats; numbers that stand for sizes, places or conditions are fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import AFFINE_DOMAIN, evaluate_node

SHAPE = (2, 4, 6, 6)
OPSET = 23

Draw = Callable[[torch.Generator], Tensor]


@dataclass(frozen=True)
class OperatorCall:
    """One way to call an operator.

    Args:
        kind: domain and name.
        draws: the operands, drawn from a generator.
        attributes: by name. outputs: how many results.
        data: which operands hold what the operator computes with; the others stay as drawn.
    """

    kind: tuple[str, str]
    draws: tuple[Draw, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    data: tuple[int, ...] = (0,)

    def node(self) -> ir.Node:
        """Return the operator as a node of no graph."""
        domain, name = self.kind
        operands = [ir.Value(name=f"x{index}") for index in range(len(self.draws))]
        attributes = ir.convenience.convert_attributes(dict(self.attributes))
        results = [ir.Value(name=f"y{index}") for index in range(self.outputs)]
        return ir.Node(domain, name, operands, attributes, outputs=results)

    def operands(self, seed: int) -> list[Tensor]:
        """Draw operands."""
        generator = torch.Generator().manual_seed(seed)
        return [draw(generator) for draw in self.draws]

    def run(self, operands: list[Tensor], dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """Evaluate the operator."""
        given = [x.to(dtype) if x.is_floating_point() else x for x in operands]
        node = self.node()
        found = evaluate_node(node, list(given), dtype=dtype, opset_imports={"": OPSET, "com.microsoft": 1})
        return found[: len(node.outputs)]


def normal(*shape: int) -> Draw:
    """Numbers of N(0, 1)."""
    return lambda g: torch.randn(shape or SHAPE, generator=g, dtype=torch.float64)


def positive(*shape: int) -> Draw:
    """Numbers between 1.1 and 3.1."""
    return lambda g: 1.1 + 2 * torch.rand(shape or SHAPE, generator=g, dtype=torch.float64)


def inside(*shape: int) -> Draw:
    """Numbers between -0.9 and 0.9."""
    return lambda g: 1.8 * torch.rand(shape or SHAPE, generator=g, dtype=torch.float64) - 0.9


def given(*numbers: float, dtype: torch.dtype = torch.int64) -> Draw:
    """Fixed numbers, as a vector."""
    return lambda _: torch.tensor(numbers, dtype=dtype)


def scalar(number: float, dtype: torch.dtype = torch.float64) -> Draw:
    """A fixed number."""
    return lambda _: torch.tensor(number, dtype=dtype)


def fixed(tensor: Tensor) -> Draw:
    """A fixed tensor."""
    return lambda _: tensor


def rounded(*shape: int) -> Draw:
    """Few small whole numbers, as floats."""
    return lambda g: torch.randint(-1, 2, shape or SHAPE, generator=g).double()


def odd(g: torch.Generator) -> Tensor:
    """Numbers of which every other one is infinite or none."""
    others = torch.tensor([0.0, torch.inf, -torch.inf, torch.nan], dtype=torch.float64)
    return normal()(g) + torch.where(chance()(g), others[whole(0, 4)(g)], 0.0)


def chance(*shape: int) -> Draw:
    """Truth values."""
    return lambda g: torch.rand(shape or SHAPE, generator=g) < 0.5


def whole(low: int, high: int, *shape: int) -> Draw:
    """Integers from low up to high - 1."""
    return lambda g: torch.randint(low, high, shape or SHAPE, generator=g)


def _standard(
    name: str, *draws: Draw, outputs: int = 1, data: tuple[int, ...] = (0,), **attributes: Any
) -> OperatorCall:
    return OperatorCall(("", name), draws or (normal(),), attributes, outputs, data)


def _microsoft(
    name: str, *draws: Draw, outputs: int = 1, data: tuple[int, ...] = (0,), **attributes: Any
) -> OperatorCall:
    return OperatorCall(("com.microsoft", name), draws or (normal(),), attributes, outputs, data)


def _words(*lines: str) -> list[str]:
    return [word for line in lines for word in line.split()]


_UNARY = _words(
    "Abs Atan Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Mish",
    "Asinh Neg Relu Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Swish Tan Tanh ThresholdedRelu",
    "Transpose Flatten GlobalAveragePool GlobalMaxPool GlobalLpPool Hardmax LogSoftmax Softmax",
    "MeanVarianceNormalization ArgMax ArgMin LpNormalization Shape Size Optional OptionalGetElement",
    "OptionalHasElement EyeLike",
)
_TWO = ("Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_LOGIC = ("And", "Or", "Xor")
_BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
_FOLDS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


def _affine_grid() -> Tensor:
    theta = torch.tensor([[0.9, 0.1, 0.02], [-0.1, 0.8, 0.05]], dtype=torch.float64).expand(2, 2, 3)
    return torch.nn.functional.affine_grid(theta, [2, 4, 5, 5], align_corners=False)


def _drawn_square() -> dict[str, Any]:
    return {"kernel_shape": [2, 2]}


_CALLS: list[OperatorCall] = [
    *(_standard(name) if name != "EyeLike" else _standard(name, normal(4, 6)) for name in _UNARY),
    *(_standard(name, normal(), normal(), data=(0, 1)) for name in _TWO),
    *(_standard(name, chance(), chance(), data=(0, 1)) for name in _LOGIC),
    *(_standard(name, whole(0, 99), whole(0, 99), data=(0, 1)) for name in _BITS),
    *(_standard(f"Reduce{name}", positive() if name == "LogSum" else normal(), given(-1)) for name in _FOLDS),
    _standard("Equal", rounded(), rounded(), data=(0, 1)),
    _standard("IsInf", odd),
    _standard("IsNaN", odd),
    _standard("Div", normal(), positive(), data=(0, 1)),
    _standard("Mod", normal(), positive(), data=(0, 1), fmod=1),
    _standard("Pow", positive(), normal(), data=(0, 1)),
    _standard("PRelu", normal(), normal(), data=(0, 1)),
    _standard("Acos", inside()),
    _standard("Acosh", positive()),
    _standard("Asin", inside()),
    _standard("Atanh", inside()),
    _standard("Log", positive()),
    _standard("Sqrt", positive()),
    _standard("Reciprocal", positive()),
    _standard("Not", chance()),
    _standard("BitwiseNot", whole(0, 99)),
    _standard("Where", chance(), normal(), normal(), data=(1, 2)),
    _standard("Clip", normal(), scalar(-0.5), scalar(0.75)),
    _standard("Cast", to=1),
    _standard("Cast", to=7),
    _standard("Cast", rounded(), to=9),
    _standard("CastLike", normal(), normal(1)),
    _standard("CastLike", normal(), whole(0, 5, 1)),
    _standard("Col2Im", normal(2, 12, 6), given(3, 4), given(2, 2)),
    _standard("Dropout", normal(), scalar(0.5), scalar(0, torch.bool), outputs=2),
    _standard("Reshape", normal(), given(0, 2, 12, 6)),
    _standard("Squeeze", normal(2, 1, 4, 1, 6), given(1, 3)),
    _standard("Unsqueeze", normal(), given(1)),
    _standard("DepthToSpace", blocksize=2),
    _standard("SpaceToDepth", blocksize=2),
    _standard("ReverseSequence", normal(), given(4, 2, 3, 1, 2, 4), batch_axis=2, time_axis=1),
    _standard("Slice", normal(), given(1, -1), given(4, 0), given(1, 2), given(1, -2)),
    _standard("Split", normal(), given(1, 3), axis=1, outputs=2),
    _standard("Gather", normal(), given(3, 1, 1), axis=1),
    _standard("GatherElements", normal(), whole(0, 4, 2, 3, 6, 6), axis=1),
    _standard("GatherND", normal(), fixed(torch.tensor([[1, 3], [0, 2], [1, 1]]))),
    _standard("Compress", normal(), fixed(torch.tensor([True, False, True, True])), axis=1),
    _standard("Concat", normal(), normal(2, 3, 6, 6), data=(0, 1), axis=1),
    _standard("Expand", normal(2, 4, 1, 6), given(3, 1, 1, 5, 1)),
    _standard("Tile", normal(), given(1, 2, 1, 3)),
    _standard("Pad", normal(), given(0, 1, 0, 2, 0, 0, 1, 0)),
    _standard("Trilu"),
    _standard("ScatterElements", normal(), whole(0, 4, 2, 1, 6, 6), normal(2, 1, 6, 6), data=(0, 2), axis=1),
    _standard("ScatterND", normal(), fixed(torch.tensor([[1, 3], [0, 2]])), normal(2, 6, 6), data=(0, 2)),
    _standard("OneHot", whole(0, 5, 2, 3), scalar(5, torch.int64), given(0.0, 1.0, dtype=torch.float64)),
    _standard("ConstantOfShape", given(2, 3)),
    _standard("Range", scalar(1, torch.int64), scalar(9, torch.int64), scalar(2, torch.int64)),
    _standard("CumSum", normal(), scalar(2, torch.int64)),
    _standard("NonZero", rounded(5, 7)),
    _standard("Unique", rounded(7), outputs=4),
    _standard("TopK", normal(), given(3), outputs=2),
    _standard(
        "NonMaxSuppression", positive(1, 6, 4), positive(1, 2, 6), given(3), scalar(0.3), scalar(0.0), data=(0, 1)
    ),
    _standard("AveragePool", **_drawn_square()),
    _standard("MaxPool", **_drawn_square()),
    _standard("LpPool", **_drawn_square()),
    _standard("Resize", normal(), given(dtype=torch.float64), given(1, 1, 2, 2, dtype=torch.float64), mode="linear"),
    _standard("GridSample", normal(), fixed(_affine_grid())),
    _standard("LRN", size=3, alpha=3.0),
    _standard("BatchNormalization", normal(), normal(4), normal(4), normal(4), positive(4), data=(0, 1, 2, 3, 4)),
    _standard("LayerNormalization", normal(), normal(6), normal(6), data=(0, 1, 2), epsilon=1e-12),
    _standard("RMSNormalization", normal(), normal(6), data=(0, 1), epsilon=1e-12),
    _standard("SimplifiedLayerNormalization", normal(), normal(6), data=(0, 1), epsilon=1e-12),
    _standard("InstanceNormalization", normal(), normal(4), normal(4), data=(0, 1, 2), epsilon=1e-12),
    _standard("GroupNormalization", normal(), normal(4), normal(4), data=(0, 1, 2), epsilon=1e-12, num_groups=2),
    _standard("MatMul", normal(2, 3, 4), normal(4, 5), data=(0, 1)),
    _standard("Gemm", normal(3, 4), normal(4, 5), normal(5), data=(0, 1, 2)),
    _standard("Conv", normal(), normal(3, 4, 2, 2), normal(3), data=(0, 1, 2)),
    _standard("ConvTranspose", normal(), normal(4, 3, 2, 2), normal(3), data=(0, 1, 2)),
    _standard(  # small: it is evaluated point by point
        "DeformConv", normal(2, 2, 4, 4), normal(3, 2, 2, 2), inside(2, 8, 3, 3), normal(3), data=(0, 1, 2, 3)
    ),
    _standard("ConvInteger", whole(0, 200), whole(-100, 100, 3, 4, 2, 2), data=(0, 1)),
    _standard("MatMulInteger", whole(0, 200, 3, 4), whole(-100, 100, 4, 5), data=(0, 1)),
    _standard("Einsum", normal(3, 4), normal(4, 5), data=(0, 1), equation="ij,jk->ik"),
    _standard(
        "LSTM", normal(3, 2, 4), normal(1, 20, 4), normal(1, 20, 5), normal(1, 40), data=(0, 1, 2, 3), hidden_size=5
    ),
    _standard(
        "GRU", normal(3, 2, 4), normal(1, 15, 4), normal(1, 15, 5), normal(1, 30), data=(0, 1, 2, 3), hidden_size=5
    ),
    _standard(
        "RNN", normal(3, 2, 4), normal(1, 5, 4), normal(1, 5, 5), normal(1, 10), data=(0, 1, 2, 3), hidden_size=5
    ),
    _standard(
        "QuantizeLinear",
        normal(),
        given(0.02, 0.03, 0.01, 0.05, dtype=torch.float64),
        given(3, 4, 5, 6, dtype=torch.uint8),
    ),
    _standard("DequantizeLinear", whole(0, 256), given(0.02, 0.03, 0.01, 0.05, dtype=torch.float64), given(3, 4, 5, 6)),
    _standard("DynamicQuantizeLinear", outputs=3),
    _standard(
        "QLinearConv",
        whole(0, 200),
        given(0.02, dtype=torch.float64),
        given(100, dtype=torch.uint8),
        whole(-100, 100, 3, 4, 2, 2),
        given(0.01, dtype=torch.float64),
        given(0, dtype=torch.int8),
        given(0.1, dtype=torch.float64),
        given(90, dtype=torch.uint8),
        data=(0, 3),
    ),
    _standard(
        "QLinearMatMul",
        whole(0, 200, 3, 4),
        given(0.02, dtype=torch.float64),
        given(100, dtype=torch.uint8),
        whole(-100, 100, 4, 5),
        given(0.01, dtype=torch.float64),
        given(0, dtype=torch.int8),
        given(0.1, dtype=torch.float64),
        given(90, dtype=torch.uint8),
        data=(0, 3),
    ),
    _microsoft("BiasGelu", normal(), normal(6), data=(0, 1)),
    _microsoft(
        "QuantizeLinear",
        normal(),
        given(0.02, 0.03, 0.01, 0.05, dtype=torch.float64),
        given(3, 4, 5, 6, dtype=torch.uint8),
    ),
    _microsoft(
        "DequantizeLinear", whole(0, 256), given(0.02, 0.03, 0.01, 0.05, dtype=torch.float64), given(3, 4, 5, 6)
    ),
    _microsoft("FastGelu"),
    _microsoft("Gelu"),
    _microsoft("QuickGelu"),
    _microsoft("FusedConv", normal(), normal(3, 4, 2, 2), normal(3), data=(0, 1, 2)),
    _microsoft("FusedGemm", normal(3, 4), normal(4, 5), normal(5), data=(0, 1, 2)),
    _microsoft("FusedMatMul", normal(2, 3, 4), normal(4, 5), data=(0, 1)),
    _microsoft("SkipLayerNormalization", normal(2, 3, 6), normal(2, 3, 6), normal(6), normal(6), data=(0, 1, 2, 3)),
    _microsoft("SkipSimplifiedLayerNormalization", normal(2, 3, 6), normal(2, 3, 6), normal(6), data=(0, 1, 2)),
    OperatorCall((AFFINE_DOMAIN, "Affine"), (normal(), normal(), normal()), data=(0, 1, 2)),
]

CALLS: dict[tuple[str, str], list[OperatorCall]] = {}
for _call in _CALLS:
    CALLS.setdefault(_call.kind, []).append(_call)
