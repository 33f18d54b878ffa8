"""OUT.partial: predict continues and discards what a run of its own left there, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from normdeploy.errors import NormdeployError, OutputExistsError, UsageError
from normdeploy.runtime import predict
from normdeploy.runtime.bulk.journal import Journal

HEADER = {"model": "a", "data": {"rows": 3}}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.ones((5, 3), np.float32))
    return tmp_path / "x.npy"


def _text(folder: Path) -> None:
    (folder / "thesis.txt").write_text("mine")


def _header_of_mine(folder: Path) -> None:
    (folder / "header.json").write_text('{"title": "mine"}')


def _header_no_json(folder: Path) -> None:
    (folder / "header.json").write_text("mine")


def _folder_inside(folder: Path) -> None:
    (folder / "part-00000000.npz").mkdir()


def _part_and_text(folder: Path) -> None:
    (folder / "part-00000000.npz").write_bytes(b"")
    (folder / "thesis.txt").write_text("mine")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("fill", [_text, _header_of_mine, _header_no_json, _folder_inside, _part_and_text])
def test_a_folder_of_the_users_is_left(fill, overwrite: bool, linear, rows: Path, tmp_path: Path) -> None:
    folder = tmp_path / "o.npy.partial"
    folder.mkdir()
    fill(folder)
    before = sorted(path.name for path in folder.rglob("*"))
    with pytest.raises(UsageError, match="no run of predict wrote"):
        predict(linear[0], rows, tmp_path / "o.npy", overwrite=overwrite)
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_a_file_or_link_in_its_place_is_left(linear, rows: Path, tmp_path: Path) -> None:
    place = tmp_path / "o.npy.partial"
    place.write_text("mine")
    with pytest.raises(UsageError, match="no folder of an unfinished run"):
        predict(linear[0], rows, tmp_path / "o.npy", overwrite=True)
    assert place.read_text() == "mine"
    place.unlink()
    (tmp_path / "elsewhere").mkdir()
    place.symlink_to("elsewhere")
    with pytest.raises(UsageError, match="no folder of an unfinished run"):
        predict(linear[0], rows, tmp_path / "o.npy", overwrite=True)


def test_what_joins_the_folder_meanwhile_stays(tmp_path: Path) -> None:
    folder = tmp_path / "o.partial"
    with Journal(folder, HEADER) as journal:
        (folder / "thesis.txt").write_text("mine")
        journal.remove()
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("state", ["empty", "before the header", "another run"])
def test_what_a_run_left_is_discarded(state: str, tmp_path: Path) -> None:
    folder = tmp_path / "o.partial"
    folder.mkdir()
    if state == "before the header":
        (folder / ".header.json").write_text("{")
        (folder / "journal.jsonl").write_text("")
    elif state == "another run":
        (folder / "header.json").write_text(json.dumps({"model": "b", "data": {}}))
        (folder / "part-00000000.npz").write_bytes(b"")
        (folder / ".00000001.77.npz").write_bytes(b"")
        with pytest.raises(UsageError, match="differs in: model, data"):
            Journal(folder, HEADER)
    with Journal(folder, HEADER, restart=True) as journal:
        assert journal.done == {}
        assert sorted(path.name for path in folder.iterdir()) == ["header.json", "journal.jsonl"]


@pytest.mark.parametrize("line", ["5", "{}", "null", '{"index": 0}', "no json"])
def test_a_journal_of_another_shape_is_an_error_of_ours(line: str, tmp_path: Path) -> None:
    folder = tmp_path / "o.partial"
    with Journal(folder, HEADER):
        pass
    (folder / "journal.jsonl").write_text(line + "\n")
    with pytest.raises(UsageError, match="no run of predict wrote"):
        Journal(folder, HEADER)


def test_a_list_of_bad_rows_is_not_replaced_unasked(linear, rows: Path, tmp_path: Path) -> None:
    mine = tmp_path / "o.npy.bad.csv"
    mine.write_text("mine")
    with pytest.raises(OutputExistsError, match=r"bad\.csv"):
        predict(linear[0], rows, tmp_path / "o.npy")
    assert mine.read_text() == "mine"
    predict(linear[0], rows, tmp_path / "o.npy", overwrite=True)
    assert not mine.exists()


def test_devices_are_no_outputs(linear, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "o.npy").symlink_to("/dev/null")
    with pytest.raises(NormdeployError, match="is a device; expected a file path"):
        predict(linear[0], rows, tmp_path / "o.npy", overwrite=True)
    assert Path("/dev/null").is_char_device()
