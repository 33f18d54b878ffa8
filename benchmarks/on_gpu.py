"""What docs/gpu.md says, measured: verdicts, speed, SkipLayerNormalization and tuning where sessions run here.

    python -m benchmarks.on_gpu [verdicts|speed|skip|tune ...] [--only NAME ...] [--seconds S] [--out gpu.json]

Everything runs with the provider that `normdeploy.load` takes here: CUDA where there is a GPU and onnxruntime's GPU
build, the CPU otherwise (a rehearsal). Networks are lines of the lists below, with drawn scales and settled statistics
as in `benchmarks.zoo`; the big ones are as large as they are deployed.

verdicts  each small network is exported, and its file judged against eager torch with that provider
speed     the big ones: our file, torch.onnx.export's and eager torch, interleaved; all data stays on the device
skip      a BERT without the shapes of inner values, as files are written, and with them: then onnxruntime computes a
          sum and the LayerNormalization behind it as one operator
tune      what `tune` chooses within the budgets exact and rel=1e-2
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))  # as when it is run by its path

import onnx  # noqa: E402 - found by the line above
import onnxruntime as ort  # noqa: E402 - likewise
from inner_shapes import export_both  # noqa: E402 - likewise
from public_networks import made  # noqa: E402 - likewise
from zoo_lines import Line, parse_line, read_list  # noqa: E402 - likewise

import normdeploy as nd  # noqa: E402 - likewise
from normdeploy.ort.providers import default_settings  # noqa: E402 - likewise
from normdeploy.runtime import tune  # noqa: E402 - likewise
from normdeploy.runtime.contestant import EAGER, PLAIN, FileContestant  # noqa: E402 - likewise
from normdeploy.runtime.latency import measure_in_sessions, session_ratio  # noqa: E402 - likewise

Row = dict[str, Any]

_TIMM = "timm:create_model model_name={} | x=float32:1x3x{}x{}"
BUDGETS = ("exact", "rel=1e-2")
SMALL = (
    *(_TIMM.format(name, 64, 64) for name in (
        "resnet18", "resnetv2_50", "densenet121", "mobilenetv3_small_100", "efficientnet_b0", "ghostnet_100",
        "convnext_atto", "repvgg_a0", "regnety_002", "vit_tiny_patch16_224 img_size=64",
    )),
)  # fmt: skip
"""Judged besides transformers' list."""

BIG = (
    *(_TIMM.format(name, 224, 224) for name in (
        "resnet50", "resnetv2_50", "densenet121", "efficientnet_b0", "mobilenetv3_large_100", "repvgg_a0",
        "convnext_tiny", "vit_small_patch16_224",
    )),
    "transformers:BertModel config=transformers.BertConfig(vocab_size=999) | input_ids=int64:1x128<999"
    " attention_mask=int64:1x128 | BERT-base",
)  # fmt: skip
"""Timed, at the size at which they are deployed."""


def exported(line: Line, folder: Path) -> tuple[Any, Any, Path]:
    """Return a network, its example, and the file that ``nd.export`` makes of it."""
    model, example = made(line)
    path = folder / "net.onnx"
    nd.export(model, example.args, path, kwargs=dict(example.kwargs), verify=False, overwrite=True)
    return model, example, path


def verdicts(lines: list[Line], _: float) -> Iterator[Row]:
    """Yield what the verifier says of each network's file on this machine's provider."""
    runtime = "cuda" if "CUDA" in default_settings().provider else "cpu"
    for line in lines or [*map(parse_line, SMALL), *read_list(HERE / "zoo_transformers.txt")]:
        with tempfile.TemporaryDirectory() as folder:
            model, example, path = exported(line, Path(folder))
            began = time.perf_counter()
            said = nd.verify(model, path, args=example.args, kwargs=dict(example.kwargs), runtime=runtime)
            row = {"network": line.name, "verdict": said.status, "s": round(time.perf_counter() - began, 1)}
            yield row if said.passed else row | {"why": said.summary()}


def speed(lines: list[Line], seconds: float) -> Iterator[Row]:
    """Yield milliseconds per call of our file, and the others' time over it with its 95 % interval."""
    for line in lines or map(parse_line, BIG):
        with tempfile.TemporaryDirectory() as folder:
            model, _, path = exported(line, Path(folder))
            given = line.example(model, rows=2).named()
            feeds = {name: tensor.numpy() for name, tensor in given.items()}
            result = nd.bench(path, against=model, inputs=feeds, batch_sizes=(1, 32), threads=(1,), seconds=seconds,
                              peers=(EAGER, PLAIN), memory=False)  # fmt: skip
            for row in result.rows:
                if row.name != "normdeploy":
                    ours = result.row("normdeploy", batch=row.batch, threads=1).latency.median
                    yield {
                        "network": line.name, "batch": row.batch, "ours, ms": round(ours * 1e3, 3), "other": row.name,
                        "other / ours": _interval(row.ratio), "difference": f"{row.difference:.1e}",
                    }  # fmt: skip
            for name, reason in result.skipped.items():
                yield {"network": line.name, "other": name, "skipped": reason}


def skip(lines: list[Line], seconds: float) -> Iterator[Row]:
    """Yield what onnxruntime runs of a file with the shapes of inner values, and its time over that without them."""
    for line in lines or map(parse_line, BIG[-1:]):
        with tempfile.TemporaryDirectory() as folder:
            model, example = made(line)
            ways = {name: Path(folder) / f"{name}.onnx" for name in ("bare", "full")}
            given = {"args": example.args, "kwargs": dict(example.kwargs)}
            export_both(model, given, ways["bare"], ways["full"])
            for batch in (1, 32):
                feeds = {name: tensor.numpy() for name, tensor in line.example(model, rows=batch).named().items()}

                ratio = session_ratio(
                    measure_in_sessions(partial(_opened, ways, feeds), seconds=seconds), "full", "bare"
                )
                norms = {f"norms, {name}": _norms(path, Path(folder)) for name, path in ways.items()}
                yield {"network": line.name, "batch": batch, "full / bare": _interval(ratio), **norms}


def _opened(ways: dict[str, Path], feeds: Any, session: int) -> dict[str, Callable[[], object]]:
    """Return a call of each file in a fresh session, opened in turns."""
    order = list(ways)[:: 1 if session % 2 else -1]
    return {name: FileContestant(name, ways[name], default_settings()).prepare(feeds, 1).call for name in order}


def _norms(path: Path, folder: Path) -> str:
    """Return the norms of the graph that onnxruntime runs here, with their numbers."""
    settings, options = default_settings(), ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3  # it warns that such a file is for this machine only
    ort.InferenceSession(str(path), options, providers=[(settings.provider, dict(settings.options))])
    graph = onnx.load(options.optimized_model_filepath, load_external_data=False).graph
    counted = Counter(node.op_type for node in graph.node if "Norm" in node.op_type)
    return ", ".join(f"{count} {name}" for name, count in counted.items())


def chosen(lines: list[Line], seconds: float) -> Iterator[Row]:
    """Yield the plan that ``tune`` chooses, and why each other trial was not."""
    for line in lines or [parse_line(BIG[0]), parse_line(BIG[-1])]:
        for budget in BUDGETS:
            with tempfile.TemporaryDirectory() as folder:
                model, _, path = exported(line, Path(folder))
                given = line.example(model, seed=1, rows=32).named()
                data = {name: tensor.numpy() for name, tensor in given.items()}
                plan = tune(path, data=data, budget=budget, batch_size=8, seconds=10 * seconds)
                yield {"network": line.name, "budget": budget, "chosen": plan.chosen.name}
                for trial in plan.trials:
                    yield {"network": line.name, "budget": budget, "trial": trial.name, "status": trial.status,
                           "loss": trial.loss, "why": trial.reason}  # fmt: skip


def _interval(ratio: Any) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


PARTS: dict[str, Callable[[list[Line], float], Iterator[Row]]] = {
    "verdicts": verdicts, "speed": speed, "skip": skip, "tune": chosen,
}  # fmt: skip


def main() -> None:
    """Measure the parts that are asked for; each row is printed, and written, as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--only", nargs="+", default=[], metavar="LINE", help="networks, as in the lists of the zoo")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing per cell")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    given = parser.parse_args()
    lines = [parse_line(text) for text in given.only]
    with given.out.open("a", encoding="utf-8") as file:
        for part in given.parts or PARTS:
            for row in PARTS[part](lines, given.seconds):
                said = json.dumps({"part": part, "provider": default_settings().provider} | row)
                print(said, file=file, flush=True)
                print(" | ".join(f"{key}: {value}" for key, value in ({"part": part} | row).items()), flush=True)


if __name__ == "__main__":
    main()
