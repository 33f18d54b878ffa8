"""The 1,797 handwritten digits that scikit-learn ships (8x8 pixels, 10 classes)."""

from __future__ import annotations

import torch
from torch import Tensor

from normdeploy.errors import MissingDependencyError
from normdeploy.train.data import Split, Splits, split_rows


def shift_pixels(images: Tensor, generator: torch.Generator) -> Tensor:
    """Move each image by up to one pixel in each direction, filling with background (zeros).

    Args:
        images: (N, C, H, W).
        generator: CPU generator that draws the shifts.
    """
    count, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
    down, right = (torch.randint(0, 3, (2, count), generator=generator)).to(images.device)
    rows = (down[:, None] + torch.arange(height, device=images.device))[:, None, :, None]
    columns = (right[:, None] + torch.arange(width, device=images.device))[:, None, None, :]
    sample = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(images.shape[1], device=images.device)[None, :, None, None]
    return padded[sample, channel, rows, columns]


def digits(*, augment: bool = True, targets: str = "class") -> Splits:
    """Return the digits, pixels in [0, 1], as (N, 1, 8, 8) float32; 1,168 to train, 270 to validate, 359 to test.

    Args:
        augment: shift training images by up to a pixel.
        targets: ``"class"`` for class numbers, ``"image"`` for the image itself (an autoencoder).

    Raises:
        MissingDependencyError: scikit-learn is not installed.

    Source:
        scikit-learn ``load_digits``; E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependencyError(
            "the digits come with scikit-learn, which is not installed; expected the extra 'digits': "
            "pip install 'normdeploy[digits]'"
        ) from error
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    wanted = images if targets == "image" else labels
    train, valid, test = (Split(images[rows], wanted[rows]) for rows in split_rows(len(images)))
    return Splits(
        train,
        valid,
        test,
        task="reconstruction" if targets == "image" else "classification",
        augment=shift_pixels if augment and targets != "image" else None,
        class_names=tuple(str(n) for n in range(10)),
    )
