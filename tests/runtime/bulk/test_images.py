"""Folders of images: decoding, orientation, size, scale."""

from __future__ import annotations

import resource
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from normdeploy.errors import InputError, UsageError
from normdeploy.images import decode_image
from normdeploy.runtime import ImageOptions, predict

GREY = "n (float[batch, 1, h, w] x) => (float[batch, 1, h, w] y) { y = Identity(x) }"


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_folder_of_images(write_model, tmp_path, layout):
    folder = tmp_path / "pictures"
    (folder / "sub").mkdir(parents=True)
    draw = np.random.default_rng(0)
    pixels = {name: draw.integers(0, 256, (4, 6, 3), dtype=np.uint8) for name in ("b.png", "a.PNG", "sub/c.bmp")}
    for name, value in pixels.items():
        Image.fromarray(value).save(folder / name)
    (folder / "broken.jpg").write_bytes(b"\xff\xd8 nothing")
    (folder / "notes.txt").write_text("no image")
    shape = "3, 4, 6" if layout == "NCHW" else "4, 6, 3"
    model = write_model(f"n (float[batch, {shape}] x) => (float[batch, {shape}] y) {{ y = Identity(x) }}")
    options = ImageOptions(mean=(0.5, 0.25, 0.0), std=(0.5,))
    result = predict(model, folder, tmp_path / "o.npz", images=options)
    assert (result.rows, result.bad) == (4, 1)
    assert "broken.jpg" in result.bad_file.read_text()
    with np.load(tmp_path / "o.npz") as out:
        assert out["key"].tolist() == ["a.PNG", "b.png", "sub/c.bmp"]
        assert out["row"].tolist() == [0, 1, 3]
        for key, y in zip(out["key"], out["y"], strict=True):
            expected = (pixels[key] / 255 - np.array([0.5, 0.25, 0.0])) / 0.5
            np.testing.assert_allclose(y, expected.transpose(2, 0, 1) if layout == "NCHW" else expected, atol=1e-6)


def test_images_are_resized_and_open_sizes_must_be_given(write_model, tmp_path):
    (tmp_path / "p").mkdir()
    Image.new("L", (9, 5), 51).save(tmp_path / "p" / "a.png")
    model = write_model("n (float[batch, 1, h, w] x) => (float[batch, 1, h, w] y) { y = Identity(x) }")
    with pytest.raises(InputError, match="size"):
        predict(model, tmp_path / "p", tmp_path / "o.npy")
    predict(model, tmp_path / "p", tmp_path / "o.npy", images=ImageOptions(size=(2, 3)))
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), np.full((1, 1, 2, 3), 0.2), atol=1e-6)
    fixed = write_model("n (float[batch, 1, 2, w] x) => (float[batch, 1, 2, w] y) { y = Identity(x) }", name="f.onnx")
    with pytest.raises(UsageError, match=r"size=\(3, 3\) and the model takes x: .*leave size out"):
        predict(fixed, tmp_path / "p", tmp_path / "q.npy", images=ImageOptions(size=(3, 3)))
    with pytest.raises(UsageError, match="resize='zoom'"):
        ImageOptions(resize="zoom")
    for std in ((0.0,), (1.0, float("nan"), 1.0), (float("inf"),), ()):
        with pytest.raises(UsageError, match="std="):
            ImageOptions(std=std)
    for mean in ((float("nan"),), (0.5, float("inf"), 0.5), ()):
        with pytest.raises(UsageError, match="mean="):
            ImageOptions(mean=mean)
    with pytest.raises(UsageError, match="mean has 3"):
        predict(model, tmp_path / "p", tmp_path / "q.npy", images=ImageOptions(mean=(0, 0, 0), size=(2, 3)))


def _predicted(write_model, tmp_path, options: ImageOptions, text: str = GREY) -> np.ndarray:
    predict(write_model(text), tmp_path / "p", tmp_path / "o.npz", images=options, overwrite=True)
    with np.load(tmp_path / "o.npz") as out:
        return out["y"]


def test_sixteen_bits_keep_their_scale(write_model, tmp_path):
    (tmp_path / "p").mkdir()
    values = np.array([[0, 1, 256, 12345], [30000, 40000, 65534, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "p" / "a.png")
    np.testing.assert_allclose(
        _predicted(write_model, tmp_path, ImageOptions(size=(2, 4)))[0, 0], values / 65535, atol=1e-7
    )
    colour = "n (float[batch, 3, 2, 4] x) => (float[batch, 3, 2, 4] y) { y = Identity(x) }"
    shown = _predicted(write_model, tmp_path, ImageOptions(), colour)[0]
    np.testing.assert_allclose(shown, np.repeat(values[None] / 65535, 3, axis=0), atol=1e-7)
    pixels = "n (uint8[batch, 2, 4, 1] x) => (uint8[batch, 2, 4, 1] y) { y = Identity(x) }"
    assert (
        _predicted(write_model, tmp_path, ImageOptions(), pixels)[0, ..., 0].tolist() == np.rint(values / 257).tolist()
    )


def test_pixels_of_unknown_scale_are_bad_rows(write_model, tmp_path):
    (tmp_path / "p").mkdir()
    Image.fromarray(np.full((2, 4), 0.5, np.float32)).save(tmp_path / "p" / "a.tif")
    Image.new("L", (4, 2), 255).save(tmp_path / "p" / "b.png")
    result = predict(write_model(GREY), tmp_path / "p", tmp_path / "o.npz", images=ImageOptions(size=(2, 4)))
    assert (result.rows, result.bad) == (2, 1)
    assert "expected 8 or 16 bits" in result.first_reason


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_followed(write_model, tmp_path, orientation):
    (tmp_path / "p").mkdir()
    stored = np.arange(0, 120, 5, dtype=np.uint8).reshape(4, 6)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(tmp_path / "p" / "a.png", exif=exif)
    # the standard's word for where the stored first row and first column are, in the picture as it is seen
    seen = [stored, stored[:, ::-1], stored[::-1, ::-1], stored[::-1], stored.T, stored.T[:, ::-1],
            stored[::-1, ::-1].T, stored.T[::-1]][orientation - 1]  # fmt: skip
    found = _predicted(write_model, tmp_path, ImageOptions(size=seen.shape))
    np.testing.assert_allclose(found[0, 0], seen / 255, atol=1e-6)


def test_ways_to_resize(write_model, tmp_path):
    (tmp_path / "p").mkdir()
    picture = np.full((4, 8), 200, np.uint8)
    picture[:, 2:6] = 100  # the middle square
    Image.fromarray(picture).save(tmp_path / "p" / "a.png")

    def at(resize: str, interpolation: str = "nearest") -> np.ndarray:
        options = ImageOptions(size=(4, 4), resize=resize, interpolation=interpolation)
        return np.rint(_predicted(write_model, tmp_path, options)[0, 0] * 255)

    np.testing.assert_array_equal(at("crop"), np.full((4, 4), 100))
    assert at("stretch")[0].tolist() == [200, 100, 100, 200]
    assert at("fit").tolist() == [[0] * 4, [200, 100, 100, 200], [200, 100, 100, 200], [0] * 4]
    assert not np.array_equal(at("stretch", "bicubic"), at("stretch", "bilinear"))
    wanted = np.asarray(Image.fromarray(picture).resize((4, 4), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(at("stretch", "bicubic"), wanted)


def _declared(width: int, height: int) -> bytes:
    """A PNG file that declares more pixels than it holds."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("side", "words"), [(9_500, "it declares 9500 x 9500 pixels"), (60_000, "could be decompression bomb")]
)
def test_pixels_that_a_file_declares_are_counted_before_they_are_decoded(side, words, tmp_path):
    path = tmp_path / "huge.png"
    path.write_bytes(_declared(side, side))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((ValueError, Image.DecompressionBombError), match=words):
        decode_image(path, 3, (8, 8))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
