"""Rows from a folder of images (needs Pillow)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normdeploy.errors import InputError, MissingDependencyError, UsageError
from normdeploy.runtime.backend import Array, TensorSpec
from normdeploy.runtime.bulk.source import BadRow, Part, Rows, ranges

ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True)
class ImageOptions:
    """How pixels become numbers.

    Args:
        mean: subtracted per channel after scaling to 0..1; one value serves all channels.
        std: divides per channel after that.
        size: (height, width) to resize to, where the model leaves them open.

    Raises:
        UsageError: a standard deviation that is not positive.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if min(self.std) <= 0:
            raise UsageError(f"std={self.std}; expected positive values")


class ImageSource:
    """Image files below a folder, in the order of their paths; every file is resized to the model's size (bilinear).

    The model takes [batch, C, H, W] or [batch, H, W, C] with C of 1 (grey) or 3 (RGB). Floating point inputs get
    (pixel / 255 - mean) / std, uint8 inputs the pixels.

    Args:
        folder: searched with its subfolders.
        specs: the model's inputs.
        options: scaling and size.

    Raises:
        MissingDependencyError: Pillow is not installed.
        InputError: no images, or a model that does not take one image per row.
    """

    named = True

    def __init__(self, folder: Path, specs: Sequence[TensorSpec], options: ImageOptions | None = None) -> None:
        try:
            import PIL  # noqa: F401 - asked for here, where the user can still do something about it
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                "images need Pillow, which is not installed; expected it: pip install pillow"
            ) from error
        if len(specs) != 1 or len(specs[0].shape) != 4:
            raise InputError(
                f"the model takes {[str(spec) for spec in specs]}; expected one input [batch, C, H, W] or "
                "[batch, H, W, C] for a folder of images: prepare the data as .npz"
            )
        self.folder, self._spec, self._options = folder, specs[0], options or ImageOptions()
        self._paths = sorted(
            (path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file()),
            key=lambda path: path.relative_to(folder).as_posix(),
        )
        if not self._paths:
            raise InputError(f"{folder} holds no images; expected files ending in {', '.join(sorted(ENDINGS))}")
        self.total: int | None = len(self._paths)
        _, *row = self._spec.shape
        self._channels_first = row[0] in (1, 3)
        channels = row[0] if self._channels_first else row[2]
        if channels not in (1, 3):
            raise InputError(f"the model takes {self._spec}; expected 1 or 3 channels at the second or last position")
        self._channels = int(channels)
        sizes = (row[1], row[2]) if self._channels_first else (row[0], row[1])
        given = self._options.size or (None, None)
        fixed = [size if isinstance(size, int) else other for size, other in zip(sizes, given, strict=True)]
        if fixed[0] is None or fixed[1] is None:
            raise InputError(f"the model takes {self._spec}; expected a size (height, width) to resize to: give one")
        self._size = (int(fixed[0]), int(fixed[1]))
        if any(len(values) not in (1, self._channels) for values in (self._options.mean, self._options.std)):
            raise UsageError(
                f"mean has {len(self._options.mean)} and std {len(self._options.std)} values; "
                f"expected 1 or {self._channels}, the model's channels"
            )

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield equal ranges of files."""
        return ranges(len(self._paths), rows)

    def read(self, part: Part, batch: int) -> Iterator[Rows]:
        """Yield decoded images; a file that cannot be decoded is a bad row."""
        for first in range(part.first, part.first + part.rows, batch):
            images, index, keys, bad = [], [], [], []
            for row in range(first, min(first + batch, part.first + part.rows)):
                path = self._paths[row]
                key = path.relative_to(self.folder).as_posix()
                try:
                    images.append(self._pixels(path))
                except Exception as error:  # decoders raise many types for a broken file; the reason is kept
                    bad.append(BadRow(row, key, f"cannot be decoded: {type(error).__name__}: {error}"))
                    continue
                index.append(row)
                keys.append(key)
            shape = (self._channels, *self._size) if self._channels_first else (*self._size, self._channels)
            stacked = np.stack(images) if images else np.zeros((0, *shape), self._spec.dtype)
            yield Rows({self._spec.name: stacked}, np.array(index, dtype=np.int64), keys, bad)

    def _pixels(self, path: Path) -> Array:
        from PIL import Image

        with Image.open(path) as image:
            mode = "L" if self._channels == 1 else "RGB"
            ready = image.convert(mode).resize((self._size[1], self._size[0]), Image.Resampling.BILINEAR)
            pixels = np.asarray(ready).reshape(*self._size, self._channels)
        if self._spec.dtype != "uint8":
            scaled = (pixels / 255.0 - np.array(self._options.mean)) / np.array(self._options.std)
            pixels = scaled.astype(self._spec.dtype)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)) if self._channels_first else pixels

    def identity(self) -> Mapping[str, Any]:
        """Return the folder, the scaling, and a digest over every file's path, size and time of change."""
        digest = hashlib.sha256()
        for path in self._paths:
            status = path.stat()
            digest.update(f"{path.relative_to(self.folder)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        return {
            "path": str(self.folder.absolute()),
            "files": digest.hexdigest(),
            "options": asdict(self._options),
        }
