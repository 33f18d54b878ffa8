"""Text from elsewhere, made fit for a terminal."""

from __future__ import annotations

import re
from typing import Any

from rich import text as rich_text

# control characters except line feed and tab, and the marks that reverse the direction of what follows
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return ``text`` with what commands a terminal written out: an escape becomes the four characters ``\\x1b``.

    Names of nodes, files and classes come from whoever wrote the model, and a terminal obeys what is printed.
    """
    return _HIDDEN.sub(lambda found: repr(found.group())[1:-1], text)


class Text(rich_text.Text):
    """rich's Text, of which nothing commands the terminal but its own styles."""

    def __init__(self, text: str = "", *rest: Any, **options: Any) -> None:
        super().__init__(printable(text), *rest, **options)

    def append(self, text: rich_text.Text | str, style: Any = None) -> Text:
        """Add text, made printable, in a style."""
        super().append(printable(text) if isinstance(text, str) else text, style)
        return self
