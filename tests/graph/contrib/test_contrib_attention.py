"""Attention and rotary positions of com.microsoft against the kernels."""

from __future__ import annotations

import numpy as np
import pytest
from contrib_kernels import agree, kernel, model, ours
from hypothesis import given, settings
from hypothesis import strategies as st

BATCH, LENGTH, HEADS, SIZE = 2, 4, 2, 4
HIDDEN = HEADS * SIZE


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def masks(kind: str | None, past: int) -> np.ndarray | None:
    total = LENGTH + past
    seen = np.ones((BATCH, total), np.int32)
    if kind == "right":
        seen[0, total - 2 :] = 0
    elif kind == "left":
        seen[0, :2] = 0
    elif kind == "all of a row":
        seen[1] = 0
    elif kind == "ends":
        return np.array([total - 1, total], np.int32)
    elif kind == "ends and starts":
        return np.array([total, total - 1, 2, 0], np.int32)
    elif kind == "square":
        return np.random.default_rng(5).integers(0, 2, (BATCH, LENGTH, total)).astype(np.int32)
    return None if kind is None else seen


KINDS = [None, "right", "left", "all of a row", "ends", "ends and starts", "square"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("past", [0, 3])
def test_attention(kind, unidirectional, past):
    rng = np.random.default_rng(0)
    feeds = {
        "x": floats(rng, BATCH, LENGTH, 6),
        "w": floats(rng, 6, 3 * HIDDEN),
        "b": floats(rng, 3 * HIDDEN),
        "mask": masks(kind, past),
        "past": floats(rng, 2, BATCH, HEADS, past, SIZE) if past else None,
    }
    # scores of -10000 and a bit keep three digits of the bit in float32
    rough = {"rtol": 1e-3} if kind in ("all of a row", "left", "ends and starts", "square") else {}
    agree("Attention", feeds, outputs=2, num_heads=HEADS, unidirectional=unidirectional, **rough)


@given(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([-1000.0, -3.0]),
    st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_attention_of_other_sizes_scales_and_fillings(seed, bias, scale, filled, narrow):
    rng = np.random.default_rng(seed)
    sizes = [HIDDEN, HIDDEN, 6] if narrow else [HIDDEN] * 3
    feeds = {
        "x": floats(rng, BATCH, LENGTH, 5),
        "w": floats(rng, 5, sum(sizes)),
        "b": floats(rng, sum(sizes)),
        "mask": rng.integers(0, 2, (BATCH, LENGTH)).astype(np.int32),
        "past": None,
        "bias": floats(rng, 1, HEADS, LENGTH, LENGTH) if bias else None,
    }
    attributes = {"scale": scale} if scale else {}
    attributes |= {"qkv_hidden_sizes": sizes} if narrow else {}
    agree("Attention", feeds, num_heads=HEADS, mask_filter_value=filled, **attributes)


@pytest.mark.parametrize("by_heads", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", [None, "right", "ends", "square"])
def test_multi_head_attention(by_heads, bias, kind):
    rng = np.random.default_rng(1)
    other = (BATCH, HEADS, LENGTH, SIZE) if by_heads else (BATCH, LENGTH, HIDDEN)
    feeds = {"q": floats(rng, BATCH, LENGTH, HIDDEN), "k": floats(rng, *other), "v": floats(rng, *other)}
    feeds |= {"b": floats(rng, 3 * HIDDEN) if bias else None, "mask": masks(kind, 0)}
    agree("MultiHeadAttention", feeds, num_heads=HEADS)


@pytest.mark.parametrize("form", ["all", "keys and values"])
def test_what_is_packed_is_what_it_is_apart(form):
    """The kernel takes no packed values: ours are held against what it makes of them apart."""
    rng = np.random.default_rng(1)
    q, k, v = (floats(rng, BATCH, LENGTH, HEADS, SIZE) for _ in range(3))
    mask = masks("right", 0)
    apart = {"q": q, "k": k, "v": v}
    apart = {name: value.reshape(BATCH, LENGTH, HIDDEN) for name, value in apart.items()} | {"b": None, "mask": mask}
    [expected] = kernel(model("MultiHeadAttention", apart, num_heads=HEADS), apart)
    if form == "all":
        packed = {"q": np.stack([q, k, v], axis=3), "k": None}
    else:
        packed = {"q": apart["q"], "k": np.stack([k, v], axis=3)}
    packed |= {"v": None, "b": None, "mask": mask}
    [got] = ours(model("MultiHeadAttention", packed, num_heads=HEADS), packed)
    np.testing.assert_allclose(expected, got, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("narrow", [False, True])
def test_multi_head_attention_with_past_bias_and_order(past, unidirectional, narrow):
    if past and narrow:
        pytest.skip("the kernel takes past values of the keys' size only")
    rng = np.random.default_rng(2)
    total, width = LENGTH + past, 6 if narrow else HIDDEN
    feeds = {
        "q": floats(rng, BATCH, LENGTH, HIDDEN),
        "k": floats(rng, BATCH, LENGTH, HIDDEN),
        "v": floats(rng, BATCH, LENGTH, width),
        "b": floats(rng, 2 * HIDDEN + width),
        "mask": None,
        "bias": floats(rng, 1, 1, LENGTH, total),
        "pk": floats(rng, BATCH, HEADS, past, SIZE) if past else None,
        "pv": floats(rng, BATCH, HEADS, past, width // HEADS) if past else None,
    }
    agree("MultiHeadAttention", feeds, outputs=3, num_heads=HEADS, unidirectional=unidirectional, scale=0.4)


def test_attention_across_lengths():
    rng = np.random.default_rng(3)
    feeds = {"q": floats(rng, BATCH, 3, HIDDEN), "k": floats(rng, BATCH, 5, HIDDEN), "v": floats(rng, BATCH, 5, HIDDEN)}
    agree("MultiHeadAttention", feeds, num_heads=HEADS)


def angles(rng: np.random.Generator, pairs: int) -> dict[str, np.ndarray]:
    turn = rng.uniform(0, 6, (16, pairs))
    return {"cos": np.cos(turn).astype(np.float32), "sin": np.sin(turn).astype(np.float32)}


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("by_heads", [False, True])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("part", [False, True])
def test_rotary_positions(interleaved, by_heads, offset, part):
    rng = np.random.default_rng(4)
    shape = (BATCH, HEADS, LENGTH, SIZE) if by_heads else (BATCH, LENGTH, HIDDEN)
    places = np.array([3]) if offset else rng.integers(0, 16, (BATCH, LENGTH))
    feeds = {"x": floats(rng, *shape), "places": places} | angles(rng, 1 if part else SIZE // 2)
    attributes = {"num_heads": HEADS, "rotary_embedding_dim": 2} if part else {}
    agree("RotaryEmbedding", feeds, interleaved=interleaved, **attributes)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [None, 0, 1])
@pytest.mark.parametrize("past", [0, 3])
def test_attention_in_groups(packed, rotary, past):
    rng, few = np.random.default_rng(5), 2
    many, length, size = 4, (1 if past else LENGTH), 16
    q, k, v = (floats(rng, BATCH, length, n * size) for n in (many, few, few))
    total = past + length
    feeds = {
        "q": np.concatenate([q, k, v], axis=-1) if packed else q,
        "k": None if packed else k,
        "v": None if packed else v,
        "pk": floats(rng, BATCH, few, past, size) if past else None,
        "pv": floats(rng, BATCH, few, past, size) if past else None,
        "ends": np.full(BATCH, total - 1, np.int32),
        "total": np.array(total, np.int32),
    }
    if rotary is not None:
        feeds |= angles(rng, size // 2)
    agree(
        "GroupQueryAttention", feeds, outputs=3, num_heads=many, kv_num_heads=few,
        do_rotary=int(rotary is not None), rotary_interleaved=rotary or 0,
    )  # fmt: skip


@pytest.mark.parametrize("attributes", [{"softcap": 2.0}, {"local_window_size": 2}, {"scale": 0.2}])
def test_attention_in_groups_with_caps_windows_and_scales(attributes):
    rng = np.random.default_rng(6)
    feeds = {"q": floats(rng, BATCH, 5, 64), "k": floats(rng, BATCH, 5, 32), "v": floats(rng, BATCH, 5, 32)}
    feeds |= {"pk": None, "pv": None, "ends": np.full(BATCH, 4, np.int32), "total": np.array(5, np.int32)}
    agree("GroupQueryAttention", feeds, outputs=3, num_heads=4, kv_num_heads=2, **attributes)
