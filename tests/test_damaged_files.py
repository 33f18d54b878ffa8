"""Documents, weights and data that are damaged: errors of ours, bounded memory. Classes that fuzzing found
(benchmarks/fuzzing)."""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from onnx import helper, numpy_helper
from safetensors.torch import save_file

import normdeploy as nd
from normdeploy.building.build_files import Outputs, previous_report
from normdeploy.errors import InputError, NormdeployError, RecipeError, UsageError, WeightsError
from normdeploy.graph import load_graph
from normdeploy.nn.weight_files import read_metadata, read_weights
from normdeploy.parsing.recipe import load_recipe
from normdeploy.runtime import Plan, predict
from normdeploy.runtime.samples import read_arrays
from normdeploy.train.checkpoint import Checkpoint
from normdeploy.train.data_files import FileData, read_files, read_idx
from normdeploy.train.provenance import from_header
from normdeploy.verification.record.certificate import certificate_path, check_certificate

DEEP, ENDLESS, NO_TEXT = b"[" * 100_000, b"9" * 5000, b"\xff\xfe"
DOCUMENTS = {"deep": DEEP, "endless number": ENDLESS, "no text": NO_TEXT, "empty": b"", "half": b'{"a": [1, '}


def linear(folder: Path, rows: object = "n") -> Path:
    """Write y = x diag(2, 3, 4) on [rows, 3]."""
    weight = numpy_helper.from_array(np.diag([2.0, 3.0, 4.0]).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [rows, 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [rows, 3])], [weight],
    )  # fmt: skip
    path = folder / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.mark.parametrize("what", DOCUMENTS)
def test_documents(what: str, tmp_path: Path) -> None:
    """A recipe, a plan, a certificate, a report and a header that no parser reads, each in its own way."""
    content, model = DOCUMENTS[what], linear(tmp_path)
    (tmp_path / "r.toml").write_bytes(b"x = " + content)
    with pytest.raises(RecipeError, match="no valid TOML"):
        load_recipe(tmp_path / "r.toml")
    (tmp_path / "net.plan.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"is not JSON|schema 'int'"):  # a long number is JSON, where it is read at all
        Plan.load(tmp_path / "net.plan.json")
    certificate_path(model).write_bytes(content)
    assert not check_certificate(model).matches
    report = tmp_path / "net.report.json"
    report.write_bytes(content)
    assert previous_report(Outputs(report, report, report, report)) is None
    assert from_header({"normdeploy.trained_by": content.decode("latin-1")}) is None


@pytest.mark.parametrize("parts", [{"a": 1}, {"a": None}, ["a"], "a", {"a": {"b": "c"}}])
def test_a_header_that_holds_other_things_says_nothing(parts: object, tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "w.safetensors", {"normdeploy.trained_by": json.dumps(parts)})
    assert from_header(read_metadata(tmp_path / "w.safetensors")) is None


PICKLES = {
    "stack is empty": b"\x80\x02.",
    "mark is missing": b"\x80\x02e.",
    "memo is missing": b"\x80\x02h\x07.",
    "no bytes for a number": b"\x80\x02J\x01.",
    "a list for a class": b"\x80\x02]]R.",
    "build on nothing": b"\x80\x02}]b.",
    "a key that cannot be one": b"\x80\x02}(]]u.",
    "wrong protocol": b"\x80\x63.",
}


def pickled(folder: Path, content: bytes, suffix: str) -> Path:
    """Write a file of torch.save whose pickle is exchanged; the archive's checksums are right."""
    stream = io.BytesIO()
    torch.save({"w": torch.ones(2)}, stream)
    path = folder / f"w{suffix}"
    with zipfile.ZipFile(stream) as old, zipfile.ZipFile(path, "w") as new:
        for item in old.infolist():
            new.writestr(item.filename, content if item.filename.endswith("data.pkl") else old.read(item))
    return path


@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")  # torch's own, of one of them
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("what", PICKLES)
def test_pickles(what: str, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    if zipped:
        path = pickled(tmp_path, PICKLES[what], ".pt")
    else:
        path.write_bytes(PICKLES[what])
    for read in (read_weights, read_metadata):
        with pytest.raises(WeightsError, match="expected"):
            read(path)
    with pytest.raises(UsageError, match="delete it"):
        Checkpoint.load(path, {})
    assert Checkpoint.load(path, {}, again=True) is None


WHOLE = {"schema": 2, "parts": {}, "epochs_done": 1, "state": {}, "best_state": {}, "optimizer": {}, "scaler": {}}
FIELDS: dict[str, Callable[[dict[str, object]], object]] = {
    "field is missing": lambda held: held.pop("history"),
    "field too many": lambda held: held.update(more=1),
    "parts are no words": lambda held: held.update(parts={"a": 1}),
    "parts are a list": lambda held: held.update(parts=["a"]),
    "epochs are text": lambda held: held.update(epochs_done="1"),
    "history is a number": lambda held: held.update(history=3),
    "state is a tensor": lambda held: held.update(state=torch.ones(2)),
}


@pytest.mark.parametrize("what", FIELDS)
def test_checkpoints_of_another_shape(what: str, tmp_path: Path) -> None:
    held = {**WHOLE, "history": '{"epochs": []}'}
    FIELDS[what](held)
    torch.save(held, tmp_path / "c.checkpoint")
    with pytest.raises(UsageError, match="no checkpoint of this version"):
        Checkpoint.load(tmp_path / "c.checkpoint", {})


def parquet(folder: Path, **columns: object) -> bytes:
    path = folder / "whole.parquet"
    pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False, write_statistics=False)
    return path.read_bytes()


@pytest.mark.parametrize("step", [10, pytest.param(5, marks=pytest.mark.slow)])  # the same places, and as many more
def test_a_damaged_parquet_file_is_refused_wherever_it_is_damaged(tmp_path: Path, step: int) -> None:
    model = linear(tmp_path)
    whole = parquet(tmp_path, a=[1.0, 2.0], b=[3.0, 4.0], y=[0.0, 1.0])
    path, refused = tmp_path / "d.parquet", 0
    for at in range(0, len(whole), step):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :])
        for call in (
            lambda: predict(model, path, tmp_path / "o.npy", overwrite=True),
            lambda: read_files(FileData(path)),
        ):
            try:
                call()
            except NormdeployError:
                refused += 1
    assert refused > 20


def test_a_missing_flag_is_a_bad_row(tmp_path: Path) -> None:
    """A column of booleans is read as numbers, and one that is null has no value to stand in its place."""
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [3, 4], "c": [True, None]}), tmp_path / "d.parquet")
    predict(linear(tmp_path), tmp_path / "d.parquet", tmp_path / "o.csv")
    assert "'c' is '' or null" in (tmp_path / "o.csv.bad.csv").read_text()
    found = (tmp_path / "o.csv").read_text().splitlines()
    assert [[float(cell) for cell in line.split(",")[-3:]] for line in found[1:]] == [[2.0, 9.0, 4.0]]


TABLES = {
    "one column": b"y\n1\n2\n",
    "no rows": b"a,y\n",
    "names that are no text": b"a,\xff\xfe\n1,2\n",
    "empty": b"",
}


@pytest.mark.parametrize("what", TABLES)
def test_tables_to_train_on(what: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(TABLES[what])
    with pytest.raises(InputError, match="expected"):
        read_files(FileData(tmp_path / "t.csv"))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.array([[1e300], [1.0]]), "y": np.arange(2)}, r"1e[+]?300; expected numbers up to 3.4e38"),
        ({"x": np.array([["a"], ["b"]]), "y": np.arange(2)}, "x of type <U1"),
        ({"x": np.array([[1j], [2]]), "y": np.arange(2)}, "x of type complex128"),
        ({"x": np.array(1.0), "y": np.arange(2)}, r"x \[\]"),
        ({"x": np.ones((2, 1)), "y": np.zeros(2, [("a", "f4")])}, "y of type"),
        ({"x": np.ones((2, 1)), "y": np.array(3)}, r"y \[\]"),
    ],
)
def test_arrays_to_train_on(arrays: dict[str, np.ndarray], words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", **arrays)  # type: ignore[arg-type] # its stub types every keyword as allow_pickle
    with pytest.raises(InputError, match=words):
        read_files(FileData(tmp_path / "t.npz"))


@pytest.mark.parametrize("entry", [b"no array", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fort"])
def test_entries_of_an_archive_that_are_no_arrays(entry: bytes, tmp_path: Path) -> None:
    """NumPy gives the bytes of the first, and raises of the second only when it is asked for."""
    path = tmp_path / "t.npz"
    np.savez(path, x=np.ones((2, 1), np.float32))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y.npy", entry)
    for read in (lambda: read_files(FileData(path)), lambda: read_arrays(path)):
        with pytest.raises(InputError, match="cannot be read"):
            read()


def test_numbers_too_big_for_a_table_to_train_on(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1e300,0\n2,1\n")
    with pytest.raises(InputError, match=r"column 'a'.*1e[+]?300"):
        read_files(FileData(tmp_path / "t.csv"))


def test_lists_are_no_classes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1.0, 2.0], "y": [[1], [2]]}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="one class in a row"):
        read_files(FileData(tmp_path / "t.parquet"))


def idx(count: int, content: bytes) -> bytes:
    return struct.pack(">HBBI", 0, 8, 1, count) + content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (idx(4, b"abc"), "it declares 4 bytes"),
        (idx(2, b"abc"), "holds more"),
        (idx(2**32 - 1, b"abc"), "is too short for them"),
        (struct.pack(">HBB8I", 0, 14, 8, *[2**32 - 1] * 8), "is too short for them"),
        (b"\0\0\x08", "index"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_what_an_idx_file_declares_is_bounded(content: bytes, words: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t-idx1{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(InputError, match=words):
        read_idx(path)


def test_a_damaged_gzip_stream(tmp_path: Path) -> None:
    whole = gzip.compress(idx(200, bytes(range(200))))
    path = tmp_path / "t-idx1.gz"
    path.write_bytes(whole)
    assert read_idx(path).tolist() == list(range(200))
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            found = read_idx(path)
        except InputError:
            continue
        assert len(found) == 200  # the header's time, name or system


_LIMITED = """
import resource, sys
from pathlib import Path
from normdeploy.runtime.bulk.csv_source import CsvSource
from normdeploy.runtime import load
specs = load(sys.argv[1]).inputs
source = CsvSource([Path(sys.argv[2])], specs, None, (), None)
resource.setrlimit(resource.RLIMIT_AS, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + (6 << 30),) * 2)
print(sum(part.size for part in source.parts(1 << 20)))
"""


def test_rows_without_an_end_take_no_more_memory_than_the_file(tmp_path: Path) -> None:
    """One line of 64 kB and a part of a million rows are no reason to ask for 64 GB."""
    (tmp_path / "d.csv").write_bytes(b"a,b,c\n1,2,3" + b"0" * 65536)
    words = [sys.executable, "-c", _LIMITED, str(linear(tmp_path)), str(tmp_path / "d.csv")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == (tmp_path / "d.csv").stat().st_size - len("a,b,c\n")


@pytest.mark.parametrize("rows", [-1, -5])
def test_a_negative_size_is_an_unknown_one(rows: int, tmp_path: Path) -> None:
    """So exporters of other frameworks write it, and onnxruntime reads it."""
    path = linear(tmp_path, rows)
    assert [dim if isinstance(dim, int) else None for dim in load_graph(path).graph.inputs[0].shape or ()] == [None, 3]
    result = nd.fold(path, tmp_path / "out.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status not in ("fail", "error")
    x = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(nd.load(tmp_path / "out.onnx")(x), nd.load(path)(x))
    assert nd.verify(path, path, level="quick").status not in ("fail", "error")
