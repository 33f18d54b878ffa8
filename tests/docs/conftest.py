"""What the pages' examples share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _quick_searches(short_turns: None) -> None:
    """In this room nothing asks of times."""
