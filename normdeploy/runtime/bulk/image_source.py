"""Rows from image files, decoded by Pillow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa

from normdeploy.array_types import Array
from normdeploy.errors import InputError, UsageError
from normdeploy.images import Filter, Resize, decode_image
from normdeploy.ort.machine import usable_cores
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.bulk.source import Block, Part, ranges


@dataclass(frozen=True)
class ImageOptions:
    """How pixels become numbers.

    Args:
        mean: subtracted per channel after scaling to 0..1; one value serves all channels.
        std: divides per channel after that.
        size: (height, width) to resize to, where the model leaves them open.
        resize: "stretch" to the size; "crop": fill it and cut off what sticks out, evenly; "fit": show the whole
            picture in the middle and leave the rest black.
        interpolation: "nearest", "bilinear", "bicubic" or "lanczos".

    Raises:
        UsageError: a value outside its range.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    size: tuple[int, int] | None = None
    resize: Resize = "stretch"
    interpolation: Filter = "bilinear"

    def __post_init__(self) -> None:
        if not self.std or not all(0 < value < inf for value in self.std):
            raise UsageError(f"std={self.std}; expected positive values")
        if not self.mean or not all(map(isfinite, self.mean)):
            raise UsageError(f"mean={self.mean}; expected finite values")
        if self.size is not None and min(self.size) < 1:
            raise UsageError(f"size={self.size}; expected a height and a width of at least 1")
        for name, allowed in (("resize", get_args(Resize)), ("interpolation", get_args(Filter))):
            if (value := getattr(self, name)) not in allowed:
                raise UsageError(f"{name}={value!r}; expected one of {', '.join(allowed)}")


class ImageSource:
    """One image per row, upright as its EXIF orientation says, at the model's size.

    The model takes [batch, C, H, W] or [batch, H, W, C] with C of 1 (grey) or 3 (RGB). Floating point inputs get
    (pixel / 255 - mean) / std, or pixel / 65535 of files with 16 bits; uint8 inputs the pixels.

    Raises:
        InputError: a model that does not take one image per row.
        UsageError: options that contradict the model.
    """

    def __init__(self, files: Sequence[tuple[Path, str]], specs: Sequence[TensorSpec], options: ImageOptions) -> None:
        self._files, self._options = list(files), options
        self.total: int | None = len(files)
        spec = specs[0]
        if len(specs) != 1 or len(spec.shape) != 4 or not (spec.dtype[0] == "f" or spec.dtype == "uint8"):
            raise InputError(
                f"the model takes {[str(spec) for spec in specs]}; expected one float or uint8 input [batch, C, H, W] "
                "or [batch, H, W, C] for images: prepare the data as .npz"
            )
        self._spec, self._channels_first = spec, spec.shape[1] in (1, 3)
        channels, *sizes = spec.shape[1:] if self._channels_first else (spec.shape[3], *spec.shape[1:3])
        if channels not in (1, 3):
            raise InputError(f"the model takes {spec}; expected 1 or 3 channels at the second or last position")
        self._channels, found = int(channels), list[int]()
        for size, wish in zip(sizes, options.size or (None, None), strict=True):
            if isinstance(size, int) and wish not in (None, size):
                raise UsageError(f"size={options.size} and the model takes {spec}; expected its size: leave size out")
            if not isinstance(size, int) and wish is None:
                raise InputError(
                    f"the model takes {spec}; expected a size (height, width) to resize to: give one (--image-size HxW)"
                )
            found.append(size if isinstance(size, int) else int(wish or 0))
        self._size = found[0], found[1]
        if any(len(values) not in (1, self._channels) for values in (options.mean, options.std)):
            raise UsageError(
                f"mean has {len(options.mean)} and std {len(options.std)} values; "
                f"expected 1 or {self._channels}, the model's channels"
            )
        self.row_bytes = self._channels * self._size[0] * self._size[1] * np.dtype(spec.dtype).itemsize
        grid, ones = np.arange(256)[None, :] / 255, np.ones((self._channels, 1))
        values = (grid - ones * np.array(options.mean)[:, None]) / np.array(options.std)[:, None]
        self._values = values.astype(spec.dtype)

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield equal ranges of files."""
        return ranges([len(self._files)], rows)

    def read(self, parts: Sequence[Part]) -> Iterator[Block]:
        """Yield decoded images; a file that cannot be decoded is a bad row."""
        shape = (self._channels, *self._size) if self._channels_first else (*self._size, self._channels)
        with ThreadPoolExecutor(usable_cores()) as pool:
            for part in parts:
                files = self._files[part.first : part.first + part.size]
                rows, bad = np.zeros((len(files), *shape), self._spec.dtype), dict[int, str]()
                for at, found in enumerate(pool.map(self._decode, [path for path, _ in files])):
                    if isinstance(found, str):
                        bad[at] = found
                    else:
                        rows[at] = found.transpose(2, 0, 1) if self._channels_first else found
                yield Block({self._spec.name: rows}, {"key": pa.array([key for _, key in files])}, bad)

    def _decode(self, path: Path) -> Array | str:
        """Return pixels [H, W, C] as the input takes them, or why there are none."""
        try:
            options = self._options
            pixels, white = decode_image(path, self._channels, self._size, options.resize, options.interpolation)
        except Exception as error:  # decoders raise many types for a broken file; the reason is kept
            return f"cannot be decoded: {type(error).__name__}: {error}; expected a whole image: replace or remove it"
        if self._spec.dtype == "uint8":
            return pixels if white == 255 else np.rint(pixels * (255 / white)).astype(np.uint8)
        if white == 255:  # 256 values, each computed in float64 and rounded once
            return np.stack([values[pixels[..., channel]] for channel, values in enumerate(self._values)], axis=-1)
        scaled = (pixels / float(white) - np.array(self._options.mean)) / np.array(self._options.std)
        rounded: Array = scaled.astype(self._spec.dtype)
        return rounded
