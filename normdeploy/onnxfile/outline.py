"""An ONNX file as far as running it asks: where its data lies and what it takes, read without importing onnx."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from normdeploy.errors import GraphError
from normdeploy.files import names_data, open_regular, require_model_file, storage
from normdeploy.onnxfile.data_places import Place, find_places, point_to, put_inside
from normdeploy.onnxfile.named_bytes import Content, NamedBytes
from normdeploy.onnxfile.schema import new_model

_DATA_FOLDER = "session.model_external_initializers_file_folder_path"  # onnxruntime's, of a model given as bytes
_SMALL = 4096  # bytes: shapes, axes and the like, which onnxruntime reads in the graph alone


@dataclass(frozen=True)
class Outline:
    """An ONNX file as it was read.

    Args:
        path: where. content: its bytes. proto: what they say.
    """

    path: Path
    content: Content
    proto: Any

    @cached_property
    def external(self) -> list[tuple[Any, Place]]:
        """Every tensor whose data lies outside the file, with the place where it lies.

        Raises:
            GraphError: a place is outside the model's folder, missing, no regular file or too short.
        """
        return find_places(self.path, self.proto)

    @property
    def data(self) -> dict[str, Path]:
        """The data files, by their names from the model's folder."""
        return {place.location: place.file for _, place in sorted(self.external, key=lambda pair: pair[1].location)}


def read_outline(path: str | os.PathLike[str]) -> Outline:
    """Read an ONNX file's own bytes, once, as far as `normdeploy.onnxfile.schema` describes them.

    Raises:
        GraphError: it is missing, no regular file, or is not ONNX.
        StorageError: it cannot be read.
    """
    proto = new_model()
    file, held = parse_into(proto, path)
    return Outline(file, held.content, proto)


def parse_into(
    proto: Any, path: str | os.PathLike[str], *, read: Callable[[io.BufferedReader], NamedBytes] = NamedBytes.unnamed
) -> tuple[Path, NamedBytes]:
    """Read an ONNX file's own bytes into a message; return its path and the bytes.

    Args:
        proto: gets what they say. path: the file. read: how they are read.

    Raises:
        GraphError: it is missing, no regular file, or is not ONNX.
        StorageError: it cannot be read.
    """
    file = require_model_file(path)
    with storage(file, "read"), open_regular(file) as stream:
        held = read(stream)
    try:
        proto.ParseFromString(held.content)
    except DecodeError as error:
        raise GraphError(
            f"{file} cannot be read as ONNX ({error}); expected a valid .onnx file: it may be cut short, fetch or "
            "export it again"
        ) from error
    return file, held


def session_source(path: str | os.PathLike[str]) -> tuple[str | bytes, dict[str, str]]:
    """Return what to open an onnxruntime session from, the file or bytes, and the session's configuration for it.

    A file without data beside it is opened as it is. Of one with data, the places are checked, and the graph is given
    as bytes: small tensors inside, because onnxruntime infers shapes from what is in the graph alone, and the places
    of the large ones without links, which onnxruntime follows in some cases and not in others.

    Raises:
        GraphError: data that may not be read, is missing or too short; calls or loops that do not end.
    """
    from normdeploy.onnxfile.endless import check_ends

    check_ends(path)
    given = os.fspath(path)
    if not names_data(path):
        return given if _is_utf8(given) else bytes(read_outline(path).content), {}
    model = read_outline(path)
    if not model.external:
        return given if _is_utf8(given) else bytes(model.content), {}
    folder = Path(os.path.commonpath([place.file.parent for _, place in model.external]))
    if not _is_utf8(str(folder)):
        raise GraphError(f"{folder} is no name in UTF-8; expected one, for onnxruntime reads data there: rename it")
    for tensor, place in model.external:
        if place.length <= _SMALL:
            put_inside(tensor, place)
        else:
            point_to(tensor, place, place.file.relative_to(folder).as_posix())
    return model.proto.SerializeToString(), {_DATA_FOLDER: str(folder)}


def _is_utf8(path: str) -> bool:
    """Tell whether onnxruntime can be given a path: a name of other bytes is no text to it."""
    return not any("\udc80" <= letter <= "\udcff" for letter in path)
