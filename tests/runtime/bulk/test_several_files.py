"""Several files, patterns and folders; columns that are passed through."""

from __future__ import annotations

import csv

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from PIL import Image

from normdeploy.errors import InputError, UsageError
from normdeploy.runtime import predict


def _table(count: int, first: int) -> pa.Table:
    numbers = np.arange(first, first + count)
    columns = {name: numbers * scale for name, scale in zip("abc", (1.0, 0.5, -1.0), strict=True)}
    return pa.table(
        {"id": [f"r{number}" for number in numbers], **columns, "when": pa.array(numbers, pa.timestamp("s"))}
    )


def _expected(linear, count: int) -> np.ndarray:
    numbers = np.arange(count)[:, None] * np.array([1.0, 0.5, -1.0])
    return numbers @ linear[1] + linear[2]


@pytest.fixture
def tables(tmp_path):
    """Write 60 rows in three files of each kind, some below a folder's folder, beside what is passed over."""
    for kind in ("csv", "parquet"):
        folder = tmp_path / kind
        (folder / "deep").mkdir(parents=True)
        for at, name in enumerate(("a", "b", "deep/c")):
            table = _table(20, 20 * at)
            if kind == "csv":
                pacsv.write_csv(table, folder / f"{name}.csv")
            else:
                pq.write_table(table, folder / f"{name}.parquet", row_group_size=7)
        (folder / "_SUCCESS").touch()
        (folder / f".hidden.{kind}").write_text("nothing")
    return tmp_path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("how", ["folder", "pattern", "list", "deep pattern"])
def test_several_files_are_one_data_set(linear, tables, kind, how):
    folder = tables / kind
    data = {
        "folder": folder,
        "pattern": str(folder / "**" / f"*.{kind}"),
        "list": [folder / f"a.{kind}", folder / f"b.{kind}", folder / "deep" / f"c.{kind}"],
        "deep pattern": [str(folder / "[ab].*"), folder / "deep"],
    }[how]
    result = predict(linear[0], data, tables / "o.parquet", columns=["a", "b", "c"], keep=["id", "when"], batch_size=8)
    assert (result.rows, result.bad) == (60, 0)
    table = pq.read_table(tables / "o.parquet")
    assert table["row"].to_pylist() == list(range(60))
    assert table["id"].to_pylist() == [f"r{at}" for at in range(60)]
    np.testing.assert_allclose(np.array(table["y"].to_pylist()), _expected(linear, 60), rtol=1e-5, atol=1e-5)
    if kind == "parquet":
        assert table.schema.field("when").type == pa.timestamp("ms")  # as pyarrow stores seconds


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("out", ["csv", "npz"])
def test_kept_columns_leave_the_rest_to_the_model(linear, tables, kind, out):
    target = tables / f"o.{out}"
    predict(linear[0], tables / kind, target, keep=["id", "when"])
    if out == "csv":
        with target.open(newline="") as stream:
            found = [row["id"] for row in csv.DictReader(stream)]
    else:
        with np.load(target) as arrays:
            found = arrays["id"].tolist()
    assert found == [f"r{at}" for at in range(60)]


def test_names_that_meet_stay_apart(linear, tmp_path):
    pq.write_table(
        pa.table({"row": ["p", "q"], "y": [True, None], "a": [1.0, 2], "b": [0.0, 0], "c": [0.0, 0]}),
        tmp_path / "d.parquet",
    )
    predict(linear[0], tmp_path / "d.parquet", tmp_path / "o.parquet", columns=["a", "b", "c"], keep=["row", "y"])
    table = pq.read_table(tmp_path / "o.parquet")
    assert table.column_names == ["row", "kept.row", "y", "output.y"]
    assert table["kept.row"].to_pylist() == ["p", "q"]
    assert table["y"].to_pylist() == [True, None]


def test_arrays_and_images_of_several_files(linear, write_model, tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    for at in range(3):
        np.save(tmp_path / f"x{at}.npy", x[10 * at : 10 * at + 10])
    predict(linear[0], str(tmp_path / "x?.npy"), tmp_path / "y.npy", batch_size=4)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), x @ linear[1] + linear[2], rtol=1e-4, atol=1e-5)
    for at in range(3):
        (tmp_path / f"p{at}").mkdir()
        Image.new("L", (2, 2), 51 * at).save(tmp_path / f"p{at}" / "a.png")
    model = write_model("n (float[b, 1, 2, 2] x) => (float[b, 1, 2, 2] y) { y = Identity(x) }", name="i.onnx")
    predict(model, [tmp_path / "p0" / "a.png", tmp_path / "p1", tmp_path / "p2"], tmp_path / "o.npz")
    with np.load(tmp_path / "o.npz") as out:
        np.testing.assert_allclose(out["y"][:, 0, 0, 0], [0.0, 0.2, 0.4], atol=1e-6)


def test_what_does_not_belong_together_is_refused(linear, tables):
    pq.write_table(_table(3, 0).drop_columns(["b"]), tables / "short.parquet")
    wide = _table(3, 0).set_column(1, "a", pa.array(["x", "y", "z"]))
    pq.write_table(wide, tables / "text.parquet")
    (tables / "other.csv").write_text("id,a,c,b,when\nr,1,2,3,4\n")
    (tables / "empty").mkdir()
    out, columns = tables / "o.npz", ["a", "b", "c"]
    for data, message in [
        ([tables / "csv" / "a.csv", tables / "parquet" / "a.parquet"], "files of the kinds csv, parquet; expected one"),
        ([tables / "parquet" / "a.parquet", tables / "short.parquet"], "column 'b' of .*short.parquet is not there"),
        ([tables / "parquet" / "a.parquet", tables / "text.parquet"], "column 'a' of .*text.parquet is string"),
        ([tables / "csv" / "a.csv", tables / "other.csv"], "other.csv has the columns"),
        (tables / "empty", "holds no data"),
        (str(tables / "*.none"), "does not exist"),
    ]:
        with pytest.raises(InputError, match=message):
            predict(linear[0], data, out, columns=columns)
    with pytest.raises(InputError, match="no column 'name'"):
        predict(linear[0], tables / "csv", out, columns=columns, keep=["name"])
    for named in ({"keep": ["id"]}, {"header": True}):
        np.save(tables / "x.npy", np.zeros((2, 3), np.float32))
        with pytest.raises(UsageError, match=f"{next(iter(named))} is given"):
            predict(linear[0], tables / "x.npy", out, **named)
    assert not out.exists()
    assert not out.with_name("o.npz.partial").exists()


def test_parquet_columns_of_one_name_are_refused(linear, tmp_path):
    one = pa.array([1.0, 2.0])
    pq.write_table(pa.Table.from_arrays([one, one, one], names=["a", "a", "c"]), tmp_path / "d.parquet")
    with pytest.raises(InputError, match=r"several columns of one name \(a\)"):
        predict(linear[0], tmp_path / "d.parquet", tmp_path / "o.npz")
