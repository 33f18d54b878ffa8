"""A web server for one piece of work: on this machine alone, under a path that nobody can guess.

It hands out files and bytes that it was given, and takes bytes back. Its headers isolate the page from other origins
(COOP and COEP), without which browsers allow WebAssembly no threads.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from normdeploy.errors import StorageError
from normdeploy.files import open_regular

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
"""Media types by suffix; a browser compiles WebAssembly while it arrives only under its own."""

_BYTES = "application/octet-stream"
_ISOLATION = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Server:
    """Serves until it is closed.

    Raises:
        StorageError: no port can be had.
    """

    def __init__(self) -> None:
        self._token = secrets.token_urlsafe(24)
        self._places: dict[str, Path | bytes] = {}
        self._wanted: dict[str, bytes | None] = {}
        self._lock = threading.Lock()
        try:
            self._server = _Quiet(("127.0.0.1", 0), _handler(self))
        except OSError as error:
            raise StorageError(
                f"no port of 127.0.0.1 can be listened on ({error}); expected one for the browser to read from"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where all that is served lies, with a slash at its end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/{self._token}/"

    def offer(self, place: str, content: Path | bytes) -> str:
        """Serve a file or bytes at a place from now on; return its address."""
        with self._lock:
            self._places[place] = content
        return self.address + place

    def withdraw(self, place: str) -> None:
        """Serve nothing there any longer."""
        with self._lock:
            self._places.pop(place, None)
            self._wanted.pop(place, None)

    def expect(self, place: str) -> str:
        """Take bytes that are sent to a place; return its address."""
        with self._lock:
            self._wanted[place] = None
        return self.address + place

    def received(self, place: str) -> bytes | None:
        """Return what was sent to a place, which takes nothing any longer; None where nothing came."""
        with self._lock:
            return self._wanted.pop(place, None)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._places.clear()

    def place_of(self, path: str) -> str | None:
        """Return the place that a request's path names; None for one without the token."""
        _, token, *rest = urlsplit(path).path.split("/", 2)
        return unquote(rest[0]) if rest and secrets.compare_digest(token.encode(), self._token.encode()) else None

    def content_at(self, path: str) -> tuple[str, Path | bytes] | None:
        """Return the place that a request's path names and what is served there; None where there is nothing."""
        place = self.place_of(path)
        with self._lock:
            content = None if place is None else self._places.get(place)
        return None if place is None or content is None else (place, content)

    def take(self, path: str, content: bytes) -> bool:
        """Keep what was sent; False where nothing is expected."""
        place = self.place_of(path)
        with self._lock:
            if place is None or place not in self._wanted:
                return False
            self._wanted[place] = content
        return True


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away while it was answered; that is told where it is spoken with."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open between requests

        def do_GET(self) -> None:
            """Hand a file or bytes out."""
            found = server.content_at(self.path)
            if found is None:
                self._answer(HTTPStatus.NOT_FOUND)
                return
            place, content = found
            kind = TYPES.get(Path(place).suffix, _BYTES)
            if isinstance(content, bytes):
                self._answer(HTTPStatus.OK, kind, len(content))
                self.wfile.write(content)
                return
            try:
                stream = open_regular(content)
            except OSError:  # it was removed since it was offered
                self._answer(HTTPStatus.NOT_FOUND)
                return
            with stream:
                self._answer(HTTPStatus.OK, kind, os.fstat(stream.fileno()).st_size)
                shutil.copyfileobj(stream, self.wfile)

        def do_POST(self) -> None:
            """Take bytes."""
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer(HTTPStatus.OK if server.take(self.path, content) else HTTPStatus.NOT_FOUND)

        def _answer(self, status: HTTPStatus, kind: str = "text/plain", length: int = 0) -> None:
            self.send_response(status)
            for name, value in _ISOLATION.items():
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(length))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
            """Say nothing: standard error is the command's."""

    return Handler
