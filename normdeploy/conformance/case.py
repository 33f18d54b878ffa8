"""What a case is, and what can become of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from normdeploy.array_types import Array, Arrays

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import nn


Group = Literal["conventions", "traps", "damages"]
GROUPS: tuple[Group, ...] = get_args(Group)

Result = Literal["right", "left", "wrong", "refused", "crashed", "does not apply"]
RESULTS: tuple[Result, ...] = get_args(Result)


@dataclass(frozen=True)
class Problem:
    """A network with inputs and the outputs that it has on them, in float64, by formulas of our own.

    Args:
        module: the network as its author wrote it, for exporters; None where it is a graph.
        graph: the network as a graph; None where it is to be exported from ``module``, without any optimization.
        feeds: inputs by name. expected: outputs, in order.
        args: the module's positional example, in torch.
        gone: operators none of which an exact rewriting leaves.
        refusal: the only right answer is none: the network does not say what it computes.
        tolerance: error, over the largest expected value, up to which an answer is right.
    """

    feeds: Arrays
    expected: tuple[Array, ...]
    module: nn.Module | None = None
    graph: ModelProto | None = None
    args: tuple[Any, ...] = ()
    gone: frozenset[str] = frozenset()
    refusal: bool = False
    tolerance: float = 1e-4


@dataclass(frozen=True)
class Damage:
    """Two files for a verifier. Args: reference, file: of which the second claims to be the first. same: it is."""

    reference: ModelProto
    file: ModelProto
    same: bool


@dataclass(frozen=True)
class Case:
    """A case by name.

    Args:
        name: "traps/zero padding" and the like. about: what it is about, in a sentence.
        build: makes it, every time the same.
    """

    name: str
    about: str
    build: Callable[[], Problem | Damage]

    @property
    def group(self) -> Group:
        """The part of the name in front of the slash."""
        found = self.name.partition("/")[0]
        return next(group for group in GROUPS if group == found)


@dataclass(frozen=True)
class Outcome:
    """What an adapter did with a case.

    Args:
        result: "right"; "left" (right, and what could go is still there); "wrong" without a word; "refused" with one;
            "crashed" (the process ended, or what was written cannot be run); "does not apply" to such an adapter.
        detail: the refusal, what is left, where it is wrong.
        error: largest difference over the largest expected value, where there is one.
    """

    case: str
    adapter: str
    result: Result
    detail: str = ""
    error: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; an error that is no finite number becomes a string."""
        data = asdict(self)
        if self.error is not None and not np.isfinite(self.error):
            data["error"] = str(self.error)
        return data

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Outcome:
        """Undo `to_dict`."""
        error = data["error"]
        return Outcome(**{**data, "error": None if error is None else float(error)})
