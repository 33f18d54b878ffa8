"""Images in folders by class, decoded when they are needed, by processes of torch's DataLoader."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from normdeploy.errors import InputError
from normdeploy.files import sha256_file
from normdeploy.images import SUFFIXES, decode_image
from normdeploy.train.data import FileSplit, Splits, Standardization
from normdeploy.train.data_files import FileData


class _Images(Dataset[tuple[Tensor, Tensor]]):
    """Images decoded when they are asked for."""

    def __init__(
        self,
        files: Sequence[Path],
        labels: Tensor,
        channels: int,
        size: tuple[int, int],
        by: Standardization | None = None,
    ) -> None:
        self.files, self.labels, self.channels, self.size, self.by = list(files), labels, channels, size, by

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        try:
            pixels, white = decode_image(self.files[index], self.channels, self.size)
        except Exception as error:  # decoders raise many types for a broken file
            raise InputError(
                f"{self.files[index]} cannot be decoded: {error}; expected a whole image: replace or remove it"
            ) from error
        image = torch.from_numpy((pixels.transpose(2, 0, 1) / white).astype(np.float32))
        return (image if self.by is None else self.by.standardized(image[None])[0]), self.labels[index]


def read_images(what: FileData) -> Splits:
    """Read a folder of images by class (see `normdeploy.train.data_files.read_files`)."""
    files, labels, classes = _folder(what.files, None)
    parts = [([files[row] for row in rows.tolist()], labels[rows]) for rows in what.rows(len(files))]
    if what.test is not None:
        others, their, _ = _folder(what.test, classes)
        parts.append((others, their))
    channels, size = (1 if what.grey else 3), what.size or _size(files[0])
    datasets = [_Images(paths, numbers, channels, size) for paths, numbers in parts]
    by = _image_moments(datasets[0], what) if what.standardize else None
    splits = [
        FileSplit(_Images(one.files, one.labels, channels, size, by), one.labels, _content(one.files), what.workers)
        for one in datasets
    ]
    return Splits(splits[0], splits[1], splits[2], class_names=classes, standardization=by)


def _folder(folder: Path, classes: tuple[str, ...] | None) -> tuple[list[Path], Tensor, tuple[str, ...]]:
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; expected one folder of images per class in it: correct [data] test")
    names = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")))
    unknown = [name for name in names if classes is not None and name not in classes]
    if not names or unknown:
        what = f"the class {unknown[0]!r}, which the training data has not" if unknown else "no folders"
        raise InputError(
            f"{folder} holds {what}; expected one folder of images per class: sort the images into folders named as "
            "their classes"
        )
    order = classes or names
    found = [
        (path, order.index(name))
        for name in names
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES and path.is_file()
    ]
    if not found:
        raise InputError(f"{folder} holds no images; expected {', '.join(SUFFIXES)} in its folders: put them there")
    return [path for path, _ in found], torch.tensor([number for _, number in found]), order


def _size(path: Path) -> tuple[int, int]:
    from PIL import Image, ImageOps

    with Image.open(path) as image:
        width, height = ImageOps.exif_transpose(image).size
    return height, width


def _image_moments(dataset: _Images, what: FileData) -> Standardization:
    """Return mean and deviation per channel over all training images, summed in float64."""
    split = FileSplit(dataset, dataset.labels, "", what.workers)
    total = squares = torch.zeros(dataset.channels, dtype=torch.float64)
    count = 0
    for part in split.chunks(torch.split(torch.arange(len(dataset)), 64)):
        wide = part.inputs.double()
        total, squares = total + wide.sum((0, 2, 3)), squares + wide.square().sum((0, 2, 3))
        count += wide[:, 0].numel()
    mean = total / count
    deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
    deviation = torch.where(deviation > 0, deviation, 1.0)
    return Standardization(mean.float()[None, :, None, None], deviation.float()[None, :, None, None])


def _content(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.parent.name}/{path.name} {sha256_file(path)}\n".encode())
    return digest.hexdigest()
