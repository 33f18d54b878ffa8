"""A headless Chromium, spoken with over two pipes.

The DevTools protocol over pipes (``--remote-debugging-pipe``): one JSON message after the other, each ended by a zero
byte, the browser reading from its file 3 and writing to its file 4. It opens no port, and the browser ends by itself
when the pipes close: so also when this process is killed. On the way out it is ended with all its processes.

Source: https://chromedevtools.github.io/devtools-protocol/ (Target, Page, Runtime, Inspector, Browser).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normdeploy.errors import BrowserError, MissingDependencyError

PATIENCE = 900.0
"""Seconds for one answer: a page that computes does not answer, and a large network computes for minutes."""

FAREWELL = 3.0
"""Seconds that it has to end by itself."""

_CHUNK = 1 << 16
_FLAGS = (
    *("--headless", "--disable-gpu", "--no-first-run", "--no-default-browser-check", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
    *("--disable-default-apps", "--metrics-recording-only", "--disable-domain-reliability", "--mute-audio"),
    *("--disable-breakpad", "--disable-crash-reporter", "--disable-dev-shm-usage", "--password-store=basic"),
    *("--use-mock-keychain", "--disable-background-timer-throttling", "--disable-renderer-backgrounding"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)
# Puts the two pipes at 3 and 4, where the browser looks, and becomes the browser
_START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A running browser; a context that ends it.

    Args:
        program: Chromium, or a browser made of it.

    Raises:
        MissingDependencyError: on Windows, where it does not read pipes this way.
        BrowserError: it does not start.
    """

    def __init__(self, program: Path) -> None:
        if sys.platform == "win32":
            raise MissingDependencyError(
                "on Windows a browser is not spoken with over pipes; expected Linux or macOS, or Windows' Linux (WSL)"
            )
        self.program = program
        self.dead = False
        self._profile = tempfile.mkdtemp(prefix="normdeploy-browser-")
        self._number = 0
        self._buffer = bytearray()
        self.events: list[dict[str, Any]] = []
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self._in, self._out = ours_in, ours_out
        # Chromium does not run with its sandbox as root, and says so
        flags = [*_FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else []), f"--user-data-dir={self._profile}"]
        start = [sys.executable, "-I", "-S", "-c", _START, str(theirs_in), str(theirs_out)]
        self._log = Path(self._profile, "stderr").open("wb+")  # noqa: SIM115 - closed in close
        try:
            self._process = subprocess.Popen(
                [*start, str(program), *flags, "about:blank"],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs_in, theirs_out),
                start_new_session=True,  # Ctrl-C is ours alone to act on, and all its processes are one group
            )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        try:
            self.version = str(self.call("Browser.getVersion")["product"])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser with all its processes, and remove what it wrote; a second time does nothing."""
        if self._log.closed:
            return
        self.dead = True
        os.set_blocking(self._out, False)  # one that does not read is not waited for
        try:  # asked first: it takes away what it wrote outside its profile
            os.write(self._out, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
            self._process.wait(FAREWELL)
        except (OSError, subprocess.TimeoutExpired):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._log.close()
        # its last process may still be writing as it dies
        for _ in range(50):
            shutil.rmtree(self._profile, ignore_errors=True)
            if not os.path.lexists(self._profile):
                break
            time.sleep(0.02)

    def open_page(self, address: str) -> Page:
        """Open a page and return when it is loaded.

        Raises:
            BrowserError: it cannot be loaded.
        """
        target = self.call("Target.createTarget", {"url": "about:blank"})
        attached = self.call("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        page = Page(self, str(attached["sessionId"]))
        page.load(address)
        return page

    def call(self, method: str, params: dict[str, Any] | None = None, session: str = "") -> dict[str, Any]:
        """Call a method of the protocol and return what it answers.

        Raises:
            BrowserError: the browser ended, its page crashed, it refuses, or it does not answer.
        """
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        self._send(json.dumps(message).encode() + b"\0")
        for answer in self._messages(method):
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{self.program.name} refuses {method}: {answer['error'].get('message')}")
                return dict(answer["result"])
            self._noted(answer)
        raise AssertionError("messages end by raising")

    def wait_for(self, event: str, session: str) -> None:
        """Return when a page has told of an event that was asked for.

        Raises:
            BrowserError: as for ``call``.
        """
        if any(one.get("method") == event and one.get("sessionId") == session for one in self.events):
            return
        for message in self._messages(event):
            self._noted(message)
            if message.get("method") == event and message.get("sessionId") == session:
                return

    def _noted(self, message: dict[str, Any]) -> None:
        if message.get("method") in ("Inspector.targetCrashed", "Target.targetCrashed"):
            self.close()
            raise BrowserError(
                f"the page crashed in {self.program.name}; expected one that answers: the model may need more memory "
                "than a page gets"
            )
        if "method" in message:
            self.events.append(message)

    def _send(self, content: bytes) -> None:
        if self.dead:
            raise BrowserError(f"{self.program.name} has ended; expected one that runs: start again")
        try:
            while content:
                content = content[os.write(self._out, content) :]
        except BrokenPipeError:
            raise self._ended() from None

    def _messages(self, awaited: str) -> Iterator[dict[str, Any]]:
        """Yield what the browser says, message by message."""
        until = time.monotonic() + PATIENCE
        while True:
            while b"\0" in self._buffer:
                line, _, rest = self._buffer.partition(b"\0")
                self._buffer = rest
                yield json.loads(line)
            ready, _, _ = select.select([self._in], [], [], max(until - time.monotonic(), 0))
            if not ready:
                self.close()
                raise BrowserError(
                    f"{self.program.name} did not answer {awaited} within {PATIENCE:.0f} s; expected an answer: try a "
                    "smaller model, or a machine that is less busy"
                )
            chunk = os.read(self._in, _CHUNK)
            if not chunk:
                raise self._ended()
            self._buffer += chunk

    def _ended(self) -> BrowserError:
        """Return the error of a browser that is gone, with the last that it said."""
        self._log.flush()
        text = Path(self._log.name).read_text(errors="replace").strip().splitlines()
        self.close()
        code = self._process.returncode
        said = f": {' | '.join(text[-2:])}" if text else ""
        return BrowserError(
            f"{self.program} ended while it was needed (exit code {code}){said}; expected Chromium or a browser made "
            "of it: check that it starts, or name another by --browser"
        )


class Page:
    """One page of a browser.

    Args:
        browser: it runs in.
        session: the protocol's word for the page.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self._session = browser, session
        for domain in ("Inspector", "Page", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a method of the protocol for this page."""
        return self.browser.call(method, params, self._session)

    def load(self, address: str) -> None:
        """Go to an address and return when all is loaded.

        Raises:
            BrowserError: nothing is there.
        """
        self.browser.events = [one for one in self.browser.events if one.get("sessionId") != self._session]
        found = self.call("Page.navigate", {"url": address})
        if found.get("errorText"):
            raise BrowserError(f"{self.browser.program.name} cannot open its page: {found['errorText']}")
        self.browser.wait_for("Page.loadEventFired", self._session)

    def evaluate(self, expression: str) -> Any:
        """Return what a JavaScript expression gives, promises awaited, as plain data.

        Raises:
            BrowserError: it throws.
        """
        asked = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", asked)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            what = details.get("exception", {}).get("description") or details.get("text")
            raise BrowserError(f"the page's script failed: {what}")
        return answer["result"].get("value")
