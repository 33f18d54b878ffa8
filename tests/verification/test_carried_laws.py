"""Laws by which gauges are carried through operators, each against numbers: confirmed exactly where two graphs agree.

In the source an operator reads s x + t; in the file it reads x, and what it returns is scaled and shifted by hand. Both
are run by onnx's reference implementation in float64, which shares no code with the checker. Gauges that no law fits
are among those tried: there the two graphs differ, and nothing may be confirmed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from reference_operators import GlobalLpPool

from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.hints import unchanged

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Law:
    """An operator and two inputs' gauges, with what its result should then be scaled and shifted by.

    Args:
        operator: of ``a`` and ``b``. scale, shift: of the inputs x and z. result: (s, t) of the result.
        shapes: of x and z. known: constants of both. file: the operator in the file, the source's by default.
        own: constants of the file's operator. before: what stands in front of it, in both.
    """

    operator: str
    result: tuple[np.ndarray | float, np.ndarray | float]
    scale: tuple[np.ndarray | float, np.ndarray | float] = (1.0, 1.0)
    shift: tuple[np.ndarray | float, np.ndarray | float] = (0.0, 0.0)
    shapes: tuple[tuple[int, ...], tuple[int, ...]] = ((3, 4), (3, 4))
    known: Arrays = field(default_factory=dict)
    file: str = ""
    own: Arrays = field(default_factory=dict)
    before: str = ""

    @property
    def given(self) -> dict[str, tuple[int, ...]]:
        """The shapes by the inputs' names."""
        return dict(zip("xz", self.shapes, strict=True))

    def graphs(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """Return the source, and the file: f(a, b) = s f'(x, z) + t, its s and t made up for by two operators.

        Of these each that multiplies by 1 or adds 0 is left out: what stands behind a law that fails is searched too.
        """
        read = ", ".join(f"double[{','.join(map(str, s))}] {n}" for n, s in zip("xz", self.shapes, strict=True))
        head = '<ir_version: 10, opset_import: ["": 20]> '
        body = "a1 = Mul(x, sx) a = Add(a1, tx) b1 = Mul(z, sz) b = Add(b1, tz) %s r = %s y = Identity(r)"
        source = onnx.parser.parse_model(
            head + f"g ({read}) => (double[A,B] y) {{ {body % (self.before, self.operator)} }}"
        )
        before, text = (
            re.sub(r"\b[ab]\b", lambda name: "xz"["ab".index(name[0])], part)
            for part in (self.before, self.file or self.operator)
        )
        scaled, shifted = (bool(np.any(part != none)) for part, none in zip(self.result, (1.0, 0.0), strict=True))
        one = "Mul(q, s)" if scaled else "Add(q, t)" if shifted else "Identity(q)"
        behind = f"r1 = {one} y = Add(r1, t)" if scaled and shifted else f"y = {one}"
        body = f"{before} q = {text} {behind}"
        file = onnx.parser.parse_model(head + f"g ({read}) => (double[A,B] y) {{ {body} }}")
        gauges = {"sx": self.scale[0], "sz": self.scale[1], "tx": self.shift[0], "tz": self.shift[1]}
        for proto, constants in (
            (source, {**gauges, **self.known}),
            (file, {"s": self.result[0], "t": self.result[1], **self.known, **self.own}),
        ):
            for name, value in constants.items():
                array = np.asarray(value) if np.asarray(value).dtype.kind in "ib" else np.asarray(value, np.float64)
                proto.graph.initializer.append(numpy_helper.from_array(array, name))
        return source, file

    def agree(self, source: onnx.ModelProto, file: onnx.ModelProto) -> bool:
        """Tell whether both compute the same, by the reference implementation."""
        rng = np.random.default_rng(0)
        sides = [ReferenceEvaluator(proto, new_ops=[GlobalLpPool]) for proto in (source, file)]
        for _ in range(3):
            feeds = {name: rng.standard_normal(shape) for name, shape in zip("xz", self.shapes, strict=True)}
            want, have = (side.run(None, feeds)[0] for side in sides)
            if want.shape != have.shape or not np.allclose(want, have, rtol=1e-12, atol=1e-12):
                return False
        return True


SQUARE = ((3, 3), (3, 3))
ROW, COLUMN = np.array([[1.0, 2.0, 4.0]]), np.array([[1.0], [2.0], [4.0]])
PICTURE = ((1, 3, 4, 4), (1, 3, 4, 4))
CHANNEL = np.array([1.0, 2.0, 4.0]).reshape(1, 3, 1, 1)
AXIS = {"k": np.array([1])}
WIDE = {"p": np.array([0, 1, 0, 1])}
ENDS = {"low": np.array(-0.5), "high": np.array(0.5)}
FED = {"o": np.array(0.0), "e": np.array([1]), "w": np.array([2])}
PICKED = {
    "Gather(a, j)": "j = ReduceMax<keepdims = 0>(i, e)",
    "Gather<axis = 1>(a, j)": "j = ReduceMax<keepdims = 0>(i, e)",
    "GatherElements<axis = 1>(a, i)": "",
    "GatherND(a, j)": "l = Unsqueeze(i, w) j = Concat<axis = -1>(l, l)",
}
"""Operators of a, and what makes their other operands of what is fed."""
DOUBLE = {"e": np.array([1.0, 1.0, 2.0, 2.0])}
CHANNELS = {"e": np.array([1.0, 2.0, 1.0, 1.0])}


def unary(text: str, **more: object) -> Iterator[Law]:
    """Yield an operator with scales and shifts of every form, right or not."""
    for scale in (2.0, -2.0, ROW, COLUMN):
        for shift in (0.0, 1.0, ROW, COLUMN):
            for result in ((scale, shift), (scale, 0.0), (np.abs(scale), shift)):
                yield Law(text, result, (scale, 1.0), (shift, 0.0), SQUARE, **more)  # type: ignore[arg-type]


def framed(row: np.ndarray | float, edge: float) -> np.ndarray:
    """Return a row with one number before and behind it."""
    return np.pad(np.broadcast_to(np.asarray(row), ROW.shape), ((0, 0), (1, 1)), constant_values=edge)


def products() -> Iterator[Law]:
    """Yield products of two computed matrices with scales of every form; only some of them are one of the result."""
    for left in (1.0, 2.0, ROW, COLUMN, np.full((1, 3), 2.0)):  # one number may be written per channel
        for right in (1.0, 2.0, ROW, COLUMN, 1 / COLUMN, 2 / COLUMN, np.full((3, 1), 2.0)):
            for result in (1.0, 2.0, 4.0, ROW, COLUMN, ROW * COLUMN, 2 * ROW, 2 * COLUMN):
                yield Law("MatMul(a, b)", (result, 0.0), (left, right), (0.0, 0.0), SQUARE)


_ROWS, _COLUMNS = (f"p = Softmax<axis = {axis}>(a)" for axis in (1, 0))


def averages(text: str, *, turned: bool = False, product: int | None = None) -> Iterator[Law]:
    """Yield averages of b by rows that Softmax writes, or by columns.

    Args:
        text: the operator. turned: what Softmax writes is turned first.
        product: the axis along which products are summed up; what is multiplied stands in front of the operator.
    """
    known = {} if product is None else {"k": np.array([product])}
    for before in (_ROWS, _COLUMNS):
        front = f"w = {before[4:]} p = Transpose<perm = [1, 0]>(w)" if turned else before
        front = front if product is None else f"{front} m = Mul(p, b)"
        for scale in (1.0, 2.0, ROW):
            for shift in (0.0, 1.0, ROW, COLUMN):
                for result in ((scale, shift), (scale, 0.0), (1.0, shift), (COLUMN, COLUMN)):
                    yield Law(text, result, (1.0, scale), (0.0, shift), SQUARE, known, before=front)


def weighed() -> Iterator[Law]:
    """Yield products by a constant, of which a shift has the shift that the constant makes of it."""
    matrix = np.array([[1.0, -2.0, 0.5], [3.0, 0.25, -1.0], [-4.0, 1.5, 2.0]])
    vector = {"v": matrix[:, 0], "e": np.array([1])}
    row = {"v": matrix[0], "e": np.array([0])}
    for scale in (1.0, -2.0, ROW, COLUMN):
        for shift in (0.0, 1.0, ROW, COLUMN, ROW * COLUMN):
            t = np.broadcast_to(np.asarray(shift), (3, 3))
            for made, known, before, text in (
                (t @ matrix, {"k": matrix}, "", 'Einsum<equation = "ij,jk->ik">(a, k)'),
                (t.T @ matrix, {"k": matrix}, "", 'Einsum<equation = "ji,jk->ik">(a, k)'),
                (t @ matrix, {"k": matrix}, "", 'Einsum<equation = "...j,jk">(a, k)'),
                (t * matrix.sum(0), {"k": matrix}, "", 'Einsum<equation = "ij,kj->ij">(a, k)'),
                ((t @ vector["v"])[:, None], vector, "m = MatMul(a, v)", "Unsqueeze(m, e)"),
                ((row["v"] @ t)[None], row, "m = MatMul(v, a)", "Unsqueeze(m, e)"),
            ):
                for result in ((scale, made), (scale, 0.0), (scale, shift), (scale, made + 1e-6)):
                    yield Law(text, result, (scale, 1.0), (shift, 0.0), SQUARE, known, before=before)


def sampled() -> Iterator[Law]:
    """Yield GridSample of pictures between zeros, and between copies of their border."""
    grid = {"k": np.random.default_rng(0).uniform(-1.5, 1.5, (1, 3, 2, 2))}
    for around in ("zeros", "border", "reflection"):
        yield from pictures(f'GridSample<mode = "nearest", padding_mode = "{around}">(a, k)', known=grid)


def pairs(name: str) -> Iterator[Law]:
    """Yield an operator of two computed operands."""
    for left in (1.0, ROW, -2.0):
        for right in (1.0, ROW):
            for shifts in ((0.0, 0.0), (1.0, 1.0), (1.0, ROW)):
                results = [(left, 0.0), (left * np.asarray(right), 0.0), (left / np.asarray(right), 0.0)]
                results += [(left, shifts[0]), (left, shifts[0] + np.asarray(shifts[1]))]
                results += [(left, shifts[0] - np.asarray(shifts[1]))]
                for result in results:
                    yield Law(f"{name}(a, b)", result, (left, right), shifts, SQUARE)


def choices(text: str, **more: object) -> Iterator[Law]:
    """Yield a choice between two computed operands, one gauge of which may be written per channel."""
    for left, right in ((2.0, 2.0), (2.0, np.full((1, 3), 2.0)), (ROW, ROW), (2.0, ROW), (-2.0, -2.0)):
        for shifts in ((3.0, 3.0), (3.0, np.full((1, 3), 3.0)), (3.0, ROW), (ROW, ROW)):
            for result in ((left, shifts[0]), (left, 0.0)):
                yield Law(text, result, (left, right), shifts, SQUARE, **more)  # type: ignore[arg-type]


def pictures(text: str, **more: object) -> Iterator[Law]:
    """Yield an operator of pictures, scaled and shifted by channels and by rows."""
    for scale in (2.0, CHANNEL, -CHANNEL):
        for shift in (0.0, 1.0, CHANNEL):
            for result in ((scale, shift), (scale, 0.0), (CHANNEL, shift)):
                yield Law(text, result, (scale, 1.0), (shift, 0.0), PICTURE, **more)  # type: ignore[arg-type]


def norms(text: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], varying: np.ndarray) -> Iterator[Law]:
    """Yield a norm, whose epsilon is 2^-10 in the source, and others in the file."""
    known = {"g": np.array([1.0, 2.0, 3.0]), "h": np.array([0.5, 0.25, -0.5])}
    for scale in (1.0, 2.0, -2.0, varying):
        for shift in (0.0, 1.0, varying):
            for epsilon in ("0.0009765625", "0.000244140625"):
                source, file = text.replace("@", "0.0009765625"), text.replace("@", epsilon)
                yield Law(source, (1.0, 0.0), (scale, 1.0), (shift, 0.0), shapes, known, file)


PLACES = {
    "ScatterElements<axis = 0, reduction = %s>(a, k, b)": np.array([[0, 2, 1], [0, 0, 1], [2, 2, 1]]),
    "ScatterElements<axis = -1, reduction = %s>(a, k, b)": np.array([[0, 2, 1], [0, 0, 1], [2, 2, 1]]),
    "ScatterND<reduction = %s>(a, k, b)": np.array([[0], [2], [0]]),
}


def written(text: str, reduction: str) -> Iterator[Law]:
    """Yield updates that are written into a value, at places of which some repeat, and into constants."""
    operator, known = text % f'"{reduction}"', {"k": PLACES[text]}
    for left in (1.0, 2.0, -2.0, ROW, COLUMN):
        for right in (1.0, left):
            for shifts in ((0.0, 0.0), (3.0, 0.0), (3.0, 3.0), (ROW, 0.0), (ROW, ROW), (COLUMN, COLUMN)):
                for result in ((left, shifts[0]), (left, 0.0)):
                    yield Law(operator, result, (left, right), shifts, SQUARE, known)
    begun = operator.replace("(a,", "(c,")
    for scale in (2.0, ROW):
        for shift in (0.0, 3.0, ROW):
            for start in (0.0, 1.0):
                own = {"c": np.broadcast_to((start - shift) / scale, (3, 3))}
                for moved in (0.0, shift):
                    both = {"k": PLACES[text]}
                    yield Law(
                        begun,
                        (scale, shift),
                        (1.0, scale),
                        (0.0, moved),
                        SQUARE,
                        both | {"c": np.full((3, 3), start)},
                        begun.replace("(c,", "(d,"),
                        {"d": own["c"]},
                    )


def begun(number: str) -> Iterator[Law]:
    """Yield a maximum or a sum of updates that begins with zeros, or with infinities."""
    for reduction in ("max", "add"):
        for scale in (2.0, -2.0, ROW):
            for shift in (0.0, 3.0):
                yield Law(
                    f'ScatterND<reduction = "{reduction}">(o, k, b)',
                    (scale, shift),
                    (1.0, scale),
                    (0.0, shift),
                    SQUARE,
                    {"k": np.array([[0], [2], [1]]), "e": np.array(float(number))},
                    before="n = Shape(x) o = Expand(e, n)",
                )


def placed(name: str) -> Iterator[Law]:
    """Yield an operator that tells where the largest number stands, as floats."""
    number = {"ArgMax": "Cast<to = 11>(i)", "ArgMin": "Cast<to = 11>(i)", "Hardmax": "Identity(i)"}[name]
    axes = {"ArgMax": "<axis = 1>", "ArgMin": "", "Hardmax": ""}[name]
    for scale in (2.0, -2.0, ROW, COLUMN):
        for shift in (0.0, 1.0, ROW, COLUMN):
            for result in ((1.0, 0.0), (scale, shift)):
                yield Law(number, result, (scale, 1.0), (shift, 0.0), SQUARE, before=f"i = {name}{axes}(a)")


def constants_in_places() -> Iterator[Law]:
    """Yield numbers that are chosen at known places, whatever is chosen elsewhere, and products by numbers."""
    places, by = np.array([[True, False, False], [False, True, False], [False, False, True]]), ROW * COLUMN
    for s in (2.0, -2.0, ROW):
        for t in (0.0, 1.0, COLUMN):
            for w, v in ((0.0, 0.0), (0.5, 0.25), (0.0, -1.0)):
                for shift in (np.where(places, w - s * v, t), t, 0.0, w - s * v + 1e-6 + np.zeros((3, 3))):
                    for text, file in (("Where(c, k, a)", "Where(c, v, x)"), ("Where(d, a, k)", "Where(d, x, v)")):
                        known = {"c": places, "d": ~places, "k": np.array(w)}
                        yield Law(text, (s, shift), (s, 1.0), (t, 0.0), SQUARE, known, file, {"v": np.array(v)})
            for text, made in (("Mul(a, k)", t * by), ("Mul(k, a)", t * by), ("Div(a, k)", t / by), ("Div(k, a)", t)):
                for shift in (made, t, 0.0):
                    yield Law(text, (s, shift), (s, 1.0), (t, 0.0), SQUARE, {"k": by})


def powers() -> Iterator[Law]:
    """Yield powers of sizes, and whole ones of numbers of any sign, by scales that are their own powers, or not."""
    sizes = (("Pow(n, k)", 1.5), ("Pow(n, k)", -2.0), ("Sqrt(n)", 0.5), ("Reciprocal(n)", -1.0))
    whole = (("Pow(a, k)", 2.0), ("Pow(a, k)", 3.0), ("Reciprocal(a)", -1.0), ("Pow(a, k)", -2.0))
    for text, exponent in sizes + whole:
        for scale in (2.0, -2.0, ROW, COLUMN):
            for shift in (0.0, 1.0):
                for result in (
                    np.abs(scale) ** exponent,
                    scale,
                    np.abs(scale) ** -exponent,
                    -(np.abs(scale) ** exponent),
                ):
                    known, before = {"k": np.array(exponent)}, "n = Abs(a)" if "n" in text else ""
                    yield Law(text, (result, 0.0), (scale, 1.0), (shift, 0.0), SQUARE, known, before=before)


def signed() -> Iterator[Law]:
    """Yield what is told of the side of a number on which values are."""
    for text, before in (
        ("Sign(a)", ""),
        ("Cast<to = 11>(h)", "h = GreaterOrEqual(a, k)"),
        ("Cast<to = 11>(h)", "h = Less(k, b)"),
    ):
        for number in (0.0, 1.0):
            for scale in (2.0, -2.0, ROW):
                for shift in (0.0, 1.0):
                    for result in (1.0, scale):
                        known = {"k": np.array(number)}
                        yield Law(text, (result, 0.0), (scale, scale), (shift, shift), SQUARE, known, before=before)


BLOCKS = np.repeat([1.0, -3.0], 4).reshape(1, 8, 1)
LAWS: dict[str, list[Law]] = {
    "ReduceLogSumExp": [
        Law("ReduceLogSumExp<keepdims = 1>(a, k)", (scale, t), (scale, 1.0), (t, 0.0), SQUARE, AXIS)
        for scale in (1.0, 2.0) for t in (1.0, ROW, COLUMN)
    ],
    "Col2Im": [
        Law("Col2Im(a, size, block)", (s, t), (rows, 1.0), (t, 0.0), ((1, 8, 3), (1, 8, 3)),
            {"size": np.array([2, 4]), "block": np.array([2, 2])})
        for rows, s in ((2.0, 2.0), (-2.0, -2.0), (BLOCKS, BLOCKS[:, ::4, :, None]),
                        (np.tile([[[1.0], [-3.0]]], (1, 4, 1)), 1.0))
        for t in (0.0, 1.0)
    ],
    "powers": list(powers()),
    "constants in places, and factors": list(constants_in_places()),
    "signs": list(signed()),
    **{name: list(unary(f"{name}(a)")) for name in ("Relu", "LeakyRelu", "Abs")},
    "Softmax": list(unary("Softmax<axis = 1>(a)")) + [
        Law("Softmax<axis = 1>(a)", (1.0, 0.0), shift=(t, 0.0), shapes=SQUARE) for t in (1.0, ROW, COLUMN)
    ],
    "LogSoftmax": [Law("LogSoftmax<axis = 0>(a)", (1.0, 0.0), shift=(t, 0.0), shapes=SQUARE)
                   for t in (1.0, ROW, COLUMN)],
    "PRelu": list(unary("PRelu(a, w)", known={"w": np.array([0.1, 0.2, 0.3])})),
    **{
        name: list(unary(f"{name}<keepdims = 1>(a, k)", known=AXIS))
        for name in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2")
    },
    **{
        f"{name} of shifts that differ": [
            Law(f"{name}<keepdims = 1>(a, k)", (scale, t), (scale, 1.0), (shift, 0.0), SQUARE, AXIS)
            for scale in (1.0, -2.0, ROW, COLUMN) for shift in (ROW, ROW * COLUMN) for t in (0.0, *(
                count * array for count in (1.0, 3.0)
                for array in (shift, shift.sum(1, keepdims=True), shift.mean(1, keepdims=True))))
        ]
        for name in ("ReduceMean", "ReduceSum")
    },
    "Pad": list(unary("Pad(a, p)", known=WIDE))
    + [Law("Pad(a, p)", (2.0, 1.0), (2.0, 1.0), (1.0, 0.0), SQUARE, WIDE, "Pad(a, p, v)", {"v": np.array(v)})
       for v in (-0.5, 0.5, -1.0)]
    + [Law("Pad(a, p)", (1.0 if s is None else framed(s, one), framed(t, edge)), (1.0 if s is None else s, 1.0),
           (t, 0.0), SQUARE, WIDE, "Pad(a, p, v)", {"v": np.array(v)})
       for s, one in ((None, 1.0), (ROW, 1.0), (ROW, 2.0)) for t in (1.0, ROW) for edge in (0.0, -0.5, -1.0)
       for v in (0.0, 0.5)],
    "Pad, mirrored": list(unary('Pad<mode = "reflect">(a, p)', known=WIDE)),
    "Clip": [
        Law("Clip(a, low, high)", (s, t), (s, 1.0), (t, 0.0), SQUARE, ENDS, "Clip(a, l, h)",
            {"l": (low - t) / s, "h": (0.5 - t) / s})
        for s in (2.0, -2.0) for t in (0.0, 1.0) for low in (-0.5, -0.25)
    ],
    "Clip at 0, from below alone": [
        Law("Clip(a, none)", (s, t), (s, 1.0), (t, 0.0), SQUARE, {"none": np.array(low)}, "Clip(a, l)",
            {"l": np.array(file)})
        for s in (2.0, -2.0, ROW, COLUMN) for t in (0.0, 1.0) for low in (0.0, 0.25) for file in (0.0, 0.25)
    ],
    "Max with a constant": [
        Law("Max(a, c)", (s, t), (s, 1.0), (t, 0.0), SQUARE, {"c": np.array(0.25)}, "Max(a, d)", {"d": (c - t) / s})
        for s in (2.0, -2.0, ROW) for t in (0.0, 1.0, COLUMN) for c in (0.25, 0.5)
    ],
    "Where": list(choices("Where(c, a, b)", known={"c": np.array([[True], [False], [True]])}, file="Where(c, x, z)")),
    "Max, one gauge written twice": list(choices("Max(a, b)")),
    "MatMul": list(products()),
    "MatMul with rows of sum one": list(averages("MatMul(p, b)")),
    **{
        f"Einsum with rows of sum one, {text}": list(averages(f'Einsum<equation = "{text}">(p, b)'))
        for text in ("ij,jk->ik", "ij,jk->ki", "ji,jk->ik", "...j,jk->...k", "ij,j...->i...")
    },
    "products by a constant": list(weighed()),
    "MatMul with columns of sum one": list(averages("MatMul(b, p)")),
    "MatMul with turned rows of sum one": list(averages("MatMul(p, b)", turned=True)),
    "Einsum with turned rows of sum one": list(averages('Einsum<equation = "ij,jk->ik">(p, b)', turned=True)),
    **{
        f"ReduceSum along {axis}, rows of sum one": list(averages("ReduceSum(m, k)", product=axis)) for axis in (0, 1)
    },
    "GridSample": list(sampled()),
    **{name: list(pairs(name)) for name in ("Add", "Sub", "Mul", "Div", "Max", "Min")},
    "MaxPool": list(pictures("MaxPool<kernel_shape = [2, 2], pads = [1, 1, 0, 0]>(a)")),
    "AveragePool": list(pictures("AveragePool<kernel_shape = [2, 2], pads = [1, 1, 0, 0]>(a)")),
    "AveragePool, zeros counted": list(
        pictures("AveragePool<kernel_shape = [2, 2], pads = [1, 1, 0, 0], count_include_pad = 1>(a)")
    ),
    "GlobalAveragePool": list(pictures("GlobalAveragePool(a)")),
    "GlobalMaxPool": list(pictures("GlobalMaxPool(a)")),
    "LpPool": list(pictures("LpPool<kernel_shape = [2, 2], pads = [1, 1, 0, 0], p = 3>(a)")),
    "GlobalLpPool": list(pictures("GlobalLpPool(a)")),
    "CumSum": list(unary("CumSum(a, k)", known={"k": np.array(-1)})),
    "Trilu": list(unary("Trilu<upper = 0>(a)")),
    "TopK": [law for many in (2, 3) for law in unary("TopK<axis = 0>(a, k)", known={"k": np.array([many])})],
    **{name: list(placed(name)) for name in ("ArgMax", "ArgMin", "Hardmax")},
    "Compress": list(unary("Compress<axis = 1>(a, k)", known={"k": np.array([True, False, True])})),
    "ReverseSequence": list(unary("ReverseSequence<batch_axis = 0, time_axis = 1>(a, k)",
                                  known={"k": np.array([1, 3, 2])})),
    "Resize": list(pictures('Resize<mode = "linear">(a, , e)', known=DOUBLE)),
    "Resize of channels": list(pictures('Resize<mode = "nearest">(a, , e)', known=CHANNELS)),
    "Transpose": list(unary("Transpose(a)")),
    **{
        f"{text}, fed": list(
            unary(text, known=FED, before="f = Greater(b, o) i = Cast<to = 7>(f) " + more)
        )
        for text, more in PICKED.items()
    },
    "Concat": list(pairs("Concat<axis = 0>")),
    **{f"{text % how}": list(written(text, how)) for text in PLACES for how in ("none", "add", "mul", "max", "min")},
    **{f"begun with {number}": list(begun(number)) for number in ("0", "-inf")},
    "InstanceNormalization": list(norms("InstanceNormalization<epsilon = @>(a, g, h)", PICTURE, CHANNEL)),
    "LayerNormalization": list(norms("LayerNormalization<axis = 1, epsilon = @>(a, g, h)", SQUARE, COLUMN)),
    "LayerNormalization of columns": list(norms("LayerNormalization<axis = 1, epsilon = @>(a, g, h)", SQUARE, ROW)),
}  # fmt: skip


def confirmed(law: Law, source: Side, file: onnx.ModelProto) -> bool:
    """Tell whether the file is confirmed, with the hint that its operator stands for the source's by the gauge."""
    scale, shift = (np.asarray(part, np.float64) for part in law.result)
    hints = Derivation((Hint("q", "r", "", scale, shift), Hint("y", "y")))
    return check_derivation(source, ir.serde.deserialize_model(file), hints, [law.given]).confirmed


_ALL = ["Where", "Max, one gauge written twice", "GridSample", "Concat", "Gather(a, j), fed"]
_ALL += [name for name in LAWS if "of sum one" in name]
"""Whatever agrees is confirmed: a choice, however its gauge is written; an average, with the shift that passes it."""


@pytest.mark.parametrize("name", LAWS)
def test_what_is_confirmed_agrees_in_numbers(name: str):
    found, tried = 0, set[bytes]()
    before = None
    for law in LAWS[name]:
        source, file = law.graphs()
        held = source.SerializeToString(deterministic=True)
        both = held + file.SerializeToString(deterministic=True)
        if both in tried:  # gauges that are written alike
            continue
        tried.add(both)
        if before is None or before[0] != held:
            before = held, Side(ir.serde.deserialize_model(source), [law.given])
        told = confirmed(law, before[1], file)
        found += told
        if told or name in _ALL:
            assert law.agree(source, file) == told, law
    assert found, "nothing was confirmed: the law was not tried"
    assert found < len(tried), "nothing was tried that is wrong"


@pytest.mark.parametrize(("off", "holds"), [(0.0, True), (1e-9, False)])
@pytest.mark.parametrize("product", ["MatMul", "Mul"])
def test_scales_that_undo_each_other_in_real_numbers_leave_a_softmax_as_it_is(product: str, off: float, holds: bool):
    """49 times the float64 nearest to 1/49 is 1 - 2^-53: float64's rounding of the product is no scale."""
    scales = {"up": np.array(49.0), "down": np.array((1 + off) / 49)}
    assert scales["up"] * scales["down"] != 1
    head = '<ir_version: 10, opset_import: ["": 20]> g (double[3,3] x, double[3,3] z) => (double[3,3] y) '
    source = onnx.parser.parse_model(
        f"{head} {{ a = Mul(x, up) b = Mul(z, down) p = {product}(a, b) y = Softmax<axis = -1>(p) }}"
    )
    file = onnx.parser.parse_model(f"{head} {{ p = {product}(x, z) y = Softmax<axis = -1>(p) }}")
    source.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in scales.items())
    hints = Derivation((Hint("p", "p", "", np.ones(()), np.zeros(())), Hint("y", "y")))
    graphs = [ir.serde.deserialize_model(proto) for proto in (source, file)]
    assert check_derivation(*graphs, hints, [{"x": (3, 3), "z": (3, 3)}]).confirmed is holds


@pytest.mark.parametrize(("told", "wrong"), [(1.0, []), (1.001, ["Greater"])])
def test_a_wrong_number_in_a_condition_is_named_though_the_choice_behind_it_is_shifted(told: float, wrong: list[str]):
    head = '<ir_version: 10, opset_import: ["": 20]> g (double[3,4] x, double[3,4] z) => (double[3,4] y) '
    source = onnx.parser.parse_model(
        f"{head} {{ c = Greater(x, k) a = Add(x, t) b = Add(z, t) r = Where(c, a, b) y = Identity(r) }}"
    )
    file = onnx.parser.parse_model(f"{head} {{ c = Greater(x, k) r = Where(c, x, z) y = Add(r, t) }}")
    for model, bound in ((source, 1.0), (file, told)):
        constants = {"k": np.array(bound), "t": np.array(3.0)}
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    hints = Derivation((
        Hint("c", "c"), Hint("r", "r", "", np.ones(()), np.full((), 3.0)), Hint("y", "y"),
    ))  # fmt: skip
    graphs = [ir.serde.deserialize_model(model) for model in (source, file)]
    report = check_derivation(*graphs, hints, [{"x": (3, 4), "z": (3, 4)}])
    assert report.confirmed == (not wrong)
    assert [row.node.op_type for row in report.contradicted] == wrong


@pytest.mark.parametrize(("weights", "wrong"), [("Softmax<axis = 1>(x)", False), ("Sigmoid(x)", True)])
def test_what_differs_beside_rows_of_sum_one_alone_is_not_called_wrong(weights: str, wrong: bool):
    """An average of three factors has no law: it is compared at weights that no Softmax writes."""
    head = '<ir_version: 10, opset_import: ["": 20]> g (double[3,3] x, double[3,3] z) => (double[3,3] y) '
    product = 'Einsum<equation = "ij,jk,k->ik">'
    source = onnx.parser.parse_model(f"{head} {{ p = {weights} a = Add(z, t) y = {product}(p, a, g) }}")
    file = onnx.parser.parse_model(f"{head} {{ p = {weights} q = {product}(p, z, g) y = Add(q, h) }}")
    row = np.array([1.0, 2.0, 3.0])
    for model, constants in ((source, {"t": np.array(3.0), "g": row}), (file, {"g": row, "h": 3 * row})):
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    graphs = [ir.serde.deserialize_model(model) for model in (source, file)]
    report = check_derivation(*graphs, Derivation((Hint("p", "p"), Hint("y", "y"))), [{"x": (3, 3), "z": (3, 3)}])
    assert not report.confirmed
    assert bool(report.contradicted) == wrong


def test_factors_whose_product_no_number_holds_are_no_warning():
    head = '<ir_version: 10, opset_import: ["": 20]> g (double[3] x) => (double[3] y) '
    proto = onnx.parser.parse_model(f"{head} {{ a = Mul(x, c) y = Mul(a, c) }}")
    proto.graph.initializer.append(numpy_helper.from_array(np.array(1e200), "c"))
    graphs = [ir.serde.deserialize_model(proto) for _ in range(2)]
    assert check_derivation(*graphs, unchanged(graphs[0]), [{"x": (3,)}]).confirmed


STATES = {
    "a constant": ("o = Identity(k)", True),
    "filled": ("shape = Shape(x) o = ConstantOfShape(shape)", True),
    "expanded": ("shape = Shape(x) o = Expand(e, shape)", True),
    "a product": ("p = Mul(x, k) o = MatMul(p, z)", True),
    "not zeros": ("o = Identity(i)", False),
    "zeros where x is": ("o = Relu(x)", False),
}


@pytest.mark.parametrize("state", STATES)
def test_zeros_are_of_any_scale_in_a_sum(state: str):
    """A recurrence begins with zeros: what it reads of them was scaled by another number than the rest."""
    text, known = STATES[state]
    head = '<ir_version: 10, opset_import: ["": 20]> g (double[3,3] x, double[3,3] z) => (double[3,3] y) '
    source = onnx.parser.parse_model(
        f"{head} {{ {text} a = Mul(x, two) b = Mul(z, six) m = MatMul(b, o) y = Sub(a, m) }}"
    )
    file = onnx.parser.parse_model(f"{head} {{ {text} m = MatMul(z, o) r = Sub(x, m) y = Mul(r, two) }}")
    numbers = {"two": np.array(2.0), "six": np.array(6.0), "k": np.zeros((3, 3)), "e": np.zeros(()), "i": np.eye(3)}
    for model in (source, file):
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in numbers.items())
    hints = Derivation((Hint("o", "o"), Hint("r", "y", "", np.array(2.0), np.array(0.0)), Hint("y", "y")))
    graphs = [ir.serde.deserialize_model(model) for model in (source, file)]
    report = check_derivation(*graphs, hints, [{"x": (3, 3), "z": (3, 3)}])
    assert report.confirmed == known
    assert bool(report.contradicted) != known
