"""The real thing: onnxruntime-web in Chromium, under verification and in a packaged page, drawn in by a pointer.

Needs Chromium, and onnxruntime-web named by the environment, so that the suite fetches nothing:
``npm pack onnxruntime-web@1.30.0 && NORMDEPLOY_WEB_RUNTIME=onnxruntime-web-1.30.0.tgz pytest tests/web``.
Screenshots of the digits page go to the folder that ``NORMDEPLOY_SCREENSHOTS`` names.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from digit_strokes import STROKES
from onnx import TensorProto, helper

import normdeploy as nd
from normdeploy.building.recipe_model import load_trained, recipe_example
from normdeploy.errors import GraphError, MissingDependencyError
from normdeploy.ort.settings import WEB
from normdeploy.parsing.recipe import load_recipe
from normdeploy.runtime import package_web
from normdeploy.verification.sides.sessions import Setting, open_session
from normdeploy.web.browser import Browser, Page
from normdeploy.web.host import find_browser, web_host
from normdeploy.web.release import ENVIRONMENT, VERSION
from normdeploy.web.server import Server


def _missing() -> str:
    try:
        find_browser()
    except MissingDependencyError as error:
        return str(error)
    return "" if os.environ.get(ENVIRONMENT) else f"{ENVIRONMENT} names no package: nothing is fetched in tests"


pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing())
_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    recipe = load_recipe(_ROOT / "export" / "digits_cnn.toml")
    model = load_trained(recipe)
    example = recipe_example(recipe, model)
    path = tmp_path_factory.mktemp("digits") / "digits.onnx"
    nd.export(model, example.args, path, kwargs=example.kwargs, verify=False)
    return model, path


def test_the_digits_network_is_judged_there_and_passes(digits: tuple[torch.nn.Module, Path]) -> None:
    model, path = digits
    verdict = nd.verify(model, path, level="quick", runtime="web")
    assert verdict.status == "pass", verdict.reasons
    assert verdict.environment["versions"][WEB] == VERSION
    assert "Chrome" in verdict.environment["versions"]["browser"]


def test_every_type_comes_through_the_real_page() -> None:
    types = [
        "FLOAT",
        "DOUBLE",
        "FLOAT16",
        "BOOL",
        "INT8",
        "UINT8",
        "INT16",
        "UINT16",
        "INT32",
        "UINT32",
        "INT64",
        "UINT64",
    ]
    kinds = {name: getattr(TensorProto, name) for name in types}
    nodes = [helper.make_node("Identity", [f"é {name}"], [f"日 {name}"]) for name in kinds]
    inputs = [helper.make_tensor_value_info(f"é {name}", kind, None) for name, kind in kinds.items()]
    outputs = [helper.make_tensor_value_info(f"日 {name}", kind, None) for name, kind in kinds.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    random = np.random.default_rng(0)
    with web_host() as host:
        session = open_session(content, Setting(provider=WEB))
        for shape in ((2, 3), (), (0, 3)):
            feeds = {
                f"é {name}": np.asarray(random.normal(0, 50, shape)).astype(helper.tensor_dtype_to_np_dtype(kind))
                for name, kind in kinds.items()
            }
            found = session.run([f"日 {name}" for name in kinds], feeds)
            assert [a.tobytes() for a in found] == [a.tobytes() for a in feeds.values()]
            assert [a.shape for a in found] == [a.shape for a in feeds.values()]
        assert host.page(1).evaluate("crossOriginIsolated")
        odd = helper.make_graph(
            [helper.make_node("Nonsense", ["x"], ["y"], domain="own")],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        with pytest.raises(GraphError, match="Nonsense"):
            open_session(
                helper.make_model(odd, opset_imports=opsets, ir_version=8).SerializeToString(), Setting(provider=WEB)
            )


@pytest.fixture(params=["plain", "isolated"])
def address(request: pytest.FixtureRequest, digits: tuple[torch.nn.Module, Path], tmp_path: Path) -> Iterator[str]:
    """The digits page, served by Python's own server, and by one whose headers allow threads."""
    folder = package_web(digits[1], tmp_path / "digits-web", title="Draw a digit")
    if request.param == "isolated":
        server = Server()
        for file in folder.rglob("*.*"):
            server.offer(file.relative_to(folder).as_posix(), file)
        yield server.address + "index.html"
        server.close()
        return

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as plain:
        thread = threading.Thread(target=plain.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{plain.server_address[1]}/"
        plain.shutdown()
        thread.join()


def _when(page: Page, expression: str) -> Any:
    for _ in range(1200):
        if found := page.evaluate(expression):
            return found
        time.sleep(0.1)
    raise AssertionError(f"{expression} stays false: {page.evaluate('document.body.innerText')}")


def _size(page: Page, width: int, height: int, *, mobile: bool = False) -> None:
    given = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    page.call("Emulation.setDeviceMetricsOverride", given)


def _shot(page: Page, name: str) -> None:
    if folder := os.environ.get("NORMDEPLOY_SCREENSHOTS"):
        taken = page.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / name).write_bytes(base64.b64decode(taken["data"]))


def _draw(page: Page, strokes: list[list[tuple[float, float]]]) -> None:
    """Draw by a pointer; each stroke's end runs the network."""
    page.evaluate("document.querySelector('[id^=clear-]').click()")
    left, top, width, height = page.evaluate(_BOX)

    def pointer(kind: str, x: float, y: float) -> None:
        given = {"type": kind, "x": left + x * width, "y": top + y * height, "button": "left", "buttons": 1}
        page.call("Input.dispatchMouseEvent", given | {"clickCount": 1})

    for stroke in strokes:
        before = page.evaluate("normdeploy.runs")
        pointer("mousePressed", *stroke[0])
        for x, y in stroke[1:]:
            pointer("mouseMoved", x, y)
        pointer("mouseReleased", *stroke[-1])
        _when(page, f"normdeploy.runs > {before}")


_BOX = """(() => {
  const { x, y, width, height } = document.querySelector("canvas.draw").getBoundingClientRect();
  return [x, y, width, height];
})()"""
_RUN_FROM = """(() => {
  const source = document.querySelector("select");
  source.value = "SOURCE";
  source.dispatchEvent(new Event("change"));
  document.getElementById("run").click();
})()"""
_LAST = """(() => {
  const { feeds, results } = normdeploy.last;
  const [x, y] = [Object.values(feeds)[0], Object.values(results)[0]];
  return { x: Array.from(x.data), y: Array.from(y.data), best: Number(document.getElementById("best").dataset.index) };
})()"""


def test_a_drawn_digit_is_seen_as_onnxruntime_here_sees_it(address: str, digits: tuple[torch.nn.Module, Path]) -> None:
    session = ort.InferenceSession(str(digits[1]), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    with Browser(find_browser()) as browser:
        page = browser.open_page(address)
        _size(page, 900, 900)
        _when(page, "!document.getElementById('form').hidden")
        assert page.evaluate("crossOriginIsolated") == address.endswith("index.html")
        for digit, strokes in STROKES.items():
            _draw(page, strokes)
            found = page.evaluate(_LAST)
            x = np.array(found["x"], np.float32).reshape(1, 1, 8, 8)
            assert 0 <= x.min() < 0.1
            assert 0.9 < x.max() <= 1
            here = session.run(None, {name: x})[0][0]
            assert np.allclose(found["y"], here, rtol=1e-4, atol=1e-4)
            assert found["best"] == int(here.argmax()) == digit
            if digit == 3:
                _shot(page, "digits.png")
        page.evaluate("document.getElementById('check').click()")
        assert "packaged sample" in _when(page, "document.getElementById('compared').textContent")
        assert page.evaluate("document.getElementById('trouble').hidden")
        # another source of numbers, and what is wrong with it in words
        page.evaluate(_RUN_FROM.replace("SOURCE", "file"))
        assert "choose a .npy file" in _when(page, "document.getElementById('trouble').textContent")
        runs = page.evaluate("normdeploy.runs")
        page.evaluate(_RUN_FROM.replace("SOURCE", "random"))
        _when(page, f"normdeploy.runs > {runs} && document.getElementById('trouble').hidden")
        found = page.evaluate("Array.from(Object.values(normdeploy.last.feeds)[0].data)")
        assert min(found) < 0  # N(0, 1)


def test_on_a_phone_nothing_is_wider_than_the_screen_and_keys_draw_too(address: str) -> None:
    with Browser(find_browser()) as browser:
        page = browser.open_page(address)
        _size(page, 360, 740, mobile=True)
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        page.call("Emulation.setEmulatedMedia", {"features": dark})
        _when(page, "!document.getElementById('form').hidden")
        page.evaluate("document.querySelector('canvas.draw').focus()")

        def key(name: str, text: str = "") -> None:
            for kind in ("keyDown", "keyUp"):
                given = {"type": kind, "key": name, "text": text if kind == "keyDown" else ""}
                page.call("Input.dispatchKeyEvent", given)

        for _ in range(6):
            key("ArrowUp")
        key(" ", " ")
        for _ in range(12):
            key("ArrowDown")
        key(" ", " ")  # the pen is lifted: the network runs
        _when(page, "normdeploy.runs > 0")
        found = page.evaluate(_LAST)
        ink = np.reshape(found["x"], (8, 8))
        assert ink[:, 3:5].max(axis=1).min() > 0.5  # one line from top to bottom
        assert ink[:, [0, 1, 6, 7]].max() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
        _shot(page, "phone.png")


def test_a_real_page_that_crashes_is_an_error_and_the_next_session_has_a_new_browser() -> None:
    from normdeploy.errors import BrowserError

    node = helper.make_node("Neg", ["x"], ["y"])
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    with web_host() as host:
        page = host.page(1)
        with pytest.raises(BrowserError, match="the page crashed"):
            page.call("Page.crash")
        session = open_session(content, Setting(provider=WEB))
        assert session.run(["y"], {"x": np.float32([2.0])})[0].tolist() == [-2.0]
