from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.errors import InputError, VerificationError
from normdeploy.verification.record.answers import Status
from normdeploy.verification.sides.exact_agreement import exact_differences, nonfinite_problems, signature_problems


def test_missing_and_extra_outputs_are_counted():
    two, one = [np.zeros(2, np.float32)] * 2, [np.zeros(2, np.float32)]
    assert "returns 1 outputs" in signature_problems(two, one, ["a", "b"])[0]
    assert "returns 2 outputs" in signature_problems(one, two, ["a", "b"])[0]
    assert signature_problems(two, two, ["a", "b"]) == []


def test_shapes_that_would_broadcast_and_other_dtypes_are_differences():
    a = np.zeros((4, 1), np.float32)
    assert "shape (4,)" in signature_problems([a], [np.zeros(4, np.float32)], ["y"])[0]
    assert "dtype float64" in signature_problems([a], [a.astype(np.float64)], ["y"])[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["file", "reference"])
def test_a_nonfinite_value_on_one_side_fails(value: float, side: str):
    clean, other = np.ones((2, 3)), np.ones((2, 3))
    other[1, 2] = value
    truth, got = (clean, other) if side == "file" else (other, clean)
    failures, _, finite = nonfinite_problems(truth, truth, got.astype(np.float32), "y")
    assert len(failures) == 1
    assert "[1, 2]" in failures[0]
    assert not finite[1, 2]


def test_infinities_of_other_sign_fail_and_equal_ones_do_not():
    plus, minus = np.array([np.inf, 1.0]), np.array([-np.inf, 1.0])
    assert nonfinite_problems(plus, plus, minus.astype(np.float32), "y")[0]
    assert not nonfinite_problems(plus, plus, plus.astype(np.float32), "y")[0]


def test_a_float32_overflow_that_eager_shares_is_no_logic_error():
    truth, eager = np.array([1e39, 1.0]), np.array([np.inf, 1.0], np.float32)
    assert not nonfinite_problems(truth, eager, eager, "y")[0]


def test_eager_alone_failing_is_a_note_not_a_failure():
    truth, eager = np.array([2.0]), np.array([np.nan], np.float32)
    failures, notes, finite = nonfinite_problems(truth, eager, np.array([2.0], np.float32), "y")
    assert not failures
    assert "eager itself" in notes[0]
    assert not finite.any()


def test_unsigned_integers_do_not_wrap():
    # 0 - 255 is 1 in uint8: a subtraction with a tolerance of 1 would let this pass
    different = exact_differences(np.array([0, 7], np.uint8), np.array([255, 7], np.uint8))
    assert different.tolist() == [True, False]


def test_the_int64_extremes_are_compared_as_integers():
    a = np.array([2**63 - 1], np.int64)
    assert exact_differences(a, a - 1).all()  # equal as float64


@pytest.mark.parametrize(("dtype", "named"), [(torch.bfloat16, "bfloat16"), (torch.float64, "float64")])
def test_a_type_that_the_runtime_has_few_operators_for_is_named_with_what_to_do(dtype, named, tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(dtype).eval()
    with pytest.raises(VerificationError, match=rf"computes in {named}, .*: export model\.float\(\)") as caught:
        nd.export(model, torch.randn(2, 3, 8, 8, dtype=dtype), tmp_path / "net.onnx", verify="quick")
    assert ("autocast" in str(caught.value)) is (dtype is torch.bfloat16)  # it makes no float64


class Autocast(nn.Module):
    """Weights in float32; its own forward asks for another type."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.first(x)
        out: torch.Tensor = self.last(y.float())
        return out


class Sizes(nn.Module):
    """Takes complex numbers."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z.abs() * 2


class SizesOfPairs(Sizes):
    """The same, as the message for the one above says."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.view_as_complex(z))


def test_a_complex_input_is_refused_with_what_the_file_takes_instead(tmp_path):
    z = torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=r"'z' has dtype complex64; .*pairs of real ones.*view_as_complex"):
        nd.export(Sizes().eval(), z, tmp_path / "net.onnx", verify="quick")
    pairs = nd.export(SizesOfPairs().eval(), torch.view_as_real(z), tmp_path / "pairs.onnx", verify="quick")
    assert pairs.verdict is not None
    assert pairs.verdict.status is Status.PASS


def test_autocast_in_forward_is_named_where_it_is_what_the_runtime_cannot_run(tmp_path):
    with pytest.raises(VerificationError, match=r"computes in bfloat16, .*no torch\.autocast in its forward"):
        nd.export(Autocast().eval(), torch.randn(2, 4), tmp_path / "net.onnx", verify="quick")
