"""Pages: whatever the data, one self-contained, well-formed, escaped HTML document."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser

from build_report_data import REPORT
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.report import Badge, Cards, Details, Facts, Page, Picture, Section, Table, Text, render_page
from normdeploy.report.build_report import build_page
from normdeploy.report.pictures import before_after_bars, latency_bars, share_bars

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Collects text, tags and what would be loaded from elsewhere; fails on tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []
        self.loads: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        values = dict(attrs)
        for key in ("src", "href", "xlink:href", "data"):
            value = values.get(key)
            if value and not value.startswith("#"):
                self.loads.append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@cache
def bars() -> str:
    """Return a picture, which has none of the words in it: drawing it is most of a page."""
    return latency_bars([("eager", 3.0, 2.5, 3.5), ("plain", 2.0, 1.9, 2.1), ("ours", 1.0, 0.9, 1.2)])


def page_of(word: str, number: float) -> Page:
    blocks = [
        Cards([(word, word, word)]),
        Table([word, "n"], [[word, 1], [Badge(word, "good"), None], [None, number]], caption=word),
        Facts([(word, number), ("flag", True)]),
        Picture(bars(), word),
        Text([word, word], "bad"),
        Details(word, [Facts([("a", word)])]),
    ]
    return Page(word, word, [Section(word, blocks, word)], Badge(word, "warn"), word)


@settings(deadline=None, max_examples=20)
@given(word=st.text(min_size=1, max_size=12), number=st.floats(allow_nan=True))
def test_any_text_is_escaped_and_nothing_is_loaded(word: str, number: float) -> None:
    html = render_page(page_of(f"<script>alert(1)</script>&{word}", number))
    reader = Reader(html)
    assert "script" not in reader.seen
    assert reader.loads == []
    assert not re.search(r"url\((?!#)|@import", html)
    assert {"svg", "table", "dl", "details", "figure"} <= set(reader.seen)


def test_numbers_are_aligned_right_and_short() -> None:
    html = render_page(Page("t", "s", [Section("x", [Table(["w", "n"], [["a", 1234567], ["b", 0.123456789]])])]))
    assert html.count('class="number"') == 3
    assert ">1,234,567<" in html
    assert ">0.1235<" in html


def test_pictures_keep_text_as_text_and_repeat_exactly() -> None:
    first, second = (before_after_bars({"Conv": 3, "BatchNormalization": 4}, {"Conv": 3}) for _ in range(2))
    assert first == second
    assert "BatchNormalization" in first
    assert first.startswith("<svg")


def test_every_colour_of_a_picture_is_one_that_a_dark_page_changes() -> None:
    pictures = (
        latency_bars([("eager", 3.0, 2.5, 3.5), ("plain", 2.0, 1.9, 2.1), ("ours", 1.0, 0.9, 1.2)]),
        before_after_bars({"Conv": 3}, {"Conv": 2}),
        share_bars([("a", 1.0), ("b", 2.0)], unit="%"),
    )
    style = render_page(Page("t", "s", []))
    dark = style[style.index("prefers-color-scheme: dark") :].split("@media (max-width")[0]
    for picture in pictures:
        used = re.findall(r"(?:fill|stroke): (?!none|var)([^;\"]+)", picture)
        assert set(used) <= {"#ffffff"}, used
        for name in re.findall(r"var\((--\w+)", picture):
            assert f"{name}:" in dark


def test_what_the_tuner_tried_stands_on_the_page_of_a_build() -> None:
    trials = [
        {"name": "untuned", "precision": "float32", "status": "accepted", "latency": {"median_s": 2e-3}, "reason": ""},
        {"name": "int8", "precision": "int8", "status": "rejected", "latency": None, "reason": "loses <top1>"},
    ]
    page = Reader(render_page(build_page(REPORT | {"plan": {"budget": "top1=0.5%", "trials": trials}})))
    text = " ".join(page.text)
    for words in ("Budget: top1=0.5%.", "untuned", "accepted", "rejected", "loses <top1>"):
        assert words in text
    assert "2,000" in text or "2000" in text  # microseconds
