"""DeformConv: each tap is read beside its place, linearly between four pixels, zeros outside."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from normdeploy.graph import Evaluator


def read(picture: Any, y: float, x: float) -> float:
    """Read a picture between its pixels."""
    total = 0.0
    for row in (int(np.floor(y)), int(np.floor(y)) + 1):
        for column in (int(np.floor(x)), int(np.floor(x)) + 1):
            if 0 <= row < picture.shape[0] and 0 <= column < picture.shape[1]:
                total += (1 - abs(y - row)) * (1 - abs(x - column)) * picture[row, column]
    return total


def by_hand(x: Any, w: Any, offset: Any, b: Any, mask: Any, *, strides: Any, dilations: Any, pads: Any) -> Any:
    """Sum tap by tap; groups of channels and of offsets are as many as the shapes say."""
    inside, taps = x.shape[1], w.shape[2:]
    groups, given = inside // w.shape[1], offset.shape[1] // (2 * taps[0] * taps[1])
    y = np.zeros((x.shape[0], w.shape[0], *offset.shape[2:])) + b[:, None, None]
    for n, out, i, j in product(*map(range, y.shape)):
        first = out // (w.shape[0] // groups) * w.shape[1]
        for c, p, q in product(*map(range, w.shape[1:])):
            tap = ((first + c) // (inside // given) * taps[0] + p) * taps[1] + q
            row = i * strides[0] - pads[0] + p * dilations[0] + offset[n, 2 * tap, i, j]
            column = j * strides[1] - pads[1] + q * dilations[1] + offset[n, 2 * tap + 1, i, j]
            y[n, out, i, j] += w[out, c, p, q] * mask[n, tap, i, j] * read(x[n, first + c], row, column)
    return y


def run(feeds: dict[str, Any], groups: int, given: int, **attributes: list[int]) -> Any:
    said = "".join(f", {name} = {value}" for name, value in attributes.items())
    inputs = ", ".join(f"double[{','.join(map(str, value.shape))}] {name}" for name, value in feeds.items())
    words = [name if name in feeds else '""' for name in ("x", "w", "o", "b", "m")]
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 19]> f ({inputs}) => (double[n,c,h,v] y) '
        f"{{ y = DeformConv<group = {groups}, offset_group = {given}{said}>({', '.join(words)}) }}"
    )
    (found,) = Evaluator(ir.from_proto(model)).run(feeds).values()
    return found.numpy()


SITUATIONS = {
    "plain": (1, 1, [1, 1], [1, 1], [0, 0, 0, 0]),
    "groups": (2, 1, [1, 2], [1, 1], [1, 0, 1, 0]),
    "groups of offsets": (1, 2, [2, 1], [2, 1], [1, 2, 0, 1]),
    "both": (2, 4, [1, 1], [1, 2], [0, 1, 2, 2]),
}


@pytest.mark.parametrize("whole", [False, True])  # at pixels, or between
@pytest.mark.parametrize("name", SITUATIONS)
def test_it_sums_what_its_taps_read(name: str, whole: bool) -> None:
    groups, given, strides, dilations, pads = SITUATIONS[name]
    rng = np.random.default_rng(0)
    shown = [
        (size + pads[axis] + pads[axis + 2] - dilations[axis] * (taps - 1) - 1) // strides[axis] + 1
        for axis, (size, taps) in enumerate(((5, 2), (6, 3)))
    ]
    x, w, b = rng.normal(size=(2, 4, 5, 6)), rng.normal(size=(6, 4 // groups, 2, 3)), rng.normal(size=6)
    offset = rng.normal(size=(2, given * 12, *shown)) * 3
    mask = rng.normal(size=(2, given * 6, *shown))
    if whole:
        offset = np.round(offset)
    kinds = {"strides": strides, "dilations": dilations, "pads": pads}
    found = run({"x": x, "w": w, "o": offset, "b": b, "m": mask}, groups, given, kernel_shape=[2, 3], **kinds)
    np.testing.assert_allclose(found, by_hand(x, w, offset, b, mask, **kinds), rtol=1e-12, atol=1e-12)
    found = run({"x": x, "w": w, "o": offset}, groups, given, **kinds)
    want = by_hand(x, w, offset, np.zeros(6), np.ones_like(mask), **kinds)
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-12)


def test_what_is_outside_is_zero_however_far_and_beside_whatever() -> None:
    x, w = np.full((1, 1, 1, 3), np.inf), np.ones((1, 1, 1, 1))
    away = np.array([[-1.0, 0, 0], [1, 0, 0], [0, -1, 0], [0, 0, 1], [-np.inf, 0, 0], [1e300, 0, 0]])
    for up, left, right in away:
        offset = np.zeros((1, 2, 1, 3))
        offset[0, 0], offset[0, 1, 0, 0], offset[0, 1, 0, 2] = up, left, right
        (found,) = run({"x": x, "w": w, "o": offset}, 1, 1)[0, 0]
        outside = [bool(up) or bool(left), bool(up), bool(up) or bool(right)]
        assert [value == 0 for value in found] == outside
    offset = np.zeros((1, 2, 1, 3))
    offset[0, 1, 0, 1] = np.nan
    (found,) = run({"x": np.ones_like(x), "w": w, "o": offset}, 1, 1)[0, 0]
    assert list(np.isnan(found)) == [False, True, False]
