"""A model and its data as one, for converters."""

from __future__ import annotations

import os

import onnx

from normdeploy.errors import GraphError
from normdeploy.onnxfile.data_places import put_inside
from normdeploy.onnxfile.model import read_model
from normdeploy.onnxfile.stored import spell_domains


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
