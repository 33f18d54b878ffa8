"""Equivalence in your own tests, in three lines.

::

    from normdeploy.verification.pytest import assert_equivalent

    def test_deployed():
        assert_equivalent(model, "net.onnx", args=(x,))
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from normdeploy.verification.core import verify
from normdeploy.verification.record.verdict import Verdict


def assert_equivalent(
    reference: Any,
    path: str | os.PathLike[str],
    *,
    allow: Collection[str] = (),
    **options: Any,
) -> Verdict:
    """Verify a file and fail the test, with the message the command line prints, unless the verdict is a pass.

    Args:
        reference: an eager module, or an ONNX file or graph.
        path: the ONNX file.
        allow: further statuses to accept, such as ``{"not-exercised"}``.
        options: as for :func:`normdeploy.verification.verify` (``args``, ``data``, ``level``, ...).

    Returns:
        The verdict.

    Raises:
        AssertionError: the verdict is neither "pass" nor allowed.
    """
    __tracebackhide__ = True
    verdict = verify(reference, path, **options)
    if verdict.status != "pass" and verdict.status not in allow:
        raise AssertionError(verdict.summary())
    return verdict
