"""The assertion: a test fails, readably, unless a file is proven equal to its reference."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from normdeploy.errors import NormdeployError
from normdeploy.testing.default_options import in_force
from normdeploy.testing.failure_text import difference
from normdeploy.verification import Verdict, verify


def assert_equivalent(
    reference: Any,
    path: str | os.PathLike[str],
    *,
    allow: Collection[str] | None = None,
    **options: Any,
) -> Verdict:
    """Verify a file, and fail the test unless the verdict is a pass.

    ::

        from normdeploy.testing import assert_equivalent

        def test_deployed():
            assert_equivalent(model, "net.onnx", args=(x,))

    Options that are not given come from the test's ``equivalence`` marker, then from ``--normdeploy-level`` and
    pytest's configuration, where the plugin is loaded.

    Args:
        reference: an eager module, or an ONNX file or graph.
        path: the ONNX file.
        allow: further statuses to accept, such as ``{"not-exercised"}``.
        options: as for :func:`normdeploy.verification.verify` (``args``, ``data``, ``level``, ``seed``, ...).

    Returns:
        The verdict.

    Raises:
        AssertionError: the verdict is neither "pass" nor allowed; the message says which outputs differ, at which site
            and which mistake it looks like.
        NormdeployError: the call is mistaken: no such file, level or input.

    >>> import torch, normdeploy as nd
    >>> net, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)), torch.randn(2, 3)
    >>> result = nd.export(net, x, "net.onnx", verify=False)
    >>> assert_equivalent(net, "net.onnx", args=x, level="quick").passed
    True
    """
    __tracebackhide__ = True
    chosen = in_force() | options
    accepted = chosen.pop("allow", ()) if allow is None else allow
    try:
        verdict = verify(reference, path, **chosen)
    except NormdeployError as error:  # a mistake in the call: the message says what is off, and our own frames nothing
        raise error.with_traceback(None) from error.__cause__
    if verdict.status not in {"pass", *accepted}:
        raise AssertionError(difference(verdict, reference, path))
    return verdict
