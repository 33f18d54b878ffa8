"""The speed promises, each as a ratio of times measured in the same rounds of one run.

    handwritten   a network with hand-written norms against the same network with stock ones, both exported   <= 1.02
    merged        multi-branch networks against their form merged by hand, both exported                      <= 1.02
    plain         ours against torch.onnx.export + onnxruntime, every recipe in export/                        <= 1
    tuned         the plan tuned within 1 % relative error against OpenVINO's default and eager torch    <= 1, <= 1/4

"holds": every repeat keeps the promise; "noise": some do, so this run cannot tell; "BROKEN": none does. Node counts of
the two graphs say what no noise can touch.

    python benchmarks/targets.py [plain handwritten merged tuned] [--seconds 20] [--threads 1] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import networks
import numpy as np
import onnx
import torch
from torch import nn

import normdeploy as nd
from normdeploy.build import load_trained, recipe_example
from normdeploy.recipe import load_recipe
from normdeploy.runtime import Settings, measure_latency, this_machine
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.latency import Latency
from normdeploy.runtime.peers import ModuleContestant, plain_export
from normdeploy.runtime.samples import make_samples
from normdeploy.runtime.settings import OPENVINO_RUNTIME
from normdeploy.train.from_recipe import recipe_data

Call = Callable[[], object]
EXPORT = Path(__file__).parent.parent / "export"


@dataclass(frozen=True)
class Row:
    """One comparison.

    Two sessions of one and the same file differ by several percent for as long as they live (where their buffers
    happen to lie), and no number of rounds shows that. So every comparison is repeated with fresh sessions, opened in
    turns; the result is the median of the repeats' ratios, the interval their range.
    """

    target: str
    what: str
    limit: float
    repeats: tuple[tuple[Latency, Latency], ...]
    nodes: tuple[int, int] | None = None

    @property
    def ratios(self) -> list[float]:
        return [ours.ratio(other).value for ours, other in self.repeats]

    @property
    def verdict(self) -> str:
        if max(self.ratios) <= self.limit:
            return "holds"
        return "noise" if min(self.ratios) <= self.limit else "BROKEN"

    def to_dict(self) -> dict[str, object]:
        return {
            "target": self.target,
            "what": self.what,
            "limit": self.limit,
            "ratio": {"value": float(np.median(self.ratios)), "low": min(self.ratios), "high": max(self.ratios)},
            "verdict": self.verdict,
            "nodes": self.nodes,
            "median_s": float(np.median([ours.median for ours, _ in self.repeats])),
            "baseline_s": float(np.median([other.median for _, other in self.repeats])),
            "rounds": [len(ours.samples) for ours, _ in self.repeats],
        }


def compare(makers: Mapping[str, Callable[[], Call]], seconds: float, repeats: int = 5) -> list[dict[str, Latency]]:
    """Time what the makers make, anew in each repeat and made in alternating order."""
    found = []
    for repeat in range(repeats):
        names = list(makers) if repeat % 2 == 0 else list(makers)[::-1]
        calls = {name: makers[name]() for name in names}
        found.append(measure_latency(calls, seconds=seconds / repeats, seed=repeat))
    return found


def pairs(found: list[dict[str, Latency]], ours: str, other: str) -> tuple[tuple[Latency, Latency], ...]:
    return tuple((repeat[ours], repeat[other]) for repeat in found)


def export(module: nn.Module, sample: torch.Tensor, path: Path) -> Path:
    nd.export(module, sample, path, verify=False)
    return path


def node_counts(ours: Path, other: Path) -> tuple[int, int]:
    return tuple(len(onnx.load(path, load_external_data=False).graph.node) for path in (ours, other))


def runner(path: Path, feeds: dict[str, np.ndarray], threads: int, provider: str = "CPUExecutionProvider") -> Call:
    backend = open_backend(path, Settings(provider=provider, threads=threads))
    named = dict(zip([spec.name for spec in backend.inputs], feeds.values(), strict=True))
    return lambda: backend.run(named)


def planned(path: Path, plan: nd.Plan, data: np.ndarray) -> Call:
    predictor = nd.load(path, plan=plan)
    predictor(data)
    return lambda: predictor(data)


def eager(module: nn.Module, feeds: dict[str, np.ndarray], threads: int) -> Call:
    torch.set_num_threads(threads)
    return ModuleContestant("eager", module, compiled=False).prepare(feeds, threads)


def handwritten(folder: Path, seconds: float, threads: int) -> Iterator[Row]:
    families = [
        (networks.ResidualNet, nn.BatchNorm2d, [networks.FrozenBatchNorm, networks.ViewBatchNorm], (8, 3, 64, 64)),
        (
            networks.MixerNet,
            nn.LayerNorm,
            [networks.BiasedLayerNorm, networks.UnbiasedLayerNorm, networks.StdLayerNorm],
            (8, 48, 192),
        ),
    ]
    for network, stock, others, shape in families:
        sample = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        calls, paths = {}, {}
        for norm in (stock, *others):
            torch.manual_seed(0)
            module = networks.settle(network(norm))
            path = export(module, sample, folder / f"{network.__name__}.{norm.__name__}.onnx")
            paths[norm] = path
            calls[norm.__name__] = partial(runner, path, {"x": sample.numpy()}, threads)
        found = compare(calls, seconds)
        for norm in others:
            what = f"{network.__name__} with {norm.__name__} / with {stock.__name__}"
            nodes = node_counts(paths[norm], paths[stock])
            yield Row("handwritten", what, 1.02, pairs(found, norm.__name__, stock.__name__), nodes)


def merged(folder: Path, seconds: float, threads: int) -> Iterator[Row]:
    sample = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for label, copies in (("RepVGG", 1), ("MobileOne", 3)):
        torch.manual_seed(0)
        network = networks.settle(networks.BranchNet(copies))
        by_hand = network.merged().eval()
        difference = (network(sample) - by_hand(sample)).abs().max() / by_hand(sample).abs().max()
        if difference > 1e-4:
            raise AssertionError(f"the hand-merged {label} computes something else: {difference:.1e}")
        ours = export(network, sample, folder / f"{label}.onnx")
        hand = export(by_hand, sample, folder / f"{label}.hand.onnx")
        feeds = {"x": sample.numpy()}
        makers = {"ours": partial(runner, ours, feeds, threads), "hand": partial(runner, hand, feeds, threads)}
        found = compare(makers, seconds)
        what = f"{label}-type, unmerged / merged by hand"
        yield Row("merged", what, 1.02, pairs(found, "ours", "hand"), node_counts(ours, hand))


def plain(folder: Path, seconds: float, threads: int) -> Iterator[Row]:
    for file in sorted(EXPORT.glob("*.toml")):
        recipe = load_recipe(file)
        module = load_trained(recipe)
        example = recipe_example(recipe, module)
        ours = folder / f"{recipe.name}.onnx"
        nd.export(
            module,
            example.args,
            ours,
            kwargs=example.kwargs,
            input_names=example.input_names,
            dynamic_shapes=example.dynamic_shapes,
            verify=False,
        )
        specs = open_backend(ours, Settings()).inputs
        sizes = {str(size): 32 for spec in specs for size in spec.shape[1:] if isinstance(size, str)}
        other = folder / recipe.name
        other.mkdir()
        reference = plain_export(module, make_samples(specs, 2, sizes=sizes), specs, other)
        for batch in (1, 32):
            feeds = make_samples(specs, batch, sizes=sizes)
            makers = {
                "ours": partial(runner, ours, feeds, threads),
                "plain": partial(runner, reference, feeds, threads),
            }
            found = compare(makers, seconds / 2)
            nodes = node_counts(ours, reference)
            yield Row("plain", f"{recipe.name}, batch {batch}", 1.0, pairs(found, "ours", "plain"), nodes)


def tuned(folder: Path, seconds: float, threads: int) -> Iterator[Row]:
    torch.manual_seed(0)
    residual = networks.settle(networks.ResidualNet())
    rows = np.random.default_rng(0).standard_normal((400, 3, 64, 64)).astype(np.float32)
    subjects: list[tuple[str, nn.Module, np.ndarray]] = [("ResidualNet", residual, rows)]
    for name in ("digits_cnn", "resnet", "repvgg", "mobilenet"):
        recipe = load_recipe(EXPORT / f"{name}.toml")
        subjects.append((name, load_trained(recipe), recipe_data(recipe).train.inputs[:600].numpy()))
    for name, module, data in subjects:
        path = export(module, torch.from_numpy(data[:2]), folder / f"tuned.{name}.onnx")
        plan = nd.tune(path, data=data, budget="rel=1%")
        feeds = {"x": data[:8]}
        calls: dict[str, Callable[[], Call]] = {
            "tuned": partial(planned, path, plan, data[:8]),
            "eager": partial(eager, module, feeds, threads),
        }
        specs = open_backend(path, Settings()).inputs
        try:
            folder_of = folder / f"{name}.plain"
            folder_of.mkdir()
            reference = plain_export(module, {specs[0].name: data[:2]}, specs, folder_of)
            calls["OpenVINO"] = partial(runner, reference, feeds, 0, OPENVINO_RUNTIME)
            calls["OpenVINO"]()
        except nd.NormdeployError as error:
            calls.pop("OpenVINO", None)
            print(f"OpenVINO left out: {error}")
        found = compare(calls, seconds)
        what = f"{name}, {plan.chosen.name}"
        if "OpenVINO" in calls:
            yield Row("tuned", f"{what} / OpenVINO's default", 1.0, pairs(found, "tuned", "OpenVINO"))
        yield Row("tuned", f"{what} / eager torch", 0.25, pairs(found, "tuned", "eager"))


TARGETS = {"handwritten": handwritten, "merged": merged, "plain": plain, "tuned": tuned}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], default=[], help="which; all by default")
    parser.add_argument("--seconds", type=float, default=20.0, help="time per comparison")
    parser.add_argument("--threads", type=int, default=1, help="threads inside one operator, ours and theirs")
    parser.add_argument("--out", type=Path, help="also write JSON")
    options = parser.parse_args()
    report = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.targets or TARGETS:
            for row in TARGETS[name](Path(folder), options.seconds, options.threads):
                fields = row.to_dict()
                report.append(fields)
                nodes = "" if row.nodes is None else f"nodes {row.nodes[0]} / {row.nodes[1]}"
                middle = float(np.median(row.ratios))
                interval = f"[{min(row.ratios):.3f}, {max(row.ratios):.3f}]"
                print(
                    f"{name:<12} {row.what:<68} {middle:6.3f} {interval:<16} <= {row.limit:<5}"
                    f" {row.verdict:<7} {nodes}",
                    flush=True,
                )
    if options.out is not None:
        fields = {"machine": this_machine().to_dict(), "threads": options.threads, "rows": report}
        options.out.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
