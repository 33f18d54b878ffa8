"""Providers as parameters of tests, those that cannot be used here skipped with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from normdeploy.ort.providers import find_providers


def provider_params(*names: str) -> list[Any]:
    """Return a parameter for each name."""
    reasons = {provider.name: provider.reason for provider in find_providers() if not provider.usable}
    return [
        pytest.param(name, marks=pytest.mark.skipif(name in reasons, reason=reasons.get(name, ""))) for name in names
    ]
