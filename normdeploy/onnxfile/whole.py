"""A model and its data as one: for a session of onnxruntime, and for converters."""

from __future__ import annotations

import os
from pathlib import Path

import onnx

from normdeploy.errors import GraphError
from normdeploy.files import names_data
from normdeploy.onnxfile.model import read_model
from normdeploy.onnxfile.places import point_to, put_inside
from normdeploy.onnxfile.stored import spell_domains

_DATA_FOLDER = "session.model_external_initializers_file_folder_path"  # onnxruntime's, of a model given as bytes
_SMALL = 4096  # bytes: shapes, axes and the like, which onnxruntime reads in the graph alone


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
