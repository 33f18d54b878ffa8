"""A browser is spoken with, told of in words when it fails, and gone in the end, however the end comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_browser import program

from normdeploy.errors import BrowserError
from normdeploy.web import browser as room
from normdeploy.web.browser import Browser

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="browsers read no pipes this way on Windows")


def _eventually(holds: Callable[[], bool]) -> bool:
    for _ in range(600):
        if holds():
            return True
        time.sleep(0.05)
    return False


def _gone(folder: Path) -> bool:
    """Whether the fake browser's process is over; a zombie of a parent that was killed is."""
    try:
        text = Path(f"/proc/{(folder / 'pid').read_text()}/stat").read_text()
    except FileNotFoundError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def _profiles() -> set[Path]:
    return set(Path(os.environ.get("TMPDIR", "/tmp")).glob("normdeploy-browser-*"))


def test_it_says_what_it_is_and_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with Browser(program(tmp_path)) as browser:
        assert browser.version == "FakeBrowser/1.0"
        assert len(_profiles()) == 1
    assert _gone(tmp_path)
    assert not _profiles()
    browser.close()  # a second time does nothing


def test_more_is_said_than_a_pipe_holds_at_once(tmp_path: Path) -> None:
    with Browser(program(tmp_path, version="x" * 300_000)) as browser:
        assert len(browser.version) == 300_000
        assert browser.call("Any.method", {"text": "y" * 300_000}) == {}


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("dies", r"exit code 7\): cannot open the display; expected Chromium.*--browser"),
        ("refuses", "refuses Browser.getVersion: no such method"),
    ],
)
def test_one_that_does_not_start_is_an_error_in_words(mode: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BrowserError, match=said):
        Browser(program(tmp_path, mode))
    assert _gone(tmp_path)


def test_a_program_that_is_no_browser_is_an_error_in_words() -> None:
    with pytest.raises(BrowserError, match=r"true ended while it was needed \(exit code 0\)"):
        Browser(Path("/bin/true"))


def test_one_that_does_not_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PATIENCE", 0.5)
    monkeypatch.setattr(room, "FAREWELL", 0.1)
    with pytest.raises(BrowserError, match=r"did not answer Browser\.getVersion"):
        Browser(program(tmp_path, "silent"))
    assert not (tmp_path / "pid").exists() or _gone(tmp_path)


def test_after_its_end_nothing_is_asked_of_it(tmp_path: Path) -> None:
    with Browser(program(tmp_path)) as browser:
        pass
    with pytest.raises(BrowserError, match="has ended"):
        browser.call("Browser.getVersion")


def test_one_that_is_killed_meanwhile_is_an_error(tmp_path: Path) -> None:
    with Browser(program(tmp_path)) as browser:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        with pytest.raises(BrowserError, match="ended while it was needed"):
            browser.call("Browser.getVersion")


_HOLDS = """
import sys, time
from pathlib import Path
from normdeploy.web.browser import Browser
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
with Browser(Path(sys.argv[1])) as browser:
    print("started", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill"])
def test_it_ends_with_the_process_that_started_it(number: signal.Signals, tmp_path: Path) -> None:
    words = [sys.executable, "-c", _HOLDS, str(program(tmp_path))]
    # A killed process cannot remove its browser's profile
    ours = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ours) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.send_signal(number)
    assert _eventually(lambda: _gone(tmp_path))
    # killed, nobody ended it: it saw its pipe close
    assert (number is signal.SIGKILL) == (tmp_path / "ended").exists()
