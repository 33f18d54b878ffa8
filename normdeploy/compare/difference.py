"""How two ONNX files differ, as data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class WeightDifference:
    """One stored tensor of both files.

    Args:
        name: in the first file. other: in the second, where it has another name.
        dtype, other_dtype: as stored.
        shape: of the tensor; other_shape: where the second has another, and nothing more is said.
        changed: how many of its elements differ. count: how many there are.
        largest: largest absolute difference.
        ulps: largest difference in units of the last place of the coarser type; infinite where one side is not a number
            or infinite and the other is not; None where no element is floating point.
    """

    name: str
    other: str
    dtype: str
    other_dtype: str
    shape: list[int]
    other_shape: list[int]
    changed: int = 0
    count: int = 0
    largest: float = 0.0
    ulps: float | None = None


@dataclass(frozen=True)
class OutputDifference:
    """One output of both files on the same inputs.

    Args:
        name: in the first file. other: in the second.
        shape: of the first's; other_shape: of the second's. With different shapes nothing more is said.
        largest: largest absolute difference. rms: of the difference, over the first's own RMS.
        ulps: as for weights.
        decisions: share of rows with the same largest element, where the last axis has at least two.
    """

    name: str
    other: str
    shape: list[int]
    other_shape: list[int]
    largest: float = 0.0
    rms: float = 0.0
    ulps: float | None = None
    decisions: float | None = None


@dataclass(frozen=True)
class Difference:
    """How two ONNX files differ.

    Args:
        first, second: the files.
        nodes: how many each has, bodies and functions included.
        operators: operator to (count in the first, count in the second), those that differ.
        weights: tensors of both that differ. same_weights: how many are equal bit by bit.
        only_first, only_second: "name dtype[shape]" of tensors that one of them alone has.
        outputs: on the same inputs; none where that was not asked for, with the reason in ``not_run``.
        inputs: "name dtype[shape]" of what was fed.
    """

    first: str
    second: str
    nodes: tuple[int, int]
    operators: dict[str, tuple[int, int]]
    weights: list[WeightDifference]
    same_weights: int
    only_first: list[str]
    only_second: list[str]
    outputs: list[OutputDifference] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    not_run: str = ""

    @property
    def same(self) -> bool:
        """Whether nothing differs: operators, weights, and outputs where they were computed."""
        return not (
            self.operators or self.weights or self.only_first or self.only_second or any(map(_differs, self.outputs))
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; what is not finite becomes "inf" or "nan"."""
        return {"same": self.same, **_plain(asdict(self))}


def _differs(row: OutputDifference) -> bool:
    return row.shape != row.other_shape or row.largest != 0 or bool(row.ulps)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
