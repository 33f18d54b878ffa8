"""What is read of a file without what reads ONNX agrees with what that reads, or is nothing."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import external_models
import onnx
import pytest
from external_models import FORMS
from hypothesis import given
from hypothesis import strategies as st

from normdeploy.onnxfile.light import KEY, own_digest, with_entry
from normdeploy.onnxfile.model import read_model, set_metadata
from normdeploy.onnxfile.outline import read_outline
from normdeploy.onnxfile.schema import ELEMENTS, EXTERNAL, STRING

NET = '<ir_version: 10, opset_import: ["" : 20]> net (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) }'
WORDS = st.text(max_size=200)


@given(before=st.lists(st.tuples(WORDS, WORDS), max_size=3), value=WORDS, after=st.lists(st.tuples(WORDS, WORDS)))
def test_digest_and_entry_are_those_of_the_parsed_file(
    tmp_path_factory: pytest.TempPathFactory, before: list[tuple[str, str]], value: str, after: list[tuple[str, str]]
) -> None:
    model = onnx.parser.parse_model(NET)
    model.functions.add(name="f", domain="d")  # a field behind the metadata
    others = [(key, text) for key, text in [*before, *after] if key != KEY]
    set_metadata(model, [*others[: len(before)], (KEY, value), *others[len(before) :]])
    path = tmp_path_factory.mktemp("light") / "net.onnx"
    path.write_bytes(model.SerializeToString(deterministic=True))
    assert own_digest(path) == (value, read_model(path).digests()["content"])


def in_another_order(model: onnx.ModelProto) -> bytes:
    """Return a model's bytes with its first fields behind the others, as protobuf allows and does not write."""
    head = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer_name)
    rest = onnx.ModelProto.FromString(model.SerializeToString())
    rest.ClearField("ir_version")
    rest.ClearField("producer_name")
    return rest.SerializeToString() + head.SerializeToString()


def test_what_is_digested_is_the_bytes_as_they_are_and_certifying_leaves_them(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(NET)
    model.producer_name = "another"
    path = tmp_path / "net.onnx"
    content = in_another_order(model)
    assert content != model.SerializeToString(deterministic=True)
    path.write_bytes(content)
    assert read_model(path).digests() == {"content": hashlib.sha256(content).hexdigest()}
    path.write_bytes(with_entry(with_entry(content, "x" * 200), "0" * 64))
    assert path.read_bytes().startswith(content)
    assert path.read_bytes().count(KEY.encode()) == 1
    assert own_digest(path) == ("0" * 64, hashlib.sha256(content).hexdigest())
    again = onnx.ModelProto.FromString(path.read_bytes())
    assert [(entry.key, entry.value) for entry in again.metadata_props] == [(KEY, "0" * 64)]
    # what it says is what it said: written again by protobuf it has the digest of the model that protobuf wrote
    plain = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    assert read_model(path).digests_as_written_again() == {"content": plain}


def test_a_file_that_names_no_certificate(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(NET), tmp_path / "net.onnx")
    assert own_digest(tmp_path / "net.onnx") == (None, read_model(tmp_path / "net.onnx").digests()["content"])


@given(content=st.binary(max_size=60))
def test_any_bytes_are_a_digest_or_nothing(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("light") / "net.onnx"
    path.write_bytes(content)
    found = own_digest(path)
    assert found is None or len(found[1]) == 64


def test_a_file_cut_anywhere_is_never_taken_for_the_whole(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(NET)
    set_metadata(model, [(KEY, "digest")])
    content = model.SerializeToString(deterministic=True)
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    whole = own_digest(path)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert own_digest(path) != whole


def test_the_types_of_elements_are_those_of_onnx() -> None:
    known = {number: name for name, number in onnx.TensorProto.DataType.items() if name not in ("UNDEFINED", "STRING")}
    # an older onnx knows fewer; the newest that is allowed knows them all
    assert known.keys() == {number for number in ELEMENTS if number <= max(known)}
    assert (onnx.TensorProto.EXTERNAL, onnx.TensorProto.STRING) == (EXTERNAL, STRING)
    for number, (name, bits) in ((number, ELEMENTS[number]) for number in known):
        found = onnx.helper.tensor_dtype_to_np_dtype(number)
        assert found.name == name
        digits = re.match(r"\D*(\d+)", name)
        assert name == "bool" or (digits and bits == int(digits[1])), name  # int4, float8_e5m2, complex64


@pytest.mark.parametrize("form", FORMS)
def test_places_are_those_that_onnx_reads_and_the_rest_is_kept(form: str, tmp_path: Path) -> None:
    path = external_models.write(form, tmp_path / "net.onnx")
    light, whole = read_outline(path), read_model(path)
    assert [(t.name, place) for t, place in light.external] == [(t.name, place) for t, place in whole.external]
    kept = onnx.ModelProto.FromString(light.proto.SerializeToString())
    assert kept.SerializeToString(deterministic=True) == whole.proto.SerializeToString(deterministic=True)
