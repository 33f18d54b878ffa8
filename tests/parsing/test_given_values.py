"""Values of inputs that the user gave: what is taken, what sizes they say, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from normdeploy.errors import InputError
from normdeploy.parsing.examples import make_example
from normdeploy.parsing.inputs import parse_inputs


class Two(nn.Module):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return x[:, : int(lengths.max())]


class Nested(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0] + pair[1]


SPECS = parse_inputs(["x=float32:batch,time,2", "lengths=int64:batch"])


def test_what_is_given_is_taken_and_the_rest_is_made_of_its_sizes() -> None:
    example = make_example(SPECS, Two(), values={"lengths": np.array([4, 1, 3])})
    named = example.named()
    assert named["lengths"].tolist() == [4, 1, 3]
    assert named["x"].shape[0] == 3
    x = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    named = make_example(SPECS, Two(), values={"x": x}).named()
    torch.testing.assert_close(named["x"], torch.from_numpy(x))
    assert named["lengths"].shape == (3,)


def test_an_array_alone_and_numbers_of_half_the_bits() -> None:
    [spec] = parse_inputs(["x=bfloat16:batch,2"])
    x = np.float32([[1, 2], [3, 4], [5, 6]])
    named = make_example([spec], nn.ReLU(), values=x).named()
    assert named["x"].dtype == torch.bfloat16
    assert named["x"].tolist() == x.tolist()


def test_parts_of_arguments_are_given_by_their_dotted_names() -> None:
    specs = parse_inputs(["pair.0=float32:n", "pair.1=float32:n"])
    example = make_example(specs, Nested(), values={"pair.1": np.ones(4, np.float32)})
    assert [part.shape for part in example.kwargs["pair"]] == [(4,), (4,)]
    assert example.kwargs["pair"][1].tolist() == [1, 1, 1, 1]


X = np.zeros((3, 4, 2), np.float32)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"length": np.array([1])}, r"'length'; expected one of the inputs: x, lengths"),
        (X, r"one array is given for 2 inputs \(x, lengths\); expected arrays by name"),
        ({"lengths": np.int32([1, 2])}, r"'lengths' is int32; expected int64: .*astype\('int64'\)"),
        ({"x": X[0]}, r"'x' has shape \[4, 2\]; expected x=float32:batchxtimex2"),
        ({"x": X[:, :, :1]}, r"'x' has shape \[3, 4, 1\]; expected x="),
        ({"x": X, "lengths": np.array([4, 4])}, r"'batch' is 3 and 2 in what is given; expected one size"),
    ],
)
def test_what_does_not_fit_is_told(values, told: str) -> None:
    with pytest.raises(InputError, match=told):
        make_example(SPECS, Two(), values=values)


def test_a_size_that_was_said_and_another_that_is_given() -> None:
    specs = parse_inputs(["x=float32:batch=2,time,2"])
    with pytest.raises(InputError, match="'batch' is 2 and 3"):
        make_example(specs, nn.ReLU(), values=X)
