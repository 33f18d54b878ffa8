"""What NumPy and torch raise on damaged files of theirs, and the arrays of a .npz file that are none."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

from normdeploy.files import PathLike, open_regular

NUMPY_FILE_ERRORS = (
    *(ValueError, OSError, EOFError, TypeError, KeyError, OverflowError),
    *(SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
"""What numpy raises on .npy and .npz files that are damaged: a header is parsed as Python."""

TORCH_FILE_ERRORS = (
    *(RuntimeError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError),
    *(AssertionError, struct.error, zipfile.BadZipFile),
)
"""What torch.load raises on damaged files beside UnpicklingError: a pickle's instructions are carried out on whatever
lies on its stack."""


def arrays_in(archive: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arrays of an open .npz file by name.

    Raises:
        ValueError: an entry is no array (NumPy gives its bytes), or damaged, which raises `NUMPY_FILE_ERRORS`.
    """
    found = {name: archive[name] for name in archive}
    if other := next((name for name, held in found.items() if isinstance(held, bytes)), None):
        raise ValueError(f"its entry {other!r} is no array")
    return found


def numpy_says(path: PathLike, error: Exception) -> str:
    """Say why NumPy did not read a file: of one that is not its own it speaks of pickled objects."""
    try:
        with open_regular(path) as stream:
            own = stream.read(6).startswith((b"\x93NUMPY", b"PK"))
    except OSError:
        own = True
    return str(error) if own else "it is no file that numpy.save or numpy.savez writes"
