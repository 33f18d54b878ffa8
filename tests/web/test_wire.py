"""Tensors as bytes: every type, shape and name comes back as it was; the layout is as it is described."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from normdeploy.errors import GraphError
from normdeploy.web.wire import TYPES, pack, unpack

_NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name.isprintable())
_ARRAYS = st.sampled_from(TYPES).flatmap(
    lambda name: hnp.arrays(np.dtype(name), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)


@given(st.dictionaries(_NAMES, _ARRAYS, max_size=5))
def test_what_is_packed_comes_back_bit_by_bit(arrays: dict[str, np.ndarray]) -> None:
    found = unpack(pack(arrays))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_the_layout_is_the_described_one() -> None:
    content = pack({"x": np.array([1, 2], np.int16), "é": np.array(2.5, np.float64)})
    (length,) = struct.unpack("<I", content[:4])
    entries = json.loads(content[4 : 4 + length])
    start = -(-(4 + length) // 8) * 8
    assert entries == [
        {"name": "x", "type": "int16", "shape": [2], "offset": 0, "bytes": 4},
        {"name": "é", "type": "float64", "shape": [], "offset": 8, "bytes": 8},
    ]
    assert content[start:] == struct.pack("<hh", 1, 2) + bytes(4) + struct.pack("<d", 2.5)


def test_arrays_that_do_not_lie_in_order_are_put_in_order() -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    assert unpack(pack({"x": array}))["x"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("array", [np.array(["a"], object), np.array([1j], np.complex64)])
def test_a_type_that_the_runtime_has_not_is_refused(array: np.ndarray) -> None:
    with pytest.raises(GraphError, match="expected one of float32"):
        pack({"x": array})


@pytest.mark.parametrize(
    "content",
    [b"", b"\x01", struct.pack("<I", 2) + b"{", struct.pack("<I", 9) + b'[{"a": 1}]', b"nothing of the kind"],
)
def test_what_is_no_list_of_tensors_is_refused(content: bytes) -> None:
    with pytest.raises(GraphError, match="no list of tensors"):
        unpack(content)


def test_bytes_that_end_early_are_refused() -> None:
    with pytest.raises(GraphError, match="no list of tensors"):
        unpack(pack({"x": np.ones(4, np.float32)})[:-8])
