"""What is claimed of normalization, tried on made-up data: "The claims, tried" in docs/batch-or-layer.md.

    python docs/norm_claims.py      computes all of them, keeps docs/norms/claims.json and fills in the table

Seconds on one core; every number is drawn from a seed and comes out the same again on the same machine. On another
processor, which sums in another order, trainings at the edge of stability (`EDGE`) end elsewhere: a last digit decides.
"""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

DOCS = Path(__file__).parent
BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
SEEDS = (0, 1, 2)

EDGE = {
    "rates": {("none", "1.0"), ("none", "10.0"), ("batch", "10.0"), ("layer", "1.0"), ("layer", "10.0")},
    "initializations": {("layer", "0.1"), ("layer", "0.3")},
}
"""Losses that first weights changed by a millionth change by more than a tenth, and up to twofold."""


def _normalized(x: Tensor, dim: int) -> Tensor:
    return (x - x.mean(dim, keepdim=True)) / torch.sqrt(x.var(dim, correction=0, keepdim=True) + 1e-5)


def _data(seed: int, count: int = 256) -> tuple[Tensor, Tensor]:
    """Points of 8 numbers in 3 classes that no straight line parts: the thirds of x0 x1 + x2."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    order = (x[:, 0] * x[:, 1] + x[:, 2]).argsort().argsort()
    return x, order * 3 // count


class Net(nn.Module):
    """Four hidden layers of 32: linear, normalization, ReLU or sigmoid; three classes.

    In front of a normalization a linear layer has no bias: the normalization has one.

    Args:
        norm: "none", "batch" or "layer". scale: of the initial weights, 1 is torch's own. sigmoid: in place of ReLU.
    """

    def __init__(self, norm: str, *, scale: float = 1.0, sigmoid: bool = False) -> None:
        super().__init__()
        norms: dict[str, Callable[[], nn.Module]] = {
            "none": nn.Identity,
            "batch": lambda: nn.BatchNorm1d(32),
            "layer": lambda: nn.LayerNorm(32),
        }
        self.linear = nn.ModuleList([nn.Linear(8 if n == 0 else 32, 32, bias=norm == "none") for n in range(4)])
        self.norms = nn.ModuleList([norms[norm]() for _ in range(4)])
        self.head, self.sigmoid = nn.Linear(32, 3), sigmoid
        with torch.no_grad():
            for layer in self.linear:
                layer.weight *= scale

    def inputs_of_activations(self, x: Tensor) -> list[Tensor]:
        """Return what each activation is given."""
        seen = []
        for linear, norm in zip(self.linear, self.norms, strict=True):
            seen.append(norm(linear(x)))
            x = seen[-1].sigmoid() if self.sigmoid else seen[-1].relu()
        return seen

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        last = self.inputs_of_activations(x)[-1]
        return self.head(last.sigmoid() if self.sigmoid else last.relu())


def _train(net: Net, seed: int, *, lr: float, steps: int = 60) -> float:
    """Train with plain gradient descent; return the last loss, infinite where it diverged."""
    x, y = _data(seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    loss = torch.tensor(math.inf)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    value = float(loss.detach())
    return value if math.isfinite(value) else math.inf


def shift() -> dict[str, Any]:
    """How far the mean of what the last activation is given moves in 60 steps, in its deviations at the start."""
    found = {}
    for norm in ("none", "batch", "layer"):
        moved = []
        for seed in SEEDS:
            torch.manual_seed(seed)
            net = Net(norm)
            x, _ = _data(seed)
            before = net.inputs_of_activations(x)[-1].detach()
            _train(net, seed, lr=0.3)
            after = net.inputs_of_activations(x)[-1].detach()
            unit = before.std(0).clamp(min=1e-3)
            moved.append(float(((after.mean(0) - before.mean(0)) / unit).abs().mean()))
        found[norm] = statistics.mean(moved)
    return found


def detached() -> dict[str, Any]:
    """A bias in front of a mean that is subtracted: steps of one output towards 1, the mean in the gradient or not."""
    found = {}
    for name in ("in the gradient", "detached"):
        x = torch.linspace(-1, 1, 16)
        bias = torch.zeros((), requires_grad=True)
        for _ in range(200):
            shifted = x + bias
            mean = shifted.mean()
            output = shifted - (mean.detach() if name == "detached" else mean)
            (gradient,) = torch.autograd.grad((output - 1).square().mean(), bias)
            bias = (bias - 0.1 * gradient).detach().requires_grad_()
        end = (x + bias).detach()
        found[name] = {"bias after 200 steps": float(bias.detach()), "output": float((end - end.mean()).mean())}
    return found


def scaling() -> dict[str, Any]:
    """Weights times a: the normalized output and the gradient, both over those at a = 1, in float64."""
    torch.manual_seed(0)
    x, target = torch.randn(64, 8, dtype=torch.float64), torch.randn(64, 8, dtype=torch.float64)
    weight = torch.randn(8, 8, dtype=torch.float64)

    def both(a: float) -> tuple[Tensor, Tensor]:
        scaled = (a * weight).requires_grad_()
        product = x @ scaled
        # without an epsilon, which is what the claim is about
        output = (product - product.mean(0)) / product.std(0, correction=0)
        (gradient,) = torch.autograd.grad((output - target).square().mean(), scaled)
        return output.detach(), gradient

    output, gradient = both(1.0)
    return {
        str(a): {
            "output moves by": float((both(a)[0] - output).abs().max()),
            "gradient, relative": float(both(a)[1].norm() / gradient.norm()),
        }
        for a in (0.1, 10.0, 1000.0)
    }


def rates() -> dict[str, Any]:
    """Loss after 60 steps for learning rates, mean over seeds; 1.0986 is guessing; ~: a last digit decides."""
    return {
        norm: {str(lr): _mean_loss(norm, lr=lr) for lr in (0.01, 0.1, 1.0, 10.0)} for norm in ("none", "batch", "layer")
    }


def initializations() -> dict[str, Any]:
    """Loss after 60 steps at a learning rate of 0.1, for first weights times a number, mean over seeds; ~ as above."""
    return {
        norm: {str(scale): _mean_loss(norm, lr=0.1, scale=scale) for scale in (0.1, 0.3, 1.0, 3.0, 10.0)}
        for norm in ("none", "batch", "layer")
    }


def _mean_loss(norm: str, *, lr: float, scale: float = 1.0) -> float | str:
    losses = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        losses.append(_train(Net(norm, scale=scale), seed, lr=lr))
    mean = statistics.mean(losses)
    return mean if math.isfinite(mean) else "diverges"


def recurrent() -> dict[str, Any]:
    """Gradient of the last state by the first input, over that by the last input, 50 steps of a tanh network."""
    found: dict[str, Any] = {}
    for name, size in (("small weights", 0.5), ("large weights", 3.0)):
        for normalized in (False, True):
            ratios = []
            for seed in SEEDS:
                generator = torch.Generator().manual_seed(seed)
                wide = torch.float64  # the gradients may be as small as 1e-30
                weight = torch.randn(32, 32, generator=generator, dtype=wide) * size / math.sqrt(32)
                steps = [torch.randn(16, 32, generator=generator, dtype=wide).requires_grad_() for _ in range(50)]
                state = torch.zeros(16, 32, dtype=wide)
                for step in steps:
                    total = state @ weight + step
                    state = torch.tanh(_normalized(total, 1) if normalized else total)
                first, last = torch.autograd.grad(state.square().sum(), [steps[0], steps[-1]])
                ratios.append(float(first.norm() / last.norm()))
            found[f"{name}, {'LayerNorm' if normalized else 'none'}"] = statistics.median(ratios)
    return found


def whitening() -> dict[str, Any]:
    """Steps of gradient descent to a linear fit (loss 1e-3 above the best) on correlated inputs of unlike sizes."""
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(512, 4, generator=generator, dtype=torch.float64) @ torch.tensor(
        [[1.0, 0.9, 0.0, 0.0], [0.0, 0.45, 0.0, 0.0], [0.0, 0.0, 30.0, 0.0], [0.0, 0.0, 0.0, 0.1]], dtype=torch.float64
    )
    target = _normalized(mixed, 0) @ torch.tensor([1.0, -2.0, 0.5, 1.5], dtype=torch.float64)
    covariance = mixed.T.cov()
    values, vectors = torch.linalg.eigh(covariance)
    ways = {
        "as it comes": mixed - mixed.mean(0),
        "normalized": _normalized(mixed, 0),
        "whitened": (mixed - mixed.mean(0)) @ vectors / values.sqrt(),
    }
    return {name: _steps_to_fit(x, target, short_of_best=1e-3) for name, x in ways.items()}


def _steps_to_fit(x: Tensor, target: Tensor, *, short_of_best: float) -> int:
    """Return the steps of gradient descent from 0 until the mean squared error is so near its least value.

    With X'X / n = V diag(l) V' and e = V' w for the best weights w, step k of rate 1 / max(l) is
    sum l e^2 (1 - l / max(l))^2k above the least value, which falls with k: the first k below the limit, by halving.
    """
    values, vectors = torch.linalg.eigh(x.T @ x / len(x))
    missing = (vectors.T @ (x.T @ target / len(x))).square() / values

    def enough(steps: int) -> bool:
        return float((missing * (1 - values / values[-1]) ** (2 * steps)).sum()) <= short_of_best

    most = 1
    while not enough(most):
        most *= 2
    return bisect_left(range(most), True, key=enough)


def sigmoids() -> dict[str, Any]:
    """Share of what sigmoids are given that lies within ±2, where they are nearly straight; weights times 10."""
    found = {}
    for norm in ("none", "batch", "layer"):
        shares = []
        for seed in SEEDS:
            torch.manual_seed(seed)
            seen = Net(norm, scale=10.0, sigmoid=True).inputs_of_activations(_data(seed)[0])
            shares.append(float(torch.cat([one.flatten() for one in seen]).abs().le(2).float().mean()))
        found[norm] = statistics.mean(shares)
    return found


CLAIMS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "shift": ("What a layer is given moves while those in front of it learn, and less with normalization.", shift),
    "detached": (
        "Statistics left out of the gradient let a bias in front of them grow without end, and the output stays.",
        detached,
    ),
    "scaling": ("Weights times a leave a normalized output as it is, and divide the gradient by a.", scaling),
    "rates": ("Larger learning rates work with normalization.", rates),
    "initializations": ("The size of the first weights matters less with normalization.", initializations),
    "recurrent": (
        "LayerNorm keeps gradients through time from exploding; those that vanish vanish all the same.",
        recurrent,
    ),
    "whitening": ("Whitening needs the fewest steps, and normalizing has most of what it gains.", whitening),
    "sigmoids": ("Normalization keeps sigmoids where they are nearly straight.", sigmoids),
}


def compute() -> dict[str, Any]:
    """Compute everything."""
    torch.set_num_threads(1)
    return {name: experiment() for name, (_, experiment) in CLAIMS.items()}


def table(found: dict[str, Any]) -> str:
    """Return the claims, what was measured and the numbers, as Markdown."""
    parts = []
    for name, (claim, experiment) in CLAIMS.items():
        rows = {key: value if isinstance(value, dict) else {"": value} for key, value in found[name].items()}
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        lines = [f"| | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
        for key, row in rows.items():
            numbers = [_number(row[column], (key, column) in EDGE.get(name, ())) for column in columns]
            lines.append(f"| {key} | {' | '.join(numbers)} |")
        parts.append(f"**{claim}** {experiment.__doc__}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _number(value: float | str, edge: bool) -> str:
    if not isinstance(value, float):
        return f"{value}"
    return f"~{value:.1g}" if edge else f"{value:.3g}"


def main() -> None:
    """Compute, keep and show."""
    found = compute()
    (DOCS / "norms" / "claims.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    page = DOCS / "batch-or-layer.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
