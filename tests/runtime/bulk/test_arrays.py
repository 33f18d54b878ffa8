"""Arrays and Parquet tables: what their numbers become, and how they are read."""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normdeploy.errors import InputError
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime import predict
from normdeploy.runtime.bulk.array_source import ArraySource
from normdeploy.runtime.bulk.parquet_source import ParquetSource
from normdeploy.runtime.bulk.source import Part
from normdeploy.runtime.casting import cast
from normdeploy.runtime.samples import read_arrays

NAMED = "net ({kind}[batch] i) => ({kind}[batch] y) {{ y = Identity(i) }}"
CASES = [  # the input's type, the column's, good values, bad ones
    ("uint8", "int64", [0, 255], [300, -1, 256, 2**63 - 1]),
    ("int32", "int64", [-(2**31), 2**31 - 1], [2**32 + 7, 2**31]),
    ("int32", "float64", [3.0, -7.0, 2147483647.0], [1.5, np.nan, np.inf, 1e20, 2147483648.0]),
    ("int64", "float64", [0.0, 2.0**62], [2.0**63, -1e300, np.nan]),
    ("int64", "uint64", [0, 2**63 - 1], [2**63, 2**64 - 1]),
    ("uint64", "int64", [0, 2**62], [-1]),
    ("bool", "int8", [0, 1], [2, -1]),
    ("float16", "float32", [0.5, 65504.0, np.inf], [70000.0, np.nan]),
    ("float", "float64", [0.1, -3e38, -np.inf], [1e39, np.nan]),
]


def _bad(out: Path) -> dict[int, str]:
    with out.with_name(f"{out.name}.bad.csv").open(newline="") as stream:
        return {int(row["row"]): row["reason"] for row in csv.DictReader(stream)}


@pytest.mark.parametrize(("kind", "given", "good", "bad"), CASES)
@pytest.mark.parametrize("lists", [False, True])
def test_parquet_values_the_input_cannot_hold_are_bad_rows(write_model, tmp_path, kind, given, good, bad, lists):
    column = np.array([*good, *bad, *good], given)
    text = NAMED.format(kind=kind)
    values = pa.array(column)
    if lists:
        text = text.replace("[batch]", "[batch, 2]")
        values = pa.array([[column[0], value] for value in column], pa.list_(values.type))
    pq.write_table(pa.table({"i": values}), tmp_path / "d.parquet")
    predict(write_model(text), tmp_path / "d.parquet", tmp_path / "o.npz", batch_size=3)
    reasons = _bad(tmp_path / "o.npz")
    assert list(reasons) == list(range(len(good), len(good) + len(bad)))
    assert all("expected" in reason and ("correct" in reason or "fill" in reason) for reason in reasons.values())
    with np.load(tmp_path / "o.npz") as out:
        found = out["y"][:, 1] if lists else out["y"]
        np.testing.assert_array_equal(found, np.array([*good, *good], given).astype(found.dtype))


@pytest.mark.parametrize(("kind", "given", "good", "bad"), [case for case in CASES if case[0][0] == case[1][0]])
@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_array_values_the_input_cannot_hold_are_bad_rows(write_model, tmp_path, kind, given, good, bad, ending):
    column = np.array([*good, *bad, *good], given)
    data = tmp_path / f"d.{ending}"
    np.save(data, column) if ending == "npy" else np.savez(data, i=column)
    predict(write_model(NAMED.format(kind=kind)), data, tmp_path / "o.npz")
    assert list(_bad(tmp_path / "o.npz")) == list(range(len(good), len(good) + len(bad)))
    with np.load(tmp_path / "o.npz") as out:
        np.testing.assert_array_equal(out["y"], np.array([*good, *good], given).astype(out["y"].dtype))


@pytest.mark.parametrize(
    "target", ["bool", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32"]
)
@pytest.mark.parametrize("source", ["bool", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64"])
def test_cast_says_exactly_what_does_not_fit(source, target):
    values = np.array([0, 1], source)
    if source != "bool":
        kind = np.finfo(source) if source.startswith("f") else np.iinfo(source)
        values = np.append(values, np.array([2, 3, 100, 127, kind.max, kind.min], source))
    if source.startswith("f"):
        values = np.append(values, np.array([-1, 0.5, np.nan, np.inf, -np.inf, 255, 256, 2048], source))
    found, wrong = cast(values, target)
    wrong = np.zeros(len(values), bool) if wrong is None else wrong
    for value, result, refused in zip(values.tolist(), found.tolist(), wrong.tolist(), strict=True):
        if target.startswith("f"):
            with np.errstate(over="ignore"):
                rounded = float(np.float64(value).astype(target))
            fits = np.isfinite(rounded) or not np.isfinite(float(value))
        elif target == "bool":
            fits = value in (0, 1)
        else:
            fits = np.isfinite(float(value)) and int(value) == value
            fits = fits and np.iinfo(target).min <= int(value) <= np.iinfo(target).max
        assert refused == (not fits), (value, target)
        if fits and not np.isnan(float(value)):
            assert result == (rounded if target.startswith("f") else value)


@pytest.mark.parametrize("groups", [[101], [37, 37, 27], [1] * 101, [0, 50, 0, 51]])
@pytest.mark.parametrize("rows", [5, 7, 36, 37, 101, 500])
def test_parquet_parts_of_any_size_and_any_of_them_missing(tmp_path, groups, rows):
    x = np.arange(303, dtype=np.float32).reshape(101, 3)
    with pq.ParquetWriter(tmp_path / "d.parquet", pa.schema({name: pa.float32() for name in "abc"})) as writer:
        at = 0
        for count in groups:
            columns = {name: x[at : at + count, column] for column, name in enumerate("abc")}
            writer.write_table(pa.table(columns), row_group_size=max(1, count))
            at += count
    source = ParquetSource([tmp_path / "d.parquet"], [TensorSpec("x", "float32", ("n", 3))], None, [])
    parts = list(source.parts(rows))
    assert [part.first for part in parts] == list(range(0, 101, rows))
    for step in (1, 2, 3):  # as after a kill: some parts of a unit are there already
        for unit in sorted({part.unit for part in parts}):
            wanted = [part for part in parts[::step] if part.unit == unit]
            for part, block in zip(wanted, source.read(wanted) if wanted else (), strict=True):
                np.testing.assert_array_equal(block.feeds["x"], x[part.first : part.first + part.size])


def test_one_large_row_group_is_decoded_once(tmp_path, monkeypatch):
    """Counted in rows decoded, not in time."""
    x = np.arange(40_000, dtype=np.float32)
    pq.write_table(pa.table({"x": x}), tmp_path / "d.parquet", row_group_size=len(x))
    decoded = 0
    original = pq.ParquetFile.iter_batches

    def counting(self, *arguments, **named):
        nonlocal decoded
        for batch in original(self, *arguments, **named):
            decoded += batch.num_rows
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting)
    source = ParquetSource([tmp_path / "d.parquet"], [TensorSpec("x", "float32", ("n",))], None, [])
    parts = list(source.parts(500))
    assert {part.unit for part in parts} == {(0, 0)}
    assert sum(len(block.feeds["x"]) for block in source.read(parts)) == len(x)
    assert decoded == len(x)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_is_read_as_one_stream(tmp_path, monkeypatch, save):
    """Counted in bytes read: a compressed member cannot be entered in the middle but by reading all before."""
    x = np.arange(30_000, dtype=np.float32).reshape(10_000, 3)
    save(tmp_path / "d.npz", x=x)
    source = ArraySource([tmp_path / "d.npz"], [TensorSpec("x", "float32", ("n", 3))])
    taken = 0
    original = zipfile.ZipExtFile.read

    def counting(self, *arguments):
        nonlocal taken
        data = original(self, *arguments)
        taken += len(data)
        return data

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counting)
    parts = list(source.parts(100))
    assert {part.unit for part in parts} == {(0, 0)}
    read = np.concatenate([block.feeds["x"] for block in source.read(parts)])
    np.testing.assert_array_equal(read, x)
    assert taken < x.nbytes + 1000
    rest = list(source.read(parts[::7]))  # as after a kill
    np.testing.assert_array_equal(rest[3].feeds["x"], x[2100:2200])


def test_damaged_arrays_are_an_error_of_ours(tmp_path):
    spec = [TensorSpec("x", "float32", ("n", 3))]
    np.savez_compressed(tmp_path / "d.npz", x=np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32))
    whole = (tmp_path / "d.npz").read_bytes()
    for at in range(40, len(whole) - 200, 997):
        (tmp_path / "d.npz").write_bytes(whole[:at] + bytes(64) + whole[at + 64 :])
        with pytest.raises(InputError, match=r"save it again|numpy"):
            list(ArraySource([tmp_path / "d.npz"], spec).read([Part(0, (0, 0), 0, 0, 5000)]))


@pytest.mark.parametrize(
    "header", [b"{'descr':%'<f4', 'fort", b"{'descr': ('<f4',)}\n", b"{(((((((((((((((((((((", b"[1]\n"]
)
def test_headers_that_are_no_python_are_an_error_of_ours(linear, tmp_path, header):
    path = tmp_path / "d.npy"
    np.save(path, np.zeros((5, 3), np.float32))
    content = path.read_bytes()
    path.write_bytes(content[:10] + header + content[10 + len(header) :])
    with pytest.raises(InputError, match="numpy"):
        predict(linear[0], path, tmp_path / "o.npy")
    with pytest.raises(InputError, match="numpy"):
        read_arrays(path)


def test_big_endian_arrays_are_read_as_their_values(linear, tmp_path):
    x = np.random.default_rng(3).normal(size=(9, 3))
    np.save(tmp_path / "d.npy", x.astype(">f4"))
    predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy")
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), x @ linear[1] + linear[2], rtol=1e-4, atol=1e-5)
