"""torch 2.13 looks each input of a program up in a table that it makes anew for every look-up: once is enough.

Where a decomposed program gets the metadata of its parameters back, ``ExportGraphSignature.inputs_to_parameters`` and
``inputs_to_buffers``, which walk all inputs, are asked for at every node: 104 of the 194 s of an `inspect` of 5,000
layers. torch 2.14 asks once, as is done here; what it does with the answers is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch.export._trace
import torch.export.exported_program

_PLACES = (torch.export._trace, torch.export.exported_program)
_NAME = "_populate_param_buffer_metadata_to_new_gm"


class _Asked:
    """A signature whose tables of inputs are made; it does not change while they are read."""

    def __init__(self, signature: Any) -> None:
        self._signature = signature
        self.inputs_to_parameters = signature.inputs_to_parameters
        self.inputs_to_buffers = signature.inputs_to_buffers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._signature, name)


@contextmanager
def signature_tables_kept() -> Iterator[None]:
    """Let torch make the tables of a program's inputs once; a torch that has no such function is left as it is."""
    found = [(place, getattr(place, _NAME)) for place in _PLACES if hasattr(place, _NAME)]
    for place, function in found:
        setattr(place, _NAME, _asking_once(function))
    try:
        yield
    finally:
        for place, function in found:
            setattr(place, _NAME, function)


def _asking_once(function: Callable[..., None]) -> Callable[..., None]:
    @wraps(function)
    def wrapped(metadata: Any, module: Any, signature: Any) -> None:
        function(metadata, module, _Asked(signature))

    return wrapped
