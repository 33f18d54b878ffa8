"""The pytest plugin: ``--normdeploy-level``, the marker ``equivalence`` and the fixture ``assert_equivalent``.

pytest loads it at every start, in every project of an environment, so that it imports neither torch nor NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from normdeploy.testing.default_options import using
from normdeploy.verification.check_levels import LEVELS

_MARKER = "equivalence"
_MARKED = ("allow", "budget", "level", "seed")
_OPTION, _INI = "--normdeploy-level", "normdeploy_level"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and its place in pytest's configuration."""
    group = parser.getgroup("normdeploy", "equivalence of ONNX files (normdeploy)")
    text = "how much assert_equivalent checks where the call and its test's marker do not say"
    group.addoption(_OPTION, choices=sorted(LEVELS), default=None, help=text)
    parser.addini(_INI, f"{text}; {_OPTION} wins", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Put the run's level in force, and make the marker known."""
    arguments = ", ".join(f"{name}=..." for name in _MARKED)
    config.addinivalue_line("markers", f"{_MARKER}({arguments}): options of assert_equivalent in this test")
    level = config.getoption(_OPTION) or config.getini(_INI)
    if not level:
        return
    if level not in LEVELS:
        raise pytest.UsageError(f"{_INI} is {level!r}; expected one of {', '.join(sorted(LEVELS))}")
    scope = ExitStack()
    scope.enter_context(using({"level": level}))
    config.add_cleanup(scope.close)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Put a test's markers in force while it runs, the nearest winning."""
    given: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers(_MARKER))):
        given |= marker.kwargs
    with using(given):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse markers that would mean nothing.

    Raises:
        pytest.UsageError: an argument is unknown, or has no name.
    """
    for marker in item.iter_markers(_MARKER):
        unknown = [*map(repr, marker.args), *sorted(set(marker.kwargs) - set(_MARKED))]
        if unknown:
            raise pytest.UsageError(f"marker {_MARKER} has {', '.join(unknown)}; expected {', '.join(_MARKED)} by name")


@pytest.fixture
def assert_equivalent(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Give `normdeploy.testing.assert_equivalent`; what it finds is kept in the test's ``user_properties``."""
    from normdeploy import testing

    found = request.node.user_properties  # record_property would warn where the XML family has no place for them

    def check(reference: Any, path: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        try:
            verdict = testing.assert_equivalent(reference, path, **options)
        except AssertionError as error:
            found.append(("equivalence", str(error).splitlines()[0]))
            raise
        found.append(("equivalence", f"{path}: {verdict.status} (level {verdict.level})"))
        return verdict

    return check
