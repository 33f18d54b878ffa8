"""The network drawn: readable whatever its size, every norm linked to its row, nothing loaded, nothing overflowing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx_ir as ir
import pytest
from build_report_data import REPORT

from normdeploy.building.report_numbers import network_facts, profile_facts
from normdeploy.report.build_report import build_page
from normdeploy.report.network import network
from normdeploy.report.page import render_page

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
SVG = "{http://www.w3.org/2000/svg}"


def graph(modules: int, each: int = 10, *, flat: bool = False) -> dict[str, list[list[object]]]:
    """A chain: stages of blocks, ``each`` operators per module."""
    paths = [f"m{n}" if flat else f"stages.{n // 10}.blocks.{n % 10}.conv" for n in range(modules)]
    nodes = [[path, "Conv" if at % 2 else "Relu"] for path in paths for at in range(each)]
    edges = [[n, n + 1] for n in range(len(nodes) - 1)] + [[0, len(nodes) - 1]]
    return {"nodes": nodes, "edges": edges}  # type: ignore[dict-item]  # lists of two


def row(where: str, action: str = "folded") -> dict[str, str]:
    return {"where": where, "kind": "BatchNormalization", "action": action, "into": "conv", "reason": "a < b"}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("modules", [1, 7, 50, 400])
def test_boxes_stay_few_and_hold_every_operator(modules: int, flat: bool) -> None:
    drawn = ElementTree.fromstring(network(graph(modules, flat=flat), graph(modules, 2, flat=flat), []))
    boxes = drawn.findall(f".//{SVG}rect")
    assert 2 <= len(boxes) <= 96
    heads = [text.text for text in drawn.findall(f"{SVG}text")]
    assert heads == [f"as traced: {modules * 10:,} operators", f"as exported: {modules * 2:,} operators"]
    counted = sum(int(n) for title in drawn.iter(f"{SVG}title") for n in re.findall(r"× (\d+)", str(title.text)))
    singles = sum(
        part in ("Conv", "Relu")
        for title in drawn.iter(f"{SVG}title")
        for part in str(title.text).splitlines()[1].split(", ")
    )
    assert counted + singles == modules * 12
    _, _, width, height = (float(number) for number in drawn.attrib["viewBox"].split())
    for box in boxes:
        assert 0 <= float(box.attrib["x"]) <= width - float(box.attrib["width"])
        assert 0 <= float(box.attrib["y"]) <= height - float(box.attrib["height"])


def test_norms_are_marked_linked_and_told() -> None:
    rows = [row("stages.0.blocks.3.conv"), row("stages.0.blocks.4.conv", "kept"), row("elsewhere")]
    drawn = ElementTree.fromstring(network(graph(5), graph(5), rows))
    links = drawn.findall(f"{SVG}a")
    assert [link.attrib["href"] for link in links] == ["#row-0", "#row-1"] * 2
    assert [circle.attrib["class"] for circle in drawn.iter(f"{SVG}circle")] == ["folded", "kept"] * 2
    told = [str(link.find(f"{SVG}title").text) for link in links[:2]]  # type: ignore[union-attr]  # each has one
    assert "W' = W · γ / √(σ² + ε)" in told[0]
    assert "kept, a < b" in told[1]


def test_names_of_others_are_no_markup() -> None:
    hostile = '<script>"x"</script>&'
    given = {"nodes": [[hostile, hostile]], "edges": []}
    drawn = network(given, given, [row(hostile, "kept")])
    assert "<script" not in drawn
    ElementTree.fromstring(drawn)


def test_the_graphs_modules_and_edges_are_the_models() -> None:
    text = '<ir_version: 10, opset_import: ["" : 20]> net (float[n] x) => (float[n] y)'
    text += "{ a = Relu(x) b = Neg(a) y = Add(a, b) }"
    model = ir.from_onnx_text(text)
    found = network_facts(model)
    assert [operator for _, operator in found["nodes"]] == ["Relu", "Neg", "Add"]
    assert sorted(map(tuple, found["edges"])) == [(0, 1), (0, 2), (1, 2)]


def test_the_profile_names_the_operators_that_ran(tmp_path: Path) -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 20]> net (float[n, 3] x) => (float[n, 3] y) { a = Softmax(x) y = Erf(a) }'
    )
    ir.save(ir.from_onnx_text(text), tmp_path / "net.onnx")
    found = profile_facts(tmp_path / "net.onnx", {"x": np.ones((2, 3), np.float32)}, calls=3)
    assert set(found["seconds"]) == {"Softmax", "Erf"}
    assert found["calls"] == 3
    assert all(value >= 0 for value in found["seconds"].values())


def full_report() -> dict[str, object]:
    """A report with everything that a page can show."""
    verdict = REPORT["verdict"] | {"depth": [{"where": "a" * 60, "op": "Conv", "relative_error": 1e-8}] * 4}
    ledger = {"rows": [row(f"stages.0.blocks.{n}.conv", "kept" if n == 3 else "folded") for n in range(5)]}
    ledger["rows"][3]["chain"] = ["Conv 'one' has weights", "Relu 'two' " + "x" * 90]  # type: ignore[assignment]
    return REPORT | {
        "verdict": verdict,
        "ledger": ledger | {"counts": REPORT["ledger"]["counts"]},
        "network": {"before": graph(50), "after": graph(50, 4)},
        "profile": {"calls": 20, "seconds": {"Conv": 3e-5, "Gemm": 1e-6}},
    }


def test_every_link_of_a_page_has_its_place() -> None:
    html = render_page(build_page(full_report()))
    places = set(re.findall(r'id="([^"]+)"', html))
    links = re.findall(r'href="#([^"]+)"', html)
    assert links
    assert set(links) <= places
    for words in ("Where the time goes", "Error by depth", "Do it again", "normdeploy build tiny_net.toml"):
        assert words in html


# what a page finds of itself: overflow, unresolved links, errors; written into its title, which --dump-dom shows
_LOOK = """<script>
const errors = [];
addEventListener("error", event => errors.push(String(event.message)));
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(found => { found.open = true; });
  const wide = document.documentElement.scrollWidth > innerWidth;
  const inside = found => found.closest(".scroll") !== null;
  const out = [...document.querySelectorAll("body *")].filter(
    found => !inside(found) && found.getBoundingClientRect().right > innerWidth + 1).map(found => found.tagName);
  const lost = [...document.querySelectorAll("a")].filter(
    found => !document.getElementById((found.getAttribute("href") || "").slice(1))).length;
  const reached = [...document.querySelectorAll("summary, .scroll, a")].every(found => found.tabIndex >= 0);
  const narrow = [...document.querySelectorAll("caption, p, figcaption")].filter(
    found => found.offsetHeight > 60 && found.offsetWidth < found.closest("section, header").offsetWidth / 2).length;
  document.title = "LOOK" + JSON.stringify({wide, out, lost, reached, narrow, errors, width: innerWidth});
});
</script>"""


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed (Debian's package: chromium)")
@pytest.mark.parametrize("width", [360, 1200])
def test_in_a_browser_nothing_overflows_and_links_resolve(tmp_path: Path, width: int) -> None:
    import html as escaped
    import json

    page = render_page(build_page(full_report())).replace("</head>", _LOOK + "</head>")
    # a frame of the width: a headless window has a least width of its own
    (tmp_path / "page.html").write_text(page)
    frame = f'<iframe src="page.html" style="width: {width}px; height: 900px; border: 0"></iframe>'
    top = "<script>addEventListener('load', () => setTimeout(() => { document.title = document.querySelector('iframe')"
    top += ".contentDocument.title; }, 300));</script>"
    (tmp_path / "top.html").write_text(f"<!doctype html><html><head>{top}</head><body>{frame}</body></html>")
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    words += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000", "--dump-dom"]
    done = subprocess.run(
        [*words, (tmp_path / "top.html").as_uri()], capture_output=True, text=True, check=False, timeout=120
    )
    found = re.search(r"<title>LOOK(.*?)</title>", done.stdout, re.DOTALL)
    assert found, (done.stdout[:2000], done.stderr[-1000:])
    seen = json.loads(escaped.unescape(found[1]))
    assert seen == {"wide": False, "out": [], "lost": 0, "reached": True, "narrow": 0, "errors": [], "width": width}


def test_a_box_of_many_norms_counts_them() -> None:
    rows = [row(f"stages.0.blocks.{n}.conv", "kept" if n % 3 == 0 else "folded") for n in range(9)]
    given = graph(400, flat=False)
    drawn = ElementTree.fromstring(network(given, given, rows))
    link = drawn.find(f"{SVG}a")
    assert link is not None
    assert [circle.attrib["class"] for circle in link.iter(f"{SVG}circle")] == ["folded", "kept"]
    assert [text.text for text in link.iter(f"{SVG}text") if text.get("class") == "count"] == ["6", "3"]
    assert "100 operators" in "".join(link.itertext())


def test_operators_of_the_models_own_forward_are_one_box_and_keep_their_rows() -> None:
    given = {
        "nodes": [["shape", "Shape"], ["size", "Gather"], ["stem.conv", "Conv"], ["add", "Add"], ["div", "Div"]],
        "edges": [[0, 1], [2, 3], [3, 4]],
        "root": ["shape", "size", "add", "div"],
    }
    drawn = ElementTree.fromstring(network(given, given, [row("stem.conv"), row("div")]))
    labels = [str(text.text) for box in drawn for text in box.findall(f"{SVG}text") if text.get("class") is None]
    assert [label.strip() for label in labels] == ["(the model itself)", "stem.conv", "(the model itself)"] * 2
    assert [link.attrib["href"] for link in drawn.findall(f"{SVG}a")] == ["#row-0", "#row-1"] * 2


def test_the_graph_tells_which_operators_are_in_no_module() -> None:
    import torch
    from torch import nn

    from normdeploy.exporting.trace import trace

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * 2.5 + x

    found = network_facts(trace(Net(), torch.randn(2, 3)).model)
    outside = {operator for path, operator in found["nodes"] if path in found["root"]}
    inside = {operator for path, operator in found["nodes"] if path not in found["root"]}
    assert {"Mul", "Add"} <= outside
    assert "Relu" in inside
    assert "Relu" not in outside


_FOCUSED = """(() => {
  const found = document.activeElement, place = found.getBoundingClientRect();
  if (found === document.body) return null;
  const tips = [...document.querySelectorAll(".tip")].filter(tip => getComputedStyle(tip).display !== "none");
  const inner = [...document.querySelectorAll("summary, a, .scroll")];
  return {
    number: inner.indexOf(found), seen: place.bottom > 0 && place.top < innerHeight,
    outline: getComputedStyle(found).outlineStyle, box: found.id,
    told: found.querySelector ? (found.querySelector("title") || {textContent: ""}).textContent : "",
    tips: tips.map(tip => [...tip.firstElementChild.children].map(line => line.textContent).join("\\n"))};
})()"""


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed (Debian's package: chromium)")
def test_by_keyboard_all_is_reached_in_order_seen_and_told(tmp_path: Path) -> None:
    """Tab from the top to the end: what a pointer is told by resting, the keyboard is told by arriving."""
    from normdeploy.web.browser import Browser

    (tmp_path / "page.html").write_text(render_page(build_page(full_report())))
    tab = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
    stops = []
    with Browser(Path(CHROMIUM)) as browser:
        page = browser.open_page((tmp_path / "page.html").as_uri())
        everything = page.evaluate('[...document.querySelectorAll("summary, a, .scroll")].length')
        for _ in range(everything + 5):
            for kind in ("keyDown", "keyUp"):
                page.call("Input.dispatchKeyEvent", {"type": kind, **tab})
            if (stop := page.evaluate(_FOCUSED)) is None:
                break
            stops.append(stop)
        page.evaluate("document.querySelector('svg a').focus()")
        for kind, more in (("keyDown", {"text": "\r"}), ("keyUp", {})):
            key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
            page.call("Input.dispatchKeyEvent", {"type": kind, **key, **more})
        gone_to = page.evaluate("document.querySelector(':target').id")
    numbers = [stop["number"] for stop in stops if stop["number"] >= 0]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == everything - _inside_closed(page_text=(tmp_path / "page.html").read_text())
    assert all(stop["seen"] and stop["outline"] != "none" for stop in stops)
    boxes = [stop for stop in stops if stop["box"].startswith("box-")]
    assert boxes
    for stop in stops:
        assert stop["tips"] == ([stop["told"]] if stop in boxes else [])
    assert gone_to == "row-0"


def _inside_closed(page_text: str) -> int:
    """Count what a closed <details> hides from the keyboard: what stands in it beside its own summary."""
    hidden = 0
    for body in re.findall(r"</summary>(.*?)</details>", page_text, re.DOTALL):
        hidden += len(re.findall(r'<summary|<a |class="scroll"', body))
    return hidden
