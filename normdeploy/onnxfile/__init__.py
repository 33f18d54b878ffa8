"""An ONNX file and the data beside it, read once: where its weights lie, what their digests are, a copy of all of it.

The tensors of a model may keep their data in other files ("external data"): the initializers, those of bodies and
functions, and constants in attributes. A file's word for where is not to be trusted: data is read from the model's
folder alone, from regular files that are long enough. One thing reads them all, so that what is judged, digested,
copied and run is the same.

The model's folder is the one the path names and, where the path is a link, the one the file lies in: caches of
downloaded models link to files that lie side by side elsewhere.

Names are loaded when first used: a file is run, and its certificate checked, without importing onnx.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normdeploy.onnxfile.calls import check_calls
    from normdeploy.onnxfile.data_places import Place, point_to, pointed, put_inside
    from normdeploy.onnxfile.light import CONTENT, KEY, all_digests, own_digest, with_entry
    from normdeploy.onnxfile.model import Copied, ModelFile, read_model, set_metadata
    from normdeploy.onnxfile.outline import Outline, read_outline, session_source
    from normdeploy.onnxfile.schema import parsed
    from normdeploy.onnxfile.stored import (
        element_bits,
        element_count,
        forget_unknown_sizes,
        graphs,
        spell_domains,
        stored_bytes,
        tensors,
    )
    from normdeploy.onnxfile.whole import whole_proto

__all__ = [
    "CONTENT",
    "KEY",
    "Copied",
    "ModelFile",
    "Outline",
    "Place",
    "all_digests",
    "check_calls",
    "element_bits",
    "element_count",
    "forget_unknown_sizes",
    "graphs",
    "own_digest",
    "parsed",
    "point_to",
    "pointed",
    "put_inside",
    "read_model",
    "read_outline",
    "session_source",
    "set_metadata",
    "spell_domains",
    "stored_bytes",
    "tensors",
    "whole_proto",
    "with_entry",
]

_LAZY = {
    "calls": ("check_calls",),
    "light": ("CONTENT", "KEY", "all_digests", "own_digest", "with_entry"),
    "model": ("Copied", "ModelFile", "read_model", "set_metadata"),
    "outline": ("Outline", "read_outline", "session_source"),
    "data_places": ("Place", "point_to", "pointed", "put_inside"),
    "schema": ("parsed",),
    "stored": (
        "element_bits",
        "element_count",
        "forget_unknown_sizes",
        "graphs",
        "spell_domains",
        "stored_bytes",
        "tensors",
    ),
    "whole": ("whole_proto",),
}


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(importlib.import_module(f"normdeploy.onnxfile.{module}"), name)
    raise AttributeError(f"module 'normdeploy.onnxfile' has no attribute {name!r}")
