"""The part of ONNX's schema that says where tensors lie and what a graph takes: read without importing onnx.

The messages are described here by the numbers of their fields (onnx.proto, which never gives a number to another
field). What is not described is kept as it was read, so that a model that is changed here is otherwise the same.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from normdeploy.onnxfile.named_bytes import Content

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
}
# message: {field: (number, type)}; "*" repeats
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Entry": {"key": (1, "string"), "value": (2, "string")},
    "Tensor": {
        "dims": (1, "*int64"),
        "data_type": (2, "int32"),
        "name": (8, "string"),
        "raw_data": (9, "bytes"),
        "external_data": (13, "*Entry"),
        "data_location": (14, "int32"),
    },
    "Sparse": {"values": (1, "Tensor"), "indices": (2, "Tensor")},
    "Attribute": {
        "t": (5, "Tensor"),
        "g": (6, "Graph"),
        "tensors": (10, "*Tensor"),
        "graphs": (11, "*Graph"),
        "sparse_tensor": (22, "Sparse"),
        "sparse_tensors": (23, "*Sparse"),
    },
    "Node": {
        "input": (1, "*string"),
        "output": (2, "*string"),
        "name": (3, "string"),
        "op_type": (4, "string"),
        "attribute": (5, "*Attribute"),
        "domain": (7, "string"),
    },
    "Dimension": {"dim_value": (1, "int64"), "dim_param": (2, "string")},
    "Shape": {"dim": (1, "*Dimension")},
    "TensorType": {"elem_type": (1, "int32"), "shape": (2, "Shape")},
    "Type": {"tensor_type": (1, "TensorType")},
    "Value": {"name": (1, "string"), "type": (2, "Type")},
    "Graph": {
        "node": (1, "*Node"),
        "initializer": (5, "*Tensor"),
        "input": (11, "*Value"),
        "output": (12, "*Value"),
        "sparse_initializer": (15, "*Sparse"),
    },
    "Function": {"node": (7, "*Node")},
    "Training": {"initialization": (1, "Graph"), "algorithm": (2, "Graph")},
    "Model": {"graph": (7, "Graph"), "metadata_props": (14, "*Entry"), "training_info": (20, "*Training"),
              "functions": (25, "*Function")},
}  # fmt: skip

EXTERNAL = 1
"""``TensorProto.DataLocation`` of data outside the file."""

STRING = 8
"""``TensorProto.DataType`` of strings, whose elements have no common size."""

ELEMENTS: dict[int, tuple[str, int]] = {
    1: ("float32", 32), 2: ("uint8", 8), 3: ("int8", 8), 4: ("uint16", 16), 5: ("int16", 16), 6: ("int32", 32),
    7: ("int64", 64), 9: ("bool", 8), 10: ("float16", 16), 11: ("float64", 64), 12: ("uint32", 32), 13: ("uint64", 64),
    14: ("complex64", 64), 15: ("complex128", 128), 16: ("bfloat16", 16), 17: ("float8_e4m3fn", 8),
    18: ("float8_e4m3fnuz", 8), 19: ("float8_e5m2", 8), 20: ("float8_e5m2fnuz", 8), 21: ("uint4", 4), 22: ("int4", 4),
    23: ("float4_e2m1fn", 4), 24: ("float8_e8m0fnu", 8), 25: ("uint2", 2), 26: ("int2", 2),
    27: ("float6_e2m3fn", 6), 28: ("float6_e3m2fn", 6),
}  # fmt: skip
"""``TensorProto.DataType`` of numbers: NumPy's name, and the bits of one element in ONNX's raw form."""


def new_model() -> Any:
    """Return an empty model, to be parsed into."""
    return _MODEL()


def parsed(content: Content) -> Any:
    """Return the model that some bytes hold."""
    model = new_model()
    model.ParseFromString(content)
    return model


def _model_class() -> Any:
    """Describe the messages to protobuf, in a pool of their own: onnx may have described its to the common one."""
    package = "normdeploy_onnx"
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            plain = kind.removeprefix("*")
            label = _FIELD.LABEL_REPEATED if plain != kind else _FIELD.LABEL_OPTIONAL
            described = message.field.add(name=field, number=number, label=label)
            if plain in _SCALARS:
                described.type = _SCALARS[plain]
            else:
                described.type = _FIELD.TYPE_MESSAGE
                described.type_name = f".{package}.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Model"))


_MODEL = _model_class()
