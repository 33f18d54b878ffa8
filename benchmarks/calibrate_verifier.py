"""Evidence for the verifier's constants: error over bound on clean files, difference over bound of every mutant.

    python benchmarks/calibrate_verifier.py [--zoo] [--functions] [--seeds 3] [--json out.json] [MODEL ...]

For each model (every recipe in export/; with --zoo also small randomly initialized transformers, extra ``zoo``) and
each seed: trace, rewrite, write, verify at the default level. Printed per model: the factors that the clean file needed
in place of 4 and 8, the largest ratio of error to bound, the smallest ratio at which a mutant died, and by which check.
The factors are over whole outputs; the ratio is the worst over blocks, as judged. A clean file that fails or a mutant
that survives unproven is listed at the end, and the exit code is 1.

``--functions`` measures instead how accurately the runtime's kernels compute each function over float32's useful range
(the table in ``normdeploy/verify/accuracy.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from onnx import parser
from torch import nn

from normdeploy.build import load_trained, recipe_example
from normdeploy.export.trace import trace
from normdeploy.graph import save_graph
from normdeploy.recipe import load_recipe
from normdeploy.rewrite import rewrite
from normdeploy.verify import Verdict, verify

ROOT = Path(__file__).parents[1]


@dataclass
class Row:
    """One model: what its clean file needed and how its mutants died."""

    name: str
    statuses: list[str] = field(default_factory=list)
    rms_factor: float = 0.0
    max_factor: float = 0.0
    ratios: list[float] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    by: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def take(self, verdict: Verdict, seconds: float) -> None:
        """Add one verdict."""
        self.statuses.append(verdict.status)
        self.seconds.append(seconds)
        for m in verdict.measurements:
            self.ratios.append(m.ratio)
            floor = max(m.rms_eager, m.rms_spread)
            if floor > 0:
                self.rms_factor = max(self.rms_factor, (m.rms_error - 2.0**-24 * m.rms_truth) / floor)
                peak = max(m.max_eager, 3 * m.rms_spread)
                self.max_factor = max(self.max_factor, (m.max_error - 2.0**-23 * m.max_truth) / peak)
        for site in verdict.sites:
            for mutant in site.mutants:
                if mutant.killed:
                    self.by[mutant.by] += 1
                    if mutant.by == "rounding":
                        self.kills.append(mutant.ratio)
                else:
                    self.by["harmless" if mutant.harmless else "survived"] += 1
        if verdict.status != "pass":
            self.problems += verdict.reasons


def recipes(names: list[str]) -> Iterator[tuple[str, nn.Module, Any]]:
    """Yield (name, model, example) of the reference models."""
    for path in sorted((ROOT / "export").glob("*.toml")):
        if names and path.stem not in names:
            continue
        recipe = load_recipe(path)
        model = load_trained(recipe)
        yield path.stem, model, recipe_example(recipe, model)


def zoo(names: list[str]) -> Iterator[tuple[str, nn.Module, Any]]:
    """Yield (name, model, example) of small transformers with random weights."""
    import transformers as t

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    words = {"input_ids": torch.arange(12).reshape(2, 6) * 7 % 90}
    image = {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))}
    cases: dict[str, tuple[Callable[[], nn.Module], dict[str, torch.Tensor]]] = {
        "bert": (lambda: t.BertModel(t.BertConfig(vocab_size=99, **small)), words),
        "distilbert": (
            lambda: t.DistilBertModel(t.DistilBertConfig(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=48)),
            words,
        ),
        "roberta": (lambda: t.RobertaModel(t.RobertaConfig(vocab_size=99, **small)), words),
        "vit": (lambda: t.ViTModel(t.ViTConfig(image_size=32, patch_size=8, **small)), image),
        "deit": (lambda: t.DeiTModel(t.DeiTConfig(image_size=32, patch_size=8, **small)), image),
        "resnet": (lambda: t.ResNetModel(t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])), image),
        "convnext": (
            lambda: t.ConvNextModel(t.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)),
            image,
        ),
        "mobilenet_v2": (lambda: t.MobileNetV2Model(t.MobileNetV2Config(depth_multiplier=0.35)), image),
        "regnet": (
            lambda: t.RegNetModel(
                t.RegNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4)
            ),
            image,
        ),
    }
    for name, (make, inputs) in cases.items():
        if names and name not in names:
            continue
        torch.manual_seed(0)
        yield f"zoo/{name}", Tensors(shaken(make().eval()), list(inputs)), Plain(tuple(inputs.values()))


class Tensors(nn.Module):
    """A published network as a function of positional tensors to its first output."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(**{self.names[0]: x}, return_dict=True).last_hidden_state


@dataclass
class Plain:
    """Example arguments without names."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    input_names: None = None
    dynamic_shapes: None = None


def shaken(model: nn.Module) -> nn.Module:
    """Give random statistics and affine maps to every normalization: fresh ones are the identity and hide mistakes."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for module in model.modules():
            for key in ("running_mean", "bias"):
                tensor = getattr(module, key, None)
                if "Norm" in type(module).__name__ and isinstance(tensor, torch.Tensor):
                    tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
            for key in ("running_var", "weight"):
                tensor = getattr(module, key, None)
                if "Norm" in type(module).__name__ and isinstance(tensor, torch.Tensor):
                    tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return model


def measure(name: str, model: nn.Module, example: Any, seeds: int, level: str, folder: Path) -> Row:
    """Export once, verify once per seed."""
    row = Row(name)
    known = {"kwargs": example.kwargs, "dynamic_shapes": example.dynamic_shapes}
    traced = trace(model, example.args, input_names=example.input_names, **known)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), folder / f"{name.replace('/', '_')}.onnx", overwrite=True)
    for seed in range(seeds):
        start = time.perf_counter()
        verdict = verify(
            model, path, args=example.args, seed=seed, level=level, traced=traced, rewritten=rewritten, **known
        )
        row.take(verdict, time.perf_counter() - start)
    return row


def functions() -> None:
    """Print the largest error of the runtime's kernels against float64, in u, relative and absolute."""
    f = torch.nn.functional
    table: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "Sigmoid": torch.sigmoid,
        "Tanh": torch.tanh,
        "Erf": torch.erf,
        "Exp": torch.exp,
        "Gelu": f.gelu,
        "Softplus": f.softplus,
        "Mish": f.mish,
        "Elu": f.elu,
        "Selu": f.selu,
        "Celu": f.celu,
        "HardSwish": f.hardswish,
        "Sin": torch.sin,
        "Cos": torch.cos,
        "Sqrt": lambda x: x.abs().sqrt(),
        "Log": lambda x: x.abs().log(),
        "Reciprocal": torch.reciprocal,
    }
    u = 2.0**-24
    x = np.linspace(-20, 20, 400_000, dtype=np.float32)
    print("| function | relative error / u | absolute error / u, where \\|y\\| <= 1 |\n|---|---|---|")
    for name, function in table.items():
        feed = np.abs(x) + np.float32(1e-3) if name in ("Sqrt", "Log") else x
        proto = parser.parse_model(
            f'<ir_version: 10, opset_import: ["": 22]> g (float[N] x) => (float[N] y) {{ y = {name}(x) }}'
        )
        session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        truth = function(torch.from_numpy(feed.astype(np.float64))).numpy()
        error = np.abs(session.run(None, {"x": feed})[0].astype(np.float64) - truth)
        usable = np.isfinite(error) & (np.abs(truth) > 2.0**-126) & (np.abs(truth) < 3e38)
        small = usable & (np.abs(truth) <= 1)
        absolute = error[small].max() / u if small.any() else 0.0
        print(f"| {name} | {(error[usable] / np.abs(truth[usable])).max() / u:.3g} | {absolute:.3g} |")


def report(rows: list[Row]) -> None:
    """Print the table and the distributions."""
    print(
        "| model | verdicts | factor in place of 4 | in place of 8 | worst error / bound | weakest kill / bound ",
        end="",
    )
    print("| killed by rounding | by float64 only | harmless | survived | s per verdict |")
    print("|---" * 11 + "|")
    for r in rows:
        counts = Counter(r.statuses)
        print(
            f"| {r.name} | {', '.join(f'{n} {s}' for s, n in counts.items())} | {r.rms_factor:.2f} "
            f"| {r.max_factor:.2f} | {max(r.ratios, default=0):.2f} | {min(r.kills, default=float('nan')):.1f} "
            f"| {r.by['rounding']} | {r.by['float64']} | {r.by['harmless']} "
            f"| {r.by['survived']} | {np.mean(r.seconds):.1f} |"
        )
    ratios = np.concatenate([r.ratios for r in rows])
    kills = np.concatenate([r.kills for r in rows])
    levels = (50, 90, 99, 100)
    print(f"\nclean: {len(ratios)} measurements, error / bound at percentiles {levels}: ", end="")
    print(", ".join(f"{v:.3f}" for v in np.percentile(ratios, levels)))
    low = (0, 1, 10, 50)
    print(f"mutants killed by rounding: {len(kills)}, difference / bound at percentiles {low}: ", end="")
    print(", ".join(f"{v:.3g}" for v in np.percentile(kills, low)))


def main() -> int:
    """Run what the arguments ask for."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("models", nargs="*")
    arguments.add_argument("--zoo", action="store_true")
    arguments.add_argument("--functions", action="store_true")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--level", default="default")
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    if options.functions:
        functions()
        return 0
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    warnings.filterwarnings("ignore", module="transformers")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        sources = [recipes(options.models)] + ([zoo(options.models)] if options.zoo else [])
        for source in sources:
            for name, model, example in source:
                rows.append(measure(name, model, example, options.seeds, options.level, Path(folder)))
                print(f"{name}: {rows[-1].statuses}", file=sys.stderr, flush=True)
    report(rows)
    if options.json:
        options.json.write_text(json.dumps([vars(r) for r in rows], indent=1))
    bad = [f"{r.name}: {text}" for r in rows for text in r.problems]
    for text in bad:
        print(f"PROBLEM {text}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
