"""An ONNX file and the data beside it, read once: where its weights lie, what their digests are, a copy of all of it.

The tensors of a model may keep their data in other files ("external data"): the initializers, those of bodies and
functions, and constants in attributes. A file's word for where is not to be trusted: data is read from the model's
folder alone, from regular files that are long enough. One thing reads them all, so that what is judged, digested,
copied and run is the same.

The model's folder is the one the path names and, where the path is a link, the one the file lies in: caches of
downloaded models link to files that lie side by side elsewhere.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from posixpath import normpath
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import uses_external_data

from normdeploy.errors import GraphError
from normdeploy.files import (
    copy_with_digest,
    irregular,
    names_data,
    open_regular,
    require_model_file,
    sha256_file,
    storage,
)

KEY = "normdeploy.certificate"
"""Metadata key of a certificate's digest, the one entry that the content's digest leaves out."""

CONTENT = "content"
"""What the digest of a file's own content is called among the digests of its data."""

_DATA_FOLDER = "session.model_external_initializers_file_folder_path"  # onnxruntime's, of a model given as bytes

_SMALL = 4096  # bytes: shapes, axes and the like, which onnxruntime reads in the graph alone


@dataclass(frozen=True)
class Place:
    """Where the data of one tensor lies.

    Args:
        location: the data file's name from the model's folder, normalized. file: the file itself, links followed.
        offset, length: in bytes.
    """

    location: str
    file: Path
    offset: int
    length: int

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            GraphError: the file became shorter.
        """
        with storage(self.file, "read"), open_regular(self.file) as stream:
            stream.seek(self.offset)
            found = stream.read(self.length)
        if len(found) != self.length:
            raise GraphError(f"{self.file} became shorter while it was read; expected it to stay: try again")
        return found


@dataclass(frozen=True)
class ModelFile:
    """An ONNX file as it was read.

    Args:
        path: where. content: its bytes. proto: what they say.
    """

    path: Path
    content: bytes
    proto: onnx.ModelProto

    @cached_property
    def external(self) -> list[tuple[onnx.TensorProto, Place]]:
        """Every tensor whose data lies outside the file, with the place where it lies.

        Raises:
            GraphError: a place is outside the model's folder, missing, no regular file or too short.
        """
        bases = list(dict.fromkeys((self.path.absolute().parent, self.path.resolve().parent)))
        return [(t, _place(self.path, bases, t)) for t in tensors(self.proto) if uses_external_data(t)]

    @property
    def data(self) -> dict[str, Path]:
        """The data files, by their names from the model's folder."""
        return {place.location: place.file for _, place in sorted(self.external, key=lambda pair: pair[1].location)}

    def copy_to(self, folder: Path) -> Copied:
        """Copy the file and its data into an empty folder, under the names they have.

        Raises:
            StorageError: something cannot be read or written.
        """
        target = folder / self.path.name
        with storage(folder):
            target.write_bytes(self.content)
            digests = {}
            for location, file in self.data.items():
                copy = folder / location
                copy.parent.mkdir(parents=True, exist_ok=True)
                digests[location] = sha256_file(copy) if copy == target else copy_with_digest(file, copy)
        return Copied(target, hashlib.sha256(self.content).hexdigest(), content_digest(self.proto), digests)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of the content (the certificate's entry left out) and of each data file."""
        with storage(self.path, "read"):
            data = {name: sha256_file(file) for name, file in self.data.items()}
        return all_digests(content_digest(self.proto), data)


@dataclass(frozen=True)
class Copied:
    """A copy of a model, and the digests of the very bytes that were copied.

    Args:
        path: of the copy. file: SHA-256 of the file. content: SHA-256 of the content, see `content_digest`.
        data: SHA-256 of each data file.
    """

    path: Path
    file: str
    content: str
    data: dict[str, str]

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of each file, by name."""
        return {self.path.name: self.file} | self.data

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of the content and of each data file: what a certificate holds."""
        return all_digests(self.content, self.data)


def all_digests(content: str, data: dict[str, str]) -> dict[str, str]:
    """Return one table of the content's digest and the data files'."""
    return {CONTENT: content} | {f"./{name}" if name == CONTENT else name: digest for name, digest in data.items()}


def content_digest(proto: onnx.ModelProto) -> str:
    """Return the SHA-256 of a model's content, the entry left out that certifying adds."""
    every = [(entry.key, entry.value) for entry in proto.metadata_props]
    set_metadata(proto, [pair for pair in every if pair[0] != KEY])
    try:
        return hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
    finally:
        set_metadata(proto, every)


def set_metadata(proto: onnx.ModelProto, pairs: list[tuple[str, str]]) -> None:
    """Replace a model's metadata, in this order."""
    del proto.metadata_props[:]
    for key, value in pairs:
        proto.metadata_props.add(key=key, value=value)


def read_model(path: str | os.PathLike[str]) -> ModelFile:
    """Read an ONNX file's own bytes, once; its data stays where it is.

    Raises:
        GraphError: it is missing, no regular file, or is not ONNX.
        StorageError: it cannot be read.
    """
    file = require_model_file(path)
    with storage(file, "read"), open_regular(file) as stream:
        content = stream.read()
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise GraphError(
            f"{file} cannot be read as ONNX ({error}); expected a valid .onnx file: it may be cut short, fetch or "
            "export it again"
        ) from error
    return ModelFile(file, content, proto)


def graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yield the graph, the functions, and the bodies in all of them, however deep."""
    waiting: list[Any] = [proto.graph, *proto.functions]
    for info in proto.training_info:
        waiting += [info.initialization, info.algorithm]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    waiting.append(attribute.g)
                waiting += attribute.graphs


def tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor that a model stores, wherever it does."""
    for graph in graphs(proto):
        if isinstance(graph, onnx.GraphProto):
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                for sparse in (
                    *attribute.sparse_tensors,
                    *([attribute.sparse_tensor] * attribute.HasField("sparse_tensor")),
                ):
                    yield from (sparse.values, sparse.indices)


def element_count(tensor: onnx.TensorProto) -> int:
    """Return the number of elements that a tensor declares.

    Raises:
        GraphError: a size is negative.
    """
    if any(size < 0 for size in tensor.dims):
        raise GraphError(
            f"tensor {tensor.name!r} declares the shape {list(tensor.dims)}; expected sizes of at least 0: the file is "
            "damaged, write it again"
        )
    return prod(tensor.dims)


def stored_bytes(tensor: onnx.TensorProto) -> int:
    """Return how many bytes a tensor of numbers takes by its declared type and shape, in ONNX's raw form.

    Raises:
        GraphError: a size is negative.
    """
    return -(-element_count(tensor) * element_bits(tensor.data_type) // 8)


_PACKED = {"4": ("INT4", "UINT4", "FLOAT4E2M1"), "2": ("INT2", "UINT2"), "6": ("FLOAT6E2M3", "FLOAT6E3M2")}
_PACKED_BITS = {
    onnx.TensorProto.DataType.Value(name): int(bits)
    for bits, names in _PACKED.items()
    for name in names
    if name in onnx.TensorProto.DataType.keys()  # noqa: SIM118 - an enumeration of protobuf, no dict
}


def element_bits(data_type: int) -> int:
    """Return the bits of one element in ONNX's raw form; 0 for strings and for what this onnx does not know."""
    if data_type in _PACKED_BITS:
        return _PACKED_BITS[data_type]
    if data_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return 0
    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize) * 8
    except KeyError:
        return 0


def _place(model: Path, bases: list[Path], tensor: onnx.TensorProto) -> Place:
    """Return where a tensor's data lies, after checking that it may be read and is all there."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    name = entries.get("location", "")
    what = f"{model}: tensor {tensor.name!r} keeps its data in {name!r}"
    location = normpath(name.replace(os.sep, "/")) if name else ""
    if not location or "\0" in location or location == "." or Path(location).is_absolute():
        raise GraphError(f"{what}; expected a file name in the model's folder: write the model again")
    if location == ".." or location.startswith("../"):
        raise GraphError(f"{what}, outside its folder; expected a file in the model's folder: put the data there")
    file = next((base / location for base in bases if os.path.lexists(base / location)), None)
    if file is None or not file.exists():
        raise GraphError(f"{what}, which does not exist in {bases[0]}; expected it there: copy it along with the model")
    real = file.resolve()
    if not any(real.is_relative_to(base.resolve()) for base in bases):
        raise GraphError(
            f"{what}, a link that leads to {real}, outside its folder; expected a file in the model's folder"
        )
    if found := irregular(real):
        raise GraphError(f"{what}, which is {found}; expected a regular file: write the model again")
    needed = stored_bytes(tensor)
    offset, length = _number(what, entries, "offset", 0), _number(what, entries, "length", needed)
    if tensor.data_type == onnx.TensorProto.STRING:
        raise GraphError(f"{what} and holds strings; expected numbers: ONNX keeps strings in the file itself")
    if length != needed:
        raise GraphError(f"{what} in {length} bytes; expected {needed} by its type and shape {list(tensor.dims)}")
    size = real.stat().st_size
    if offset + length > size:
        raise GraphError(
            f"{what} up to byte {offset + length}, and the file ends at {size}; expected the whole file: it may be cut "
            "short, fetch or write it again"
        )
    return Place(location, real, offset, length)


def _number(what: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()):
        raise GraphError(f"{what} with {key} {text!r}; expected a whole number of at least 0: write the model again")
    return int(text)


def session_source(path: str | os.PathLike[str]) -> tuple[str | bytes, dict[str, str]]:
    """Return what to open an onnxruntime session from, the file or bytes, and the session's configuration for it.

    A file without data beside it is opened as it is. Of one with data, the places are checked, and the graph is given
    as bytes: small tensors inside, because onnxruntime infers shapes from what is in the graph alone, and the places
    of the large ones without links, which onnxruntime follows in some cases and not in others.

    Raises:
        GraphError: data that may not be read, is missing or too short.
    """
    if not names_data(path):
        return os.fspath(path), {}
    model = read_model(path)
    if not model.external:
        return os.fspath(path), {}
    folder = Path(os.path.commonpath([place.file.parent for _, place in model.external]))
    for tensor, place in model.external:
        if place.length <= _SMALL:
            put_inside(tensor, place)
        else:
            point_to(tensor, place, place.file.relative_to(folder).as_posix())
    return model.proto.SerializeToString(), {_DATA_FOLDER: str(folder)}


def put_inside(tensor: onnx.TensorProto, place: Place) -> None:
    """Read a tensor's data into the tensor."""
    tensor.raw_data = place.read()
    del tensor.external_data[:]
    tensor.data_location = onnx.TensorProto.DEFAULT


def point_to(tensor: onnx.TensorProto, place: Place, location: str) -> None:
    """Write a tensor's place anew, under another name of the file."""
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", place.offset), ("length", place.length)):
        tensor.external_data.add(key=key, value=str(value))


def pointed(tensor: onnx.TensorProto) -> Place:
    """Return what :func:`point_to` wrote."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return Place(entries["location"], Path(entries["location"]), int(entries["offset"]), int(entries["length"]))


def whole_proto(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Return a model with all its data inside: what converters can read.

    Raises:
        GraphError: it is no readable model, or too large for one protobuf message (2 GiB).
    """
    model = read_model(path)
    total = len(model.content) + sum(place.length for _, place in model.external)
    if total >= onnx.checker.MAXIMUM_PROTOBUF:
        raise GraphError(f"{model.path.name} is {total / 2**30:.1f} GiB; expected less than 2 GiB to be converted")
    for tensor, place in model.external:
        put_inside(tensor, place)
    return model.proto
