"""The builder of small graphs and the rewriting of one, as fixtures."""

from __future__ import annotations

from typing import Any

import pytest
from affine_graphs import GraphBuilder, fold_proto


@pytest.fixture(scope="session")
def graph() -> type[GraphBuilder]:
    """The builder class."""
    return GraphBuilder


@pytest.fixture(scope="session")
def fold() -> Any:
    """Rewrite a built graph."""
    return fold_proto
