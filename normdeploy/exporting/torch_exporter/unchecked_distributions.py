"""While a model is traced, torch.distributions does not check its arguments: checks decide by values, and only raise.

https://docs.pytorch.org/docs/stable/distributions.html (set_default_validate_args)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch.distributions import Distribution


@contextmanager
def distributions_unchecked() -> Iterator[list[str]]:
    """Let distributions that are made in this block, and do not ask for checks themselves, take what they are given.

    Yields:
        The names of the distributions' classes that were made and would have checked, each once.
    """
    made: list[str] = []
    checks, initialize = Distribution._validate_args, Distribution.__init__

    def initialized(distribution: Distribution, *args: Any, **kwargs: Any) -> None:
        initialize(distribution, *args, **kwargs)
        name = type(distribution).__name__
        own = "_validate_args" in vars(distribution)  # it was told whether to check
        if checks and not own and name not in made:
            made.append(name)

    with mock.patch.multiple(Distribution, _validate_args=False, __init__=initialized):
        yield made
