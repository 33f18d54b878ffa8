"""An ONNX file as it was read, once: its structure, its data's places, its digests, a copy of all of it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import uses_external_data

from normdeploy.errors import GraphError
from normdeploy.files import copy_with_digest, open_regular, require_model_file, sha256_file, storage
from normdeploy.onnxfile.light import CONTENT, KEY
from normdeploy.onnxfile.places import Place, find_place
from normdeploy.onnxfile.stored import tensors


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
        return [(t, find_place(self.path, bases, t)) for t in tensors(self.proto) if uses_external_data(t)]

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
