"""What operators do to the values they compute with: one table, from operator to traits, for every room.

Each trait is a statement about numbers, and ``tests/graph/test_traits.py`` runs every operator of the table to see that
exactly the traits it is given hold. Statements are about default attributes and evaluation mode; what else an attribute
makes of an operator is the business of who asks. An operator that is not in the table has no trait: nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Flag, auto
from typing import TypeGuard

import onnx_ir as ir

from normdeploy.graph.exact import AFFINE_DOMAIN

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""


class Trait(Flag):
    """A statement about an operator f of a first operand x, the others fixed where they are not named."""

    KEEPS_ORDER = auto()
    """The elements of x in their order in memory, under another shape or none."""
    PERMUTES = auto()
    """One result, which holds every element of x once."""
    MOVES = auto()
    """Elements of x and nothing else, whatever they are: f(g(x)) = g(f(x)) for every function g of one number."""
    REPEATS = auto()
    """MOVES, and holds every element of x more than once, equally often."""
    JOINS = auto()
    """As MOVES, for all operands together."""
    CONVERTS = auto()
    """The elements of x in their places, as another type."""
    POINTWISE = auto()
    """A result's element depends on the operands' elements at its place alone, and the same way at every place."""
    BROADCASTS = auto()
    """POINTWISE in several operands, any of which is brought to the result's shape as NumPy does."""
    ADDS = auto()
    """POINTWISE, and a weighted sum of all its operands."""
    COMMUTES = auto()
    """f(a, b) = f(b, a)."""
    COMPARES = auto()
    """POINTWISE, a truth value from two numbers."""
    MONOTONE = auto()
    """x <= x' in every element makes f(x) <= f(x') in every element."""
    HOMOGENEOUS = auto()
    """f(s x) = s f(x) for s > 0."""
    SUMS = auto()
    """Adds up elements of x with fixed weights that are not negative; more than one of them."""
    REDUCES = auto()
    """Folds whole axes: the order of elements along them makes no difference."""
    POOLS = auto()
    """Mixes places of one channel (axis 1) alone into fewer."""
    WEIGHS = auto()
    """Where the second operand is zeros, nothing of x is in the result."""
    MULTIPLIES = auto()
    """WEIGHS, and where x is zeros, nothing of the second operand is in the result."""
    NORMALIZES = auto()
    """Divides by the root of x's own mean square or variance: apart from epsilon, f(s x) = f(x) for s > 0."""
    BY_ROW = auto()
    """NORMALIZES every row along the last axes by itself."""
    CENTRES = auto()
    """NORMALIZES, and subtracts the mean: f(x + c) = f(x)."""
    DECIDES = auto()
    """Some result takes steps: it stays as it is for small changes of x, and jumps for others."""
    EXACT = auto()
    """Rounds nothing: of float32 operands the result is a float32, in any correct kernel."""
    ROUNDED_ONCE = auto()
    """IEEE 754 fixes its float32 result: that in real numbers, rounded once."""
    SIZES = auto()
    """Looks at x's shape only."""
    SHAPED = auto()
    """The second operand is the shape of the result."""
    RANDOM = auto()
    """Draws random numbers."""


NONE = Trait(0)

_MOVES = Trait.MOVES | Trait.MONOTONE | Trait.HOMOGENEOUS | Trait.EXACT
_ORDERED = Trait.KEEPS_ORDER | Trait.PERMUTES | _MOVES
_EXACT = Trait.POINTWISE | Trait.EXACT
_RISES = Trait.POINTWISE | Trait.MONOTONE
_STEPS = _RISES | Trait.DECIDES | Trait.EXACT
_BINARY = Trait.POINTWISE | Trait.BROADCASTS
_LOGIC = _BINARY | Trait.COMMUTES | Trait.EXACT
_COMPARISON = _BINARY | Trait.COMPARES | Trait.DECIDES | Trait.EXACT
_EXTREME = Trait.MONOTONE | Trait.HOMOGENEOUS | Trait.EXACT
_AVERAGE = Trait.MONOTONE | Trait.HOMOGENEOUS | Trait.SUMS
_PRODUCT = Trait.WEIGHS | Trait.MULTIPLIES
_NORM = _PRODUCT | Trait.NORMALIZES
_CHOICE = Trait.DECIDES | Trait.EXACT


def _table(domain: str, rows: Iterable[tuple[str, Trait]]) -> dict[tuple[str, str], Trait]:
    return {(domain, name): traits for operators, traits in rows for name in operators.split()}


TRAITS: dict[tuple[str, str], Trait] = {
    **_table(
        "",
        [
            # move
            ("Identity Dropout Optional OptionalGetElement", _ORDERED | Trait.POINTWISE),
            ("Flatten Squeeze Unsqueeze", _ORDERED),
            ("Reshape", _ORDERED | Trait.SHAPED),
            ("Transpose DepthToSpace SpaceToDepth ReverseSequence", Trait.PERMUTES | _MOVES),
            ("Slice Split Gather GatherElements GatherND Compress", _MOVES),
            ("Tile", _MOVES | Trait.REPEATS),
            ("Expand", _MOVES | Trait.REPEATS | Trait.SHAPED),
            ("Concat", Trait.JOINS | Trait.MONOTONE | Trait.EXACT),
            ("Pad Trilu", _EXTREME),
            ("ScatterElements ScatterND", Trait.MONOTONE | Trait.EXACT),
            ("Cast CastLike", Trait.POINTWISE | Trait.CONVERTS),
            # look at one place at a time
            ("Relu", _RISES | Trait.HOMOGENEOUS | Trait.EXACT),
            ("LeakyRelu", _RISES | Trait.HOMOGENEOUS),
            ("Abs Neg", _EXACT | Trait.HOMOGENEOUS),
            ("Clip ThresholdedRelu", _RISES | Trait.EXACT),
            ("Ceil Floor Round Sign", _STEPS),
            ("IsInf IsNaN Not BitwiseNot", _EXACT),
            (
                "Acosh Asin Asinh Atan Atanh Celu Elu Erf Exp HardSigmoid Log Selu Sigmoid Sinh Softplus Softsign Tanh",
                _RISES,
            ),
            ("Sqrt", _RISES | Trait.ROUNDED_ONCE),
            ("Acos Cos Cosh Gelu HardSwish Mish Reciprocal Sin Swish Tan", Trait.POINTWISE),
            # combine operands place by place
            ("Add", _BINARY | Trait.ADDS | Trait.COMMUTES | Trait.MONOTONE | Trait.ROUNDED_ONCE),
            ("Sub", _BINARY | Trait.ADDS | Trait.MONOTONE | Trait.ROUNDED_ONCE),
            ("Sum Mean", _BINARY | Trait.ADDS | Trait.COMMUTES | Trait.MONOTONE),
            ("Mul", _BINARY | _PRODUCT | Trait.COMMUTES | Trait.HOMOGENEOUS | Trait.ROUNDED_ONCE),
            ("Div", _BINARY | Trait.MONOTONE | Trait.HOMOGENEOUS | Trait.ROUNDED_ONCE),
            ("Max Min", _BINARY | Trait.COMMUTES | Trait.MONOTONE | Trait.EXACT),
            ("Mod Where", _BINARY | Trait.EXACT),
            ("Pow", _BINARY | Trait.WEIGHS),
            ("PRelu", Trait.POINTWISE | Trait.HOMOGENEOUS),
            ("And Or Xor BitwiseOr BitwiseXor", _LOGIC),
            ("BitwiseAnd", _LOGIC | _PRODUCT),
            ("Equal", _COMPARISON | Trait.COMMUTES),
            ("Greater GreaterOrEqual", _COMPARISON | Trait.MONOTONE),
            ("Less LessOrEqual", _COMPARISON),
            # fold, pool, interpolate
            ("ReduceMean ReduceSum", _AVERAGE | Trait.REDUCES),
            ("ReduceMax ReduceMin", _EXTREME | Trait.REDUCES),
            ("ReduceL1 ReduceL2", Trait.HOMOGENEOUS | Trait.REDUCES),
            ("ReduceLogSum ReduceLogSumExp", Trait.MONOTONE | Trait.REDUCES),
            ("ReduceProd ReduceSumSquare", Trait.REDUCES),
            ("GlobalAveragePool", _AVERAGE | Trait.REDUCES | Trait.POOLS),
            ("GlobalMaxPool", _EXTREME | Trait.REDUCES | Trait.POOLS),
            ("GlobalLpPool", Trait.HOMOGENEOUS | Trait.REDUCES | Trait.POOLS),
            ("AveragePool", _AVERAGE | Trait.POOLS),
            ("MaxPool", _EXTREME | Trait.POOLS),
            ("LpPool", Trait.HOMOGENEOUS | Trait.POOLS),
            ("Col2Im CumSum GridSample Resize Upsample", _AVERAGE),
            # multiply by weights
            ("MatMul Einsum", _PRODUCT | Trait.HOMOGENEOUS),
            ("Conv ConvTranspose DeformConv Gemm GRU LSTM RNN", _PRODUCT),
            ("ConvInteger MatMulInteger", _PRODUCT | Trait.EXACT),
            # normalize
            ("LayerNormalization", _NORM | Trait.BY_ROW | Trait.CENTRES),
            ("RMSNormalization SimplifiedLayerNormalization", _NORM | Trait.BY_ROW),
            ("GroupNormalization InstanceNormalization", _NORM | Trait.CENTRES),
            ("MeanVarianceNormalization", Trait.NORMALIZES | Trait.CENTRES),
            ("BatchNormalization", Trait.WEIGHS),
            ("LRN LpNormalization LogSoftmax Softmax DequantizeLinear", NONE),
            # choose
            ("ArgMax ArgMin Hardmax NonMaxSuppression NonZero", _CHOICE),
            ("DynamicQuantizeLinear", Trait.DECIDES),
            ("QLinearConv QLinearMatMul", Trait.EXACT),
            ("TopK", _CHOICE | Trait.MONOTONE | Trait.HOMOGENEOUS),
            ("Unique", _CHOICE | Trait.HOMOGENEOUS),
            ("QuantizeLinear", _CHOICE | Trait.MONOTONE),
            # make
            ("ConstantOfShape OneHot Range", Trait.EXACT),
            ("EyeLike OptionalHasElement Shape Size", Trait.SIZES | Trait.EXACT),
            ("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike", Trait.RANDOM),
        ],
    ),
    **_table(
        MICROSOFT,
        [
            ("FusedConv FusedGemm", _PRODUCT),
            ("FusedMatMul", _PRODUCT | Trait.HOMOGENEOUS),
            ("FastGelu Gelu QuickGelu", Trait.POINTWISE),
            ("BiasGelu DequantizeLinear SkipLayerNormalization SkipSimplifiedLayerNormalization", NONE),
            ("QuantizeLinear", _CHOICE | Trait.MONOTONE),
        ],
    ),
    (AFFINE_DOMAIN, "Affine"): _BINARY | _PRODUCT,
}


_BITS = {kind: own.value for kind, own in TRAITS.items()}
"""The same in numbers, which are asked far faster."""


def kind_of(node: ir.Node) -> tuple[str, str]:
    """Return an operator's domain, which is "" for the standard one (onnx_ir sees to it), and its name."""
    return node.domain, node.op_type


def is_standard(node: ir.Node, *names: str) -> bool:
    """Tell whether an operator is one of ONNX's own, of one of these names where any are given."""
    return node.domain == "" and (not names or node.op_type in names)


def is_quantizer(node: ir.Node) -> bool:
    """Tell whether an operator is a QuantizeLinear, ONNX's own or com.microsoft's, which is the same one."""
    return node.op_type == "QuantizeLinear" and node.domain in ("", MICROSOFT)


def is_dequantizer(node: ir.Node) -> bool:
    """Tell whether an operator is a DequantizeLinear, ONNX's own or com.microsoft's, which is the same one."""
    return node.op_type == "DequantizeLinear" and node.domain in ("", MICROSOFT)


def has(node: ir.Node | None, traits: Trait) -> TypeGuard[ir.Node]:
    """Tell whether there is an operator, and it has one of these traits."""
    return node is not None and bool(_BITS.get((node.domain, node.op_type), 0) & traits._value_)


def kinds(traits: Trait) -> frozenset[tuple[str, str]]:
    """Return the operators, domain and name, that have one of these traits."""
    return frozenset(kind for kind, own in TRAITS.items() if own & traits)
