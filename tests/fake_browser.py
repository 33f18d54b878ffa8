"""A program that speaks with normdeploy.web as Chromium and its page do, in plain Python; tests start it by a script.

It reads file 3 and writes file 4, one JSON message after the other, each ended by a zero byte. What a page would do
in JavaScript (``judge.open``, ``judge.run``, ``judge.release``) is done with onnxruntime, tensors read and written by
the layout's description alone. A ``mode`` makes it fail in one way.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

MODES = ("well", "refuses", "dies", "crashes", "silent", "no runtime", "broken answer")


def program(folder: Path, mode: str = "well", version: str = "FakeBrowser/1.0") -> Path:
    """Write the script and return it; it keeps its process id in the file ``pid`` beside it."""
    script = folder / f"browser-{mode.replace(' ', '-')}"
    here = Path(__file__).resolve().parent
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(here)!r})\n"
        f"from fake_browser import speak\nspeak({mode!r}, {version!r}, {str(folder)!r})\n"
    )
    script.chmod(0o755)
    return script


def speak(mode: str, version: str, folder: str) -> None:
    """Answer until the pipe ends."""
    Path(folder, "pid").write_text(str(os.getpid()))
    page = Page(mode)
    while (message := _read()) is not None:
        method, params = message["method"], message["params"]
        if method == "Browser.close":
            return
        if mode == "dies":
            print("cannot open the display", file=sys.stderr)
            sys.exit(7)
        if mode == "silent":
            time.sleep(60)
        if mode == "refuses":
            _write({"id": message["id"], "error": {"message": "no such method"}})
            continue
        result: dict[str, Any] = {}
        if method == "Browser.getVersion":
            result = {"product": version}
        elif method == "Target.createTarget":
            result = {"targetId": "t"}
        elif method == "Target.attachToTarget":
            result = {"sessionId": "s"}
        elif method == "Page.navigate":
            _write({"method": "Page.loadEventFired", "params": {}, "sessionId": "s"})
        elif method == "Runtime.evaluate":
            if mode == "crashes" and page.opened:
                _write({"method": "Inspector.targetCrashed", "params": {}, "sessionId": "s"})
                continue
            result = {"result": {"value": page.evaluate(params["expression"])}}
        _write({"id": message["id"], "result": result, "sessionId": message.get("sessionId", "")})
    Path(folder, "ended").write_text("the pipe was closed")


class Page:
    """What judge.mjs does."""

    def __init__(self, mode: str) -> None:
        self.mode, self.sessions, self.opened = mode, {}, 0  # type: ignore[var-annotated]

    def evaluate(self, expression: str) -> Any:
        """Call one of its functions."""
        name, _, rest = expression.removeprefix("judge.").partition("(")
        try:
            return {"found": getattr(self, name)(*json.loads(f"[{rest[:-1]}]"))}
        except Exception as error:
            return {"error": str(error)}

    def open(self, model: str, options: dict[str, Any]) -> dict[str, Any]:
        """Open a session."""
        import onnxruntime as ort

        assert options["executionProviders"] == ["wasm"]
        if self.mode == "no runtime":
            raise RuntimeError("no available backend found")
        chosen = ort.SessionOptions()
        chosen.log_severity_level = 4
        levels = {"disabled": "DISABLE_ALL", "all": "ENABLE_ALL"}
        level = options.get("graphOptimizationLevel", "all")
        chosen.graph_optimization_level = getattr(
            ort.GraphOptimizationLevel, f"ORT_{levels.get(level, 'ENABLE_' + level.upper())}"
        )
        outside = [(entry["path"], _fetch(entry["data"])) for entry in options.get("externalData", [])]
        if outside:
            names, contents = [name for name, _ in outside], [content for _, content in outside]
            chosen.add_external_initializers_from_files_in_memory(names, contents, [len(c) for c in contents])
        session = ort.InferenceSession(_fetch(model), chosen, providers=["CPUExecutionProvider"])
        self.opened += 1
        self.sessions[self.opened] = session
        inputs, outputs = session.get_inputs(), session.get_outputs()
        return {"id": self.opened, "inputs": [i.name for i in inputs], "outputs": [o.name for o in outputs]}

    def run(self, number: int, feeds: str, names: list[str], target: str) -> None:
        """Run a session and send what it gives."""
        found = self.sessions[number].run(names, _unpack(_fetch(feeds)))
        content = (
            b"nothing of the kind" if self.mode == "broken answer" else _pack(dict(zip(names, found, strict=True)))
        )
        urllib.request.urlopen(urllib.request.Request(target, data=content)).close()

    def release(self, numbers: list[int]) -> None:
        """Drop sessions."""
        for number in numbers:
            del self.sessions[number]


def _unpack(content: bytes) -> dict[str, Any]:
    import numpy as np

    (length,) = struct.unpack("<I", content[:4])
    start = 4 + length
    start += (8 - start % 8) % 8
    found = {}
    for entry in json.loads(content[4 : 4 + length]):
        first = start + entry["offset"]
        assert first % 8 == 0
        flat = np.frombuffer(content, entry["type"], entry["bytes"] // np.dtype(entry["type"]).itemsize, first)
        found[entry["name"]] = flat.reshape(entry["shape"])
    return found


def _pack(arrays: dict[str, Any]) -> bytes:
    body, entries = b"", []
    for name, array in arrays.items():
        data = array.tobytes()
        shape = list(array.shape)
        entries.append(
            {"name": name, "type": array.dtype.name, "shape": shape, "offset": len(body), "bytes": len(data)}
        )
        body += data + b"\0" * ((8 - len(data) % 8) % 8)
    header = json.dumps(entries, ensure_ascii=False).encode()
    head = struct.pack("<I", len(header)) + header
    return head + b"\0" * ((8 - len(head) % 8) % 8) + body


def _fetch(address: str) -> bytes:
    with urllib.request.urlopen(address) as answer:
        return bytes(answer.read())


_buffer = b""


def _read() -> dict[str, Any] | None:
    global _buffer
    while b"\0" not in _buffer:
        chunk = os.read(3, 65536)
        if not chunk:
            return None
        _buffer += chunk
    line, _, _buffer = _buffer.partition(b"\0")
    message: dict[str, Any] = json.loads(line)
    return message


def _write(message: dict[str, Any]) -> None:
    os.write(4, json.dumps(message).encode() + b"\0")
