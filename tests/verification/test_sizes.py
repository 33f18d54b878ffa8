"""Sizes that no example shows: large batches, long sequences, two dimensions at once; and files of fixed size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.verification import verify

Write = Callable[..., Path]

PLAIN = "g (float[N,L,4] x) => (float[N,L,4] y) { y = Mul(x, half) }"
"""Damaged where a condition of the sizes holds."""
DAMAGED = """g (float[N,L,4] x) => (float[N,L,4] y) {
    s = Shape(x) n = Slice(s, c0, c1) l = Slice(s, c1, c2) %s
    f = Cast<to=1>(bad) t = Mul(f, tiny) z = Mul(x, half) w = Add(one, t) y = Mul(z, w) }"""
KNOWN = {"half": np.float32(0.5), "one": np.float32(1), "tiny": np.float32(1e-3)} | {
    f"c{i}": np.array([i]) for i in range(3)
}


@pytest.mark.parametrize(
    "condition",
    [
        "bad = Greater(n, most)",
        "bad = Greater(l, longest)",
        "a = Greater(n, n0) b = Greater(l0, l) bad = And(a, b)",
        "a = Greater(n0, n) b = Greater(l, l0) bad = And(a, b)",
    ],
    ids=["batch above 8", "three times as long", "more rows and shorter", "fewer rows and longer"],
)
@pytest.mark.parametrize("heavy", [False, True])
def test_what_is_wrong_at_other_sizes_alone_is_found(
    condition: str, heavy: bool, write: Write, monkeypatch: pytest.MonkeyPatch
):
    from dataclasses import replace

    from normdeploy.verification.check_levels import LEVELS

    if heavy:
        monkeypatch.setitem(LEVELS, "default", replace(LEVELS["default"], heavy=-1.0))
    limits = {"most": 8, "longest": 15, "n0": 5, "l0": 6}
    limits = {name: np.array([n]) for name, n in limits.items() if f" {name}" in condition or f"({name}" in condition}
    reference = write(PLAIN, "a", half=KNOWN["half"])
    damaged = write(DAMAGED % condition, "b", **KNOWN, **limits)
    example = {"x": np.random.default_rng(0).standard_normal((5, 6, 4)).astype(np.float32)}
    assert verify(reference, damaged, args=example, level="quick").status == "fail"
    assert verify(reference, reference, args=example).status == "pass"


class Mixing(nn.Module):
    """Rows know of each other: many rows are not so many samples."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_rows_that_depend_on_each_other_are_evaluated_together(tmp_path: Path):
    result = nd.export(Mixing(), torch.randn(2, 4), tmp_path / "net.onnx")
    assert result.verdict is not None
    assert result.verdict.check("dynamic").status == "pass", result.verdict.summary()


def test_a_file_of_fixed_size_is_fed_that_size(tmp_path: Path):
    """What export wrote and passed, verify passes: it feeds no batch that the file does not declare."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LayerNorm(144)).eval()
    x = torch.randn(2, 2, 8, 8)
    result = nd.export(model, x, tmp_path / "net.onnx", dynamic_shapes={"input": {}})
    assert result.verdict is not None
    assert result.verdict.status == "pass"
    verdict = nd.verify(model, tmp_path / "net.onnx", args=x)
    assert verdict.status == "pass", verdict.summary()
    assert any("fixed" in text for text in verdict.not_checked)


@pytest.mark.parametrize("asked", [False, True])
def test_a_size_that_is_asked_to_be_dynamic_may_not_be_fixed(asked: bool, tmp_path: Path) -> None:
    model, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    nd.export(model, x, tmp_path / "net.onnx", dynamic_shapes={"input": {}}, verify=False)
    shapes = {"input": {0: torch.export.Dim("rows")}} if asked else None
    verdict = verify(model, tmp_path / "net.onnx", args=x, dynamic_shapes=shapes, level="quick")
    assert verdict.status == ("fail" if asked else "pass"), verdict.summary()
    assert asked == any("with size 2 along axis 0 alone; expected any size" in text for text in verdict.reasons)


def test_a_file_that_fixes_what_its_reference_leaves_open_is_fed_that_size(write: Write):
    reference = write("g (float[N,L,4] x) => (float[N,L,4] y) { y = Neg(x) }", "a")
    fixed = write("g (float[3,L,4] x) => (float[3,L,4] y) { y = Neg(x) }", "b")
    example = {"x": np.ones((3, 6, 4), np.float32)}
    verdict = verify(reference, fixed, args=example)
    assert verdict.status == "pass", verdict.summary()
