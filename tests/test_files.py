"""Writing: whole or not at all, nothing that is no file, and what the disk says in our words."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from normdeploy.errors import GraphError, NormdeployError, OutputExistsError, StorageError, UsageError
from normdeploy.files import (
    copy_file,
    copy_with_digest,
    names_data,
    require_model_file,
    require_writable,
    storage,
    words_in,
    write_text,
    written_together,
    written_whole,
)
from normdeploy.nn.weight_files import _Stream, save_torch, write_weights


@pytest.fixture(autouse=True)
def _waited_for(waiting_disk: None) -> None:
    """Wait for the disk, as programs do: writers at once then stand between two renames for longer."""


def _folder(place: Path) -> None:
    place.mkdir()


def _pipe(place: Path) -> None:
    os.mkfifo(place)


def _socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place))


def _device(place: Path) -> None:
    place.symlink_to("/dev/null")


def _folder_link(place: Path) -> None:
    place.with_name("real").mkdir()
    place.symlink_to("real")


IRREGULAR = (_folder, _pipe, _socket, _device, _folder_link)


@pytest.mark.parametrize("make", IRREGULAR)
def test_what_is_no_file_is_neither_replaced_nor_read(make, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path has to be short
    place = Path("place")
    make(place)
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="expected a file path"):
            write_text(place, "x", overwrite=overwrite)
        with pytest.raises(UsageError), written_together(place, overwrite=overwrite):
            pass
    with pytest.raises(GraphError, match="expected an ONNX file"):
        require_model_file(place)
    assert os.path.lexists(place)
    assert Path("/dev/null").is_char_device()


def test_a_dangling_link_counts_as_there(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(OutputExistsError):
        require_writable(tmp_path / "link")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_the_disks_word_is_an_error_of_ours(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    for write in (written_whole, written_together):
        with pytest.raises(StorageError, match=os.strerror(number)) as error, write(tmp_path / "a") as place:
            (place / "a" if place.is_dir() else place).write_text("x")
        assert "expected" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_what_cannot_be_read_names_the_source(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(StorageError, match=r"source cannot be read") as error, storage(tmp_path / "target"):
        copy_file(tmp_path / "source", tmp_path / "made")
    assert "target" not in str(error.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_copy_onto_a_full_disk_names_the_target(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(10**6))
    with (
        pytest.raises(StorageError, match=r"target cannot be written: No space") as error,
        storage(tmp_path / "target"),
    ):
        copy_file(tmp_path / "source", Path("/dev/full"))
    assert "source" not in str(error.value)


@pytest.mark.parametrize("size", [0, 5, (1 << 20) + 1])
def test_a_copy_holds_what_was_there(size: int, tmp_path: Path) -> None:
    content = bytes(n % 251 for n in range(size))
    (tmp_path / "source").write_bytes(content)
    copy_file(tmp_path / "source", tmp_path / "a")
    assert copy_with_digest(tmp_path / "source", tmp_path / "b") == hashlib.sha256(content).hexdigest()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == content


def test_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    write_text(tmp_path / "a", "x")
    assert calls.index("fsync") < calls.index("replace")
    calls.clear()
    with written_together(tmp_path / "b") as folder:
        (folder / "b").write_text("x")
        (folder / "b.data").write_text("y")
    assert calls[:2] == ["fsync", "fsync"]  # of all files, before the first name
    assert calls.count("replace") == 2


def test_the_named_file_appears_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append(Path(paths[1]).name), replace(*paths)))
    with written_together(tmp_path / "b.onnx") as folder:
        for name in ("a.json", "b.onnx", "z.data"):
            (folder / name).write_text("x")
    assert order == ["a.json", "z.data", "b.onnx"]


def test_one_that_exists_holds_all_back(tmp_path: Path) -> None:
    (tmp_path / "a.data").write_text("mine")

    def write() -> None:
        with written_together(tmp_path / "a") as folder:
            (folder / "a").write_text("x")
            (folder / "a.data").write_text("y")

    with pytest.raises(OutputExistsError, match=r"a\.data"):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["a.data"]
    assert (tmp_path / "a.data").read_text() == "mine"


def test_a_folder_above_that_may_not_be_searched_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(StorageError, match=r"net\.onnx cannot be read: Permission denied; expected"):
        require_model_file(tmp_path / "net.onnx")


def test_the_word_is_found_across_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normdeploy.files._CHUNK", 16)
    for at in range(40):
        (tmp_path / "a").write_bytes(b"x" * at + b"location" + b"y" * (40 - at))
        assert names_data(tmp_path / "a"), at
        assert words_in(memoryview((tmp_path / "a").read_bytes()), [b"location", b"z"]) == {b"location"}, at
    (tmp_path / "a").write_bytes(b"locatio" * 10)
    assert not names_data(tmp_path / "a")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_folder_without_permission_is_told_before_the_work(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):  # up to pytest's own
        folder.chmod(0o755)
    code = (
        "import os, sys; os.setuid(65534)\n"
        "from normdeploy.files import require_writable\n"
        "from normdeploy.errors import StorageError\n"
        "try: require_writable(sys.argv[1])\n"
        "except StorageError as error: print(error); sys.exit(7)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a")], capture_output=True, text=True, check=False
    )
    if "ModuleNotFoundError" in ended.stderr or "PermissionError" in ended.stderr:
        pytest.skip("that user cannot read this package")
    assert ended.returncode == 7, ended.stderr
    assert "cannot be written" in ended.stdout


def test_every_error_is_ours() -> None:
    assert issubclass(StorageError, NormdeployError)
    assert StorageError.exit_code == 4


_KILLED = """
import os, signal, sys
from normdeploy.files import written_together
with written_together(sys.argv[1]) as folder:
    (folder / "half").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path: Path):
    target = tmp_path / "net[1].onnx"
    done = subprocess.run([sys.executable, "-c", _KILLED, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] != []
    others = [tmp_path / name for name in (".net[1].onnx.mine", ".net2.onnx.abc", ".net[1].onnx.both")]
    for folder in others:
        folder.mkdir()
    (others[0] / "lock").write_text("of the user")
    dead = next(path for path in tmp_path.iterdir() if path not in others)
    shutil.copy(dead / "lock", others[2] / "lock")
    (others[2] / "note.txt").write_text("the user put something in")
    with written_together(target) as living:
        (living / target.name).write_bytes(b"whole")
        assert not dead.exists()
        with written_together(target, overwrite=True) as second:
            assert living.is_dir()
            assert second != living
    assert target.read_bytes() == b"whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([target.name, *(f.name for f in others)])


def test_what_died_before_it_was_locked_goes_too(tmp_path: Path):
    """The mark is made with the folder: no moment is too early."""
    target = tmp_path / "net.onnx"
    for name, entries in ((".net.onnx.1", ()), (".net.onnx.2", ("lock",)), (".net.onnx.3", ("made",))):
        (tmp_path / name).mkdir(mode=0o1700)
        for entry in entries:
            (tmp_path / name / entry).mkdir() if entry == "made" else (tmp_path / name / entry).touch()
    (tmp_path / ".net.onnx.4").mkdir()  # the user's: not marked
    (tmp_path / ".net.onnx.5").mkdir(mode=0o1700)
    (tmp_path / ".net.onnx.5" / "note.txt").write_text("the user's")
    write_text(target, "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".net.onnx.4", ".net.onnx.5", "net.onnx"]


def test_writers_side_by_side_do_not_take_each_other_for_dead(tmp_path: Path):
    target = tmp_path / "net.json"
    words = [sys.executable, "-c", _WRITES, str(target)]
    with subprocess.Popen(words, stderr=subprocess.PIPE) as one, subprocess.Popen(words, stderr=subprocess.PIPE) as two:
        said = [process.communicate(timeout=300)[1].decode() for process in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0), said
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert len(target.read_text()) == 5000


def _at_once(write: Callable[[int, threading.Barrier], None], number: int = 8) -> list[int]:
    """Let threads write at the same instant, each when the barrier opens; return those that were not refused."""
    barrier = threading.Barrier(number)

    def one(which: int) -> bool:
        try:
            write(which, barrier)
        except OutputExistsError:
            return False
        return True

    with ThreadPoolExecutor(number) as pool:
        return [which for which, wrote in enumerate(pool.map(one, range(number))) if wrote]


def test_of_writers_at_once_one_has_the_name_and_the_others_are_told(tmp_path: Path) -> None:
    for turn in range(20):
        target = tmp_path / f"{turn}.json"

        def write(which: int, barrier: threading.Barrier, target: Path = target) -> None:
            with written_whole(target) as place:
                place.write_text(str(which))
                barrier.wait(60)  # all have looked, and found the name free

        (winner,) = _at_once(write)
        assert target.read_text() == str(winner)


def test_files_that_belong_together_are_of_one_writer(tmp_path: Path) -> None:
    names = ["net.onnx", *(f"net.onnx.{part}" for part in range(4))]

    def write(which: int, barrier: threading.Barrier) -> None:
        with written_together(tmp_path / "net.onnx", overwrite=True) as folder:
            for name in names:
                (folder / name).write_text(str(which))
            barrier.wait(60)

    for _ in range(20):
        assert len(_at_once(write)) == 8
        assert len({(tmp_path / name).read_text() for name in names}) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks there")
def test_a_folder_that_the_caller_has_locked_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr("normdeploy.unfinished.PAUSE", 0.001)
    held = os.open(tmp_path, os.O_RDONLY)  # as `flock FOLDER normdeploy ...` does
    fcntl.flock(held, fcntl.LOCK_EX)
    write_text(tmp_path / "a", "x")
    os.close(held)
    assert (tmp_path / "a").read_text() == "x"


_WRITES = """
import sys
from normdeploy.files import write_text
for number in range(150):
    write_text(sys.argv[1], str(number % 10) * 5000, overwrite=True)
"""


def test_a_disk_without_room_for_the_lock_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("normdeploy.unfinished.os.write", refuse)
    with pytest.raises(StorageError, match="No space left on device"):
        write_text(tmp_path / "a", "text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("size", [1, 10**6])
def test_torchs_archive_on_a_full_disk_says_what_the_disk_says(size: int) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        save_torch({"a": torch.zeros(size)}, Path("/dev/full"))


@pytest.mark.parametrize("call", range(1, 13))
def test_torchs_archive_that_is_stopped_says_so(call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a checkpoint is no error of the archive."""
    write, calls = _Stream.write, itertools.count(1)

    def stopped(self: _Stream, data: bytes) -> int:
        if next(calls) == call:
            raise KeyboardInterrupt
        return write(self, data)

    monkeypatch.setattr(_Stream, "write", stopped)
    with pytest.raises(KeyboardInterrupt):
        save_torch({"a": torch.zeros(9), "b": torch.zeros(3000)}, tmp_path / "a.pt")


def test_torchs_archive_holds_what_was_given(tmp_path: Path) -> None:
    save_torch({"a": torch.arange(3.0)}, tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt", weights_only=True)["a"].tolist() == [0, 1, 2]


def test_weights_on_a_full_disk_are_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tensors: object, path: str, metadata: object) -> None:
        Path(path).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("normdeploy.nn.weight_files.save_file", refuse)
    with pytest.raises(StorageError, match=r"cannot be written: .*No space left on device"):
        write_weights({"a": torch.zeros(2)}, tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_makes_no_folders_is_an_error_and_no_endless_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As /proc, whose folders look writable to root."""

    def refuse(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    target = tmp_path / "net.onnx"
    with pytest.raises(StorageError, match=r"net\.onnx cannot be written: No such file or directory .*; expected"):
        write_text(target, "words")
    assert list(tmp_path.iterdir()) == []
