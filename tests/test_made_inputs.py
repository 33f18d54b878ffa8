"""Inputs made from what a model declares: types, sizes, what integers and masks may hold, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from normdeploy.errors import InputError, UsageError
from normdeploy.ort.made_inputs import make_inputs
from normdeploy.ort.specs import TensorSpec


def size_of(spec: TensorSpec, axis: int) -> int:
    return {"rows": 40, None: 5}[spec.shape[axis]]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", "int8", "uint16", "int64", "bool"])
def test_every_type_has_its_own_numbers(dtype: str) -> None:
    made = make_inputs([TensorSpec("x", dtype, ("rows", None, 3))], size_of)["x"]
    assert made.dtype.name == dtype
    assert made.shape == (40, 5, 3)
    numbers = made.astype(np.float64)
    if "float" in dtype:
        assert abs(numbers.mean()) < 0.2
        assert 0.8 < numbers.std() < 1.2
    else:
        assert set(numbers.reshape(-1)) == {0, 1}


def test_a_seed_gives_the_same_inputs_and_another_others() -> None:
    specs = [TensorSpec("x", "float32", (2, 3)), TensorSpec("i", "int64", (9,))]
    first, again, other = (make_inputs(specs, size_of, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["x"], other["x"])


def test_masks_and_ids_hold_what_they_may() -> None:
    names = ("mask", "flag", "word", "x")
    specs = [
        TensorSpec(name, dtype, (400,))
        for name, dtype in zip(names, ("float32", "bool", "int32", "float32"), strict=True)
    ]
    made = make_inputs(specs, size_of, ones={"mask": 0.7, "flag": 1.0}, ids={"word": 30})
    assert set(made["mask"].tolist()) == {0.0, 1.0}
    assert 0.6 < made["mask"].mean() < 0.8
    assert made["flag"].all()
    assert set(made["word"].tolist()) == set(range(30))
    assert len(set(made["x"].tolist())) > 300


def test_text_and_what_no_memory_holds_are_refused() -> None:
    with pytest.raises(UsageError, match="texts cannot be made up"):
        make_inputs([TensorSpec("words", "object", (2,))], size_of)
    with pytest.raises(InputError, match="input 'x' has the shape"):
        make_inputs([TensorSpec("x", "float32", (1 << 40, 1 << 10))], size_of)
    with pytest.raises(InputError, match="input 'x' has the shape"):
        make_inputs([TensorSpec("x", "float32", (1 << 40, 0, 1 << 30))], size_of)  # no element, and NumPy refuses it
    assert make_inputs([TensorSpec("x", "float32", (4, 0, 3))], size_of)["x"].shape == (4, 0, 3)
