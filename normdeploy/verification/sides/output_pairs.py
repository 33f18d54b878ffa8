"""Which output of the file stands for which of the reference: by name where both name them, by position otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Matching:
    """The file's outputs in the reference's order.

    Args:
        names: the file's names. note: how they were matched, where that is worth saying. problem: why they cannot be.
    """

    names: tuple[str, ...]
    note: str = ""
    problem: str = ""


def match_outputs(reference: Sequence[str], file: Sequence[str]) -> Matching:
    """Match outputs by name; by position where no name is on both sides.

    Args:
        reference: names of the reference's outputs: of a graph, or the keys and fields of what a module returns.
        file: names of the file's outputs.

    Returns:
        The matching; with a ``problem`` where the sides have other numbers of outputs, or share some names only.
    """
    own, names = list(reference), list(file)
    if len(own) != len(names):
        text = f"the file returns {len(names)} outputs ({', '.join(names)}); the reference returns {len(own)}"
        return Matching(tuple(names), problem=f"{text} ({', '.join(own)})")
    if own == names:
        return Matching(tuple(names))
    shared = set(own) & set(names)
    if not shared:
        pairs = ", ".join(f"{b!r} as {a!r}" for a, b in zip(own, names, strict=True))
        return Matching(tuple(names), note=f"outputs have other names in the file and are matched by position: {pairs}")
    if len(shared) == len(own):
        note = f"outputs stand in another order in the file ({', '.join(names)}) and are matched by name"
        return Matching(tuple(own), note=note)
    rest = iter(name for name in names if name not in shared)
    matched = [name if name in shared else next(rest) for name in own]
    strangers = ", ".join(f"{b!r} as {a!r}" for a, b in zip(own, matched, strict=True) if a not in shared)
    note = f"outputs are matched by name, those of other names in the file by position among themselves: {strangers}"
    return Matching(tuple(matched), note=note)
