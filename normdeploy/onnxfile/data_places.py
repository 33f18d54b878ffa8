"""Where the data of a tensor lies: read from the model's folder alone, from regular files that are long enough."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING

from normdeploy.errors import GraphError
from normdeploy.files import irregular, open_regular, storage
from normdeploy.onnxfile.schema import EXTERNAL, STRING
from normdeploy.onnxfile.stored import stored_bytes, tensors

if TYPE_CHECKING:
    import onnx


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


def find_places(model: Path, proto: onnx.ModelProto) -> list[tuple[onnx.TensorProto, Place]]:
    """Return every tensor whose data lies outside the file, with the place where it lies.

    Args:
        model: the file. proto: what it says.

    Raises:
        GraphError: a place is outside the model's folder, missing, no regular file or too short.
    """
    bases = list(dict.fromkeys((model.absolute().parent, model.resolve().parent)))
    return [(t, find_place(model, bases, t)) for t in tensors(proto) if t.data_location == EXTERNAL]


def find_place(model: Path, bases: list[Path], tensor: onnx.TensorProto) -> Place:
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
    if tensor.data_type == STRING:
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


def put_inside(tensor: onnx.TensorProto, place: Place) -> None:
    """Read a tensor's data into the tensor."""
    tensor.raw_data = place.read()
    del tensor.external_data[:]
    tensor.ClearField("data_location")


def point_to(tensor: onnx.TensorProto, place: Place, location: str) -> None:
    """Write a tensor's place anew, under another name of the file."""
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", place.offset), ("length", place.length)):
        tensor.external_data.add(key=key, value=str(value))


def pointed(tensor: onnx.TensorProto) -> Place:
    """Return what :func:`point_to` wrote."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return Place(entries["location"], Path(entries["location"]), int(entries["offset"]), int(entries["length"]))
