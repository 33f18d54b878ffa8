from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normdeploy.errors import InputError, OutputExistsError, UsageError
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime import ImageOptions, load, predict
from normdeploy.runtime.bulk import predict_files
from normdeploy.runtime.bulk.array_source import ArraySource
from normdeploy.runtime.bulk.predict_files import part_rows

TWO = """net (float[batch, 2] a, int64[batch] i) => (float[batch, 2] s, int64[batch] k) {
    table = Constant <value = float[4] {1.0, 2.0, 3.0, 4.0}> ()
    g = Gather(table, i)
    axis = Constant <value = int64[1] {1}> ()
    c = Unsqueeze(g, axis)
    s = Add(a, c)
    k = Neg(i)
}"""


@pytest.fixture(autouse=True)
def _small_parts(request, monkeypatch):
    """Keep parts at some batches, so that a few hundred rows are many parts."""
    if "part_size" not in request.node.name:
        monkeypatch.setattr(predict_files, "_PART_INPUT", 0)


def _rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def _expected(linear, x: np.ndarray) -> np.ndarray:
    _, weight, bias = linear
    return x.astype(np.float64) @ weight + bias


def _write(path: Path, x: np.ndarray) -> Path:
    if path.suffix == ".npy":
        np.save(path, x)
    elif path.suffix == ".npz":
        np.savez(path, x=x)
    elif path.suffix == ".csv":
        lines = ["a,b,c", *(",".join(map(str, row)) for row in x)]
        path.write_text("\n".join(lines) + "\n")
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({name: x[:, at] for at, name in enumerate("abc")}), path, row_group_size=37)
    return path


def _read(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".npz":
        with np.load(path) as archive:
            np.testing.assert_array_equal(archive["row"], np.arange(len(archive["y"])))
            return archive["y"]
    if path.suffix == ".csv":
        with path.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        return np.array([[row["y.0"], row["y.1"]] for row in rows], dtype=np.float32)
    import pyarrow.parquet as pq

    return np.array(pq.read_table(path)["y"].to_pylist(), dtype=np.float32)


@pytest.mark.parametrize("kind", ["npy", "npz", "csv", "parquet"])
@pytest.mark.parametrize("out", ["npy", "npz", "csv", "parquet"])
def test_every_format_in_and_out(linear, tmp_path, kind, out):
    if "parquet" in (kind, out):
        pytest.importorskip("pyarrow")
    x = _rows(101)
    data = _write(tmp_path / f"data.{kind}", x)
    result = predict(linear[0], data, tmp_path / f"out.{out}", batch_size=4)
    assert (result.rows, result.bad, result.resumed, result.bad_file) == (101, 0, 0, None)
    found = _read(tmp_path / f"out.{out}")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, _expected(linear, x), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found, load(linear[0]).batched(x, batch_size=4))  # no digit lost on the way
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["net.onnx", data.name, f"out.{out}"])


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    total=st.integers(1, 90),
    batch=st.integers(1, 40),
    compressed=st.booleans(),
    double=st.booleans(),
)
def test_npz_of_several_inputs(write_model, tmp_path, total, batch, compressed, double):
    model = tmp_path / "net.onnx"
    if not model.exists():
        write_model(TWO)
    draw = np.random.default_rng(total)
    a, i = draw.normal(size=(total, 2)).astype(np.float32), draw.integers(0, 4, total)
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "data.npz", i=i.astype(np.int32), a=a.astype(np.float64) if double else a)
    predict(model, tmp_path / "data.npz", tmp_path / "out.npz", batch_size=batch, overwrite=True)
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_array_equal(out["row"], np.arange(total))
        np.testing.assert_allclose(out["s"], a + (i + 1.0)[:, None], rtol=1e-6)
        np.testing.assert_array_equal(out["k"], -i)


def test_bad_rows_go_aside_with_their_reasons(linear, tmp_path):
    x = _rows(50)
    lines = ["a,b,c", *(",".join(map(str, row)) for row in x)]
    lines[1 + 7] = "1.0,oops,2.0"
    lines[1 + 8] = "1.0,2.0"
    lines[1 + 30] = "1.0,nan,2.0"
    lines[1 + 49] = ",1,2"
    (tmp_path / "data.csv").write_text("\r\n".join(lines))
    result = predict(linear[0], tmp_path / "data.csv", tmp_path / "out.npz", batch_size=8)
    assert (result.rows, result.bad) == (50, 4)
    with result.bad_file.open(newline="") as stream:
        bad = {int(row["row"]): row["reason"] for row in csv.DictReader(stream)}
    assert set(bad) == {7, 8, 30, 49}
    assert "column 'b' is 'oops'" in bad[7]
    assert "2 cells; expected 3" in bad[8]
    assert "NaN" in bad[30]
    assert "column 'a' is ''" in bad[49]
    assert "4 bad rows" in result.summary()
    good = np.setdiff1d(np.arange(50), [7, 8, 30, 49])
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_array_equal(out["row"], good)
        np.testing.assert_allclose(out["y"], _expected(linear, x)[good], rtol=1e-4, atol=1e-5)


def test_npy_marks_bad_rows_as_nan(linear, tmp_path):
    x = _rows(20)
    x[[0, 13]] = np.nan
    np.save(tmp_path / "x.npy", x)
    predict(linear[0], tmp_path / "x.npy", tmp_path / "y.npy", batch_size=3)
    y = np.load(tmp_path / "y.npy")
    assert np.flatnonzero(np.isnan(y).all(axis=1)).tolist() == [0, 13]
    keep = ~np.isnan(x).any(axis=1)
    np.testing.assert_allclose(y[keep], _expected(linear, x[keep]), rtol=1e-4, atol=1e-5)


def test_row_that_the_model_refuses_does_not_cost_its_neighbours(write_model, tmp_path):
    i = np.array([0, 1, 9, 3, 2, 1, -9])
    np.savez(tmp_path / "d.npz", a=np.zeros((7, 2), np.float32), i=i)
    result = predict(write_model(TWO), tmp_path / "d.npz", tmp_path / "o.npz", batch_size=4)
    assert result.bad == 2
    with np.load(tmp_path / "o.npz") as out:
        assert out["row"].tolist() == [0, 1, 3, 4, 5]
        assert out["s"][:, 0].tolist() == [1.0, 2, 4, 3, 2]
    assert "the model cannot run" in result.first_reason


def test_csv_quotes_header_and_chosen_columns(linear, tmp_path):
    text = '\ufeffname,"a, first",b,c\n"x ""1""\nline two",1,2,3\n\nz,4,5,6'
    (tmp_path / "d.csv").write_text(text, encoding="utf-8")
    chosen = ["c", "a, first", "b"]
    predict(linear[0], tmp_path / "d.csv", tmp_path / "o.npy", columns=chosen, batch_size=1)
    expected = _expected(linear, np.array([[3.0, 1, 2], [6, 4, 5]]))
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), expected, rtol=1e-5)
    with pytest.raises(InputError, match=r"4 columns \(name, a, first, b, c\) for input x.*expected 3"):
        predict(linear[0], tmp_path / "d.csv", tmp_path / "p.npy")
    with pytest.raises(InputError, match="no column 'q'"):
        predict(linear[0], tmp_path / "d.csv", tmp_path / "p.npy", columns=["q", "b", "c"])


def test_headless_csv_and_columns_named_after_inputs(linear, write_model, tmp_path):
    (tmp_path / "n.csv").write_text("1,2,3\n4,5,6\n")
    predict(linear[0], tmp_path / "n.csv", tmp_path / "n.npy")
    np.testing.assert_allclose(
        np.load(tmp_path / "n.npy"), _expected(linear, np.array([[1.0, 2, 3], [4, 5, 6]])), rtol=1e-5
    )
    two = write_model(TWO, name="two.onnx")
    (tmp_path / "t.csv").write_text("id,i,a.0,a.1\nfoo,3,10,20\nbar,0.5,1,1\n")
    result = predict(two, tmp_path / "t.csv", tmp_path / "t.csv.out.csv")
    assert result.first_reason.startswith("column 'i' is '0.5'; expected an integer")
    assert (tmp_path / "t.csv.out.csv").read_text().split() == ["row,s.0,s.1,k", "0,14,24,-3"]
    (tmp_path / "u.csv").write_text("a.0,a.1\n1,2\n")
    with pytest.raises(InputError, match=r"no column 'i' or 'i\.0'"):
        predict(two, tmp_path / "u.csv", tmp_path / "u.npz")


def test_parquet_lists_nulls_and_lengths(linear, tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    x = _rows(9)
    values: list = x.tolist()
    values[2], values[4], values[5] = None, [1.0, 2.0], [1.0, None, 3.0]
    pq.write_table(
        pa.table({"id": list("abcdefghi"), "feat": pa.array(values, pa.list_(pa.float32()))}), tmp_path / "d.parquet"
    )
    result = predict(linear[0], tmp_path / "d.parquet", tmp_path / "o.parquet", columns=["feat"], batch_size=2)
    assert (result.rows, result.bad) == (9, 3)
    table = pq.read_table(tmp_path / "o.parquet")
    keep = [0, 1, 3, 6, 7, 8]
    assert table["row"].to_pylist() == keep
    np.testing.assert_allclose(np.array(table["y"].to_pylist()), _expected(linear, x[keep]), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"column 'id' of .* is string; expected numbers"):
        predict(linear[0], tmp_path / "d.parquet", tmp_path / "p.npz", columns=["id", "id", "id"])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 2), np.float32), r"shape \[4, 2\]; expected rows of x: float32\[batch, 3\]"),
        (np.zeros((4, 3), np.int64), "int64; expected float32"),
        (np.zeros((4, 3), object), "Python objects"),
        (np.asfortranarray(np.zeros((4, 3), np.float32)), "column by column"),
        (np.zeros((0, 3), np.float32), "no rows"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_at_once(linear, tmp_path, array, message):
    np.save(tmp_path / "d.npy", array)
    with pytest.raises(InputError, match=message):
        predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy")
    assert not (tmp_path / "o.npy").exists()


def test_wrong_use_is_refused(linear, write_model, tmp_path):
    data = _write(tmp_path / "d.npy", _rows(3))
    with pytest.raises(UsageError, match=r"ends in '.txt'; expected one of .npy"):
        predict(linear[0], data, tmp_path / "o.txt")
    with pytest.raises(UsageError, match="engine 'spark' is unknown"):
        predict(linear[0], data, tmp_path / "o.npy", engine="spark")
    with pytest.raises(UsageError, match="batch_size=0"):
        predict(linear[0], data, tmp_path / "o.npy", batch_size=0)
    with pytest.raises(UsageError, match="columns is given"):
        predict(linear[0], data, tmp_path / "o.npy", columns=["a"])
    with pytest.raises(InputError, match="does not exist"):
        predict(linear[0], tmp_path / "none.npy", tmp_path / "o.npy")
    (tmp_path / "o.npy").write_bytes(b"mine")
    with pytest.raises(OutputExistsError):
        predict(linear[0], data, tmp_path / "o.npy")
    assert (tmp_path / "o.npy").read_bytes() == b"mine"
    two = write_model(TWO, name="two.onnx")
    with pytest.raises(UsageError, match="2 outputs"):
        predict(two, data, tmp_path / "p.npy")


def test_all_rows_bad_is_an_error_that_says_why(linear, tmp_path):
    np.save(tmp_path / "d.npy", np.full((5, 3), np.nan, np.float32))
    with pytest.raises(
        InputError, match=r"all 5 rows of \S*d.npy are bad, see .*o.npz.bad.csv; the first: input 'x' holds NaN"
    ):
        predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npz")
    assert not (tmp_path / "o.npz").exists()
    assert (tmp_path / "o.npz.bad.csv").read_text().count("NaN") == 5
    np.save(tmp_path / "e.npy", np.full((2, 3), np.nan, np.float32))
    with pytest.raises(InputError, match=r"all 7 rows of [^\[\]()']*d.npy, [^\[\]()']*e.npy are bad"):
        predict(linear[0], [tmp_path / "d.npy", tmp_path / "e.npy"], tmp_path / "p.npz")


def test_fixed_batch_models(write_model, tmp_path):
    model = write_model("n (float[4, 3] x) => (float[4, 3] y) { y = Neg(x) }")
    x = _rows(10)
    predict(model, _write(tmp_path / "d.npy", x), tmp_path / "o.npy", batch_size=7)
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), -x)


def test_progress_counts_every_row(linear, tmp_path):
    seen: list[tuple[int, int | None]] = []
    predict(
        linear[0], _write(tmp_path / "d.npy", _rows(75)), tmp_path / "o.npy", batch_size=2,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert seen == [(32, 75), (64, 75), (75, 75)]


class Stop(Exception):
    pass


def _stop_after(rows: int):
    def progress(done: int, total: int | None) -> None:
        if done >= rows:
            raise Stop

    return progress


@pytest.mark.parametrize("kind", ["npy", "csv", "parquet"])
def test_resume_goes_on_where_it_stopped(linear, tmp_path, kind, monkeypatch):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    x = _rows(200)
    data = _write(tmp_path / f"d.{kind}", x)
    out = tmp_path / "o.npz"
    with pytest.raises(Stop):
        predict(linear[0], data, out, batch_size=2, progress=_stop_after(120))
    assert not out.exists()
    done: list[int] = []
    result = predict(linear[0], data, out, batch_size=2, progress=lambda rows, _: done.append(rows))
    if kind == "csv":  # parts are stretches of text of about 32 rows
        assert 120 <= result.resumed < 200
        assert done[0] > result.resumed
    else:
        assert result.resumed == 128
        assert done == [160, 192, 200]
    with np.load(out) as found:
        np.testing.assert_array_equal(found["row"], np.arange(200))
        np.testing.assert_allclose(found["y"], _expected(linear, x), rtol=1e-4, atol=1e-5)
    assert not out.with_name("o.npz.partial").exists()


def test_interrupted_run_for_something_else_is_not_mixed_in(linear, tmp_path):
    data = _write(tmp_path / "d.npy", _rows(200))
    out = tmp_path / "o.npz"
    with pytest.raises(Stop):
        predict(linear[0], data, out, batch_size=2, progress=_stop_after(100))
    with pytest.raises(UsageError, match="unfinished run that differs in: batch size, rows per part"):
        predict(linear[0], data, out, batch_size=3)
    np.save(data, _rows(200, seed=1))
    with pytest.raises(UsageError, match="differs in: data"):
        predict(linear[0], data, out, batch_size=2)
    result = predict(linear[0], data, out, batch_size=2, overwrite=True)
    assert result.resumed == 0
    with np.load(out) as found:
        np.testing.assert_allclose(found["y"], _expected(linear, _rows(200, seed=1)), rtol=1e-4, atol=1e-5)


def _endless(model: str, data: str, out: str) -> None:
    predict_files._PART_INPUT = 0  # as in the process that asks
    predict(model, data, out, batch_size=2, progress=lambda *_: time.sleep(0.02))


def test_kill_at_any_moment_loses_and_repeats_nothing(linear, tmp_path):
    x = _rows(1500)
    x[[5, 700, 1499]] = np.nan
    data = _write(tmp_path / "d.npy", x)
    out = tmp_path / "o.npz"
    partial = out.with_name("o.npz.partial")
    context = multiprocessing.get_context("spawn")
    resumed: list[int] = []
    for wait in (0.02, 0.2):
        process = context.Process(target=_endless, args=(str(linear[0]), str(data), str(out)))
        process.start()
        before = len(list(partial.glob("*.part"))) if partial.exists() else 0
        deadline = time.monotonic() + 60
        while (not partial.exists() or len(list(partial.glob("*.part"))) < before + 3) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        resumed.append(len(list(partial.glob("*.part"))))
    assert resumed[1] > resumed[0] > 0
    result = predict(linear[0], data, out, batch_size=2)
    assert 0 < result.resumed < 1500
    assert result.bad == 3
    keep = np.setdiff1d(np.arange(1500), [5, 700, 1499])
    with np.load(out) as found:
        np.testing.assert_array_equal(found["row"], keep)
        np.testing.assert_array_equal(found["y"], load(linear[0]).batched(x[keep], batch_size=2))


_MEASURE = """
import sys
from normdeploy.runtime import predict
from normdeploy.runtime.memory import peak_resident_bytes
model, file, batch = sys.argv[1:]
predict(model, file, file + ".out.npy", batch_size=int(batch))
print(peak_resident_bytes())
"""


def _peak(model: Path, file: Path, batch: int) -> int:
    """Return the memory that a process holds at most while it reads a file and predicts."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(model), str(file), str(batch)],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return int(done.stdout)


def test_memory_does_not_grow_with_the_data(write_model, tmp_path):
    model = write_model("n (float[batch, 1000] x) => (float[batch] y) { y = ReduceSum <keepdims = 0> (x, axis) }", {
        "axis": np.array([1])
    })  # fmt: skip
    files = [tmp_path / f"{rows}.npy" for rows in (2_000, 50_000)]
    for rows, data in zip((2_000, 50_000), files, strict=True):
        with data.open("wb") as stream:  # the values are zeros: a sparse file of up to 200 MB
            np.lib.format.write_array_header_1_0(
                stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, 1000)}
            )
            stream.truncate(stream.tell() + rows * 4000)
    small, large = (_peak(model, file, 64) for file in files)
    assert np.load(f"{files[1]}.out.npy").shape == (50_000,)
    assert large < small + 20e6


@pytest.mark.parametrize("kind", ["npz", "parquet", "csv"])
def test_memory_does_not_grow_with_streams(write_model, tmp_path, kind):
    """A compressed archive and a Parquet file of one row group are decoded bit by bit, and text is cut."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    model = write_model("n (float[batch, 50] x) => (float[batch] y) { y = ReduceSum <keepdims = 0> (x, axis) }", {
        "axis": np.array([1])
    })  # fmt: skip
    files = []
    for rows in (150_000, 450_000):  # some parts, and three times as many
        files.append(tmp_path / f"{rows}.{kind}")
        if kind == "npz":
            np.savez_compressed(files[-1], x=np.arange(50, dtype=np.float32) + np.zeros((rows, 1), np.float32))
        elif kind == "parquet":
            table = pa.table({f"c{at}": np.full(rows, at, np.float32) for at in range(50)})
            pq.write_table(table, files[-1], row_group_size=rows)
        else:
            names, numbers = (",".join(f"{kind}{at}" for at in range(50)) + "\n" for kind in ("c", ""))
            files[-1].write_text(names + numbers * rows)
    small, large = (_peak(model, file, 512) for file in files)
    for rows, data in zip((150_000, 450_000), files, strict=True):
        np.testing.assert_array_equal(np.load(f"{data}.out.npy"), np.full(rows, 1225.0))
    # the numbers are 60 MB more, what allocators keep differs by up to 30 MB between two runs
    assert large < small + 40e6


def test_part_size_follows_the_results():
    image, tokens, open_ended = 3 * 224 * 224 * 4, 128 * 8, [TensorSpec("x", "float32", ("n", "t"))]
    ten = [TensorSpec("y", "float32", ("n", 10))]
    assert part_rows(image, ten, 64) == 64  # 38 MB
    assert part_rows(image, ten, 8) == 8 * 6
    assert part_rows(tokens, ten, 64) == 64 * 128
    assert part_rows(tokens, [TensorSpec("y", "float32", ("n", 1000, 1000))], 64) == 64
    assert part_rows(tokens, open_ended, 64) == 64 * 4
    # small rows are quick: parts of a few dozen of them would spend their time on forcing files to disk
    assert part_rows(12, [TensorSpec("y", "float32", ("n",))], 8) == 8 * (2**23 // 96)


def test_truncated_data_is_an_error(linear, tmp_path):
    data = _write(tmp_path / "d.npy", _rows(50))
    data.write_bytes(data.read_bytes()[:-30])
    with pytest.raises(InputError, match="save it again"):
        predict(linear[0], data, tmp_path / "o.npy", batch_size=16)
    (tmp_path / "d.npz").write_bytes(b"PK nothing")
    with pytest.raises(InputError, match=r"not a \.npz"):
        predict(linear[0], tmp_path / "d.npz", tmp_path / "o.npy")
    np.savez(tmp_path / "e.npz", a=_rows(2), b=_rows(2))
    with pytest.raises(InputError, match="expected one named 'z'"):
        ArraySource([tmp_path / "e.npz"], [TensorSpec("z", "float32", ("n", 3))])


@pytest.mark.parametrize("out", ["npz", "csv", "parquet"])
def test_outputs_of_every_type_beside_bad_rows(write_model, tmp_path, out):
    """Texts, booleans, half precision and several dimensions; a bad row in the middle shifts nothing."""
    model = write_model("""net (float[batch, 2] x) => (bool[batch, 2] b, float16[batch, 1, 2] h, string[batch, 2] s) {
        zero = Constant <value = float {0.0}> ()
        b = Greater(x, zero)
        c = Cast <to = 10> (x)
        axis = Constant <value = int64[1] {1}> ()
        h = Unsqueeze(c, axis)
        s = Cast <to = 8> (b)
    }""")
    np.save(tmp_path / "d.npy", np.array([[1, -2], [np.nan, 0], [-3, 4]], np.float32))
    target = tmp_path / f"o.{out}"
    assert predict(model, tmp_path / "d.npy", target).bad == 1
    if out == "npz":
        with np.load(target) as found:
            assert found["h"].dtype == np.float16
            assert found["h"].tolist() == [[[1.0, -2.0]], [[-3.0, 4.0]]]
            assert found["b"].tolist() == [[True, False], [False, True]]
            assert found["s"].tolist() == [["1", "0"], ["0", "1"]]
    elif out == "csv":
        with target.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert [[float(row["h.0"]), float(row["h.1"]), row["s.0"], row["row"]] for row in rows] == [
            [1.0, -2.0, "1", "0"], [-3.0, 4.0, "0", "2"]
        ]  # fmt: skip
    else:
        import pyarrow.parquet as pq

        assert pq.read_table(target).to_pydict() == {
            "row": [0, 2], "b": [[True, False], [False, True]], "h": [[1.0, -2.0], [-3.0, 4.0]],
            "s": [["1", "0"], ["0", "1"]],
        }  # fmt: skip


def test_data_that_no_input_fits_is_refused_with_the_remedy(linear, write_model, tmp_path):
    two = write_model("t (float[n, 3] a, float[n, 3] b) => (float[n, 3] y) { y = Add(a, b) }", name="sum.onnx")
    np.savez(tmp_path / "d.npz", a=_rows(3), b=_rows(4))
    with pytest.raises(InputError, match=r"arrays of \{'a': 3, 'b': 4\} rows; expected the same number"):
        predict(two, tmp_path / "d.npz", tmp_path / "o.npz")
    data = _write(tmp_path / "d.npy", _rows(3))
    with pytest.raises(InputError, match=r"holds one array and the model has the inputs \['a', 'b'\]; expected a .npz"):
        predict(two, data, tmp_path / "o.npz")
    table = tmp_path / "d.csv"
    table.write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="columns are chosen and the model has 2 inputs"):
        predict(two, table, tmp_path / "o.npz", columns=["a"])
    with pytest.raises(InputError, match=r"2 columns .* do not tell the shape"):
        predict(write_model("o (float[n, c, d] x) => (float[n, c, d] y) { y = Neg(x) }"), table, tmp_path / "o.npz")
    text = write_model("s (string[n, 2] x) => (string[n, 2] y) { y = Identity(x) }", name="words.onnx")
    with pytest.raises(InputError, match="the model takes text"):
        predict(text, table, tmp_path / "o.npz")
    whole = write_model("w (int64[n, 2] x) => (int64[n, 2] y) { y = Identity(x) }", name="whole.onnx")
    with pytest.raises(UsageError, match="cannot mark bad rows as NaN"):
        predict(whole, table, tmp_path / "o.npy")
    (tmp_path / "d.txt").write_text("1")
    with pytest.raises(InputError, match=r"ends in '\.txt'; expected \.npy"):
        predict(linear[0], tmp_path / "d.txt", tmp_path / "o.npz")
    with pytest.raises(UsageError, match="expected a height and a width of at least 1"):
        ImageOptions(size=(0, 4))
    pytest.importorskip("PIL.Image").new("RGB", (4, 4)).save(tmp_path / "p.png")
    with pytest.raises(InputError, match=r"expected one float or uint8 input \[batch, C, H, W\]"):
        predict(linear[0], tmp_path / "p.png", tmp_path / "o.npz")
    four = write_model("f (float[n, 4, 8, 8] x) => (float[n, 4, 8, 8] y) { y = Neg(x) }", name="four.onnx")
    with pytest.raises(InputError, match="expected 1 or 3 channels"):
        predict(four, tmp_path / "p.png", tmp_path / "o.npz")
