"""Rows and parts that are rare: files that change while they are read, parts without a good row, odd columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normdeploy.errors import InputError
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime import predict
from normdeploy.runtime.bulk import predict_files
from normdeploy.runtime.bulk.array_source import ArraySource

SUM = """net (float[n, 3] x) => (float[n] y) {
    axis = Constant <value_ints = [1]> ()
    y = ReduceSum <keepdims = 0> (x, axis)
}"""


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a part be 16 batches."""
    monkeypatch.setattr(predict_files, "_PART_INPUT", 0)


def test_an_array_that_becomes_shorter_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones((20000, 3), np.float32))
    source = ArraySource([path], [TensorSpec("x", "float32", ("n", 3))])
    blocks = source.read(list(source.parts(10000)))
    assert len(next(blocks).feeds["x"]) == 10000
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"x\.npy is damaged .*save it again"):
        next(blocks)


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet", "npy"])
def test_a_part_without_a_good_row_leaves_the_others(tmp_path: Path, write_model, suffix: str) -> None:
    x = np.arange(48 * 3, dtype=np.float32).reshape(48, 3)
    x[16:32] = np.nan
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / f"out.{suffix}"
    result = predict(write_model(SUM), tmp_path / "x.npy", out, batch_size=1)
    assert (result.rows, result.bad) == (48, 16)
    good = [*range(16), *range(32, 48)]
    if suffix == "npy":
        found = np.load(out)
        assert np.isnan(found[16:32]).all()
        assert np.array_equal(found[good], x[good].sum(1))
    elif suffix == "npz":
        with np.load(out) as archive:
            assert archive["row"].tolist() == good
            assert np.array_equal(archive["y"], x[good].sum(1))
    elif suffix == "csv":
        lines = [line.split(",") for line in out.read_text().splitlines()[1:]]
        assert [int(row) for row, _ in lines] == good
        assert [float(value) for _, value in lines] == x[good].sum(1).tolist()
    else:
        table = pq.read_table(out)
        assert table["row"].to_pylist() == good
        assert table["y"].to_pylist() == x[good].sum(1).tolist()


def test_a_row_keeps_the_text_of_a_dictionary(tmp_path: Path, write_model) -> None:
    """Each part has codes of its own: the texts are what all parts share."""
    words = [f"word {at % 5}" for at in range(40)]
    columns = {name: np.arange(40, dtype=np.float32) for name in "abc"}
    pq.write_table(pa.table(columns | {"word": pa.array(words).dictionary_encode()}), tmp_path / "x.parquet")
    predict(write_model(SUM), tmp_path / "x.parquet", tmp_path / "out.parquet", keep=["word"], batch_size=1)
    assert pq.read_table(tmp_path / "out.parquet")["word"].to_pylist() == words


def test_a_column_of_lists_cannot_be_passed_through(tmp_path: Path, write_model) -> None:
    columns = {name: np.arange(4, dtype=np.float32) for name in "abc"}
    pq.write_table(pa.table(columns | {"tags": [["p"], ["q"], [], ["r"]]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"'tags' .* is nested; expected plain values to keep"):
        predict(write_model(SUM), tmp_path / "x.parquet", tmp_path / "out.parquet", keep=["tags"])


@pytest.mark.parametrize(
    ("rows", "said"),
    [(2, "'y' has rows of shapes"), (4, "'y' is .* in some rows and .* in others")],
    ids=["in one part", "in two parts"],
)
def test_rows_whose_outputs_have_other_sizes_are_not_joined(tmp_path: Path, write_model, rows: int, said: str) -> None:
    """What comes of a row is as long as the largest number in its batch says."""
    model = write_model(
        """net (float[n, 1] x) => (float[n, m] y) {
            all = ReduceMax <keepdims = 0> (x)
            long = Cast <to = 7> (all)
            one = Constant <value = int64[1] {1}> ()
            length = Reshape (long, one)
            rows = Shape <end = 1> (x)
            target = Concat <axis = 0> (rows, length)
            y = Expand (x, target)
        }"""
    )
    np.save(tmp_path / "x.npy", np.repeat(np.float32([2, 3]), rows)[:, None])
    with pytest.raises(InputError, match=f"{said}.*; expected one shape for all rows"):
        predict(model, tmp_path / "x.npy", tmp_path / "out.npz", batch_size=1)


def test_rows_that_hold_nothing_are_refused(tmp_path: Path, write_model) -> None:
    model = write_model(
        """net (float[n, 3] x) => (float[n, m] y) {
            first = Constant <value_ints = [0]> ()
            axis = Constant <value_ints = [1]> ()
            y = Slice (x, first, first, axis)
        }"""
    )
    np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
    with pytest.raises(InputError, match="hold nothing; expected at least one value in a row"):
        predict(model, tmp_path / "x.npy", tmp_path / "out.npz")
