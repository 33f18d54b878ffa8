"""Models whose tensors keep their data in other files, in every place a tensor can stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEATURES = 8
_RNG = np.random.default_rng(5)
WEIGHT = _RNG.standard_normal((FEATURES, FEATURES)).astype(np.float32)
SCALE = _RNG.uniform(0.5, 2.0, FEATURES).astype(np.float32)
SHIFT = _RNG.standard_normal(FEATURES).astype(np.float32)
MEAN = _RNG.standard_normal(FEATURES).astype(np.float32)
VARIANCE = _RNG.uniform(0.5, 2.0, FEATURES).astype(np.float32)
PRODUCT = "product"


def value(name: str, shape: Iterable[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def expected(x: np.ndarray, shift: np.ndarray = SHIFT) -> np.ndarray:
    """What every model here computes: (x W - mean) / sqrt(variance + 1e-5) * scale + shift, in float64."""
    product = x.astype(np.float64) @ WEIGHT.astype(np.float64)
    return (product - MEAN) / np.sqrt(VARIANCE.astype(np.float64) + np.float64(np.float32(1e-5))) * SCALE + shift


def put_outside(tensor: TensorProto, folder: Path, file_name: str, **changes: object) -> None:
    """Move a tensor's data to the end of a file; ``changes`` falsify the entries."""
    raw = numpy_helper.to_array(tensor).tobytes()
    file = folder / file_name
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as stream:
        offset = stream.tell()
        stream.write(raw)
    for field in ("raw_data", "float_data", "int64_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": file_name, "offset": offset, "length": len(raw)} | changes
    for key, entry in entries.items():
        tensor.external_data.add(key=key, value=str(entry))


def _constants(names: Iterable[str]) -> dict[str, TensorProto]:
    known = {"w": WEIGHT, "scale": SCALE, "shift": SHIFT, "mean": MEAN, "variance": VARIANCE,
             "shape": np.array([-1, FEATURES], np.int64)}  # fmt: skip
    return {name: numpy_helper.from_array(known[name], name) for name in names}


_NORM = helper.make_node("BatchNormalization", [PRODUCT, "scale", "shift", "mean", "variance"], ["y"], name="norm")
_NAMES = ("w", "scale", "shift", "mean", "variance")


def _model(nodes: list[onnx.NodeProto], initializers: Iterable[TensorProto], functions=(), domains=()):
    graph = helper.make_graph(nodes, "g", [value("x", ["batch", FEATURES])], [value("y", ["batch", FEATURES])],
                              list(initializers))  # fmt: skip
    opsets = [helper.make_opsetid("", 18), *(helper.make_opsetid(name, 1) for name in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))


def initializers(place: Callable[[TensorProto], None]) -> onnx.ModelProto:
    """All weights, as torch.onnx.export writes them."""
    tensors = _constants(_NAMES)
    for tensor in tensors.values():
        place(tensor)
    return _model([helper.make_node("MatMul", ["x", "w"], [PRODUCT]), _NORM], tensors.values())


def small(place: Callable[[TensorProto], None]) -> onnx.ModelProto:
    """A shape of two numbers, too: onnxruntime itself refuses that."""
    tensors = _constants((*_NAMES, "shape"))
    for tensor in tensors.values():
        place(tensor)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Reshape", ["p", "shape"], [PRODUCT])]
    return _model([*nodes, _NORM], tensors.values())


def constants(place: Callable[[TensorProto], None]) -> onnx.ModelProto:
    """Tensors of Constant nodes."""
    tensors = _constants(_NAMES)
    nodes = []
    for name, tensor in tensors.items():
        place(tensor)
        nodes.append(helper.make_node("Constant", [], [name], value=tensor))
    return _model([*nodes, helper.make_node("MatMul", ["x", "w"], [PRODUCT]), _NORM], [])


def _branch(place: Callable[[TensorProto], None], *, constant: bool) -> onnx.ModelProto:
    tensors = _constants(_NAMES)
    for tensor in tensors.values():
        place(tensor)
    weight = tensors.pop("w")
    inner = [helper.make_node("MatMul", ["x", "w"], ["inner"])]
    if constant:
        inner.insert(0, helper.make_node("Constant", [], ["w"], value=weight))
    then = helper.make_graph(inner, "then", [], [value("inner", ["batch", FEATURES])], [] if constant else [weight])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["same"])], "else", [],
                              [value("same", ["batch", FEATURES])])  # fmt: skip
    yes = numpy_helper.from_array(np.array(True), "yes")
    nodes = [helper.make_node("If", ["yes"], [PRODUCT], then_branch=then, else_branch=other), _NORM]
    return _model(nodes, [yes, *tensors.values()])


def body_initializers(place: Callable[[TensorProto], None]) -> onnx.ModelProto:
    """An initializer of a body."""
    return _branch(place, constant=False)


def body_constants(place: Callable[[TensorProto], None]) -> onnx.ModelProto:
    """A constant in a body."""
    return _branch(place, constant=True)


def functions(place: Callable[[TensorProto], None]) -> onnx.ModelProto:
    """A constant in a function."""
    tensors = _constants(_NAMES)
    for tensor in tensors.values():
        place(tensor)
    weight = tensors.pop("w")
    nodes = [helper.make_node("Constant", [], ["w"], value=weight), helper.make_node("MatMul", ["a", "w"], ["b"])]
    function = helper.make_function("own", "Linear", ["a"], ["b"], nodes, [helper.make_opsetid("", 18)])
    call = helper.make_node("Linear", ["x"], [PRODUCT], domain="own")
    return _model([call, _NORM], tensors.values(), [function], ["own"])


FORMS = {form.__name__: form for form in (initializers, small, constants, body_initializers, body_constants, functions)}


def write(form: str, path: Path, *, location: str = "weights.bin") -> Path:
    """Write a model of one form with all its tensors' data in ``location`` beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model = FORMS[form](lambda tensor: put_outside(tensor, path.parent, location))
    path.write_bytes(model.SerializeToString())
    return path


def inside(tensor: TensorProto) -> None:
    """Leave a tensor's data in the file, as it is."""


def write_whole(path: Path) -> Path:
    """Write the same model as one file."""
    path.write_bytes(initializers(inside).SerializeToString())
    return path
