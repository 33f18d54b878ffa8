"""Room: testing. Equivalence in your own tests: an assertion, and a pytest plugin that sets its options.

Nothing is imported before it is used: pytest loads the plugin at every start, and torch takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normdeploy.testing.equivalence import assert_equivalent

__all__ = ["assert_equivalent"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'normdeploy.testing' has no attribute {name!r}")
    from normdeploy.testing import equivalence

    return getattr(equivalence, name)
