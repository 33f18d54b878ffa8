"""The page's own scripts, run by Node.js: pictures become the numbers that `predict` makes, files are NumPy's."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import normdeploy.runtime
from normdeploy.images import decode_image
from normdeploy.web.wire import VIEWS

NODE = shutil.which("node")
PAGE = Path(normdeploy.runtime.__file__).with_name("page")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")


def _node(script: str, given: Any) -> Any:
    """Run a module that reads JSON from standard input and writes JSON, beside the scripts as packages have them."""
    text = f"""
import {{ readFileSync }} from "node:fs";
import * as picture from "./picture.mjs";
import * as numpy from "./numpy.mjs";
const given = JSON.parse(readFileSync(0, "utf-8"));
{script}
"""
    with tempfile.TemporaryDirectory() as folder:
        for written in (*PAGE.glob("*.mjs"), VIEWS):
            shutil.copy(written, folder)
        Path(folder, "asked.mjs").write_text(text, encoding="utf-8")
        words = [str(NODE), str(Path(folder, "asked.mjs"))]
        done = subprocess.run(words, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SHAPED = [
    (resize, interpolation, *sizes)
    for resize in ("stretch", "crop", "fit")
    for interpolation in ("bilinear", "bicubic", "lanczos", "nearest")
    for sizes in ((3, (37, 52), (16, 24)), (1, (11, 9), (20, 15)))
]
"""How a picture is fitted and interpolated; to how many channels, from which size, to which."""


def _pixels(source: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (*source, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def shaped() -> list[Any]:
    """What the page makes of each picture, by one process."""
    given = []
    for resize, interpolation, channels, source, size in SHAPED:
        rgba = np.concatenate([_pixels(source), np.full((*source, 1), 255, np.uint8)], axis=2)
        shape = {"channels": channels, "height": size[0], "width": size[1], "resize": resize, "filter": interpolation}
        given.append({"data": rgba.ravel().tolist(), "height": source[0], "width": source[1], "shape": shape})
    script = "console.log(JSON.stringify(given.map((one) => picture.shaped(one, one.shape).map((p) => [...p]))));"
    found: list[Any] = _node(script, given)
    return found


@pytest.mark.parametrize("number", range(len(SHAPED)), ids=lambda number: "-".join(map(str, SHAPED[number][:3])))
def test_a_picture_becomes_what_predict_makes_of_it(number: int, shaped: list[Any], tmp_path: Path) -> None:
    resize, interpolation, channels, source, size = SHAPED[number]
    Image.fromarray(_pixels(source)).save(tmp_path / "a.png")
    wanted, _ = decode_image(tmp_path / "a.png", channels, size, resize, interpolation)
    planes = np.array(shaped[number]).reshape(channels, *size).transpose(1, 2, 0)
    off = np.abs(planes - wanted.astype(float))
    assert off.max() <= 1  # Pillow's weights are fixed-point numbers
    assert (off > 0).mean() < 0.1


def test_a_drawing_becomes_the_share_of_each_cell_that_its_ink_covers() -> None:
    random = np.random.default_rng(2)
    ink = (random.random((32, 48)) < 0.4) * 255
    rgba = np.stack([ink, ink, ink, np.full_like(ink, 255)], axis=2)
    given = {"data": rgba.ravel().tolist(), "height": 32, "width": 48, "shape": {"height": 8, "width": 12}}
    found = _node("console.log(JSON.stringify([...picture.drawn(given, given.shape, false)[0]]));", given)
    wanted = ink.reshape(8, 4, 12, 4).mean(axis=(1, 3))
    assert np.allclose(np.reshape(found, (8, 12)), wanted)


def test_a_framed_drawing_fills_the_frame_and_keeps_its_shape() -> None:
    ink = np.zeros((64, 64), int)
    ink[10:26, 30:38] = 255  # 16 high, 8 wide
    rgba = np.stack([ink, ink, ink, np.full_like(ink, 255)], axis=2)
    given = {"data": rgba.ravel().tolist(), "height": 64, "width": 64, "shape": {"height": 8, "width": 8}}
    found = _node("console.log(JSON.stringify([...picture.drawn(given, given.shape, true)[0]]));", given)
    wanted = np.zeros((8, 8))
    wanted[:, 2:6] = 255
    assert np.array_equal(np.reshape(found, (8, 8)), wanted)
    blank = {**given, "data": [0, 0, 0, 255] * 4096}
    assert not any(_node("console.log(JSON.stringify([...picture.drawn(given, given.shape, true)[0]]));", blank))


@pytest.mark.parametrize("first", [True, False])
def test_pixels_become_numbers_per_channel(first: bool) -> None:
    planes = np.random.default_rng(3).integers(0, 256, (3, 4, 5))
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    given = {
        "planes": planes.reshape(3, -1).tolist(),
        "image": {"mean": mean, "std": std, "channelsFirst": first, "height": 4, "width": 5},
    }
    found = _node("console.log(JSON.stringify([...picture.numbers(given.planes, given.image, false)]));", given)
    wanted = (planes / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    assert np.allclose(found, (wanted if first else wanted.transpose(1, 2, 0)).ravel(), rtol=1e-12)


ARRAYS = {
    (dtype, shape): np.asarray(np.random.default_rng(4).integers(0, 2, shape) * 3).astype(dtype)
    for dtype in ("float32", "float64", "bool", "int8", "uint16", "int32", "int64", "uint64")
    for shape in ((), (3,), (2, 3), (0, 4))
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, tuple[Any, Path]]:
    """What the page reads of each array's file, and the file that it writes, by one process."""
    folder, given = tmp_path_factory.mktemp("arrays"), []
    for number, array in enumerate(ARRAYS.values()):
        np.save(folder / f"{number}.npy", array)
        given.append({"path": str(folder / f"{number}.npy"), "out": str(folder / f"{number}.out.npy")})
    script = """
import { writeFileSync } from "node:fs";
const found = [];
for (const { path, out } of given) {
  const bytes = readFileSync(path);
  const { type, shape, data } = numpy.readNumpy(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  writeFileSync(out, new Uint8Array(await numpy.writeNumpy(type, shape, data).arrayBuffer()));
  found.push([type, shape, [...data].map(Number)]);
}
console.log(JSON.stringify(found));
"""
    return {
        key: (found, Path(asked["out"])) for key, found, asked in zip(ARRAYS, _node(script, given), given, strict=True)
    }


@pytest.mark.parametrize(("dtype", "shape"), ARRAYS)
def test_files_of_numpy_are_read_and_written(shape: tuple[int, ...], dtype: str, files: Any) -> None:
    array, (found, out) = ARRAYS[dtype, shape], files[dtype, shape]
    assert found == [dtype, list(shape), array.ravel().astype(float).tolist()]
    back = np.load(out)
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_a_file_that_is_not_one_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "big.npy", np.ones(3, ">f4"))
    np.save(tmp_path / "text.npy", np.array(["a"]))
    (tmp_path / "none.npy").write_bytes(b"PK\x03\x04 and more")
    np.save(tmp_path / "short.npy", np.ones(3, "<f4"))
    (tmp_path / "short.npy").write_bytes((tmp_path / "short.npy").read_bytes()[:-4])
    script = """
console.log(JSON.stringify(given.map((path) => {
  const bytes = readFileSync(path);
  try {
    return numpy.readNumpy(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length)).type;
  } catch (error) {
    return error.message;
  }
})));
"""
    names = ["big", "text", "none", "short"]
    found = _node(script, [str(tmp_path / f"{name}.npy") for name in names])
    for text, word in zip(found, ["big-endian", "no plain array", "no .npy file", "cut short"], strict=True):
        assert word in text
