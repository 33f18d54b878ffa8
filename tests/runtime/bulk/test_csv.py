"""CSV files as they come: stray quotes, headers, line ends, numbers that are none."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normdeploy.errors import InputError
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime import predict
from normdeploy.runtime.bulk import csv_records
from normdeploy.runtime.bulk.csv_records import records
from normdeploy.runtime.bulk.csv_source import CsvSource

NAMED = "net ({kind}[batch] i) => ({kind}[batch] y) {{ y = Identity(i) }}"


def _bad(out: Path) -> dict[int, str]:
    with out.with_name(f"{out.name}.bad.csv").open(newline="") as stream:
        return {int(row["row"]): row["reason"] for row in csv.DictReader(stream)}


def _source(path: Path, columns: list[str] | None = None, header: bool | None = None) -> CsvSource:
    return CsvSource([path], [TensorSpec("x", "float32", ("n",))], columns, [], header)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text(alphabet='ab",\n\r ', max_size=6), min_size=1, max_size=25),
    rows=st.integers(1, 9),
    ending=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_parts_hold_every_record_once(tmp_path, texts, rows, ending):
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator=ending)
        writer.writerow(["t", "v"])
        writer.writerows((text, position) for position, text in enumerate(texts))
    source = _source(path, ["v"])
    blocks = [block for part in source.parts(rows) for block in source.read([part])]
    assert np.concatenate([block.feeds["x"] for block in blocks]).tolist() == list(range(len(texts)))
    assert not any(block.bad for block in blocks)


@pytest.mark.parametrize("stray", ['1,"2,3', '"1,2,3', '1,2,"3', '1,2,3"x"', '"1",2,"3', '1,"2""",3"', '"""1,2,3'])
@pytest.mark.parametrize("batch", [1, 1000])
def test_a_stray_quote_costs_its_line_alone(linear, tmp_path, stray, batch):
    x = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    lines = ["a,b,c", *(",".join(map(str, row)) for row in x)]
    where = [7, 8, 150, 299]
    for at in where:
        lines[1 + at] = stray
    lines[1 + 200] = '"' + '","'.join(map(str, x[200])) + '"'  # quotes as they should be
    (tmp_path / "d.csv").write_text("\n".join(lines))
    result = predict(linear[0], tmp_path / "d.csv", tmp_path / "o.npz", batch_size=batch)
    assert (result.rows, result.bad) == (300, 4)
    assert list(_bad(tmp_path / "o.npz")) == where
    keep = np.setdiff1d(np.arange(300), where)
    with np.load(tmp_path / "o.npz") as out:
        assert out["row"].tolist() == keep.tolist()
        np.testing.assert_allclose(out["y"], x[keep].astype(np.float64) @ linear[1] + linear[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "pair", [('1,"2,3', '4,"5,6'), ('1,"2,3', '4,5,6"'), ('1,"2,3', '4,5",6'), ('"1,2,3', '4",5,6')]
)
def test_two_stray_quotes_do_not_pair_up_over_lines(linear, tmp_path, pair):
    lines = ["a,b,c", "1,2,3", pair[0], *["1,2,3"] * 50, pair[1], "1,2,3"]
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    result = predict(linear[0], tmp_path / "d.csv", tmp_path / "o.npz")
    assert (result.rows, result.bad, sorted(_bad(tmp_path / "o.npz"))) == (54, 2, [1, 52])


@pytest.fixture
def lines_looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines that the csv module is given while records are told apart, each as often as it is given."""
    seen: list[str] = []
    original = csv_records.csv.reader

    def looked_at(line: str) -> str:
        seen.append(line)
        return line

    monkeypatch.setattr(csv_records.csv, "reader", lambda lines, **options: original(map(looked_at, lines), **options))
    return seen


def test_splitting_takes_steps_in_proportion_to_the_text(lines_looked_at):
    """Counted in lines that the csv module is given, not in time: each record looks as far as the next quote."""
    for count in (1000, 4000):
        text = ['1,"2,3\n', "4,5,6\n"] * count
        lines_looked_at.clear()
        assert [bool(fault) for _, _, fault in records(text, 3, {0, 1, 2})] == [True, False] * count
        assert len(lines_looked_at) < 3 * len(text)


def test_a_bad_cell_costs_its_column_a_second_look_and_no_other(tmp_path: Path, lines_looked_at: list[str]) -> None:
    """One in each part made reading six times as long: its other columns went through the csv module as well."""
    path = tmp_path / "t.csv"
    path.write_text("a,b,note\n" + "1, 2,NA\n" * 50 + "NA,3,\n1e400,4,n\n")
    source = CsvSource([path], [TensorSpec("x", "float32", ("n", 2))], ["a", "b"], ["note"], None)
    (part,) = source.parts(100)
    lines_looked_at.clear()
    (block,) = source.read([part])
    assert lines_looked_at == []
    assert sorted(block.bad) == [50, 51]
    assert "'a' is 'NA'; expected a number" in block.bad[50]
    assert block.feeds["x"][:50].tolist() == [[1, 2]] * 50
    assert block.feeds["x"][50:, 1].tolist() == [3, 4]
    assert block.kept["note"].to_pylist() == ["NA"] * 50 + ["", "n"]


def test_text_over_lines_in_columns_that_are_not_read_is_one_record(linear, tmp_path):
    long = "word\n" * 2000
    rows = [["note", "a", "b", "c"], ["x\ny", 1, 2, 3], [long, 4, 5, 6], ['say "hi"\r\n', 7, 8, 9]]
    with (tmp_path / "d.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    result = predict(
        linear[0], tmp_path / "d.csv", tmp_path / "o.parquet", columns=["a", "b", "c"], keep=["note"], batch_size=1
    )
    import pyarrow.parquet as pq

    assert (result.rows, result.bad) == (3, 0)
    assert pq.read_table(tmp_path / "o.parquet")["note"].to_pylist() == [row[0] for row in rows[1:]]


@pytest.mark.parametrize("first", ["1,oops,3", "1,,3", "1,2", "oops,2,3", '1,"2,3'])
def test_a_bad_first_row_of_a_headless_file_is_no_header(linear, tmp_path, first):
    (tmp_path / "d.csv").write_text(f"{first}\n4,5,6\n7,8,9\n")
    if first in ("1,2", '1,"2,3'):  # it says how wide the table is, or nothing can be said
        with pytest.raises(InputError, match=r"expected"):
            predict(linear[0], tmp_path / "d.csv", tmp_path / "o.npz")
        return
    result = predict(linear[0], tmp_path / "d.csv", tmp_path / "o.npz")
    assert (result.rows, list(_bad(tmp_path / "o.npz"))) == (3, [0])
    with np.load(tmp_path / "o.npz") as out:
        assert out["row"].tolist() == [1, 2]


def test_the_header_can_be_told(linear, tmp_path):
    (tmp_path / "d.csv").write_text("2019,2020,2021\n4,5,6\n")
    for header, rows in ((None, 2), (False, 2), (True, 1)):
        out = tmp_path / f"{header}.npz"
        assert predict(linear[0], tmp_path / "d.csv", out, header=header).rows == rows
    (tmp_path / "e.csv").write_text("a,b,c\n4,5,6\n")
    assert predict(linear[0], tmp_path / "e.csv", tmp_path / "o.npz", header=False).bad == 1
    (tmp_path / "f.csv").write_text("id,2019,2020,2021\nq,4,5,6\n")
    named = predict(linear[0], tmp_path / "f.csv", tmp_path / "p.npz", columns=["2019", "2020", "2021"])
    assert (named.rows, named.bad) == (1, 0)


@pytest.mark.parametrize("first", ["0,1,2", " 0, 1, 2", '"0","1","2"'])
def test_columns_that_are_numbered_are_asked_about(linear, tmp_path, first):
    """pandas writes 0, 1, 2 over columns without names; a first row may read the same."""
    (tmp_path / "d.csv").write_text(f"{first}\n4,5,6\n")
    with pytest.raises(InputError, match=r"begins with 0, 1, 2: names.*--header or --no-header"):
        predict(linear[0], tmp_path / "d.csv", tmp_path / "o.npz")
    for header, rows in ((True, 1), (False, 2)):
        assert predict(linear[0], tmp_path / "d.csv", tmp_path / f"{header}.npz", header=header).rows == rows
    named = predict(linear[0], tmp_path / "d.csv", tmp_path / "p.npz", columns=["0", "1", "2"])
    assert named.rows == 1


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_of_all_systems(linear, tmp_path, ending, last):
    x = np.arange(60.0).reshape(20, 3)
    text = ending.join(["a,b,c", *(",".join(map(str, row)) for row in x)]) + ending * last
    (tmp_path / "d.csv").write_bytes(text.encode())
    result = predict(linear[0], tmp_path / "d.csv", tmp_path / "o.npy", batch_size=3)
    assert (result.rows, result.bad) == (20, 0)
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), x @ linear[1] + linear[2], rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("uint8", [0, 255], ["300", "-1", "1.5", "1e2", "x", "", "9" * 50, "0x10", "nan", "99999999999999999999"]),
        ("int8", [-128, 127], ["128", "-129", "9223372036854775808"]),
        ("int32", [-(2**31), 2**31 - 1], [str(2**31), str(2**32 + 7), str(-(2**31) - 1), "1e20"]),
        ("int64", [-(2**63), 2**63 - 1, 2**53 + 1], [str(2**63), str(-(2**63) - 1), "1e3"]),
        ("uint64", [0, 2**64 - 1, 2**53 + 1], [str(2**64), "-1"]),
        ("bool", [0, 1], ["2", "-1", "true"]),
        ("float16", [0.5, 65504.0], ["70000", "1e400", "nan", "1_0", "0x10"]),
        ("float", [0.1, -1e38], ["1e39", "-1e400", "NA", "null", " "]),
        ("double", [0.1, 1.7e308], ["1e309", "na"]),
    ],
)
def test_a_number_the_input_cannot_hold_is_a_bad_row_and_changes_no_other(write_model, tmp_path, kind, good, bad):
    model = write_model(NAMED.format(kind=kind))
    cells = [str(value) for value in good] + bad + [str(value) for value in good]
    (tmp_path / "d.csv").write_text("\n".join(["i,other", *(f"{cell},q" for cell in cells)]))
    result = predict(model, tmp_path / "d.csv", tmp_path / "o.npz", columns=["i"])
    reasons = _bad(tmp_path / "o.npz")
    assert list(reasons) == list(range(len(good), len(good) + len(bad)))
    for reason in reasons.values():
        assert "expected" in reason
        assert "correct" in reason or "fill or remove" in reason
    with np.load(tmp_path / "o.npz") as out:
        np.testing.assert_array_equal(out["y"], np.array(good + good, out["y"].dtype))
    assert result.rows == len(cells)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    odd=st.dictionaries(st.integers(0, 120), st.sampled_from(["x", "1e400", "1_0", '"', "9,9", "0x1", "\x00", "é"])),
    count=st.integers(1, 121),
)
def test_odd_cells_anywhere_cost_their_rows_alone(tmp_path, odd, count):
    """Text is read in halves where Arrow refuses it: every number must come back in its own row."""
    cells = [odd.get(at, str(at)) for at in range(count)]
    (tmp_path / "d.csv").write_text("\n".join(["n,v", *(f"t{at},{cell}" for at, cell in enumerate(cells))]))
    source = CsvSource([tmp_path / "d.csv"], [TensorSpec("x", "float32", ("n",))], ["v"], ["n"], None)
    blocks = [block for part in source.parts(40) for block in source.read([part])]
    values = np.concatenate([block.feeds["x"] for block in blocks]).tolist()
    names = [name for block in blocks for name in block.kept["n"].to_pylist()]
    starts = np.cumsum([0, *(len(block.feeds["x"]) for block in blocks)]).tolist()
    bad = {start + at for start, block in zip(starts, blocks, strict=False) for at in block.bad}
    assert len(values) == count
    assert bad == {at for at in odd if at < count}
    for at in set(range(count)) - bad:
        assert (values[at], names[at]) == (at, f"t{at}")


def test_infinity_that_is_meant_is_a_number(write_model, tmp_path):
    (tmp_path / "d.csv").write_text("i\ninf\n-Infinity\n1\n")
    predict(write_model(NAMED.format(kind="float")), tmp_path / "d.csv", tmp_path / "o.npz")
    with np.load(tmp_path / "o.npz") as out:
        assert out["y"].tolist() == [np.inf, -np.inf, 1.0]


def test_columns_of_one_name_are_refused(linear, write_model, tmp_path):
    (tmp_path / "d.csv").write_text("a,a,c\n1,2,3\n")
    with pytest.raises(InputError, match=r"several columns of one name \(a\).*rename"):
        predict(linear[0], tmp_path / "d.csv", tmp_path / "o.npz")
    pair = write_model(NAMED.format(kind="float").replace("[batch] i)", "[batch] i, float[batch] j)"), name="p.onnx")
    (tmp_path / "e.csv").write_text("i,i.0,j\n1,2,3\n")
    with pytest.raises(InputError, match=r"both column 'i' and 'i\.0'"):
        predict(pair, tmp_path / "e.csv", tmp_path / "o.npz")


def test_rows_of_other_widths_and_other_encodings(linear, tmp_path):
    (tmp_path / "d.csv").write_bytes(b"n,a,b,c\nx,1,2,3\nx,1,2\n\xff,1,2,3\nx,1,\xfe,3\nx,1,2,3,4\n\ny,4,5,6")
    predict(linear[0], tmp_path / "d.csv", tmp_path / "o.csv", columns=["a", "b", "c"], keep=["n"])
    reasons = _bad(tmp_path / "o.csv")
    assert list(reasons) == [1, 2, 3, 4]
    assert "has 3 cells; expected 4" in reasons[1]
    assert "expected UTF-8 text" in reasons[2]
    with (tmp_path / "o.csv").open(newline="") as stream:
        assert [(row["row"], row["n"]) for row in csv.DictReader(stream)] == [("0", "x"), ("5", "y")]
    (tmp_path / "e.csv").write_bytes("a,b,c\n1,2,3".encode("utf-16"))
    with pytest.raises(InputError, match="not UTF-8"):
        predict(linear[0], tmp_path / "e.csv", tmp_path / "p.csv")
    (tmp_path / "f.csv").write_bytes(b"\n\n")
    with pytest.raises(InputError, match="is empty"):
        predict(linear[0], tmp_path / "f.csv", tmp_path / "p.csv")
    (tmp_path / "g.csv").write_bytes(b"a,b,c\n1,2,3\n,7\xd4\xc6")
    predict(linear[0], tmp_path / "g.csv", tmp_path / "p.csv")
    assert "has 2 cells; expected 3" in _bad(tmp_path / "p.csv")[1]


@pytest.mark.parametrize("tables", [25, pytest.param(60, marks=pytest.mark.slow)])  # the same ones first
def test_noise_never_ends_in_a_foreign_error(linear, tmp_path, tables):
    draw = random.Random(0)
    for _ in range(tables):
        text = "".join(
            draw.choice(["1", "2.5", ",", ",", '"', "\n", "\r", "x", "\0", "é", "-", "e"]) for _ in range(80)
        )
        (tmp_path / "d.csv").write_text("a,b,c\n" + text, newline="")
        try:
            result = predict(linear[0], tmp_path / "d.csv", tmp_path / "o.npz", overwrite=True)
            assert 0 < result.rows <= 81
        except InputError:
            pass


@pytest.mark.parametrize("line", ['a","\n', '"a""\n', '1,"2\n', '"\n', 'a,"",b\n'])
def test_lines_that_leave_quotes_open_are_read_a_few_times_each(line: str, lines_looked_at: list[str]) -> None:
    """Not each to the end of the file: two thousand lines took as long as a million."""
    lines = [line] * 2000
    assert "".join(text for text, _, _ in records(lines, 3, (0, 1, 2))) == "".join(lines)
    assert len(lines_looked_at) < 4 * len(lines) + 10


@pytest.mark.parametrize("line", ['a","\n', '"a""\n', '1,"2\n', '"\n', 'a,"",b\n', 'a","\r', "1,2\n" * 9 + 'a","\n'])
def test_parts_of_open_quotes_take_reads_in_proportion_to_the_file(
    line: str, tmp_path: Path, lines_looked_at: list[str]
) -> None:
    """Not from each part to the end of the file: 160 parts of 100 lines took 80 times the file, 40 of them 20 times."""
    path, read = tmp_path / "t.csv", []
    for count in (1000, 4000):
        path.write_text("a,b,c" + line[-1] + line * count, newline="")
        source = _source(path, ["a"])
        lines_looked_at.clear()
        rows = sum(len(block.feeds["x"]) for part in source.parts(100) for block in source.read([part]))
        assert rows == count * len(line.splitlines())
        read.append(sum(map(len, lines_looked_at)) / path.stat().st_size)
    assert max(read) < 5
    assert max(read) < 1.2 * min(read) or max(read) == 0


def test_a_record_of_several_lines_behind_a_stray_quote() -> None:
    lines = ['1,"x\n', "2,3\n", '4,"two\n', 'lines"\n', "5,6\n"]
    found = list(records(lines, 2, (0,)))
    assert [text for text, _, _ in found] == [lines[0], lines[1], lines[2] + lines[3], lines[4]]
    assert [bool(fault) for _, _, fault in found] == [True, False, False, False]
