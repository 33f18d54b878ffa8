"""What is fuzzed: how an input is read, what to start from, how it is changed."""

from __future__ import annotations

import gzip
import io
import json
import math
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pyarrow as pa
import pyarrow.parquet
import torch
from PIL import Image
from safetensors.torch import save

from benchmarks.fuzzing import documents, fuzzed_graphs
from normdeploy.building.build_files import Outputs, previous_report
from normdeploy.errors import NormdeployError
from normdeploy.graph import Evaluator, load_graph
from normdeploy.graph.derivation import read_derivation
from normdeploy.graph.onnx_files import save_graph
from normdeploy.inspection import inspect
from normdeploy.nn.weight_files import read_metadata, read_weights
from normdeploy.onnxfile.model import read_model
from normdeploy.ort.machine import this_machine
from normdeploy.ort.settings import Settings
from normdeploy.parsing.recipe import load_recipe
from normdeploy.rewrite import rewrite
from normdeploy.runtime.bulk.predict_files import predict
from normdeploy.runtime.plan import Plan, Trial
from normdeploy.train.checkpoint import Checkpoint
from normdeploy.train.data_files import FileData, read_files
from normdeploy.train.provenance import from_header
from normdeploy.verification import verify
from normdeploy.verification.record.answers import Status
from normdeploy.verification.record.certificate import certificate_path, certify, check_certificate
from normdeploy.verification.record.verdict import Verdict

_FOLDER = Path(tempfile.mkdtemp(prefix="normdeploy-fuzzing-"))


@dataclass(frozen=True)
class Target:
    """One thing that is read.

    Args:
        read: raises nothing but errors of ours, whatever the bytes.
        seeds: inputs to start from.
        mutate: changes an input (bytes, most bytes, seed); libFuzzer's own changes otherwise.
        runs: how many inputs it gets where nothing else is said.
    """

    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    mutate: Callable[[bytes, int, int], bytes] | None = None
    runs: int = 2000


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
    before, again = Evaluator(source).run(feeds), Evaluator(source).run(feeds)
    if not all(torch.equal(value.nan_to_num(), again[name].nan_to_num()) for name, value in before.items()):
        return  # it draws random numbers
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


def _verify(content: bytes) -> None:
    """Compare the file with the one it was made of, in the order that the bytes decide."""
    pair = [_file(content, ".onnx"), _certified()]
    verify(*(pair if len(content) % 2 else pair[::-1]), level="quick")


def _plan(content: bytes) -> None:
    Plan.load(_file(content, ".plan.json"))


def _certificate(content: bytes) -> None:
    model = _certified()
    certificate_path(model).write_bytes(content)
    check_certificate(model)


def _certified() -> Path:
    model = _FOLDER / "certified.onnx"
    if not model.exists():
        model.write_bytes(fuzzed_graphs.seeds()[0])
    return model


def _weights(suffix: str) -> Callable[[bytes], object]:
    def read(content: bytes) -> None:
        path = _file(content, suffix)
        from_header(read_metadata(path))
        read_weights(path)

    return read


def _checkpoint(content: bytes) -> None:
    Checkpoint.load(_file(content, ".checkpoint"), {"model": "net"})


def _report(content: bytes) -> None:
    path = _FOLDER / "net.report.json"
    path.write_bytes(content)
    previous_report(Outputs(path, path, path, path))


def _table(suffix: str) -> Callable[[bytes], object]:
    def read(content: bytes) -> None:
        model = _FOLDER / "linear.onnx"
        if not model.exists():
            model.write_bytes(fuzzed_graphs.seeds()[2])
        predict(model, _file(content, suffix), _FOLDER / f"out{suffix}.npy", overwrite=True, batch_size=4)

    return read


def _images(content: bytes) -> None:
    model = _FOLDER / "images.onnx"
    if not model.exists():
        model.write_bytes(fuzzed_graphs.seeds()[0])
    predict(model, _file(content, ".png"), _FOLDER / "out.images.npy", overwrite=True, batch_size=4)


def _training(name: str) -> Callable[[bytes], object]:
    def read(content: bytes) -> None:
        path = _FOLDER / name
        path.write_bytes(content)
        if "idx3" in name:
            labels = gzip.compress(documents.idx(5, (), 8)) if name.endswith(".gz") else documents.idx(5, (), 8)
            (_FOLDER / name.replace("images-idx3", "labels-idx1")).write_bytes(labels)
        read_files(FileData(path))

    return read


def _npy() -> list[bytes]:
    stream = io.BytesIO()
    np.save(stream, np.zeros((5, 3), np.float32))
    return [stream.getvalue()]


def _npz() -> list[bytes]:
    stream = io.BytesIO()
    np.savez(stream, x=np.ones((5, 3), np.float32), y=np.arange(5))
    return [stream.getvalue()]


def _tables(**columns: object) -> list[bytes]:
    found = []
    for options in ({"compression": "none"}, {"compression": "snappy", "version": "1.0"}):
        stream = io.BytesIO()
        pyarrow.parquet.write_table(pa.table(columns), stream, **options)
        found.append(stream.getvalue())
    return found


def _pictures() -> list[bytes]:
    found = []
    for mode, kind in (("RGB", "PNG"), ("L", "PNG"), ("RGB", "JPEG"), ("RGB", "GIF"), ("RGB", "TIFF"), ("RGB", "WEBP")):
        stream = io.BytesIO()
        Image.new(mode, (4, 4), 7).save(stream, kind)
        found.append(stream.getvalue())
    return found


def _saved(value: object) -> list[bytes]:
    found = []
    for zipped in (True, False):
        stream = io.BytesIO()
        torch.save(value, stream, _use_new_zipfile_serialization=zipped)
        found.append(stream.getvalue())
    return found


def _checkpoints() -> list[bytes]:
    path = _FOLDER / "seed.checkpoint"
    Checkpoint({"model": "net"}, 1, {"w": torch.zeros(2)}, {}, {"state": {}}, {}, '{"epochs": []}').save(path)
    return [path.read_bytes()]


_CSV = (b"a,b,c\n1,2,3\n4.5,-1e3,nan\n,7,8\n", b'\xef\xbb\xbf"a";b\r\n1;"2\n3"\r\n', b"1\t2\t3\r4\t5\t6")
_WORDS = (b",", b'"', b"\n", b"\r", b"\0", b";", b"\t", b"nan", b"1e999", b"-", b"\xff", b"0" * 5000, b"a,b,c\n", b" ")


def _csv(content: bytes, most: int, seed: int) -> bytes:
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(content) + 1)
        content = content[:place] + rng.choice(_WORDS) * rng.choice((1, 1, 2, 40)) + content[place + rng.randrange(3) :]
    return (documents.changed_bytes(content, rng) if rng.random() < 0.2 else content)[:most]


def _recipes() -> list[bytes]:
    folder = Path(__file__).parents[2] / "export"
    return [path.read_bytes() for path in sorted(folder.glob("*.toml"))]


def _plans() -> list[bytes]:
    trial = Trial("fast", "float32", "chosen", file="net.onnx", settings=Settings(threads=1))
    plan = Plan("net.onnx", "0" * 64, "exact", "none", this_machine(), (trial,), "0" * 64)
    return [plan.to_json().encode()]


def _certificates() -> list[bytes]:
    model = _certified()
    certify(model, Verdict(Status.PASS, environment={"content": read_model(model).digests()}))
    return [certificate_path(model).read_bytes()]


def _derivations() -> list[bytes]:
    return [rewrite(load_graph(_file(seed, ".onnx"))).derivation.to_json().encode() for seed in fuzzed_graphs.seeds()]


_STATE = {"state_dict": {"w": torch.zeros(2), "n": torch.tensor(3)}, "epoch": 3}
_NUMPY = documents.headed(2, "text", 8)
_JSON = documents.json_document

TARGETS: dict[str, Target] = {
    "fold": Target(_fold, fuzzed_graphs.seeds, fuzzed_graphs.mutate, 4000),
    "inspect": Target(_inspect, fuzzed_graphs.seeds, fuzzed_graphs.mutate, 4000),
    "verify": Target(_verify, fuzzed_graphs.seeds, fuzzed_graphs.mutate, 3000),
    "recipe": Target(lambda content: load_recipe(_file(content, ".toml")), _recipes, documents.toml_document, 20000),
    "plan": Target(_plan, _plans, _JSON, 20000),
    "certificate": Target(_certificate, _certificates, _JSON, 15000),
    "derivation": Target(lambda content: read_derivation(content), _derivations, _JSON, 15000),
    "report": Target(_report, lambda: [json.dumps({"schema": 1, "a": [1]}).encode()], _JSON, 10000),
    "safetensors": Target(
        _weights(".safetensors"), lambda: [save({"w": torch.zeros(2, 3)}, {"a": "b"})], documents.headed(8, "json", 0)
    ),
    "pt": Target(_weights(".pt"), lambda: _saved(_STATE), documents.zipped()),
    "checkpoint": Target(_checkpoint, _checkpoints, documents.zipped()),
    "npy": Target(_table(".npy"), _npy, _NUMPY),
    "npz": Target(_table(".npz"), _npz, documents.zipped(_NUMPY)),
    "csv": Target(_table(".csv"), lambda: list(_CSV), _csv),
    "parquet": Target(_table(".parquet"), lambda: _tables(a=[1.0, 2.0], b=[3, 4], c=[True, None])),
    "image": Target(_images, _pictures),
    "training-csv": Target(_training("t.csv"), lambda: [b"a,b,y\n" + b"1,2,0\n3,4,1\n" * 9, *_CSV], _csv),
    "training-npz": Target(_training("t.npz"), _npz, documents.zipped(_NUMPY)),
    "training-parquet": Target(_training("t.parquet"), lambda: _tables(a=[1.0] * 9, y=[0, 1, 2] * 3)),
    "training-idx": Target(_training("t-images-idx3"), lambda: [documents.idx(5, (2, 2), 8)]),
    "training-idx-gz": Target(_training("t-images-idx3.gz"), lambda: [gzip.compress(documents.idx(5, (2, 2), 8))]),
}
