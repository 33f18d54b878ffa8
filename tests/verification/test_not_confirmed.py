"""Damaged files: none is confirmed, whatever hints there are, and the right file beside each one is."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from damaged_bodies import BODIES
from damaged_operators import OPERATORS
from damaged_pairs import Pair
from damaged_sizes import SIZES
from onnxruntime_outputs import run_onnxruntime

from normdeploy.graph.derivation import Derivation
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.hints import unchanged

PAIRS = [*OPERATORS, *SIZES, *BODIES]
DAMAGES = [pytest.param(one, wrong, id=f"{one.name}: {wrong[:40]}") for one in PAIRS for wrong in one.wrong]


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """Return what onnxruntime makes of a file; None where it refuses these sizes."""
    try:
        return run_onnxruntime(proto, feeds, plainly=True)
    except ort.capi.onnxruntime_pybind11_state.OnnxRuntimeException:
        return None


def alike(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape or a.dtype.kind != "f":
        return np.array_equal(a, b)
    return np.allclose(a, b, rtol=3e-8, atol=0.0, equal_nan=True)


def confirmed(one: Pair, reading: str) -> list[bool]:
    """Tell whether a file is confirmed without hints, and with those of a file that is as the source was."""
    source, file = (ir.serde.deserialize_model(one.model(said)) for said in (one.right, reading))
    hints, sizes = (Derivation(), unchanged(source)), one.assignments()
    ours = Side(source, sizes)
    theirs = Side(file, ours.followed, beside=ours)
    return [check_derivation(ours, theirs, given, sizes).confirmed for given in hints]


@pytest.mark.parametrize("one", PAIRS, ids=lambda one: one.name)
def test_the_right_file_is_confirmed(one: Pair):
    assert all(confirmed(one, one.right))


@pytest.mark.parametrize(("one", "wrong"), DAMAGES)
def test_the_damaged_file_computes_something_else(one: Pair, wrong: str):
    """By onnxruntime: without it, what is not confirmed might be right."""
    for seed in range(5):
        for feeds in one.feeds(seed):
            want, have = run(one.model(one.right), feeds), run(one.model(wrong), feeds)
            assert want is not None
            if have is None or not all(map(alike, want, have)):
                return
    raise AssertionError("they compute the same")


@pytest.mark.parametrize(("one", "wrong"), DAMAGES)
def test_the_damaged_file_is_not_confirmed(one: Pair, wrong: str):
    assert not any(confirmed(one, wrong))
