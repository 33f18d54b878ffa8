"""What is fuzzed: how an input is read, what to start from, how it is changed."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from safetensors.torch import save

from benchmarks.fuzzing import graphs
from normdeploy.api import inspect
from normdeploy.errors import NormdeployError
from normdeploy.graph import Evaluator, load_graph
from normdeploy.graph.derivation import read_derivation
from normdeploy.graph.files import save_graph
from normdeploy.nn.weight_files import read_weights
from normdeploy.ort.machine import this_machine
from normdeploy.ort.settings import Settings
from normdeploy.recipe import load_recipe
from normdeploy.rewrite import rewrite
from normdeploy.runtime.bulk.run import predict
from normdeploy.runtime.plan import Plan, Trial
from normdeploy.verification.record.answers import Status
from normdeploy.verification.record.certificate import certificate_path, certify, check_certificate, content_digests
from normdeploy.verification.record.verdict import Verdict

_FOLDER = Path(tempfile.mkdtemp(prefix="normdeploy-fuzzing-"))


@dataclass(frozen=True)
class Target:
    """One thing that is read.

    Args:
        read: raises nothing but errors of ours, whatever the bytes.
        seeds: inputs to start from.
        mutate: changes an input (bytes, most bytes, seed); libFuzzer's own changes otherwise.
    """

    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    mutate: Callable[[bytes, int, int], bytes] | None = None


class OtherFunctionError(Exception):
    """A graph computes something else after it was rewritten."""


def _file(content: bytes, suffix: str) -> Path:
    path = _FOLDER / f"net{suffix}"
    path.write_bytes(content)
    return path


def _fold(content: bytes) -> None:
    path = _file(content, ".onnx")
    source = load_graph(path)
    result = rewrite(load_graph(path))
    save_graph(result.model, _FOLDER / "folded.onnx", overwrite=True)
    feeds = {}
    for value in source.graph.inputs:
        if value.shape is None or value.dtype not in (ir.DataType.FLOAT, ir.DataType.BOOL):
            return
        sizes = [size if isinstance(size, int) else 2 for size in value.shape]
        if min(sizes, default=0) < 0 or math.prod(sizes) > 1e5:
            return
        feeds[value.name] = np.random.default_rng(0).standard_normal(sizes).astype(value.dtype.numpy())
    before = Evaluator(source).run(feeds)
    try:
        after = Evaluator(result.model).run(feeds)
    except NormdeployError as error:
        raise OtherFunctionError(f"it can no longer be evaluated: {error}") from error
    for name, truth in before.items():
        found = after[name]
        if truth.shape != found.shape:
            raise OtherFunctionError(f"{name}: {tuple(truth.shape)} became {tuple(found.shape)}")
        if truth.dtype.is_floating_point and not torch.allclose(truth, found, rtol=1e-5, atol=1e-5, equal_nan=True):
            raise OtherFunctionError(f"{name}: other numbers")


def _inspect(content: bytes) -> None:
    inspect(_file(content, ".onnx"))


def _plan(content: bytes) -> None:
    Plan.load(_file(content, ".plan.json"))


def _certificate(content: bytes) -> None:
    model = _certified()
    certificate_path(model).write_bytes(content)
    check_certificate(model)


def _certified() -> Path:
    model = _FOLDER / "certified.onnx"
    if not model.exists():
        model.write_bytes(graphs.seeds()[0])
    return model


def _weights(suffix: str) -> Callable[[bytes], object]:
    return lambda content: read_weights(_file(content, suffix))


def _table(suffix: str) -> Callable[[bytes], object]:
    def read(content: bytes) -> None:
        model = _FOLDER / "linear.onnx"
        if not model.exists():
            model.write_bytes(graphs.seeds()[2])
        predict(model, _file(content, suffix), _FOLDER / f"out{suffix}.npy", overwrite=True, batch_size=4)

    return read


def _npy() -> list[bytes]:
    path = _FOLDER / "seed.npy"
    np.save(path, np.zeros((5, 3), np.float32))
    return [path.read_bytes()]


def _pickled() -> list[bytes]:
    path = _FOLDER / "seed.pt"
    torch.save({"state_dict": {"w": torch.zeros(2)}}, path)
    return [path.read_bytes()]


_CSV = b"a,b,c\n1,2,3\n4.5,-1e3,nan\n,7,8\n"


def _recipes() -> list[bytes]:
    folder = Path(__file__).parents[2] / "export"
    return [path.read_bytes() for path in sorted(folder.glob("*.toml"))]


def _plans() -> list[bytes]:
    trial = Trial("fast", "float32", "chosen", file="net.onnx", settings=Settings(threads=1))
    plan = Plan("net.onnx", "0" * 64, "exact", "none", this_machine(), (trial,), "0" * 64)
    return [plan.to_json().encode()]


def _certificates() -> list[bytes]:
    model = _certified()
    certify(model, Verdict(Status.PASS, environment={"content": content_digests(model)}))
    return [certificate_path(model).read_bytes()]


def _derivations() -> list[bytes]:
    return [rewrite(load_graph(_file(seed, ".onnx"))).derivation.to_json().encode() for seed in graphs.seeds()]


TARGETS: dict[str, Target] = {
    "fold": Target(_fold, graphs.seeds, graphs.mutate),
    "inspect": Target(_inspect, graphs.seeds, graphs.mutate),
    "recipe": Target(lambda content: load_recipe(_file(content, ".toml")), _recipes),
    "plan": Target(_plan, _plans),
    "certificate": Target(_certificate, _certificates),
    "derivation": Target(read_derivation, _derivations),
    "safetensors": Target(_weights(".safetensors"), lambda: [save({"w": torch.zeros(2, 3)})]),
    "pt": Target(_weights(".pt"), _pickled),
    "npy": Target(_table(".npy"), _npy),
    "csv": Target(_table(".csv"), lambda: [_CSV]),
}
