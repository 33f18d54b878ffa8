"""The server as a plain client sees it."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from normdeploy.web.server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()
    yield served
    served.close()


def _get(address: str) -> Any:
    return urllib.request.urlopen(address)


def _status(address: str, data: bytes | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data=data)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_files_and_bytes_are_handed_out_isolated(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.wasm").write_bytes(b"\0asm")
    with _get(server.offer("a.wasm", tmp_path / "a.wasm")) as answer:
        assert answer.read() == b"\0asm"
        assert answer.headers["Content-Type"] == "application/wasm"
        assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert answer.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    with _get(server.offer("b c/é.mjs", b"export {}").replace(" ", "%20").replace("é", "%C3%A9")) as answer:
        assert answer.read() == b"export {}"
        assert answer.headers["Content-Type"].startswith("text/javascript")


def test_only_what_is_offered_is_there_and_only_under_the_token(server: Server, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    server.offer("a", b"a")
    host = server.address.split("/")[2]
    assert host.startswith("127.0.0.1:")
    assert _status(f"{server.address}secret") == 404
    assert _status(f"{server.address}../a") == 404
    assert _status(f"http://{host}/a") == 404
    assert _status(f"http://{host}/wrong/a") == 404
    assert _status(f"http://{host}/") == 404
    server.withdraw("a")
    assert _status(f"{server.address}a") == 404


def test_a_file_that_is_gone_is_not_found(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    address = server.offer("a", tmp_path / "a")
    (tmp_path / "a").unlink()
    assert _status(address) == 404


def test_bytes_are_taken_once_and_where_they_are_expected(server: Server) -> None:
    address = server.expect("results/1")
    assert server.received("results/2") is None
    assert _status(f"{server.address}results/2", b"no") == 404
    assert _status(address, b"yes") == 200
    assert server.received("results/1") == b"yes"
    assert _status(address, b"again") == 404
