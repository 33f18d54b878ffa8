"""A folder for onnxruntime's small builds on phones: the ORT format and the list of operators it needs."""

from __future__ import annotations

import os
from pathlib import Path

import onnxruntime as ort

from normdeploy.errors import VerificationError
from normdeploy.files import require_model_file
from normdeploy.ort.ort_format import ORT_FORMAT, conversions_kept, converted
from normdeploy.runtime.folders import folder_written, require_place

_README = """{name}.ort: {source} in the ORT format, written by onnxruntime {version}.

A full build of onnxruntime of this version loads it as it loads ONNX. A build that has no other operators than this
model's, for a phone:

    ./build.sh --config MinSizeRel --minimal_build --include_ops_by_config {name}.required_operators.config ...

https://onnxruntime.ai/docs/build/custom.html. What was run is this file, by the CPU provider on the machine that wrote
it, held against {source} in float64 (verdict: {verdict}). No phone and no small build was.
"""


def package_mobile(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    *,
    verify: str = "quick",
    overwrite: bool = False,
) -> Path:
    """Write a model in the ORT format, and the list of operators that a reduced build of onnxruntime needs for it.

    The file that is written is run here, by the CPU provider, and judged against the ONNX file in float64 by the
    verifier's criterion before it appears.

    Args:
        path: the ONNX file.
        folder: ``NAME-mobile`` beside the file by default.
        verify: the verifier's level.
        overwrite: allow replacing the parts of a package that is there; whatever else lies in its folder stays.

    Returns:
        The folder.

    Raises:
        OutputExistsError: the folder exists and ``overwrite`` is false.
        GraphError: onnxruntime cannot convert the model.
        VerificationError: the converted file does not compute what the model computes.
        StorageError: the folder cannot be written.

    >>> import onnx
    >>> text = '<ir_version: 9, opset_import: ["": 17]> g (float[N, 1, 8, 8] x) => (float[N, 64] y) { y = Flatten(x) }'
    >>> onnx.save(onnx.parser.parse_model(text), "net.onnx")
    >>> sorted(file.name for file in package_mobile("net.onnx").iterdir())
    ['README.txt', 'net.ort', 'net.required_operators.config']
    """
    source = require_model_file(path)
    target = source.with_name(f"{source.stem}-mobile") if folder is None else Path(folder)
    require_place(target, overwrite=overwrite, choose="--out")
    from normdeploy.verification import Setting
    from normdeploy.verification import verify as run_verifier

    with conversions_kept():
        made_file = converted(source)
        verdict = run_verifier(source, source, level=verify, settings=[Setting(provider=ORT_FORMAT)])
    if verdict.status in ("fail", "error"):
        raise VerificationError(
            f"{source} in the ORT format does not compute what it computes: {verdict.reasons[0]}; expected equal "
            "results: nothing was written",
            verdict,
        )
    with folder_written(target, overwrite=overwrite, choose="--out") as made:
        (made / f"{source.stem}.ort").write_bytes(made_file.content)
        (made / f"{source.stem}.required_operators.config").write_text(made_file.operators, encoding="utf-8")
        words = {"name": source.stem, "source": source.name, "version": ort.__version__, "verdict": verdict.status}
        (made / "README.txt").write_text(_README.format(**words), encoding="utf-8")
    return target
