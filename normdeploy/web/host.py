"""onnxruntime-web in a browser for one piece of work: one server, one browser, a page for each number of threads.

Nothing is started before the first session is opened. A page that crashed is gone with its browser; the next session
starts another.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from normdeploy.errors import BrowserError, GraphError, InputError, MissingDependencyError, UsageError
from normdeploy.ort.settings import WEB
from normdeploy.web.browser import Browser, Page
from normdeploy.web.release import WebRuntime, find_release
from normdeploy.web.server import Server
from normdeploy.web.session import WebSession
from normdeploy.web.wire import VIEWS

_JUDGE = Path(__file__).with_name("judge")
ENVIRONMENT = "NORMDEPLOY_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge", "chrome")
_MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)


def find_browser(path: str | os.PathLike[str] | None = None) -> Path:
    """Return Chromium, or a browser made of it: what ``path`` or the environment names, else the first one found.

    Raises:
        InputError: what is named is no program.
        MissingDependencyError: nothing is named and none is found.
    """
    named = path if path is not None else os.environ.get(ENVIRONMENT)
    if named:
        found = shutil.which(os.fspath(named))
        if found is None:
            raise InputError(
                f"{os.fspath(named)} is no program; expected Chromium or a browser made of it: name another by "
                f"--browser or {ENVIRONMENT}"
            )
        return Path(found)
    for name in (*NAMES, *_MAC):
        if found := shutil.which(name):
            return Path(found)
    raise MissingDependencyError(
        f"no browser is found (looked for {', '.join(NAMES)}); expected Chromium, in which onnxruntime-web runs: "
        f"install it, or name one by --browser or {ENVIRONMENT}"
    )


class WebHost:
    """Opens sessions of onnxruntime-web; a context that leaves no process behind.

    Args:
        runtime: the release.
        program: the browser.
    """

    def __init__(self, runtime: WebRuntime, program: Path) -> None:
        self.runtime, self.program = runtime, program
        self._server: Server | None = None
        self._browser: Browser | None = None
        self._pages: dict[int, Page] = {}
        self._number = 0

    def __enter__(self) -> WebHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End browser and server."""
        browser, server = self._browser, self._server
        self._browser, self._server = None, None
        self._pages.clear()
        try:
            if browser is not None:
                browser.close()
        finally:
            if server is not None:
                server.close()

    @property
    def versions(self) -> dict[str, str]:
        """What was judged with: release and browser, the latter once it ran."""
        browser = {} if self._browser is None else {"browser": self._browser.version}
        return {WEB: self.runtime.version, **browser}

    def server(self) -> Server:
        """Return the server, started at its first use."""
        if self._server is None:
            server = Server()
            for file in (*sorted(_JUDGE.iterdir()), VIEWS):
                server.offer(file.name, file)
            for name, path in self.runtime.files.items():
                server.offer(f"runtime/{name}", path)
            self._server = server
        return self._server

    def page(self, threads: int) -> Page:
        """Return the page whose sessions have so many threads, opened at its first use.

        Raises:
            BrowserError: the browser does not start, or its page does not load.
        """
        if self._browser is None or self._browser.dead:
            self._pages.clear()
            self._browser = Browser(self.program)
        if threads not in self._pages:
            page = self._browser.open_page(f"{self.server().address}index.html?threads={threads}")
            self._require_runtime(page)
            self._pages[threads] = page
        return self._pages[threads]

    def _require_runtime(self, page: Page) -> None:
        """Have the page open a session that cannot fail: what does, is the runtime's start and no model's fault.

        Raises:
            BrowserError: it does.
        """
        from normdeploy.ort.providers import PROBE

        try:
            opened = self.ask(page, "open", self.server().offer("probe", PROBE), {"executionProviders": ["wasm"]})
            self.ask(page, "release", [opened["id"]])
        except GraphError as error:
            raise BrowserError(
                f"{WEB} {self.runtime.version} does not start in {self.program.name} ({error}); expected a browser "
                "that runs WebAssembly with SIMD: name another by --browser"
            ) from error

    def ask(self, page: Page, call: str, *given: Any) -> Any:
        """Call a function of the page and return what it finds.

        Raises:
            GraphError: it failed; the message is the runtime's.
            BrowserError: the browser ended or does not answer.
        """
        words = ", ".join(json.dumps(value) for value in given)
        answer = page.evaluate(f"judge.{call}({words})")
        if "error" in answer:
            raise GraphError(str(answer["error"]))
        return answer.get("found")

    def place(self, kind: str) -> str:
        """Return a place at which nothing is served yet."""
        self._number += 1
        return f"{kind}/{self._number}"

    def open(self, model: str | os.PathLike[str] | bytes, options: Mapping[str, Any], threads: int = 1) -> WebSession:
        """Open a session.

        Args:
            model: the ONNX file, its data beside it if it has any, or its bytes.
            options: of onnxruntime-web's ``InferenceSession.create``.
            threads: inside one operator.

        Raises:
            GraphError: the runtime refuses the file; the message is its own.
            BrowserError: the browser ended or does not answer.
        """
        return WebSession(self, model, options, threads)


_CURRENT: ContextVar[WebHost | None] = ContextVar("normdeploy_web_host", default=None)


@contextmanager
def web_host(
    runtime: str | os.PathLike[str] | None = None, browser: str | os.PathLike[str] | None = None
) -> Iterator[WebHost]:
    """Have sessions of onnxruntime-web opened in one browser, which ends with the block.

    Args:
        runtime: the package, where not the pinned one from npm (:func:`normdeploy.web.release.find_release`).
        browser: the program, where not the first one found (:func:`find_browser`).

    Raises:
        InputError: what is named is not there, or not what it should be.
        MissingDependencyError: nothing is named and nothing found.
    """
    program = find_browser(browser)
    with WebHost(find_release(runtime), program) as host:
        token = _CURRENT.set(host)
        try:
            yield host
        finally:
            _CURRENT.reset(token)


def current_host() -> WebHost:
    """Return the host of the block that this runs in.

    Raises:
        UsageError: it runs in none.
    """
    host = _CURRENT.get()
    if host is None:
        raise UsageError(
            f"a session of {WEB} is asked for and no browser is at hand; expected a block `with "
            "normdeploy.web.host.web_host():` around it, as normdeploy verify --runtime web has"
        )
    return host
