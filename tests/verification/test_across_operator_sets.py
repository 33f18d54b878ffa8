"""One function in two operator sets: confirmed where operators mean the same there, and told where they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from normdeploy.verification import verify

Write = Callable[..., Path]

X = "g (float[N,4,6] x) => (float[N,4,6] y)"
PICTURE = "g (float[N,4,6,6] x) => (float[N,4,H,W] y)"


@dataclass(frozen=True)
class Case:
    """A graph in an older operator set and in a newer one; ``others`` compute something else there."""

    opset: int
    older: str
    newer: str
    others: tuple[str, ...]


LAST = np.array([-1])
CASES = {
    "mean": Case(
        17, X + "{ m = ReduceMean<axes=[2]>(x) y = Sub(x, m) }", X + "{ m = ReduceMean(x, last) y = Sub(x, m) }",
        (X + "{ m = ReduceMean(x, first) y = Sub(x, m) }", X + "{ m = ReduceMean(x) y = Sub(x, m) }"),
    ),
    "sum": Case(
        11, X + "{ m = ReduceSum<axes=[-1]>(x) y = Add(x, m) }", X + "{ m = ReduceSum(x, last) y = Add(x, m) }",
        (X + "{ m = ReduceSum<noop_with_empty_axes=1>(x) y = Add(x, m) }",),
    ),
    "largest": Case(
        13, X + "{ m = ReduceMax<axes=[2]>(x) y = Sub(x, m) }", X + "{ m = ReduceMax(x, last) y = Sub(x, m) }",
        (X + "{ m = ReduceMax(x, first) y = Sub(x, m) }",),
    ),
    "softmax": Case(
        11, X + "{ y = Softmax<axis=2>(x) }", X + "{ y = Softmax<axis=-1>(x) }", (X + "{ y = Softmax<axis=1>(x) }",)
    ),
    "softmax over all axes behind": Case(
        11, X + "{ f = Flatten<axis=1>(x) s = Softmax<axis=1>(f) y = Reshape(s, whole) }",
        X + "{ f = Flatten<axis=1>(x) s = Softmax<axis=-1>(f) y = Reshape(s, whole) }",
        (X + "{ y = Softmax<axis=1>(x) }",),
    ),
    "average": Case(
        13, PICTURE + "{ y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x) }",
        PICTURE + "{ y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], dilations=[1,1]>(x) }",
        (PICTURE + "{ y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(x) }",),
    ),
    "resize": Case(
        13, PICTURE + '{ y = Resize<mode="linear">(x, , scales) }',
        PICTURE + '{ y = Resize<mode="linear", antialias=0>(x, , scales) }',
        (PICTURE + '{ y = Resize<mode="nearest">(x, , scales) }',),
    ),
    "sampled": Case(
        17, 'g (float[N,4,6,6] x, float[N,3,3,2] p) => (float[N,4,3,3] y) { y = GridSample<mode="bilinear">(x, p) }',
        'g (float[N,4,6,6] x, float[N,3,3,2] p) => (float[N,4,3,3] y) { y = GridSample<mode="linear">(x, p) }',
        ('g (float[N,4,6,6] x, float[N,3,3,2] p) => (float[N,4,3,3] y) { y = GridSample<mode="cubic">(x, p) }',),
    ),
    "recurrent": Case(
        11, "g (float[L,N,6] x) => (float[L,D,N,5] y) { y = GRU<hidden_size=5>(x, w, r, b) }",
        "g (float[L,N,6] x) => (float[L,D,N,5] y) { y = GRU<hidden_size=5, layout=0>(x, w, r, b) }",
        ("g (float[L,N,6] x) => (float[L,D,N,5] y) { y = GRU<hidden_size=5, linear_before_reset=1>(x, w, r, b) }",),
    ),
}  # fmt: skip


def constants() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    drawn = {name: rng.uniform(-0.4, 0.4, shape) for name, shape in (("w", (1, 15, 6)), ("r", (1, 15, 5)))}
    bias = rng.uniform(-0.4, 0.4, (1, 30))
    whole = np.array([-1, 4, 6])
    return {name: array.astype(np.float32) for name, array in {**drawn, "b": bias}.items()} | {
        "last": LAST, "first": np.array([1]), "whole": whole, "scales": np.array([1, 1, 2, 2], np.float32),
    }  # fmt: skip


def written(write: Write, text: str, name: str, opset: int) -> Path:
    known = {key: array for key, array in constants().items() if key in text.replace("(", " ").replace(")", " ")}
    return write(text, name, opset=opset, **known)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_what_means_the_same_is_confirmed_for_every_input(write: Write, case: Case) -> None:
    older, newer = written(write, case.older, "older", case.opset), written(write, case.newer, "newer", 20)
    for one, other in ((older, newer), (newer, older)):
        verdict = verify(one, other, level="quick")
        assert verdict.check("derivation").status == "pass", verdict.check("derivation").detail
        assert verdict.status == "pass", verdict.summary()


@pytest.mark.parametrize(
    ("case", "other"), [(case, other) for case in CASES.values() for other in case.others]
)  # fmt: skip
def test_what_means_something_else_fails(write: Write, case: Case, other: str) -> None:
    older, newer = written(write, case.older, "older", case.opset), written(write, other, "newer", 20)
    for one, file in ((older, newer), (newer, older)):
        verdict = verify(one, file, level="quick")
        assert verdict.check("derivation").status != "pass", verdict.check("derivation").detail
        assert verdict.status == "fail", verdict.summary()
