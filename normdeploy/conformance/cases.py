"""Every case, by name."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache

from normdeploy.conformance.case import GROUPS, Case
from normdeploy.errors import UsageError


@cache
def all_cases() -> dict[str, Case]:
    """Return the cases by name, in their order."""
    from normdeploy.conformance.damages import DAMAGES
    from normdeploy.conformance.module_traps import MODULE_TRAPS
    from normdeploy.conformance.norm_cases import CONVENTIONS
    from normdeploy.conformance.traps import TRAPS

    return {case.name: case for case in [*CONVENTIONS, *TRAPS, *MODULE_TRAPS, *DAMAGES]}


def chosen_cases(patterns: list[str]) -> list[Case]:
    """Return the cases whose names match one of some patterns (or hold it, or are in the group), all without any.

    Raises:
        UsageError: a pattern matches none.
    """
    known = all_cases()
    found: dict[str, Case] = {}
    for pattern in patterns or ["*"]:
        names = [name for name in known if pattern in name or fnmatch(name, pattern)]
        if not names:
            raise UsageError(
                f"no case matches {pattern!r}; expected a group ({', '.join(GROUPS)}) or names as --list shows"
            )
        found |= {name: known[name] for name in names}
    return [case for name, case in known.items() if name in found]
