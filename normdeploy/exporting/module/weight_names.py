"""Names of tensors in a checkpoint, as the model calls them: what wrappers put in front or between is taken away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import torch

from normdeploy.errors import WeightsError

_SHOWN = 6
# of torch.compile, FullyShardedDataParallel, activation checkpoints and Lightning Fabric: they stand around any module
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"})


def as_the_model_names_them(
    given: Mapping[str, torch.Tensor], own: Collection[str], notes: list[str], origin: str
) -> dict[str, torch.Tensor]:
    """Return the tensors by the model's names: those under the prefix that covers most of them, without it.

    Args:
        given: the tensors, by the names in the file. own: the model's names.
        notes: appended to with what was taken off and what was left out.
        origin: what the file is called in errors.

    Raises:
        WeightsError: everything that the model names is there under several prefixes.
    """
    known = set(own)
    prefix, covered = _best_prefix(given, known, origin)
    if covered < len(known):
        bare = {_without_wrappers(name): tensor for name, tensor in given.items()}
        inner, more = _best_prefix(bare, known, origin)
        if more > covered and len(bare) == len(given):
            notes.append(f"the names of wrappers around its modules are taken out: {named(_wrappers_in(given))}")
            given, prefix = bare, inner
    if not prefix:
        return dict(given)
    if outside := [name for name in given if not name.startswith(prefix)]:
        notes.append(f"left out, because they have no prefix {prefix!r}: {named(outside)}")
    notes.append(f"the prefix {prefix!r} is taken off its keys")
    return {name.removeprefix(prefix): tensor for name, tensor in given.items() if name.startswith(prefix)}


def named(keys: Sequence[str]) -> str:
    """Return the first few of several names, and how many more there are."""
    if not keys:
        return "none"
    return "[" + ", ".join(keys[:_SHOWN]) + (f", ... {len(keys) - _SHOWN} more]" if len(keys) > _SHOWN else "]")


def _best_prefix(given: Mapping[str, torch.Tensor], known: set[str], origin: str) -> tuple[str, int]:
    """Return the prefix under which most of the known names are, and how many; "" where several are as good."""
    covered: Counter[str] = Counter()
    for name in given:
        parts = name.split(".")
        for depth in range(len(parts)):
            if ".".join(parts[depth:]) in known:
                covered["".join(f"{part}." for part in parts[:depth])] += 1
    most = max(covered.values(), default=0)
    best = [prefix for prefix, count in covered.items() if count == most]
    if len(best) == 1 or "" in best:
        return best[0] if len(best) == 1 else "", most
    if best and most == len(known):
        raise WeightsError(
            f"{origin} holds what the model names under several prefixes: {named(sorted(p[:-1] for p in best))}; "
            "expected one: choose it by --weights-key (key=)"
        )
    return "", covered[""]


def _without_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _wrappers_in(given: Mapping[str, torch.Tensor]) -> list[str]:
    return sorted({part for name in given for part in name.split(".")} & _WRAPPERS)
