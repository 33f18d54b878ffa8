"""Where the records of a CSV text begin and end.

A record is a line; a cell in quotes may hold line breaks, and then the record spans several. A quote that was never
meant as one must not do that: it would swallow the rows behind it. So a record of several lines is believed only if its
quotes stand where quotes belong, it has as many cells as all others, its line breaks lie in cells that the model does
not read, and no cell is longer than the csv module allows (128 KiB). Otherwise its first line is a bad row and the next
one a new record.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator

# what is no quote, and cells from one quote to the next, which stand between commas, breaks or quotes
_PLAIN = re.compile(rb'[^"]*+(?:(?<![^,\r\n"])"[^"\r\n]*+"(?![^,\r\n"])[^"]*+)*+')


def records(lines: Iterable[str], width: int = 0, read: Collection[int] = ()) -> Iterator[tuple[str, list[str], str]]:
    """Yield text, cells and fault ("" if none) of each record; the texts together are the lines, blank ones included.

    Quotes come in pairs: a record that asks for another line while those of its lines are even has a stray one. So a
    line is followed to the next one with a quote left over, not to the end of the text, and n lines are looked at 2 n
    times at most.

    Args:
        lines: with their ends, from the beginning of a record on.
        width: how many cells a record has; 0 where that is not known.
        read: positions of the cells that hold numbers.
    """
    source, back = iter(lines), deque[str]()
    while line := back.popleft() if back else next(source, ""):
        taken, odd = [line], line.count('"') % 2
        while odd and (line := back.popleft() if back else next(source, "")):
            taken.append(line)
            odd ^= line.count('"') % 2
        reader, cells, fault = csv.reader(taken, strict=True), list[str](), ""
        try:
            cells = next(reader)
        except csv.Error:
            fault = "a quote is opened and not closed, or stands where no cell begins or ends"
        used = 1 if fault else reader.line_num
        if used > 1 and width:
            broken = {at for at, cell in enumerate(cells) if "\n" in cell or "\r" in cell}
            if len(cells) != width or broken & set(read):
                used, fault = 1, "a quote is opened and not closed in its line"
        back.extendleft(reversed(taken[used:]))
        text = "".join(taken[:used])
        if fault:
            shown = text[:60].encode("latin-1", "replace").decode(errors="replace").strip()
            fault = f"{fault}: {shown!r}; expected quotes in pairs around cells: correct the line"
        elif cells and width and len(cells) != width:
            fault = f"has {len(cells)} cells; expected {width}: correct the line"
        yield text, cells, fault


def is_plain(text: bytes) -> bool:
    """Whether all quotes of some lines stand at the ends of cells and no quoted cell goes beyond its line."""
    return b'"' not in text or _PLAIN.fullmatch(text) is not None
