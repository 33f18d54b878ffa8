"""What stands for an operator's result is what torch's own code makes, and no size is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_impls import get_fast_op_impls
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from normdeploy.exporting.torch_exporter.known_results import known_results

ATEN = torch.ops.aten


class Stand:
    """Makes stand-ins for tensors in one trace: of some, the first axes are dynamic."""

    def __init__(self) -> None:
        self.sizes = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.sizes)
        self.mode.cache_enabled = False  # each call is answered anew: results are kept across traces

    def of(self, *shape: int, dynamic: Sequence[int] = (0,), dtype: torch.dtype = torch.float32) -> Tensor:
        kinds = [DimDynamic.DYNAMIC if axis in dynamic else DimDynamic.STATIC for axis in range(len(shape))]
        context = StatelessSymbolicContext(kinds)
        with unset_fake_temporarily():
            made = torch.ones(shape, dtype=dtype)
        found = self.mode.from_tensor(made, symbolic_context=context)
        assert [isinstance(size, torch.SymInt) for size in found.shape] == [
            axis in dynamic for axis in range(len(shape))
        ]
        return found

    def weight(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        with unset_fake_temporarily():
            made = torch.ones(shape, dtype=dtype)
        return self.mode.from_tensor(made, static_shapes=True)


def pointwise(name: str, *numbers: Any) -> dict[str, Callable[[Stand], Any]]:
    operator = getattr(ATEN, name).default
    layouts: dict[str, Callable[[Stand], Tensor]] = {
        "": lambda s: s.of(2, 3, 4),
        " of all sizes": lambda s: s.of(5, 3, 4, dynamic=(0, 1, 2)),
        " of halves": lambda s: s.of(2, 3, dtype=torch.float16),
        " of float64": lambda s: s.of(2, dtype=torch.float64),
        " of integers": lambda s: s.of(2, 3, dtype=torch.int64),
        " turned": lambda s: s.of(2, 3, 4).transpose(1, 2),
        " channels last": lambda s: s.of(2, 3, 4, 5).to(memory_format=torch.channels_last),
        " of one row": lambda s: s.of(2, 1, 1)[:, 0],
        " of a part": lambda s: s.of(2, 6)[:, ::2],
        " repeated": lambda s: s.of(2, 1).expand(-1, 4),
        " of nothing": lambda s: s.of(2, 0, 3),
    }
    return {name + what: lambda s, make=make: operator(make(s), *numbers) for what, make in layouts.items()}


def batch_norm(s: Stand, x: Tensor, count: int, **of: Any) -> Any:
    w, b, m, v = (s.weight(count, **of) for _ in range(4))
    return ATEN._native_batch_norm_legit_no_training.default(x, w, b, m, v, 0.1, 1e-5)


def group_norm(x: Tensor, weight: Tensor | None, groups: int) -> Any:
    n, channels, *places = x.shape
    count = 1
    for size in places:
        count = count * size
    return ATEN.native_group_norm.default(x, weight, weight, n, channels, count, groups, 1e-5)


CASES: dict[str, Callable[[Stand], Any]] = {
    **pointwise("relu"),
    **pointwise("clamp", 0, 6.5),
    **pointwise("softplus", 1, 20),
    **{name: lambda s, name=name: getattr(ATEN, name).default(s.of(2, 3))
       for name in ("gelu", "silu", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "elu", "mish")},
    "gelu of tanh": lambda s: ATEN.gelu.default(s.of(2, 3), approximate="tanh"),
    "clamp from a size": lambda s: ATEN.clamp.default(x := s.of(2, 3), 0, x.shape[0]),
    "BatchNorm": lambda s: batch_norm(s, s.of(2, 3, 4, 5), 3),
    "BatchNorm of rows": lambda s: batch_norm(s, s.of(2, 3), 3),
    "BatchNorm of all sizes but channels": lambda s: batch_norm(s, s.of(2, 3, 4, 5, dynamic=(0, 2, 3)), 3),
    "BatchNorm of any channels": lambda s: batch_norm(s, s.of(2, 3, 4, dynamic=(0, 1)), 3),
    "BatchNorm of one channel": lambda s: batch_norm(s, s.of(2, 1, 4, 4), 1),
    "BatchNorm of one place": lambda s: batch_norm(s, s.of(2, 3, 1, 1), 3),
    "BatchNorm of halves": lambda s: batch_norm(s, s.of(2, 3, 4, dtype=torch.float16), 3, dtype=torch.float16),
    "BatchNorm of mixed types": lambda s: batch_norm(s, s.of(2, 3, 4, dtype=torch.float16), 3),
    "BatchNorm channels last": lambda s: batch_norm(s, s.of(2, 3, 4, 5).to(memory_format=torch.channels_last), 3),
    "BatchNorm of other channels": lambda s: batch_norm(s, s.of(2, 3, 4), 5),
    "BatchNorm, plain": lambda s: ATEN._native_batch_norm_legit_no_training.default(
        s.of(2, 3, 4), None, None, s.weight(3), s.weight(3), 0.1, 1e-5),
    "LayerNorm": lambda s: ATEN.native_layer_norm.default(s.of(2, 3, 4), [4], s.weight(4), s.weight(4), 1e-5),
    "LayerNorm of planes": lambda s: ATEN.native_layer_norm.default(s.of(2, 3, 4), [3, 4], s.weight(3, 4), None, 1e-5),
    "LayerNorm of all sizes": lambda s: ATEN.native_layer_norm.default(
        s.of(2, 5, 4, dynamic=(0, 1)), [4], None, None, 1e-5),
    "LayerNorm over a size": lambda s: ATEN.native_layer_norm.default(x := s.of(5, 3), list(x.shape), None, None, 1e-5),
    "LayerNorm turned": lambda s: ATEN.native_layer_norm.default(
        s.of(2, 4, 3).transpose(1, 2), [4], s.weight(4), None, 1e-5),
    "LayerNorm of halves": lambda s: ATEN.native_layer_norm.default(
        s.of(2, 4, dtype=torch.float16), [4], None, None, 1e-5),
    "LayerNorm of another length": lambda s: ATEN.native_layer_norm.default(s.of(2, 4), [3], None, None, 1e-5),
    "LayerNorm of a weight of another length": lambda s: ATEN.native_layer_norm.default(
        s.of(2, 4), [4], s.weight(3), None, 1e-5),
    "GroupNorm": lambda s: group_norm(s.of(2, 6, 4, 5), s.weight(6), 3),
    "GroupNorm of rows": lambda s: group_norm(s.of(2, 6), None, 2),
    "GroupNorm of all sizes": lambda s: group_norm(s.of(2, 6, 4, 5, dynamic=(0, 2, 3)), s.weight(6), 3),
    "GroupNorm of one": lambda s: group_norm(s.of(2, 6, 4), s.weight(6), 1),
    "GroupNorm of unequal groups": lambda s: group_norm(s.of(2, 6, 4), s.weight(6), 4),
    "GroupNorm channels last": lambda s: group_norm(
        s.of(2, 6, 4, 5).to(memory_format=torch.channels_last), s.weight(6), 3),
    "GroupNorm of halves": lambda s: group_norm(s.of(2, 6, 4, dtype=torch.float16), None, 3),
    "Linear": lambda s: ATEN.addmm.default(s.weight(5), s.of(2, 3), s.weight(5, 3).t()),
    "Linear of one": lambda s: ATEN.addmm.default(s.weight(1), s.of(2, 3), s.weight(1, 3).t()),
    "Linear of what is turned": lambda s: ATEN.addmm.default(
        s.weight(5), s.of(3, 2, dynamic=(1,)).t(), s.weight(3, 5)),
    "Linear of any length": lambda s: ATEN.addmm.default(s.weight(5), s.of(2, 3, dynamic=(0, 1)), s.weight(5, 3).t()),
    "Linear of halves": lambda s: ATEN.addmm.default(
        *(make(*shape, dtype=torch.float16) for make, shape in ((s.weight, (5,)), (s.of, (2, 3)), (s.weight, (3, 5))))),
    "Linear with a number for bias": lambda s: ATEN.addmm.default(s.weight(1), s.of(2, 3), s.weight(3, 5)),
    "Linear with rows for bias": lambda s: ATEN.addmm.default(s.weight(1, 5), s.of(2, 3), s.weight(3, 5)),
    "Linear, scaled": lambda s: ATEN.addmm.default(s.weight(5), s.of(2, 3), s.weight(3, 5), beta=0.5),
    "Linear of another length": lambda s: ATEN.addmm.default(s.weight(5), s.of(2, 4), s.weight(3, 5)),
    **{f"mean over {axes}{', kept' * keep}": lambda s, axes=axes, keep=keep: ATEN.mean.dim(s.of(2, 3, 4, 5), axes, keep)
       for axes in ([1], [-1], [2, 3], [0], [-2, -1], [0, 1, 2, 3], []) for keep in (False, True)},
    "mean over none that is said": lambda s: ATEN.mean.dim(s.of(2, 3), None),
    "mean over an axis twice": lambda s: ATEN.mean.dim(s.of(2, 3), [1, -1]),
    "mean over an axis that is not there": lambda s: ATEN.mean.dim(s.of(2, 3), [2]),
    "mean over a size": lambda s: ATEN.mean.dim(s.of(5, 3, 4, dynamic=(0, 2)), [2], True),
    "mean in another type": lambda s: ATEN.mean.dim(s.of(2, 3), [1], dtype=torch.float64),
    "mean of integers": lambda s: ATEN.mean.dim(s.of(2, 3, dtype=torch.int64), [1]),
    "mean of what is turned": lambda s: ATEN.mean.dim(s.of(2, 3, 4).transpose(1, 2), [2], True),
    "mean channels last": lambda s: ATEN.mean.dim(s.of(2, 3, 4, 5).to(memory_format=torch.channels_last), [2, 3], True),
}  # fmt: skip


def described(case: Callable[[Stand], Any]) -> list[object]:
    """Return what a stand-in for a result says, with the questions of sizes; or the class of the error."""
    stand = Stand()
    with stand.mode, torch.no_grad():
        try:
            found = case(stand)
        except (RuntimeError, ValueError, IndexError) as error:
            return [type(error), str(error)]
    results = found if isinstance(found, tuple) else (found,)
    asked = [str(guard.expr) for guard in stand.sizes.guards]
    return [
        *(
            (str(list(t.shape)), str(list(t.stride())), t.storage_offset(), t.dtype, t.device, t.layout, type(t))
            for t in results
        ),
        asked,
    ]


@pytest.mark.parametrize("name", CASES)
def test_a_result_is_what_torchs_own_code_makes(name: str) -> None:
    want = described(CASES[name])
    with known_results():
        assert described(CASES[name]) == want


SEEN = [
    *("relu", "clamp", "softplus", "gelu", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "elu", "mish"),
    *("BatchNorm", "BatchNorm of rows", "BatchNorm of halves", "BatchNorm, plain", "LayerNorm", "LayerNorm of planes"),
    *("LayerNorm of all sizes", "GroupNorm", "GroupNorm of rows", "GroupNorm of all sizes", "Linear", "Linear of one"),
    *("mean over [1]", "mean over [2, 3], kept", "mean over [0]"),
]


@pytest.mark.parametrize("name", SEEN)
def test_torchs_own_code_does_not_run_where_the_result_is_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise AssertionError("torch's code runs")

    table = torch._decomp.decomposition_table
    for operator in list(table):
        monkeypatch.setitem(table, operator, run)
    with pytest.raises(AssertionError, match="runs"):
        described(CASES[name])
    with known_results():
        described(CASES[name])


def test_the_table_is_torchs_own_again() -> None:
    before = dict(get_fast_op_impls())
    with known_results():
        assert len(get_fast_op_impls()) > len(before)
    assert get_fast_op_impls() == before
