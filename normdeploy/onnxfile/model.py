"""An ONNX file as it was read, once: its structure, its data's places, its digests, a copy of all of it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from normdeploy.errors import GraphError
from normdeploy.files import copy_with_digest, sha256_file, storage
from normdeploy.onnxfile.data_places import put_inside
from normdeploy.onnxfile.light import KEY, all_digests, own_digest
from normdeploy.onnxfile.named_bytes import NamedBytes
from normdeploy.onnxfile.outline import Outline, parse_into
from normdeploy.onnxfile.stored import graphs, spell_domains

HELD = 256 * 1024**2
"""Bytes up to which a copy is held in memory: beside what reads a model, it is the weights once more."""


@dataclass(frozen=True)
class ModelFile(Outline):
    """An ONNX file as it was read, all of it.

    Args:
        path: where. content: its bytes. proto: what they say. held: the bytes as runtimes may be given them.
    """

    proto: onnx.ModelProto
    held: NamedBytes

    def copy_to(self, folder: Path) -> Copied:
        """Copy the file and its data into an empty folder, under the names they have.

        What keeps all its data itself, ends by its looks and is not large is held in memory, and written where its path
        is asked for: runtimes take its bytes.

        Raises:
            StorageError: something cannot be read or written.
        """
        target = folder / self.path.name
        held = None if self.data or self._turns or len(self.content) > HELD else self.held
        with storage(folder):
            if held is None:
                target.write_bytes(self.content)
            digests = {}
            for location, file in self.data.items():
                copy = folder / location
                copy.parent.mkdir(parents=True, exist_ok=True)
                digests[location] = sha256_file(copy) if copy == target else copy_with_digest(file, copy)
        named, own = self._own
        whole = own if named is None else hashlib.sha256(self.content).hexdigest()
        return Copied(target, whole, own, digests, held)

    @property
    def _turns(self) -> bool:
        """True where a file has to be looked at before it is run: it may go on for ever (:mod:`.endless`)."""
        loops = any(node.op_type == "Loop" for graph in graphs(self.proto) for node in graph.node)
        return loops or bool(self.proto.functions)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of the content (the certificate's entry left out) and of each data file."""
        return all_digests(self._own[1], self._data_digests())

    def digests_as_written_again(self) -> dict[str, str]:
        """Return the same of what the file says, in whatever order its fields are."""
        return all_digests(digest_as_written_again(self.proto), self._data_digests())

    def _data_digests(self) -> dict[str, str]:
        with storage(self.path, "read"):
            return {name: sha256_file(file) for name, file in self.data.items()}

    @cached_property
    def _own(self) -> tuple[str | None, str]:
        """The certificate that the file names, and the digest of its other bytes, each of them as it was read."""
        return own_digest(self.content) or (None, digest_as_written_again(self.proto))


@dataclass(frozen=True)
class Copied:
    """A copy of a model, and the digests of the very bytes that were copied.

    Args:
        target: where it lies, or is written. file: SHA-256 of the file. content: SHA-256 of the content, the
            certificate's entry left out.
        data: SHA-256 of each data file. held: the bytes of a copy in memory; None where the copy is a file.
    """

    target: Path
    file: str
    content: str
    data: dict[str, str]
    held: NamedBytes | None = None

    @cached_property
    def path(self) -> Path:
        """The copy as a file."""
        if self.held is not None:
            with storage(self.target):
                self.target.write_bytes(self.held.content)
        return self.target

    @property
    def runs(self) -> NamedBytes | Path:
        """What runtimes are given."""
        return self.path if self.held is None else self.held

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of each file, by name."""
        return {self.target.name: self.file} | self.data

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of the content and of each data file: what a certificate holds."""
        return all_digests(self.content, self.data)


def digest_as_written_again(proto: onnx.ModelProto) -> str:
    """Return the SHA-256 of a model's content as protobuf writes it, the certificate's entry left out.

    It is that of the bytes (`own_digest`) of a file that protobuf wrote.
    """
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


def read_model(path: str | os.PathLike[str], *, named: bool = False) -> ModelFile:
    """Read an ONNX file's own bytes, once; its data stays where it is.

    Args:
        path: the file. named: where a runtime is to open what was read.

    Raises:
        GraphError: it is missing, no regular file, or is not ONNX.
        StorageError: it cannot be read.
    """
    proto = onnx.ModelProto()
    file, held = parse_into(proto, path, read=NamedBytes.read if named else NamedBytes.unnamed)
    return ModelFile(file, held.content, proto, held)


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
    spell_domains(model.proto, str(model.path))
    return model.proto
