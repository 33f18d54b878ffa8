"""The digits, and how they are shifted while a network trains on them."""

from __future__ import annotations

import pytest
import torch

from normdeploy.train.digits import digits, shift_pixels


def test_each_image_moves_as_a_whole_by_at_most_one_pixel_and_zeros_come_in() -> None:
    images = torch.rand(64, 2, 5, 4) + 1
    shifted = shift_pixels(images, torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
    ways = [(down, right) for down in range(3) for right in range(3)]
    used = set()
    for image, found in zip(padded, shifted, strict=True):
        fits = [way for way in ways if torch.equal(image[:, way[0] : way[0] + 5, way[1] : way[1] + 4], found)]
        assert len(fits) == 1
        used.update(fits)
    assert used == set(ways)
    assert torch.equal(shifted, shift_pixels(images, torch.Generator().manual_seed(1)))


def test_the_parts_and_what_is_to_be_told() -> None:
    pytest.importorskip("sklearn")
    found = digits()
    assert [len(part) for part in (found.train, found.valid, found.test)] == [1168, 270, 359]
    assert found.augment is shift_pixels
    images = digits(targets="image")
    assert images.augment is None
    assert torch.equal(images.test.inputs, images.test.targets)
    assert digits(augment=False).augment is None
