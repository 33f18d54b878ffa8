"""``NAME=DTYPE:SHAPE`` and ``KEY=VALUE``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normdeploy.errors import InputError, UsageError
from normdeploy.parsing.examples import make_example
from normdeploy.parsing.inputs import DTYPES, InputSpec, parse_arguments, parse_input, parse_inputs

WORDS = st.from_regex(r"[a-wyz_][a-wyz_0-9]{0,5}", fullmatch=True)
SIZES = st.one_of(st.integers(1, 999), WORDS)


@settings(deadline=None, max_examples=60)
@given(name=WORDS, dtype=st.sampled_from(DTYPES), shape=st.lists(SIZES, max_size=5))
def test_what_is_written_is_what_is_read(name: str, dtype: str, shape: list[int | str]) -> None:
    spec = InputSpec(name, dtype, tuple(shape))
    assert parse_input(str(spec)) == spec


@pytest.mark.parametrize("shape", [("mi", 1), ("max", 3), ("ma", "batch"), ("batch", 3, 224)])
def test_what_an_x_would_tear_is_written_with_commas(shape: tuple[int | str, ...]) -> None:
    spec = InputSpec("x", "float32", shape)
    assert parse_input(str(spec)) == spec
    assert ("," in str(spec)) == (shape[0] != "batch")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("float32:2x3", "NAME=DTYPE:SHAPE"),
        ("x=float32", "NAME=DTYPE:SHAPE"),
        ("2x=float32:2", "NAME=DTYPE:SHAPE"),
        ("x=float:2", "'float'"),
        ("x=float32:2xx3", "''"),
        ("x=float32:0x3", "'0'"),
        ("x=float32:-1x3", "'-1'"),
        ("x=float32:2 x 3", "'2 '"),
        ("x=float32:n=x3", "'n='"),
    ],
)
def test_wrong_inputs_say_where(text: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input(text)
    assert word in str(caught.value)


def test_a_name_given_twice() -> None:
    with pytest.raises(UsageError, match="x is given 2 times"):
        parse_inputs(["x=float32:2", "x=float32:3"])


def test_arguments_are_literals_or_strings() -> None:
    assert parse_arguments(["a=3", "b=0.5", "c=relu", "d=[1, 2]", "e=True", "f="]) == {
        "a": 3, "b": 0.5, "c": "relu", "d": [1, 2], "e": True, "f": "",
    }  # fmt: skip
    for text in ("a", "=3", "a b=3"):
        with pytest.raises(UsageError, match="KEY=VALUE"):
            parse_arguments([text])


class Two(nn.Module):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return ids * mask


def test_examples_have_the_declared_dtypes_and_distinct_dynamic_sizes() -> None:
    specs = parse_inputs(["ids=int64:batchxtokens", "mask=bool:batchxtokens"])
    example = make_example(specs, Two())
    assert example.args == ()
    ids, mask = example.kwargs["ids"], example.kwargs["mask"]
    assert (ids.dtype, mask.dtype) == (torch.int64, torch.bool)
    assert ids.shape == mask.shape
    assert ids.shape[0] == 2
    assert ids.shape[1] > 2
    assert set(example.dynamic_shapes) == {"ids", "mask"}
    assert example.dynamic_shapes["ids"][0] is example.dynamic_shapes["mask"][0]


def test_other_names_are_passed_in_order_at_the_size_asked_for() -> None:
    example = make_example(parse_inputs(["a=float16:nxw=64", "b=bfloat16:nx1"]), Two())
    assert example.kwargs == {}
    assert [tuple(tensor.shape) for tensor in example.args] == [(2, 64), (2, 1)]
    assert [tensor.dtype for tensor in example.args] == [torch.float16, torch.bfloat16]
    assert [sorted(axes) for axes in example.dynamic_shapes] == [[0, 1], [0]]


def test_names_are_either_all_parameters_or_none() -> None:
    with pytest.raises(InputError, match=r"input msk is no parameter.*among ids, mask: did you mean mask\?"):
        make_example(parse_inputs(["ids=float32:2", "msk=float32:2"]), Two())
    with pytest.raises(InputError, match=r"input weights is no parameter.*or none of them"):
        make_example(parse_inputs(["weights=float32:2", "mask=float32:2"]), Two())


def test_a_word_typed_for_one_export_is_a_parameters_name() -> None:
    class Image(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            return image

    for word, remedy in (("imgae", "did you mean image"), ("IMAGE", "did you mean image"), ("y", "name the inputs so")):
        specs = parse_inputs([f"{word}=float32:2"])
        with pytest.raises(InputError, match=rf"input {word} is no parameter of Image.forward.*among image: {remedy}"):
            make_example(specs, Image(), renames=False)
        assert make_example(specs, Image()).input_names == [word]  # a recipe names the graph's inputs
    torchs = nn.Sequential(nn.ReLU())
    assert make_example(parse_inputs(["image=float32:2"]), torchs, renames=False).input_names == ["image"]


def test_too_many_inputs() -> None:
    with pytest.raises(InputError, match=r"3 inputs.*ids, mask"):
        make_example(parse_inputs(["a=float32:2", "b=float32:2", "c=float32:2"]), Two())


class Tree(nn.Module):
    def forward(self, batch: dict[str, Any], pair: tuple[Tensor, Tensor]) -> Tensor:
        return batch["image"] + batch["meta"]["age"] + pair[0] * pair[1]


def test_dots_reach_into_dictionaries_and_tuples() -> None:
    texts = ["pair.1=float32:nx1", "batch.meta.age=float32:nx5", "batch.image=float32:nx5", "pair.0=float64:n"]
    example = make_example(parse_inputs(texts), Tree())
    batch, pair = example.kwargs["batch"], example.kwargs["pair"]
    assert batch["image"].shape == batch["meta"]["age"].shape == (2, 5)
    assert isinstance(pair, tuple)
    assert (pair[0].dtype, tuple(pair[0].shape), tuple(pair[1].shape)) == (torch.float64, (2,), (2, 1))
    assert example.dynamic_shapes["pair"][0].keys() == example.dynamic_shapes["batch"]["meta"]["age"].keys() == {0}
    named = example.named()
    assert set(named) == {"pair_0", "pair_1", "batch_image", "batch_meta_age"}
    assert named["pair_0"] is pair[0]
    assert named["batch_meta_age"] is batch["meta"]["age"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["batch", "batch.image"], "one lies in the other"),
        (["batch.image.x", "batch.image"], "one lies in the other"),
        (["batch", "pair.1", "pair.2"], "pair.0 to pair.1"),
    ],
)
def test_dots_that_contradict_each_other(names: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_example(parse_inputs([f"{name}=float32:2" for name in names]), Tree())


@pytest.mark.parametrize("name", ["0.a", "a..b", ".a", "a.", "a.b-c"])
def test_names_with_dots_are_words_joined_by_dots(name: str) -> None:
    with pytest.raises(UsageError, match="expected NAME=DTYPE:SHAPE"):
        parse_input(f"{name}=float32:2")


def test_a_traced_networks_inputs_are_named_as_its_authors_are() -> None:
    """torch.fx compiles a forward whose ``__module__`` is None; it has the parameters of the one it was traced from."""

    class Image(nn.Module):
        def forward(self, pixels: Tensor) -> Tensor:
            return pixels + 1

    traced = torch.fx.symbolic_trace(Image())
    assert type(traced).forward.__module__ is None
    assert make_example(parse_inputs(["image=float32:2"]), traced).input_names == ["image"]
    assert list(make_example(parse_inputs(["pixels=float32:2"]), traced, renames=False).kwargs) == ["pixels"]
    with pytest.raises(InputError, match=r"input pixel is no parameter of .*did you mean pixels"):
        make_example(parse_inputs(["pixel=float32:2"]), traced, renames=False)
