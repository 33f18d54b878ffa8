"""A folder that any web server can serve: a model, onnxruntime-web, and a page that runs the one in the other.

The page loads nothing from elsewhere and sends nothing. Its form follows from the model's inputs and outputs, in
``model.json``; an input that is a picture, [1, C, H, W] or [1, H, W, C] with one channel or three, takes pictures, and
with one channel a drawing. A sample and what onnxruntime computes of it here lie beside it, so that any device can be
compared with this machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from normdeploy.array_types import Array
from normdeploy.errors import UsageError
from normdeploy.files import copy_file, require_model_file, sha256_file
from normdeploy.ort.settings import WEB, Settings
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.bulk.image_source import ImageOptions
from normdeploy.runtime.folders import folder_written, require_place, write_model
from normdeploy.runtime.predictor import load
from normdeploy.runtime.samples import make_samples
from normdeploy.runtime.serving import Serving
from normdeploy.web.release import WebRuntime, find_release
from normdeploy.web.wire import TYPES, VIEWS

_PAGE = Path(__file__).with_name("page")
_LICENSE = "LICENSE-onnxruntime.txt"
_README = """{title}: a model that runs in the browser, by onnxruntime-web {version}.

Serve this folder with any web server and open it:

    python -m http.server --directory {folder} 8000      then http://localhost:8000

Nothing is loaded from elsewhere, and nothing that is drawn or chosen leaves the browser. A server that sends
"Cross-Origin-Opener-Policy: same-origin" and "Cross-Origin-Embedder-Policy: require-corp" lets it use several threads.
Written by normdeploy {own}.
"""


def package_web(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    *,
    title: str | None = None,
    sizes: Mapping[str, int] | None = None,
    images: ImageOptions | None = None,
    labels: Path | None = None,
    web_runtime: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a folder with a model, onnxruntime-web and a page that runs it.

    Args:
        path: the ONNX file.
        folder: the folder; ``NAME-web`` beside the file by default.
        title: the page's; by default the file's name.
        sizes: sizes of dynamic dimensions other than the batch that the form begins with, by word.
        images: how pixels become numbers, for inputs that are pictures.
        labels: a text file with one class name per line, for the single output.
        web_runtime: the package onnxruntime-web, where not the pinned one from npm.
        overwrite: allow replacing the parts of a package that is there; whatever else lies in its folder stays.

    Returns:
        The folder.

    Raises:
        OutputExistsError: the folder exists and ``overwrite`` is false.
        UsageError: a tensor type that a page does not have, images for a model without, or a dimension without a size.
        InputError: the model does not run on a sample, or labels do not fit.
        MissingDependencyError: onnxruntime-web is not here, and npm does not fetch it.
        StorageError: the folder cannot be written.

    >>> import onnx
    >>> text = '<ir_version: 9, opset_import: ["": 17]> g (float[N, 1, 8, 8] x) => (float[N, 64] y) { y = Flatten(x) }'
    >>> onnx.save(onnx.parser.parse_model(text), "net.onnx")
    >>> package_web("net.onnx", title="A board").name  # doctest: +SKIP
    'net-web'

    (Skipped by the tests, which fetch nothing: here npm fetches onnxruntime-web the first time.)
    """
    source = require_model_file(path)
    target = source.with_name(f"{source.stem}-web") if folder is None else Path(folder)
    require_place(target, overwrite=overwrite, choose="--out")
    predictor = load(source).with_settings(Settings(threads=1))
    for spec in (*predictor.inputs, *predictor.outputs):
        if spec.dtype not in TYPES:
            raise UsageError(f"{spec} cannot be shown in a page; expected one of {', '.join(TYPES)}")
    named = Serving(labels=labels).label_text(predictor.outputs)
    pictures = {spec.name: picture_of(spec, images or ImageOptions()) for spec in predictor.inputs}
    if images is not None:
        _require_pictures(predictor.inputs, pictures, images)
    sample = make_samples(predictor.inputs, 1, sizes=_with_sizes(predictor.inputs, sizes, images))
    expected = predictor(sample)
    runtime = find_release(web_runtime)
    shown = source.stem if title is None else title
    with folder_written(target, overwrite=overwrite, choose="--out") as made:
        for file in (*sorted(_PAGE.iterdir()), VIEWS):
            copy_file(file, made / file.name)
        _write_runtime(runtime, made / "runtime")
        write_model(predictor.path, made / "model.onnx")
        (made / "sample").mkdir()
        description = {
            "title": shown,
            "model": "model.onnx",
            "inputs": [
                _described(spec, made, "input", place, sample[spec.name]) | {"image": pictures[spec.name]}
                for place, spec in enumerate(predictor.inputs)
            ],
            "outputs": [
                _described(spec, made, "output", place, expected[spec.name])
                for place, spec in enumerate(predictor.outputs)
            ],
            "labels": None if named is None else named.splitlines(),
            "facts": _facts(source, made / "model.onnx", runtime),
        }
        (made / "model.json").write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
        readme = _README.format(title=shown, version=runtime.version, folder=target.name, own=_version())
        (made / "README.txt").write_text(readme, encoding="utf-8")
    return target


def picture_of(spec: TensorSpec, options: ImageOptions) -> dict[str, Any] | None:
    """Return how an input takes pictures, as the page reads it; None for one that is no picture.

    Args:
        spec: the input: [1, C, H, W] or [1, H, W, C], 1 dynamic or not, C of 1 or 3, floats or uint8.
        options: what pixels become, and height and width where the model leaves them open.
    """
    if len(spec.shape) != 4 or not (spec.dtype.startswith("float") or spec.dtype == "uint8"):
        return None
    batch, *rest = spec.shape
    first = rest[0] in (1, 3)
    channels, *sizes = rest if first else (rest[2], rest[0], rest[1])
    if channels not in (1, 3) or (isinstance(batch, int) and batch != 1):
        return None
    height, width = (
        own if isinstance(own, int) else wish for own, wish in zip(sizes, options.size or (None, None), strict=True)
    )
    if height is None or width is None or any(len(v) not in (1, channels) for v in (options.mean, options.std)):
        return None
    return {
        "channels": channels,
        "height": height,
        "width": width,
        "channelsFirst": first,
        "mean": list(options.mean),
        "std": list(options.std),
        "resize": options.resize,
        "filter": options.interpolation,
    }


def _require_pictures(
    specs: tuple[TensorSpec, ...], pictures: Mapping[str, Mapping[str, Any] | None], images: ImageOptions
) -> None:
    """Require that options of images say something of an input, and nothing that it does not take.

    Raises:
        UsageError: there is no such input, it has other channels, or the model fixes another size.
    """
    found = [picture for picture in pictures.values() if picture is not None]
    counts = {picture["channels"] for spec in specs if (picture := picture_of(spec, ImageOptions(size=images.size)))}
    if not found and counts:
        several = ", or one for each of 3 channels" if 3 in counts else ""
        raise UsageError(
            f"means={list(images.mean)}, deviations={list(images.std)} for a model that takes "
            f"{', '.join(map(str, specs))}; expected one of each{several}: correct them (--image-mean, --image-std)"
        )
    if not found:
        raise UsageError(
            f"options of images for a model that takes {', '.join(map(str, specs))}; expected an input "
            "[1, C, H, W] or [1, H, W, C] with 1 or 3 channels and known sizes: leave them out, or give --image-size"
        )
    if images.size is not None and all((one["height"], one["width"]) != images.size for one in found):
        raise UsageError(
            f"size={images.size} and the model takes {', '.join(map(str, specs))}; expected its size: leave it out "
            "(--image-size)"
        )


def _with_sizes(
    specs: tuple[TensorSpec, ...], sizes: Mapping[str, int] | None, images: ImageOptions | None
) -> dict[str, int]:
    """Return sizes by word, those of pictures' dimensions among them."""
    found = dict(sizes or {})
    given = None if images is None else images.size
    for spec in specs if given is not None else ():
        if len(spec.shape) == 4:
            rest = spec.shape[2:] if spec.shape[1] in (1, 3) else spec.shape[1:3]
            for word, size in zip(rest, given or (), strict=True):
                if isinstance(word, str):
                    found.setdefault(word, size)
    return found


def _described(spec: TensorSpec, made: Path, kind: str, place: int, array: Array) -> dict[str, Any]:
    """Return one input or output as the page reads it, and write its sample."""
    file = f"sample/{kind}{place}.npy"
    np.save(made / file, array)
    own: dict[str, Any] = {"name": spec.name, "type": spec.dtype, "shape": list(spec.shape)}
    return own | ({"sizes": list(array.shape), "sample": file} if kind == "input" else {"expected": file})


def _write_runtime(runtime: WebRuntime, folder: Path) -> None:
    """Copy what is used of onnxruntime-web, with its licence: its package holds none, onnxruntime's own does."""
    folder.mkdir()
    for name, file in runtime.files.items():
        copy_file(file, folder / name)
    import normdeploy.web

    copy_file(Path(normdeploy.web.__file__).with_name(_LICENSE), folder / "LICENSE.txt")
    notices = Path(ort.__file__).with_name("ThirdPartyNotices.txt")
    if notices.is_file():
        copy_file(notices, folder / notices.name)


def _facts(source: Path, model: Path, runtime: WebRuntime) -> dict[str, str]:
    """Return what the page says of the model besides its inputs and outputs."""
    return {
        "file": source.name,
        "size": f"{model.stat().st_size / 1e6:.2f} MB",
        "SHA-256": sha256_file(model),
        "packaged for": f"{WEB} {runtime.version}",
        "verified": _verdict(source),
        "sample computed by": f"onnxruntime {ort.__version__} on the CPU",
        "written by": f"normdeploy {_version()}",
    }


def _verdict(source: Path) -> str:
    """Say what the certificate beside a file holds."""
    from normdeploy.verification.record.certificate import certificate_path, check_certificate

    if not certificate_path(source).is_file():
        return f"not certified; normdeploy verify SOURCE {source.name} --runtime web --certify judges and certifies it"
    report = check_certificate(source)
    if not report.matches:
        return "its certificate is not of this file"
    under = next((text for text in report.covered if text.startswith("runtime settings: ")), "")
    return f"{report.status}, {under}"


def _version() -> str:
    from normdeploy import __version__

    return __version__
