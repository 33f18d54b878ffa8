"""Unfinished runs: what is resumed, what is refused, whose files are touched."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from normdeploy.errors import InputError, OutputExistsError, StorageError, UsageError
from normdeploy.ort.digest import model_digest
from normdeploy.runtime import ImageOptions, Plan, Settings, Trial, load, predict, this_machine
from normdeploy.runtime.bulk import predict_files
from normdeploy.runtime.bulk.predict_part import part_path, read_part
from normdeploy.runtime.bulk.workspace import Workspace

TABLE = "a,b,c,d\n" + "".join(f"{at},{at / 2},1,x\n" for at in range(200))


class Stop(Exception):
    pass


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(predict_files, "_PART_INPUT", 0)


def _interrupt(model: Path, data: Path, out: Path, **options) -> None:
    def progress(done: int, total: int | None) -> None:
        if done >= 60:
            raise Stop

    with pytest.raises(Stop):
        predict(model, data, out, batch_size=2, progress=progress, **options)


def _same_times(path: Path, text: bytes) -> None:
    """Replace the content and set back what says that it changed, as far as a program can."""
    status = path.stat()
    path.write_bytes(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns


def _plan(path: Path, threads: int) -> Plan:
    trial = Trial("t", "float32", "chosen", file=path.name, settings=Settings(threads=threads))
    digest = model_digest(path)
    return Plan(path.name, digest, "exact", "none", this_machine(), (trial,), digest)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("model", "model"), ("plan", "settings"), ("data", "data"), ("columns", "reading"), ("keep", "reading"),
        ("header", "reading"), ("batch", "batch size"), ("more files", "data"),
    ],
)  # fmt: skip
def test_what_changed_is_not_mixed_in(linear, tmp_path, change, named):
    model, data, out = linear[0], tmp_path / "d.csv", tmp_path / "o.npz"
    data.write_text(TABLE)
    options: dict = {"columns": ["a", "b", "c"], "plan": _plan(model, 1)}
    _interrupt(model, data, out, **options)
    again: dict = {**options, "batch_size": 2}
    given: object = data
    if change == "model":
        changed = onnx.load(model)
        changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((3, 2), np.float32), "W"))
        onnx.save(changed, model)
        again["plan"] = _plan(model, 1)
    elif change == "plan":
        again["plan"] = _plan(model, 2)
    elif change == "data":
        _same_times(data, TABLE.replace("7,3.5", "8,3.5").encode())
    elif change == "columns":
        again["columns"] = ["b", "a", "c"]
    elif change == "keep":
        again["keep"] = ["d"]
    elif change == "header":
        again["header"] = True
    elif change == "batch":
        again["batch_size"] = 4
    else:
        (tmp_path / "e.csv").write_text(TABLE)
        given = [data, tmp_path / "e.csv"]
    before = sorted(path.name for path in (tmp_path / "o.npz.partial").iterdir())
    with pytest.raises(UsageError, match=f"unfinished run that differs in: {named}"):
        predict(model, given, out, **again)
    assert sorted(path.name for path in (tmp_path / "o.npz.partial").iterdir()) == before
    assert predict(model, given, out, overwrite=True, **again).resumed == 0
    assert not (tmp_path / "o.npz.partial").exists()


def test_the_same_is_resumed_and_gives_the_same(linear, tmp_path):
    (tmp_path / "d.csv").write_text(TABLE)
    named = {"columns": ["a", "b", "c"]}
    _interrupt(linear[0], tmp_path / "d.csv", tmp_path / "o.npz", **named)
    assert predict(linear[0], tmp_path / "d.csv", tmp_path / "o.npz", batch_size=2, **named).resumed >= 60
    predict(linear[0], tmp_path / "d.csv", tmp_path / "p.npz", batch_size=2, **named)
    assert (tmp_path / "o.npz").read_bytes()[60:] == (tmp_path / "p.npz").read_bytes()[60:] or np.array_equal(
        np.load(tmp_path / "o.npz")["y"], np.load(tmp_path / "p.npz")["y"]
    )


def test_other_scaling_of_images_is_refused(write_model, tmp_path):
    from PIL import Image

    (tmp_path / "p").mkdir()
    for at in range(100):
        Image.new("L", (2, 2), at).save(tmp_path / "p" / f"{at:03}.png")
    model = write_model("n (float[b, 1, 2, 2] x) => (float[b, 1, 2, 2] y) { y = Identity(x) }")
    _interrupt(model, tmp_path / "p", tmp_path / "o.npz", images=ImageOptions(mean=(0.5,)))
    with pytest.raises(UsageError, match="differs in: reading"):
        predict(model, tmp_path / "p", tmp_path / "o.npz", batch_size=2, images=ImageOptions(mean=(0.25,)))


def test_data_that_changes_while_it_is_read_is_an_error(linear, tmp_path):
    np.save(tmp_path / "d.npy", np.zeros((200, 3), np.float32))

    def progress(done: int, total: int | None) -> None:
        if done == 64:
            np.save(tmp_path / "d.npy", np.ones((200, 3), np.float32))

    with pytest.raises(InputError, match="changed while it was read"):
        predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy", batch_size=2, progress=progress)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.npy", "net.onnx"]


@pytest.mark.parametrize("files", [["mine.txt"], ["run.json"], ["00000000.part"], ["lock"], ["run.json", "lock"]])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_the_users_is_left_alone(linear, tmp_path, files, overwrite):
    np.save(tmp_path / "d.npy", np.zeros((5, 3), np.float32))
    folder = tmp_path / "o.npy.partial"
    folder.mkdir()
    for name in files:
        (folder / name).write_text("{} mine")
    with pytest.raises(UsageError, match="is no unfinished run; expected a free path"):
        predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy", overwrite=overwrite)
    assert {path.name: path.read_text() for path in folder.iterdir()} == dict.fromkeys(files, "{} mine")
    shutil.rmtree(folder)
    folder.write_text("a file")
    with pytest.raises(UsageError, match="no unfinished run"):
        predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy", overwrite=overwrite)
    assert folder.read_text() == "a file"


@pytest.mark.parametrize("there", [False, True])
def test_a_link_in_its_place_is_left(linear, tmp_path, there):
    np.save(tmp_path / "d.npy", np.zeros((5, 3), np.float32))
    if there:
        (tmp_path / "elsewhere").mkdir()
    (tmp_path / "o.npy.partial").symlink_to("elsewhere")
    with pytest.raises(UsageError, match="no unfinished run"):
        predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy", overwrite=True)
    assert (tmp_path / "o.npy.partial").is_symlink()
    assert (tmp_path / "elsewhere").exists() == there


@pytest.mark.parametrize("text", ["[1]", "5", "null", "no json", "[" * 100_000])
def test_a_description_of_another_shape_is_begun_anew(tmp_path, text):
    with Workspace(tmp_path / "w", {"a": 1}) as first:
        part_path(first.folder, 0).touch()
    (tmp_path / "w" / "run.json").write_text(text)
    with Workspace(tmp_path / "w", {"a": 1}):
        assert sorted(path.name for path in (tmp_path / "w").iterdir()) == ["lock", "run.json"]


def test_devices_are_no_outputs(linear, tmp_path):
    np.save(tmp_path / "d.npy", np.zeros((5, 3), np.float32))
    (tmp_path / "o.npy").symlink_to("/dev/null")
    with pytest.raises(UsageError, match="is a device; expected a file path"):
        predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy", overwrite=True)
    assert Path("/dev/null").is_char_device()


def test_a_disk_that_is_full_is_an_error_of_ours(linear, tmp_path, monkeypatch):
    np.save(tmp_path / "d.npy", np.zeros((5, 3), np.float32))
    replace = os.replace

    def refused(made, target):
        if str(target).endswith((".part", "o.npy")):
            raise OSError(28, "No space left on device")
        replace(made, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", refused)
        with pytest.raises(StorageError, match="No space left on device"):
            predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy")
    assert predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy").rows == 5
    assert not (tmp_path / "o.npy.partial").exists()


def test_an_empty_folder_of_the_users_stays(linear, tmp_path):
    np.save(tmp_path / "d.npy", np.zeros((5, 3), np.float32))
    (tmp_path / "o.npy.partial").mkdir()
    predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy")
    assert list((tmp_path / "o.npy.partial").iterdir()) == []


def test_an_empty_folder_that_a_killed_run_left_goes(linear, tmp_path, monkeypatch):
    np.save(tmp_path / "d.npy", np.zeros((5, 3), np.float32))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda *_, **__: (_ for _ in ()).throw(Stop))  # killed before the lock is there
        with pytest.raises(Stop):
            Workspace(tmp_path / "o.npy.partial", {})
    assert list((tmp_path / "o.npy.partial").iterdir()) == []
    predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy")
    assert not (tmp_path / "o.npy.partial").exists()


def test_what_the_user_put_into_our_folder_stays(linear, tmp_path):
    np.save(tmp_path / "d.npy", np.zeros((200, 3), np.float32))
    _interrupt(linear[0], tmp_path / "d.npy", tmp_path / "o.npy")
    (tmp_path / "o.npy.partial" / "notes.part").write_text("mine")
    predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy", overwrite=True)
    assert [path.name for path in (tmp_path / "o.npy.partial").iterdir()] == ["notes.part"]


def test_bad_rows_of_another_run_are_not_overwritten_unasked(linear, tmp_path):
    np.save(tmp_path / "d.npy", np.zeros((5, 3), np.float32))
    (tmp_path / "o.npy.bad.csv").write_text("mine")
    with pytest.raises(OutputExistsError, match=r"o\.npy\.bad\.csv exists"):
        predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy")
    assert (tmp_path / "o.npy.bad.csv").read_text() == "mine"
    predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy", overwrite=True)
    assert not (tmp_path / "o.npy.bad.csv").exists()  # of the run that was replaced


def test_only_one_run_at_a_time_writes_an_output(linear, tmp_path):
    np.save(tmp_path / "d.npy", np.zeros((200, 3), np.float32))
    tried: list[int] = []

    def progress(done: int, total: int | None) -> None:
        tried.append(done)
        with pytest.raises(UsageError, match="another process is writing"):
            predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy", batch_size=3, overwrite=True)

    result = predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy", batch_size=2, overwrite=True, progress=progress)
    assert (result.rows, len(tried)) == (200, 7)
    assert np.load(tmp_path / "o.npy").shape == (200, 2)


def test_only_whole_parts_count(linear, tmp_path):
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    np.save(tmp_path / "d.npy", x)
    _interrupt(linear[0], tmp_path / "d.npy", tmp_path / "o.npy")
    folder = tmp_path / "o.npy.partial"
    whole = part_path(folder, 0).read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        part_path(folder, 0).write_bytes(whole[:cut])
        assert read_part(folder, 0) is None
    assert predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npy", batch_size=2).resumed == 32
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), load(linear[0]).batched(x, batch_size=2))


def test_the_workspace_is_of_one_process_and_one_run(tmp_path):
    with Workspace(tmp_path / "w", {"a": 1}) as first:
        with pytest.raises(UsageError, match="another process"):
            Workspace(tmp_path / "w", {"a": 1})
        assert f"process {os.getpid()}" in (tmp_path / "w" / "lock").read_text()
        (tmp_path / "w" / "7.123.unfinished").touch()
        part_path(first.folder, 7).touch()
    with pytest.raises(UsageError, match="differs in: a"):
        Workspace(tmp_path / "w", {"a": 2})
    with Workspace(tmp_path / "w", {"a": 1}):
        assert sorted(path.name for path in (tmp_path / "w").iterdir()) == ["00000007.part", "lock", "run.json"]
    with Workspace(tmp_path / "w", {"a": 2}, restart=True) as last:
        assert json.loads((tmp_path / "w" / "run.json").read_text()) == {"a": 2}
        assert not part_path(last.folder, 7).exists()
        last.remove()
    assert not (tmp_path / "w").exists()


def _run(model: str, data: str, out: str) -> None:
    predict_files._PART_INPUT = 0  # as in the process that asks
    predict(model, data, out, batch_size=2)


@pytest.mark.parametrize("wait", [0.0, 0.01, 0.05, 0.2])
def test_a_kill_at_any_moment_leaves_nothing_that_the_next_run_does_not_clear(linear, tmp_path, wait):
    x = np.random.default_rng(0).normal(size=(3000, 3)).astype(np.float32)
    np.save(tmp_path / "d.npy", x)
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(str(linear[0]), str(tmp_path / "d.npy"), str(tmp_path / "o.npz"))
    )
    process.start()
    while process.is_alive() and not (tmp_path / "o.npz.partial").exists():
        time.sleep(0.001)
    time.sleep(wait)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    finished = (tmp_path / "o.npz").exists()
    predict(linear[0], tmp_path / "d.npy", tmp_path / "o.npz", batch_size=2, overwrite=finished)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.npy", "net.onnx", "o.npz"]
    with np.load(tmp_path / "o.npz") as out:
        np.testing.assert_array_equal(out["row"], np.arange(3000))
        np.testing.assert_array_equal(out["y"], load(linear[0]).batched(x, batch_size=2))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_disk_that_is_full_costs_no_parts_of_an_unfinished_run(tmp_path, monkeypatch):
    with Workspace(tmp_path / "w", {"a": 1}) as first:
        part_path(first.folder, 3).touch()
    write = os.write
    with monkeypatch.context() as patched, Path("/dev/full").open("wb", buffering=0) as full:
        patched.setattr(os, "write", lambda _, text: write(full.fileno(), text))
        with pytest.raises(StorageError, match="No space left"):
            Workspace(tmp_path / "w", {"a": 1})
    with Workspace(tmp_path / "w", {"a": 1}) as second:
        assert part_path(second.folder, 3).exists()
