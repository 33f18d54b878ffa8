"""Registers the profile of the rewriting rooms' property tests."""

import affine_graphs  # noqa: F401 - it registers the profile "affine"
