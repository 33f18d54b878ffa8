"""The folder of a web page: what lies in it, what is refused, and that nothing of it appears when something fails."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from fake_release import VERSION, release_folder
from onnx import TensorProto, helper, numpy_helper

from normdeploy.errors import InputError, OutputExistsError, UsageError
from normdeploy.files import sha256_file
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime import ImageOptions, package_web
from normdeploy.runtime.predictor import CertificateWarning
from normdeploy.runtime.web_page import picture_of
from normdeploy.verification import verify
from normdeploy.verification.record.certificate import certify

WEIGHT = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    return release_folder(tmp_path / "release")


@pytest.fixture
def net(tmp_path: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["rows"]), helper.make_node("MatMul", ["rows", "w"], ["scores"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_the_folder_holds_all_that_the_page_needs(net: Path, runtime: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("cat\ndog\nénigme\n")
    folder = package_web(net, title="A & B", labels=labels, web_runtime=runtime)
    assert folder == tmp_path / "net-web"
    assert (folder / "model.onnx").read_bytes() == net.read_bytes()
    page = (folder / "index.html").read_text()
    for name in ("style.css", "app.mjs"):
        assert name in page
        assert (folder / name).is_file()
    for script in folder.glob("*.mjs"):  # what a script imports is there
        for line in script.read_text().splitlines():
            if line.startswith("import "):
                assert (folder / line.split('"')[1]).is_file(), line
    assert (folder / "runtime" / "LICENSE.txt").read_text().startswith("MIT License")
    model = json.loads((folder / "model.json").read_text())
    assert model["title"] == "A & B"
    assert model["labels"] == ["cat", "dog", "énigme"]
    assert model["facts"]["SHA-256"] == sha256_file(net)
    assert model["facts"]["packaged for"] == f"onnxruntime-web {VERSION}"
    assert model["inputs"][0]["image"]["height"] == 8
    assert f"onnxruntime-web {VERSION}" in (folder / "README.txt").read_text()
    sample = np.load(folder / model["inputs"][0]["sample"])
    expected = np.load(folder / model["outputs"][0]["expected"])
    assert sample.shape == (1, 1, 8, 8)
    truth = sample.reshape(1, 64).astype(np.float64) @ WEIGHT.astype(np.float64)
    assert np.allclose(expected, truth, rtol=1e-5, atol=1e-5)


def test_nothing_is_loaded_from_elsewhere(net: Path, runtime: Path) -> None:
    folder = package_web(net, web_runtime=runtime)
    for file in folder.glob("*.*"):
        if file.suffix in (".html", ".mjs", ".css"):
            assert "http://" not in file.read_text().replace("http://localhost", "")
            assert "https://" not in file.read_text()


def test_what_is_there_stays_until_overwriting_is_asked_for(net: Path, runtime: Path) -> None:
    folder = package_web(net, web_runtime=runtime)
    (folder / "model.json").write_text("mine")
    (folder / "notes.txt").write_text("mine too")
    with pytest.raises(OutputExistsError, match=r"--out.*--overwrite"):
        package_web(net, web_runtime=runtime)
    assert (folder / "model.json").read_text() == "mine"
    package_web(net, web_runtime=runtime, overwrite=True)
    assert json.loads((folder / "model.json").read_text())["title"] == "net"
    assert (folder / "notes.txt").read_text() == "mine too"


def test_on_failure_nothing_appears(net: Path, runtime: Path, tmp_path: Path) -> None:
    (runtime / "dist" / "ort-wasm-simd-threaded.wasm").chmod(0o644)
    before = sorted(tmp_path.iterdir())
    few = tmp_path / "labels"
    few.write_text("one\n")
    with pytest.raises(InputError, match="expected 3, one per class"):
        package_web(net, labels=few, web_runtime=runtime)
    with pytest.raises(InputError, match="does not exist"):
        package_web(net, web_runtime=tmp_path / "none")
    few.unlink()
    assert sorted(tmp_path.iterdir()) == before


def test_text_is_no_input_of_a_page(tmp_path: Path, runtime: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, [1])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, [1])],
    )
    path = tmp_path / "text.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(UsageError, match="cannot be shown in a page"):
        package_web(path, web_runtime=runtime)


@pytest.mark.parametrize(
    ("dtype", "shape", "options", "expected"),
    [
        ("float32", ("batch", 1, 8, 8), {}, (1, 8, 8, True)),
        ("float16", (1, 3, 5, 7), {}, (3, 5, 7, True)),
        ("uint8", (1, 28, 20, 1), {}, (1, 28, 20, False)),
        ("float32", ("n", 3, "h", "w"), {"size": (32, 48)}, (3, 32, 48, True)),
        ("float32", ("n", 3, "h", "w"), {}, None),
        ("float32", (2, 3, 8, 8), {}, None),
        ("float32", (1, 4, 8, 8), {}, None),
        ("int64", (1, 1, 8, 8), {}, None),
        ("float32", (1, 8, 8), {}, None),
        ("float32", (1, 1, 8, 8), {"mean": (0.1, 0.2, 0.3)}, None),
    ],
)
def test_which_inputs_are_pictures(
    dtype: str, shape: tuple[int | str, ...], options: dict[str, tuple[float, ...]], expected: tuple[int, ...] | None
) -> None:
    found = picture_of(TensorSpec("x", dtype, shape), ImageOptions(**options))  # type: ignore[arg-type]
    kept = None if found is None else tuple(found[key] for key in ("channels", "height", "width", "channelsFirst"))
    assert kept == expected


def test_options_of_images_need_a_picture(net: Path, runtime: Path) -> None:
    with pytest.raises(UsageError, match=r"means=\[0.5, 0.4, 0.3\], .*expected one of each: correct"):
        package_web(net, images=ImageOptions(mean=(0.5, 0.4, 0.3)), web_runtime=runtime)


def test_options_of_images_for_a_model_of_none(runtime: Path, tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[n, 5] x) => (float[n, 5] y) { y = Neg(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "flat.onnx")
    with pytest.raises(UsageError, match="options of images for a model that takes x"):
        package_web(tmp_path / "flat.onnx", images=ImageOptions(size=(3, 3)), web_runtime=runtime)


def test_a_size_that_the_model_fixes_may_be_repeated(net: Path, runtime: Path) -> None:
    folder = package_web(net, images=ImageOptions(size=(8, 8)), web_runtime=runtime)
    assert json.loads((folder / "model.json").read_text())["inputs"][0]["image"]["height"] == 8


def test_pictures_give_open_sizes_and_a_certificate_is_named(runtime: Path, tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[n, 1, h, w] x) => (float[n, 1] y)
        { p = GlobalAveragePool(x) y = Flatten(p) }"""
    path = tmp_path / "open.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    certify(path, verify(path, path, level="quick"))
    folder = package_web(path, images=ImageOptions(size=(6, 5)), web_runtime=runtime)
    model = json.loads((folder / "model.json").read_text())
    assert model["inputs"][0]["sizes"] == [1, 1, 6, 5]
    assert model["facts"]["verified"].startswith("pass, runtime settings: CPU")
    other = onnx.load(path)
    other.graph.node[0].name = "another"
    onnx.save(other, path)
    with pytest.warns(CertificateWarning):
        folder = package_web(path, images=ImageOptions(size=(6, 5)), web_runtime=runtime, overwrite=True)
    model = json.loads((folder / "model.json").read_text())
    assert model["facts"]["verified"] == "its certificate is not of this file"
