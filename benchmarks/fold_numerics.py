"""What folding does to rounding: how far the folded float32 graph is from the float64 truth, over how far eager is.

Each network is run many times on inputs of its own: the reference models of this repository on their held-out data (or
with --inputs normal on N(0, 1)), with --zoo published architectures, configured small, on N(0, 1), with several draws
of weights, scales and statistics. A ratio is that of root mean squares over all runs and outputs. Runs are paired, and
the 95 % interval is a bootstrap over them, and over the draws of weights where there are several. "Above eager" is said
where the interval lies above 1.

Columns: eager's RMS error; folded/eager; weights/eager: the error that the rounding of the folded weights makes alone,
all else being in float64; folded/traced, the graph as traced being evaluated operator by operator like the folded one;
and that ratio again with onnxruntime in place of torch's kernels.

--where says where the error comes from: the rounding of the weights, and of each operator, made in float32 while all
else is in float64, as shares of the squared error of the graph as traced.

--offsets takes a BatchNorm on raw columns and a linear layer in place of the reference models: what folding a norm
forward would cost, by the means of the columns in standard deviations. --force folds forward whatever its inputs are,
as --offsets does; the fold engine itself leaves norms of values far from zero in place.

--streams takes pre-activation networks (ResNetV2's blocks) of which the residual stream has to carry shifts t / s of
several sizes: once in all channels alike, once in one of 16 that training has almost switched off. All are folded, by
lifting the bound that the fold engine has on them.

--cancel rounds in another way, to compare: each folded weight to one of its two neighbours, so that the errors of a
filter add up to nothing and what its inputs have in common meets no error.

    python benchmarks/fold_numerics.py [--inputs data] [--zoo] [--only lenet tabular] [--runs 300] [--draws 1] [--where]
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normdeploy.building.recipe_model import load_trained, recipe_example
from normdeploy.exporting.module.mode import evaluation_mode
from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator, ExactTensor, evaluate_node
from normdeploy.parsing.recipe import load_recipe
from normdeploy.rewrite import rewrite
from normdeploy.rewrite.affine import far_from_zero
from normdeploy.rewrite.gauge import shift_limits
from normdeploy.train.from_recipe import recipe_data
from normdeploy.verification.sides.sessions import Setting, open_session, run_session

ROOT = Path(__file__).resolve().parent.parent
RESAMPLES = 2000
SHOWN, MOST = 0.015, 0.09
"""Shares of the squared error from which on --where names a kind of operator, and an operator."""

Array = np.ndarray[Any, np.dtype[Any]]
Feeds = dict[str, Array]
Squares = dict[str, list[Array]]
"""Per contender, per draw of the weights, per run: the sum of the squared errors of the outputs."""


@dataclass(frozen=True)
class Network:
    """A network to measure.

    Args:
        name: shown. make: a draw of its weights -> the module. args, kwargs: example inputs.
        held_out: data of its own for its only input; None for drawn inputs.
    """

    name: str
    make: Callable[[int], nn.Module]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    held_out: Array | None = None

    def feeds(self, examples: Feeds, runs: int, seed: int) -> Iterator[Feeds]:
        """Return the inputs of each run: as many as asked for, or as there are data for."""
        rng = np.random.default_rng(seed)
        if self.held_out is None:
            for _ in range(runs):
                yield {name: _drawn(array, rng) for name, array in examples.items()}
            return
        ((name, example),) = examples.items()
        count = len(example)
        cut = tuple(slice(size) for size in example.shape[1:])  # a text is cut to the example's length
        for start in range(0, min(len(self.held_out) // count, runs) * count, count):
            yield {name: self.held_out[start : start + count][:, *cut].astype(example.dtype)}


def _drawn(array: Array, rng: np.random.Generator) -> Array:
    """Return another input of the same kind: N(0, 1), or numbers from the same range."""
    if array.dtype.kind == "f":
        return rng.standard_normal(array.shape).astype(array.dtype)
    return rng.integers(array.min(), array.max() + 1, array.shape).astype(array.dtype)


def _moved(model: nn.Module, draw: int) -> nn.Module:
    """Return a copy whose weights are up to a thousandth larger: they round in another way, all else is as good."""
    copied, generator = copy.deepcopy(model), torch.Generator().manual_seed(draw)
    with torch.no_grad():
        for weight in copied.parameters():
            weight.mul_(1 + 1e-3 * torch.rand(weight.shape, generator=generator))
    return copied


def reference_models(inputs: str) -> Iterator[Network]:
    for path in sorted((ROOT / "export").glob("*.toml")):
        recipe = load_recipe(path)
        model = load_trained(recipe)
        example = recipe_example(recipe, model)
        held_out = recipe_data(recipe).test.inputs.numpy() if inputs == "data" else None

        def make(draw: int, trained: nn.Module = model) -> nn.Module:
            return _moved(trained, draw) if draw else trained

        yield Network(path.stem, make, tuple(example.args), dict(example.kwargs or {}), held_out)


def zoo() -> Iterator[Network]:
    sys.path.insert(0, str(ROOT / "tests"))  # the networks are those of the tests
    from zoo_networks import ZOO, shake

    for name, (build, inputs) in ZOO.items():

        def make(draw: int, build: Callable[[], nn.Module] = build) -> nn.Module:
            torch.manual_seed(draw)
            return shake(build())

        yield Network(name, make, (), inputs)


def offsets() -> Iterator[Network]:
    """Return a BatchNorm on raw columns in front of a linear layer, by how many deviations the columns' means are."""
    for offset in (0, 1, 3, 10, 30, 100, 1000, 10_000):

        def make(draw: int, offset: int = offset) -> nn.Module:
            torch.manual_seed(draw)
            norm, linear = nn.BatchNorm1d(30, affine=False), nn.Linear(30, 64)
            nn.init.constant_(norm.running_mean, offset)
            return nn.Sequential(norm, linear).eval()

        columns = np.random.default_rng(offset).standard_normal((600, 30)) + offset
        yield Network(f"offset {offset}", make, (torch.from_numpy(columns[:2]).float(),), {}, columns)


class PreActivationBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.norm2(self.conv1(self.norm1(x).relu())).relu())


def streams() -> Iterator[Network]:
    """Return pre-activation networks by the size of what their stream carries, in units of its values."""
    for few in (False, True):
        for size in (0, 0.5, 1, 2, 3, 5, 10, 30, 100):

            def make(draw: int, size: float = size, few: bool = few) -> nn.Module:
                return _preactivation(size, few=few, seed=draw)

            name = f"{'one in 16' if few else 'all'} carry {size}"
            yield Network(name, make, (torch.zeros(1, 3, 16, 16),), {}, None)


def _preactivation(size: float, *, few: bool, seed: int, channels: int = 32, blocks: int = 4) -> nn.Module:
    """Return a network with population statistics in which RMS(t / s) is ``size`` times the median of 1 / s."""
    torch.manual_seed(seed)
    body = [PreActivationBlock(channels) for _ in range(blocks)]
    head = (nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 8, 1))
    model = nn.Sequential(nn.Conv2d(3, channels, 3), *body, *head)
    with torch.no_grad():
        for norm in [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]:
            norm.momentum = None
            nn.init.uniform_(norm.weight, 0.8, 1.25)
            if few:
                chosen = torch.randperm(channels)[: channels // 16]
                norm.bias.copy_(0.1 * torch.randn(channels))
                norm.bias[chosen] = 0.3
                norm.weight[chosen] = 0.3 / max(4 * size, 0.3)  # 4: the root of 16
            else:
                norm.bias.copy_(size * torch.randn(channels).sign())
        model.train()(torch.randn(64, 3, 16, 16))
    return model.eval()


def cancelling(rows: Array) -> Array:
    """Round each float64 number to a float32 neighbour so that the errors of a row add up to nearly nothing.

    Of the numbers whose nearest neighbour adds to the row's sum of errors, those that cost the least square error per
    error taken away are rounded the other way, as many as bring the sum nearest to 0.
    """
    near = rows.astype(np.float32)
    away = np.where(rows > near, np.inf, -np.inf).astype(np.float32)
    other = np.where(rows == near, near, np.nextafter(near, away)).astype(np.float64)
    error, step = near - rows, other - near
    total = error.sum(1, keepdims=True)
    helps = error * total > 0
    cost = np.where(helps, ((other - rows) ** 2 - error**2) / np.where(step == 0, 1, np.abs(step)), np.inf)
    order = np.argsort(cost, axis=1, kind="stable")
    sums = total + np.cumsum(np.take_along_axis(np.where(helps, step, 0.0), order, 1), axis=1)
    best = np.argmin(np.abs(np.hstack([total, sums])), axis=1)[:, None]  # how many are turned
    turned = np.zeros(rows.shape, bool)
    np.put_along_axis(turned, order, np.arange(rows.shape[1]) < best, 1)
    return np.where(turned & helps, other, near)


def _by_filter(value: ir.Value, exact: Array) -> Array:
    """Return a weight rounded filter by filter; as it is where it is no operator's filters or matrix."""
    uses = list(value.uses())
    node = uses[0].node if len(uses) == 1 and uses[0].idx == 1 else None
    if node is None or exact.ndim < 2:
        return exact
    if node.op_type == "Conv" or (node.op_type == "Gemm" and node.attributes.get_int("transB", 0)):
        return cancelling(exact.reshape(len(exact), -1)).reshape(exact.shape)
    return cancelling(exact.T).T if node.op_type in ("Gemm", "MatMul") and exact.ndim == 2 else exact


def rounded(folded: ir.Model, *, cancel: bool) -> ir.Model:
    """Return a copy whose weights are the numbers that a file would hold."""
    copied = folded.clone()
    for value in copied.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ExactTensor):
            narrow = cancel and tensor.dtype == ir.DataType.FLOAT
            array = _by_filter(value, tensor.numpy64()).astype(np.float32) if narrow else tensor.numpy()
            value.const_value = ir.tensor(array, dtype=tensor.dtype, name=value.name)
    return copied


def _distance(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> float:
    """Return the sum of squared errors over all outputs that are numbers."""
    return sum(
        float((found[name].double() - truth).square().sum())
        for name, truth in exact.items()
        if truth.is_floating_point()
    )


def squares(network: Network, draw: int, runs: int, *, cancel: bool) -> dict[str, Array]:
    """Return, per contender, the squared error of each run; "numbers" says how many were added up."""
    model = network.make(draw)
    traced = trace(model, network.args, kwargs=dict(network.kwargs))
    folded = rounded(rewrite(traced.model).model, cancel=cancel)
    truth, names = Evaluator(traced.model), traced.output_names
    graphs = {
        "traced": Evaluator(traced.model, dtype=torch.float32),
        "folded": Evaluator(folded, dtype=torch.float32),
        "weights": Evaluator(folded),
    }
    sessions = {
        key: open_session(ir.to_proto(graph).SerializeToString(), Setting())
        for key, graph in (("traced in onnxruntime", traced.model), ("folded in onnxruntime", folded))
    }
    found: dict[str, list[float]] = defaultdict(list)
    for feeds in network.feeds(traced.feeds, runs, draw):
        exact = truth.run(feeds)
        given = [torch.from_numpy(feeds[name]) for name in traced.input_names]
        first, rest = given[: len(network.args)], given[len(network.args) :]
        with torch.no_grad(), evaluation_mode(model):
            eager = model(*first, **dict(zip(network.kwargs, rest, strict=True)))
        leaves = [leaf for leaf in pytree.tree_leaves(eager) if isinstance(leaf, torch.Tensor)]
        found["eager"].append(_distance(dict(zip(names, leaves, strict=True)), exact))
        for key, graph in graphs.items():
            found[key].append(_distance(graph.run(feeds), exact))
        for key, session in sessions.items():
            results = map(torch.from_numpy, run_session(session, feeds, names))
            found[key].append(_distance(dict(zip(names, results, strict=True)), exact))
        found["numbers"].append(sum(value.numel() for value in exact.values() if value.is_floating_point()))
    return {key: np.array(values) for key, values in found.items()}


def ratio(over: Sequence[Array], under: Sequence[Array]) -> tuple[float, float, float]:
    """Return the ratio of root mean squares, geometric mean over draws, and its 95 % bootstrap interval.

    Args:
        over, under: per draw of the weights, the squared errors of the same runs.
    """
    rng = np.random.default_rng(0)
    if not any(a.any() for a in over):
        return 0.0, 0.0, 0.0  # nothing is folded
    logs = np.array([0.5 * math.log(a.sum() / b.sum()) for a, b in zip(over, under, strict=True)])
    again = np.empty((len(over), RESAMPLES))
    for draw, (a, b) in enumerate(zip(over, under, strict=True)):
        chosen = rng.integers(0, len(a), (RESAMPLES, len(a)))
        again[draw] = 0.5 * np.log(a[chosen].sum(1) / b[chosen].sum(1))
    draws = rng.integers(0, len(over), (len(over), RESAMPLES))
    means = np.take_along_axis(again, draws, 0).mean(0)
    low, high = np.quantile(means, [0.025, 0.975])
    return math.exp(logs.mean()), math.exp(low), math.exp(high)


def _cell(found: Squares, over: str, under: str) -> str:
    middle, low, high = ratio(found[over], found[under])
    places = 2 if middle < 10 else 0
    return f"{middle:.{places}f} [{low:.{places}f}, {high:.{places}f}]"


def measure(networks: Iterator[Network], *, runs: int, draws: int, cancel: bool) -> None:
    print(
        f"{'model':21}{'runs':>6}{'eager RMS':>11}{'folded/eager':>22}{'weights/eager':>15}{'folded/traced':>22}"
        f"{'in onnxruntime':>22}"
    )
    for network in networks:
        rows = [squares(network, draw, runs, cancel=cancel) for draw in range(draws)]
        found = {key: [row[key] for row in rows] for key in rows[0]}
        size = math.sqrt(sum(row["eager"].sum() for row in rows) / sum(row["numbers"].sum() for row in rows))
        above = ratio(found["folded"], found["eager"])[1] > 1
        print(
            f"{network.name:21}{sum(map(len, found['eager'])):6}{size:11.3g}{_cell(found, 'folded', 'eager'):>22}"
            f"{ratio(found['weights'], found['eager'])[0]:15.2f}{_cell(found, 'folded', 'traced'):>22}"
            f"{_cell(found, 'folded in onnxruntime', 'traced in onnxruntime'):>22}{'  above eager' if above else ''}",
            flush=True,
        )


def _only_here(node: ir.Node, imports: Mapping[str, int]) -> Callable[[Sequence[Tensor | None]], list[Tensor]]:
    """Return what computes a node's results with its own float32 rounding, and with no other."""

    def as_dtype(values: Sequence[Tensor | None], dtype: torch.dtype) -> list[Tensor | None]:
        return [v.to(dtype) if v is not None and v.is_floating_point() else v for v in values]

    def compute(inputs: Sequence[Tensor | None]) -> list[Tensor]:
        def run(values: Sequence[Tensor | None], dtype: torch.dtype) -> list[Tensor]:
            return evaluate_node(node, as_dtype(values, dtype), dtype=dtype, opset_imports=imports)

        narrow = as_dtype(inputs, torch.float32)  # what the kernel is given; its own rounding is what differs from here
        both = zip(run(narrow, torch.float32), run(narrow, torch.float64), strict=True)
        errors = [a.double() - b if a.is_floating_point() else None for a, b in both]
        results = zip(run(inputs, torch.float64), errors, strict=True)
        return [exact if error is None else exact + error for exact, error in results]

    return compute


def parts(model: ir.Model, feeds: Sequence[Feeds], truths: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Return the squared errors that the weights, and each operator alone, make in the outputs, and all in float32."""
    whole, imports = Evaluator(model), dict(model.graph.opset_imports)
    base = [whole.run(given) for given in feeds]
    found = {"weights": sum(map(_distance, base, truths))}
    for node in model.graph:
        stand_ins = {node: _only_here(node, imports)}
        found[f"{node.op_type} {node.name}"] = sum(
            _distance(whole.run(given, stand_ins=stand_ins), exact) for given, exact in zip(feeds, base, strict=True)
        )
    narrow = Evaluator(model, dtype=torch.float32)
    found["all"] = sum(_distance(narrow.run(given), exact) for given, exact in zip(feeds, truths, strict=True))
    return found


def locate(networks: Iterator[Network], *, runs: int, cancel: bool) -> None:
    for network in networks:
        model = network.make(0)
        traced = trace(model, network.args, kwargs=dict(network.kwargs))
        folded = rounded(rewrite(traced.model).model, cancel=cancel)
        feeds = list(network.feeds(traced.feeds, runs, 0))
        truth = Evaluator(traced.model)
        truths = [truth.run(given) for given in feeds]
        found = {"traced": parts(traced.model, feeds, truths), "folded": parts(folded, feeds, truths)}
        unit = found["traced"]["all"]
        print(f"\n{network.name}: shares of the squared error of the graph as traced")
        for key, values in found.items():
            kinds: dict[str, float] = defaultdict(float)
            for name, value in values.items():
                kinds[name.split()[0]] += value / unit
            whole = kinds.pop("all")
            print(f"  {key} {whole:.2f}: {_shown(kinds, SHOWN)}", flush=True)
            print(f"    most: {_shown({name: value / unit for name, value in values.items() if ' ' in name}, MOST)}")


def _shown(shares: Mapping[str, float], least: float) -> str:
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.2f}" for name, share in ordered if share >= least)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", choices=("data", "normal"), default="data", help="of the reference models")
    parser.add_argument("--zoo", action="store_true", help="published architectures (extra: zoo)")
    parser.add_argument("--force", action="store_true", help="fold norms of values far from zero forward, too")
    parser.add_argument("--offsets", action="store_true", help="a norm folded forward, by the means of its inputs")
    parser.add_argument("--streams", action="store_true", help="shifts in a stream, by their size")
    parser.add_argument("--only", nargs="*", default=[], help="names of the models; all by default")
    parser.add_argument("--runs", type=int, default=300, help="inputs per network, where there are so many")
    parser.add_argument("--draws", type=int, default=1, help="draws of the weights (reference models: moved by 1e-3)")
    parser.add_argument("--where", action="store_true", help="say where the error comes from")
    parser.add_argument("--cancel", action="store_true", help="round so that a filter's errors add up to nothing")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if chosen.force or chosen.offsets:
        far_from_zero.LARGEST = math.inf
    if chosen.force or chosen.streams:
        shift_limits.LARGEST = math.inf
    networks = (
        streams()
        if chosen.streams
        else offsets()
        if chosen.offsets
        else zoo()
        if chosen.zoo
        else reference_models(chosen.inputs)
    )
    picked = (network for network in networks if not chosen.only or network.name in chosen.only)
    if chosen.where:
        locate(picked, runs=chosen.runs, cancel=chosen.cancel)
    else:
        measure(picked, runs=chosen.runs, draws=chosen.draws, cancel=chosen.cancel)


if __name__ == "__main__":
    main()
