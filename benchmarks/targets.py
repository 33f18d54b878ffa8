"""The speed promises, each as a ratio of times measured in the same rounds of one run.

    handwritten   a network with hand-written norms against the same network with stock ones, both exported   <= 1.02
    merged        multi-branch networks against their form merged by hand, both exported                      <= 1.02
    plain         ours against torch.onnx.export + onnxruntime: every recipe in export/, batch 1 and 32, and with
                  transformers installed the networks of the zoo                                               <= 1
    tuned         the plan tuned within 1 % relative error against OpenVINO's default (all cores), and against eager
                  torch, and what torch.compile makes of it (frozen), with one thread or with all cores, whichever
                  is faster                                                                         <= 1, <= 1/4, <= 1

"same": after onnxruntime's optimizations the two files are one graph (benchmarks/graphs.py), so that a ratio other than
1 is the noise of this run; "holds": all repeats keep the promise; "noise": some do, so this run cannot tell; "BROKEN":
none does. The lines appear as they are measured, at the end a table in Markdown.

    python benchmarks/targets.py [plain handwritten merged tuned] [--seconds 3] [--threads 1] [--only NAME]
        [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import networks
import numpy as np
import torch
from graphs import fingerprint, operators
from torch import nn

import normdeploy as nd
from normdeploy.building.recipe_model import load_trained, recipe_example
from normdeploy.ort.machine import usable_cores
from normdeploy.ort.settings import OPENVINO_RUNTIME
from normdeploy.parsing.recipe import load_recipe
from normdeploy.runtime import Settings, measure_latency, this_machine, tune
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.latency import PAUSE, STRETCH, Latency
from normdeploy.runtime.module_peers import ModuleContestant, plain_export
from normdeploy.runtime.samples import make_samples
from normdeploy.train.from_recipe import recipe_data

Call = Callable[[], object]
Feeds = dict[str, np.ndarray]
ROOT = Path(__file__).parent.parent
EXPORT = ROOT / "export"
REPEATS = 6
TUNING_SECONDS = 20.0


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
    same: bool = False

    @property
    def ratios(self) -> list[float]:
        return [ours.ratio(other).value for ours, other in self.repeats]

    @property
    def ratio(self) -> float:
        return float(np.median(self.ratios))

    @property
    def verdict(self) -> str:
        if self.same:
            return "same"
        if max(self.ratios) <= self.limit:
            return "holds"
        return "noise" if min(self.ratios) <= self.limit else "BROKEN"

    @property
    def interval(self) -> str:
        return f"{min(self.ratios):.2f}-{max(self.ratios):.2f}"

    def to_dict(self) -> dict[str, object]:
        return {
            "target": self.target,
            "what": self.what,
            "limit": self.limit,
            "ratio": {"value": self.ratio, "low": min(self.ratios), "high": max(self.ratios)},
            "verdict": self.verdict,
            "nodes": self.nodes,
            "median_s": float(np.median([ours.median for ours, _ in self.repeats])),
            "baseline_s": float(np.median([other.median for _, other in self.repeats])),
            "rounds": [len(ours.samples) for ours, _ in self.repeats],
        }

    def line(self) -> str:
        nodes = "" if self.nodes is None else f"nodes {self.nodes[0]} / {self.nodes[1]}"
        return (
            f"{self.target:<12} {self.what:<88} {self.ratio:6.3f} {self.interval:<10} <= {self.limit:<5}"
            f" {self.verdict:<7} {nodes}"
        )


def compare(
    makers: Mapping[str, Callable[[], Call]], seconds: float, *, stretch: float = 0.0, pause: float = 0.0
) -> list[dict[str, Latency]]:
    """Time what the makers make, anew in each repeat and made in alternating order."""
    found = []
    for repeat in range(REPEATS):
        names = list(makers) if repeat % 2 == 0 else list(makers)[::-1]
        calls = {name: makers[name]() for name in names}
        found.append(measure_latency(calls, seconds=seconds / REPEATS, stretch=stretch, pause=pause, seed=repeat))
    return found


def row(
    target: str, what: str, limit: float, found: list[dict[str, Latency]], ours: str, other: str, **more: Any
) -> Row:
    return Row(target, what, limit, tuple((repeat[ours], repeat[other]) for repeat in found), **more)


def graphs(ours: Path, other: Path) -> dict[str, Any]:
    """Return the counts of operators that run, and whether the graphs are the same."""
    counts = sum(operators(ours).values()), sum(operators(other).values())
    return {"nodes": counts, "same": fingerprint(ours) == fingerprint(other)}


def export(module: nn.Module, sample: torch.Tensor, path: Path) -> Path:
    nd.export(module, sample, path, verify=False)
    return path


def runner(path: Path, feeds: Feeds, threads: int, provider: str = "CPUExecutionProvider") -> Call:
    backend = open_backend(path, Settings(provider=provider, threads=threads))
    named = dict(zip([spec.name for spec in backend.inputs], feeds.values(), strict=True))
    return lambda: backend.run(named)


def planned(path: Path, plan: nd.Plan, data: np.ndarray) -> Call:
    predictor = nd.load(path, plan=plan)
    predictor(data)
    return lambda: predictor(data)


def in_torch(module: nn.Module, feeds: Feeds, threads: int, *, compiled: bool = False) -> Call:
    torch.set_num_threads(threads)  # the compiler looks at it
    call = ModuleContestant("torch", module, compiled=compiled).prepare(feeds, threads).call

    def run() -> object:
        torch.set_num_threads(threads)  # of the process, and the contenders differ in it
        return call()

    return run


def handwritten(folder: Path, seconds: float, threads: int, only: str) -> Iterator[Row]:
    residual = [networks.FrozenBatchNorm, networks.ViewBatchNorm]
    layers = [networks.BiasedLayerNorm, networks.UnbiasedLayerNorm, networks.StdLayerNorm]
    families: list[tuple[str, Callable[[Any], nn.Module], Any, list[Any], tuple[int, ...]]] = [
        ("ResidualNet", networks.ResidualNet, nn.BatchNorm2d, residual, (8, 3, 64, 64)),
        ("MixerNet", networks.MixerNet, nn.LayerNorm, layers, (8, 48, 192)),
        # the perceptrons of a small vision transformer: four times as wide inside
        ("MixerNet of 384", partial(networks.MixerNet, width=384, hidden=1536), nn.LayerNorm, layers, (8, 48, 384)),
    ]
    for name, network, stock, others, shape in families:
        if only not in name:
            continue
        sample = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        calls, paths = {}, {}
        for norm in (stock, *others):
            torch.manual_seed(0)
            module = networks.settle(network(norm))
            path = export(module, sample, folder / f"{name}.{norm.__name__}.onnx")
            paths[norm] = path
            calls[norm.__name__] = partial(runner, path, {"x": sample.numpy()}, threads)
        found = compare(calls, 4 * seconds)
        for norm in others:
            what = f"{name} with {norm.__name__} / with {stock.__name__}"
            more = graphs(paths[norm], paths[stock])
            yield row("handwritten", what, 1.02, found, norm.__name__, stock.__name__, **more)


def merged(folder: Path, seconds: float, threads: int, only: str) -> Iterator[Row]:
    sample = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for label, copies in (("RepVGG", 1), ("MobileOne", 3)):
        if only not in label:
            continue
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
        found = compare(makers, 2 * seconds)
        yield row(
            "merged", f"{label}-type, unmerged / merged by hand", 1.02, found, "ours", "hand", **graphs(ours, hand)
        )


def subjects() -> Iterator[tuple[str, nn.Module, dict[str, Any], Feeds]]:
    """Yield name, module, the arguments of its export and feeds; no feeds where any batch goes."""
    for file in sorted(EXPORT.glob("*.toml")):
        recipe = load_recipe(file)
        module = load_trained(recipe)
        example = recipe_example(recipe, module)
        names = ("args", "kwargs", "input_names", "dynamic_shapes")
        yield recipe.name, module, {name: getattr(example, name) for name in names}, {}
    try:
        import transformers
    except ModuleNotFoundError:
        print("plain        the zoo is left out: transformers is not installed", flush=True)
        return
    sys.path.insert(0, str(ROOT / "tests"))  # the networks are those of the tests
    from zoo_networks import ZOO, shake

    transformers.logging.set_verbosity_error()  # its remarks on small vocabularies
    for name, (make, inputs) in ZOO.items():
        torch.manual_seed(0)
        feeds = {key: value.numpy() for key, value in inputs.items()}
        yield f"zoo: {name}", shake(make()), {"args": (), "kwargs": inputs}, feeds


def plain(folder: Path, seconds: float, threads: int, only: str) -> Iterator[Row]:
    for name, module, arguments, given in subjects():
        if only not in name:
            continue
        home = folder / name.replace(": ", ".").replace(" ", "_")
        home.mkdir()
        ours = home / "ours.onnx"
        nd.export(module, arguments.pop("args"), ours, verify=False, **arguments)
        specs = open_backend(ours, Settings()).inputs
        sizes = {str(size): 32 for spec in specs for size in spec.shape[1:] if isinstance(size, str)}
        reference = plain_export(module, given or make_samples(specs, 2, sizes=sizes), specs, home)
        more = graphs(ours, reference)
        for batch in (0,) if given else (1, 32):
            feeds = given or make_samples(specs, batch, sizes=sizes)
            makers = {
                "ours": partial(runner, ours, feeds, threads),
                "plain": partial(runner, reference, feeds, threads),
            }
            what = name if given else f"{name}, batch {batch}"
            yield row("plain", what, 1.0, compare(makers, seconds), "ours", "plain", **more)


def tuned(folder: Path, seconds: float, threads: int, only: str) -> Iterator[Row]:  # noqa: ARG001 - as the plan
    draw = np.random.default_rng(0)
    bound: list[tuple[str, nn.Module, np.ndarray]] = []
    for network, shape in ((networks.ResidualNet, (3, 64, 64)), (networks.MixerNet, (48, 192))):
        torch.manual_seed(0)
        rows = draw.standard_normal((400, *shape)).astype(np.float32)
        bound.append((network.__name__, networks.settle(network()), rows))
    for name in ("digits_cnn", "resnet", "repvgg", "mobilenet"):
        recipe = load_recipe(EXPORT / f"{name}.toml")
        bound.append((name, load_trained(recipe), recipe_data(recipe).train.inputs[:600].numpy()))
    for name, module, data in bound:
        if only not in name:
            continue
        path = export(module, torch.from_numpy(data[:2]), folder / f"tuned.{name}.onnx")
        plan = tune(path, data=data, budget="rel=1%", seconds=TUNING_SECONDS)
        loss = plan.chosen.loss or {}
        what = f"{name}: {plan.chosen.name}" + (f", error {loss['rel']:.1e}" if "rel" in loss else "")
        calls: dict[str, Callable[[], Call]] = {
            "tuned": partial(planned, path, plan, data[:8]),
            **{
                f"eager {count}": partial(in_torch, module, {"x": data[:8]}, count)
                for count in sorted({1, usable_cores()})
            },
        }
        for count in sorted({1, usable_cores()}):
            call = in_torch(module, {"x": data[:8]}, count, compiled=True)
            calls[f"compiled {count}"] = lambda call=call: call  # compiled once: it takes half a minute
        specs = open_backend(path, Settings()).inputs
        try:
            home = folder / f"{name}.plain"
            home.mkdir()
            reference = plain_export(module, {specs[0].name: data[:2]}, specs, home)
            calls["OpenVINO"] = partial(runner, reference, {"x": data[:8]}, 0, OPENVINO_RUNTIME)
            calls["OpenVINO"]()
        except nd.NormdeployError as error:
            calls.pop("OpenVINO", None)
            print(f"tuned        OpenVINO left out: {error}", flush=True)
        # longer than the tuner's own stretches: eager torch needs some calls until it gains from a second core
        found = compare(calls, 3 * seconds, stretch=2 * STRETCH, pause=2 * PAUSE)
        if "OpenVINO" in calls:
            yield row("tuned", f"{what} / OpenVINO's default", 1.0, found, "tuned", "OpenVINO")
        for way, called, limit in (("eager", "eager torch", 0.25), ("compiled", "torch.compile", 1.0)):
            faster = min(
                (name for name in calls if way in name),
                key=lambda name: statistics.median(session[name].median for session in found),
            )
            threads_of = "1 thread" if faster == f"{way} 1" else "all cores"
            yield row("tuned", f"{what} / {called}, {threads_of}", limit, found, "tuned", faster)


TARGETS = {"handwritten": handwritten, "merged": merged, "plain": plain, "tuned": tuned}


def table(rows: list[Row]) -> str:
    """Return the result in Markdown; the many comparisons with plain export in one line for each verdict."""
    lines = ["| promise | subject | ratio (range) | operators | |", "|---|---|---|---|---|"]
    for one in rows:
        if one.target != "plain":
            nodes = "" if one.nodes is None else f"{one.nodes[0]} / {one.nodes[1]}"
            promise = f"{one.target}, <= {one.limit:g}"
            lines.append(f"| {promise} | {one.what} | {one.ratio:.2f} ({one.interval}) | {nodes} | {one.verdict} |")
    for verdict in ("same", "holds", "noise", "BROKEN"):
        group = sorted((one for one in rows if one.target == "plain" and one.verdict == verdict), key=lambda r: r.ratio)
        if group:
            span = f"{group[0].ratio:.2f} to {group[-1].ratio:.2f}"
            names = ", ".join(f"{one.what} {one.ratio:.3f} ({one.interval})" for one in group)
            shown = f"{len(group)} comparisons" if verdict in ("same", "holds") else names
            lines.append(f"| plain, <= 1 | {shown} | {span} | | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], default=[], help="which; all by default")
    parser.add_argument("--seconds", type=float, default=3.0, help="time per comparison (tuned and hand-written: more)")
    parser.add_argument("--threads", type=int, default=1, help="threads inside one operator, ours and theirs")
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--out", type=Path, help="also write JSON")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # what the exporter and transformers say of themselves
    started = time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.targets or TARGETS:
            for one in TARGETS[name](Path(folder), options.seconds, options.threads, options.only):
                rows.append(one)
                print(one.line(), flush=True)
    print(f"\n{table(rows)}\n\n{(time.monotonic() - started) / 60:.1f} minutes")
    if options.out is not None:
        fields = {
            "machine": this_machine().to_dict(),
            "threads": options.threads,
            "rows": [one.to_dict() for one in rows],
        }
        options.out.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
