"""A Triton model repository around one exported model.

Layout and field names follow the server's published ``model_config.proto``; the meaning of the parameters follows the
documentation of its ONNX Runtime backend.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from normdeploy.array_types import Array
from normdeploy.errors import UsageError
from normdeploy.ort.providers import device_number
from normdeploy.ort.settings import CPU, CUDA, Settings
from normdeploy.ort.specs import TensorSpec
from normdeploy.parsing.amounts import require_count
from normdeploy.runtime.folders import folder_written, plain_name, require_place, write_model
from normdeploy.runtime.plan import Plan
from normdeploy.runtime.predictor import Predictor, load
from normdeploy.runtime.samples import make_samples, tile_samples
from normdeploy.runtime.serving import Serving, ints

_TYPES = {
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    **{f"{kind}{bits}": f"TYPE_{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
# the backend's level: all optimizations unless -1 (basic), 1 (extended) or 2 (none)
_LEVELS = {"basic": -1, "extended": 1, "layout": 1, "disable": 2}

_LABELS = "labels.txt"


def _quote(text: str) -> str:
    return json.dumps(text)  # its escapes are among those of the protobuf text format


def _sizes(shape: Sequence[int | str | None]) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in shape]


def _tensor(spec: TensorSpec, *, batched: bool, labels: bool = False) -> str:
    if spec.dtype not in _TYPES:
        raise UsageError(f"{spec} cannot be served by Triton; expected one of {', '.join(_TYPES)}")
    if not batched and not spec.shape:
        raise UsageError(
            f"{spec} is a single number without axes, which Triton does not serve; expected one axis at least: export "
            "the model with one, as y.reshape(1)"
        )
    dims = _sizes(spec.shape[1:] if batched else spec.shape)
    # one number per sample: the server wants at least one dimension and takes it away again
    reshape = "" if dims else "\n    reshape { shape: [] }"
    named = f'\n    label_filename: "{_LABELS}"' if labels else ""
    return (
        f"  {{\n    name: {_quote(spec.name)}\n    data_type: {_TYPES[spec.dtype]}\n"
        f"    dims: {ints(dims or [1])}{reshape}{named}\n  }}"
    )


def _supports_batches(predictor: Predictor) -> bool:
    """Whether every input and output has an open first dimension of one and the same name."""
    first = {spec.shape[0] if spec.shape else 1 for spec in (*predictor.inputs, *predictor.outputs)}
    return len(first) == 1 and not isinstance(next(iter(first)), int)


def _settings_text(settings: Settings) -> list[str]:
    lines = []
    if settings.threads:
        lines.append(f'parameters {{ key: "intra_op_thread_count" value: {{ string_value: "{settings.threads}" }} }}')
    if settings.parallel:
        lines.append('parameters { key: "execution_mode" value: { string_value: "1" } }')
    policy = []
    if settings.optimization in _LEVELS:
        policy.append(f"graph {{ level: {_LEVELS[settings.optimization]} }}")
    given = [(key, value) for key, value in settings.options if key != "device_id"]  # the instances have it
    if settings.provider == CUDA and given:
        options = " ".join(f"parameters {{ key: {_quote(key)} value: {_quote(value)} }}" for key, value in given)
        policy.append(f'execution_accelerators {{ gpu_execution_accelerator: [ {{ name: "cuda" {options} }} ] }}')
    if policy:
        lines.append(f"optimization {{ {' '.join(policy)} }}")
    return lines


def config_text(
    predictor: Predictor, name: str, sample: Mapping[str, Array], max_batch_size: int, serving: Serving | None = None
) -> str:
    """Return ``config.pbtxt`` for a model, in the protobuf text format.

    Args:
        predictor: the model under the settings it shall be served with.
        name: the model's name in the repository.
        sample: one request, to warm up with; the file ``warmup/<position>`` holds each input's values.
        max_batch_size: the largest batch the server may form; not used where the model fixes its batch.
        serving: instances, GPUs, batching and labels.

    Raises:
        UsageError: a tensor type the server does not know, or settings it cannot be given.
    """
    settings = predictor.settings
    if settings.provider not in (CPU, CUDA):
        raise UsageError(
            f"the plan runs on {settings.provider}; expected {CPU} or {CUDA}: Triton's ONNX Runtime backend cannot "
            "hold that provider to the precision that was verified: package without the plan"
        )
    if settings.disabled_optimizers:
        raise UsageError(
            f"the plan leaves out the optimizers {', '.join(settings.disabled_optimizers)}, which Triton cannot be "
            "told; expected a plan without: package without the plan"
        )
    serving = serving or Serving()
    batched, labels = _supports_batches(predictor), serving.labels is not None
    warm = []
    for position, spec in enumerate(predictor.inputs):
        shape = list(sample[spec.name].shape)
        dims = (shape[1:] if batched else shape) or [1]
        warm.append(
            f"    inputs {{\n      key: {_quote(spec.name)}\n      value {{ data_type: {_TYPES[spec.dtype]} "
            f'dims: {ints(dims)} input_data_file: "{position}" }}\n    }}'
        )
    lines = [
        f"name: {_quote(name)}",
        'backend: "onnxruntime"',
        f"max_batch_size: {max_batch_size if batched else 0}",
        "input [\n" + ",\n".join(_tensor(spec, batched=batched) for spec in predictor.inputs) + "\n]",
        "output [\n" + ",\n".join(_tensor(spec, batched=batched, labels=labels) for spec in predictor.outputs) + "\n]",
        serving.instance_group(gpu=settings.provider == CUDA, device=device_number(settings)),
        *serving.batching(batched=batched, largest=max_batch_size),
        *_settings_text(settings),
        'model_warmup [\n  {\n    name: "sample"\n    batch_size: 1\n' + "\n".join(warm) + "\n  }\n]",
    ]
    return "\n".join(lines) + "\n"


def package_triton(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    max_batch_size: int = 64,
    plan: Plan | str | os.PathLike[str] | None = None,
    inputs: Mapping[str, Array] | None = None,
    sizes: Mapping[str, int] | None = None,
    serving: Serving | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a model into a Triton model repository: ``config.pbtxt``, ``1/model.onnx`` and a warm-up sample.

    The sample is run once here, so that the server is not the first to find that it fails.

    Args:
        path: the ONNX file.
        folder: the repository; made if missing.
        name: the model's name there; by default the file's.
        max_batch_size: the largest batch the server may form from single requests.
        plan: how to run it; its variant and its threads are packaged.
        inputs: the user's samples; the first one warms the server up. Made up where missing.
        sizes: sizes of dynamic dimensions other than the batch for a made-up sample, by word.
        serving: instances, GPUs, batching and labels; by default one instance that batches what has come.
        overwrite: allow replacing ``config.pbtxt``, version 1 and the warm-up sample of a model that is there; its
            other versions and whatever else lies in its folder stay.

    Returns:
        The model's folder in the repository.

    Raises:
        OutputExistsError: the repository has a model of that name and ``overwrite`` is false.
        UsageError: a name that is no plain one, settings Triton cannot be given, or a dynamic dimension without a size.
        InputError: the model does not run on the sample.
        StorageError: the repository cannot be written.

    >>> import normdeploy as nd
    >>> nd.package("folded.onnx", "models").as_posix()
    'models/folded'
    """
    require_count("max_batch_size", max_batch_size)
    label = Path(path).stem if name is None else name
    if not plain_name(label):
        raise UsageError(
            f"the model's name in the repository is {label!r}; expected a plain name without folders: choose another "
            "(--name)"
        )
    repository = Path(folder)
    target = repository / label
    if os.path.lexists(repository) and not repository.is_dir():
        raise UsageError(f"{repository} is no folder; expected a Triton model repository: choose another")
    require_place(target, overwrite=overwrite, choose="--name")
    predictor = load(path, plan=plan)
    specs = predictor.inputs
    sample = make_samples(specs, 1, sizes=sizes) if inputs is None else tile_samples(specs, inputs, 1)
    predictor(sample)
    text = config_text(predictor, label, sample, max_batch_size, serving)
    labels = (serving or Serving()).label_text(predictor.outputs)
    with folder_written(target, overwrite=overwrite, choose="--name") as made:
        (made / "1").mkdir()
        (made / "warmup").mkdir()
        write_model(predictor.path, made / "1" / "model.onnx")
        (made / "config.pbtxt").write_text(text, encoding="utf-8")
        if labels is not None:
            (made / _LABELS).write_text(labels, encoding="utf-8")
        for position, spec in enumerate(specs):
            (made / "warmup" / str(position)).write_bytes(sample[spec.name].tobytes())
    return target
