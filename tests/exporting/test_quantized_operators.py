"""Every operator on quantized tensors that has a form in floats, against torch's own quantized kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from normdeploy.exporting.quantized.quantized_operators import KEEPS, OPERATORS, OWN, ROUNDS
from normdeploy.exporting.quantized.quantizer_mode import QuantizerMode
from normdeploy.exporting.quantized.quantizers import Arithmetic

pytestmark = pytest.mark.filterwarnings("ignore:.*(deprecated|quantize_per|quantized tensor).*")

Q: Any = torch.ops.quantized
STEP, ORIGIN = 0.031, 7
"""Of most results."""


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def quantized(*shape: int, seed: int = 0, scale: float = 0.021, zero: int = 120) -> Tensor:
    return torch.quantize_per_tensor(normal(*shape, seed=seed), scale, zero, torch.quint8)


def weight(*shape: int, channels: bool = True, axis: int = 0) -> Tensor:
    # At most 63 steps: where a processor adds pairs of 8-bit products in 16 bits, these fit
    w = (normal(*shape, seed=5) * 0.3).clamp(-0.25, 0.25)
    if not channels:
        return torch.quantize_per_tensor(w, 0.007, 0, torch.qint8)
    steps = torch.linspace(0.004, 0.01, shape[axis])
    return torch.quantize_per_channel(w, steps, torch.zeros(shape[axis], dtype=torch.int64), axis, torch.qint8)


def conv(axes: int, *, channels: bool = True, groups: int = 1) -> Any:
    pair = [2] * axes, [1] * axes, [1] * axes
    prepack = getattr(Q, f"conv{axes}d_prepack")
    w = weight(6, 4 // groups, *[3] * axes, channels=channels)
    return prepack(w, normal(6), *pair, groups)


def transposed(axes: int) -> Any:
    ones = [1] * axes
    prepack = getattr(Q, f"conv_transpose{axes}d_prepack")
    w = weight(4, 6, *[3] * axes, channels=False)
    return prepack(w, normal(6), [2] * axes, ones, ones, ones, 1)


def linear() -> Any:
    return Q.linear_prepack(weight(5, 6), normal(5))


def stats(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return normal(count, seed=1), normal(count, seed=2), normal(count, seed=3), normal(count, seed=4).abs() + 0.5


def sizes(axes: int) -> list[int]:
    return [3, 4, *[7, 6, 5][:axes]]


CASES: dict[str, Callable[[], Callable[[], Tensor]]] = {}


def case(name: str, function: Callable[..., Tensor], *made: Callable[[], Any]) -> None:
    """Note a case: ``made`` outside (packed weights), ``function`` of them run both ways."""

    def prepare() -> Callable[[], Tensor]:
        kept = [make() for make in made]
        return lambda: function(*kept)

    CASES[name] = prepare


for n in (1, 2, 3):
    for tail in ("", "_relu"):
        case(
            f"conv{n}d{tail}",
            lambda w, n=n, tail=tail: getattr(Q, f"conv{n}d{tail}")(quantized(*sizes(n)), w, 0.1, 90),
            lambda n=n: conv(n, channels=n != 1, groups=2 if n == 2 else 1),
        )
    case(
        f"conv_transpose{n}d",
        lambda w, n=n: getattr(Q, f"conv_transpose{n}d")(quantized(*sizes(n)), w, 0.1, 90),
        lambda n=n: transposed(n),
    )
for tail in ("", "_relu"):
    case(f"linear{tail}", lambda w, t=tail: getattr(Q, f"linear{t}")(quantized(4, 6), w, 0.05, 100), linear)
    for op in ("add", "mul"):
        case(
            f"{op}{tail}",
            lambda op=op, t=tail: getattr(Q, op + t)(
                quantized(3, 8), quantized(3, 8, seed=1, scale=0.03, zero=60), 0.05, 88
            ),
        )
    case(
        f"cat{tail}",
        lambda t=tail: getattr(Q, f"cat{t}")(
            [quantized(3, 8), quantized(3, 5, seed=1, scale=0.03, zero=60)], 1, 0.05, 88
        ),
    )
    for kind, axes in (("", 2), ("1d", 1), ("2d", 2), ("3d", 3)):
        case(
            f"batch_norm{kind}{tail}",
            lambda k=kind, t=tail, a=axes: getattr(Q, f"batch_norm{k}{t}")(
                quantized(*sizes(a)), *stats(4), 1e-5, 0.06, 100
            ),
        )
case("linear_leaky_relu", lambda w: Q.linear_leaky_relu(quantized(4, 6), w, 0.05, 100, 0.2), linear)
case("linear_tanh", lambda w: Q.linear_tanh(quantized(4, 6), w, 2 / 256, 128), linear)
case("matmul", lambda: Q.matmul(quantized(3, 4, 5), quantized(3, 5, 6, seed=1), 0.2, 110))
case("hardswish", lambda: Q.hardswish(quantized(3, 8), STEP, ORIGIN))
case("sigmoid", lambda: Q.sigmoid(quantized(3, 8), 1 / 256, 0))
case("leaky_relu", lambda: Q.leaky_relu(quantized(3, 8), 0.1, False, STEP, ORIGIN))
case("softmax", lambda: Q.softmax(quantized(3, 8), 1, 1 / 256, 0))
case("layer_norm", lambda: Q.layer_norm(quantized(3, 4, 8), [8], normal(8), normal(8, seed=1), 1e-5, 0.05, 110))
case("group_norm", lambda: Q.group_norm(quantized(3, 4, 6, 6), 2, normal(4), normal(4, seed=1), 1e-5, 0.05, 110))
case("instance_norm", lambda: Q.instance_norm(quantized(3, 4, 6, 6), normal(4), normal(4, seed=1), 1e-5, 0.05, 110))
case("relu6", lambda: Q.relu6(quantized(3, 8, scale=0.06), False))
case(
    "conv2d_add",
    lambda w: Q.conv2d_add(quantized(3, 4, 7, 6), quantized(3, 6, 4, 3, seed=3), w, 0.1, 90),
    lambda: conv(2),
)
case(
    "conv2d_add_relu",
    lambda w: Q.conv2d_add_relu(quantized(3, 4, 7, 6), quantized(3, 6, 4, 3, seed=3), w, 0.1, 90),
    lambda: conv(2),
)
_ONEDNN = {"linear_leaky_relu", "linear_tanh", "conv2d_add", "conv2d_add_relu"}


def compare(run: Callable[[], Tensor], *, exact: float = 0.97) -> None:
    """Hold our form in floats against torch's kernel: on the same grid, seldom a step apart, never more."""
    theirs = run()
    with QuantizerMode(Arithmetic()) as mode:
        ours = run()
        grid = mode.grid_of(ours)
    if not theirs.is_quantized:
        torch.testing.assert_close(ours, theirs)
        return
    assert grid is not None
    assert (float(grid.scale), int(grid.zero)) == pytest.approx((theirs.q_scale(), theirs.q_zero_point()))
    assert ours.shape == theirs.shape
    steps = ((ours - theirs.dequantize()) / theirs.q_scale()).round().abs()
    assert int(steps.max()) <= 1, steps
    assert float((steps == 0).double().mean()) >= exact, steps
    assert len(theirs.int_repr().unique()) > 4, "a case that tells nothing"


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Any:
    before = torch.backends.quantized.engine
    wanted = "onednn" if request.param in _ONEDNN else "fbgemm"
    if wanted not in torch.backends.quantized.supported_engines:
        pytest.skip(f"torch has no {wanted} here")
    torch.backends.quantized.engine = wanted
    yield
    torch.backends.quantized.engine = before


@pytest.mark.parametrize(("name", "engine"), [(name, name) for name in CASES], indirect=["engine"], ids=list(CASES))
def test_an_operator_is_what_torchs_kernel_computes(name: str, engine: None) -> None:
    compare(CASES[name]())


def test_no_operator_is_left_out() -> None:
    assert set(OPERATORS) == set(CASES)


PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.7, 0.9),
    "clamp": lambda x: torch.clamp(x, -0.7, 0.9),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardsigmoid": F.hardsigmoid,
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
    "mean": lambda x: x.mean([2, 3]),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False),
    "threshold": lambda x: F.threshold(x, 0.1, 0.0),
    "flatten": lambda x: torch.flatten(x, 1),
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "index": lambda x: x[:, 1:3],
    "cat": lambda x: torch.cat([x, x], 1),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_function_of_torch_ends_on_the_grid_that_torch_puts_it_on(name: str) -> None:
    compare(lambda: PLAIN[name](quantized(3, 4, 9, 9)))  # 9 values have no half


def test_the_tables_name_no_function_twice() -> None:
    assert not KEEPS & ROUNDS
    assert not (KEEPS | ROUNDS) & set(OWN)
