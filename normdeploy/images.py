"""Pixels from image files: the same for training and for prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from normdeploy.array_types import Array

Resize = Literal["stretch", "crop", "fit"]
Filter = Literal["nearest", "bilinear", "bicubic", "lanczos"]
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def decode_image(
    path: Path, channels: int, size: tuple[int, int], resize: Resize = "stretch", interpolation: Filter = "bilinear"
) -> tuple[Array, int]:
    """Return an image's pixels, upright as its EXIF orientation says, [H, W, C], and the value of white.

    Args:
        path: the file.
        channels: 1 (grey) or 3 (RGB).
        size: (height, width) of the result.
        resize: "stretch" to the size; "crop": fill it and cut off what sticks out, evenly; "fit": show the whole
            picture in the middle and leave the rest black.
        interpolation: of pixels.

    Raises:
        Exception: whatever Pillow raises on a broken file, or a file that declares more pixels than
            PIL.Image.MAX_IMAGE_PIXELS.
    """
    from PIL import Image, ImageOps

    with Image.open(path) as image:
        width, height = image.size  # declared: nothing has been decoded
        if Image.MAX_IMAGE_PIXELS is not None and width * height > Image.MAX_IMAGE_PIXELS:
            raise ValueError(
                f"it declares {width} x {height} pixels; expected at most {Image.MAX_IMAGE_PIXELS} "
                "(PIL.Image.MAX_IMAGE_PIXELS): make it smaller"
            )
        upright, white = ImageOps.exif_transpose(image), 255
        if upright.mode.startswith("I;16") or (upright.mode == "I" and image.format == "PNG"):
            grey = np.asarray(upright).astype(np.float32)
            upright, white = Image.fromarray(grey), 65535
        elif upright.mode in ("I", "F"):
            raise ValueError(f"its pixels are of mode {upright.mode}, whose white is not known; expected 8 or 16 bits")
        else:
            upright = upright.convert("L" if channels == 1 else "RGB")
        change = {"crop": ImageOps.fit, "fit": ImageOps.pad}.get(resize, Image.Image.resize)
        ready = change(upright, (size[1], size[0]), getattr(Image.Resampling, interpolation.upper()))
    pixels = np.asarray(ready).reshape(*size, -1).clip(0, white)
    return (pixels if pixels.shape[2] == channels else np.repeat(pixels, channels, axis=2)), white
