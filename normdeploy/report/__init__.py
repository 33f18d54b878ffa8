"""Reports: plain data in, console tables and HTML pages out; nothing is computed here."""

from __future__ import annotations

from normdeploy.report.page import (
    STATUS_TONES,
    Badge,
    Block,
    Cards,
    Details,
    Facts,
    Page,
    Picture,
    Section,
    Table,
    Text,
    render_page,
)

__all__ = [
    "STATUS_TONES",
    "Badge",
    "Block",
    "Cards",
    "Details",
    "Facts",
    "Page",
    "Picture",
    "Section",
    "Table",
    "Text",
    "render_page",
]
