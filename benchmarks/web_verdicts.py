"""What onnxruntime-web computes in a browser, judged beside onnxruntime's CPU provider, by the same criterion.

    python benchmarks/web_verdicts.py [NAME ...] [--out web.jsonl] [--level default]
    python benchmarks/web_verdicts.py [--out web.jsonl] --table

Networks are the reference models (export/*.toml) and those of the zoo's lists (benchmarks/zoo.py says what they are and
need) that are named here, or NAMEs of either. Each is exported, and one verification runs the file under both runtimes
at every optimization level. "worst" is the largest error of all runs over what rounding explains: at most 1 where a
file passes. Needs Chromium, and npm or the package onnxruntime-web (docs/web.md). Rows go to OUT as they are made; what
is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "models"))  # where recipes' models lie

from public_networks import network, reference_names  # noqa: E402 - found beside this file
from zoo_lines import read_list  # noqa: E402 - likewise
from zoo_row import made  # noqa: E402 - likewise

import normdeploy as nd  # noqa: E402 - after the path
from normdeploy.errors import NormdeployError  # noqa: E402 - likewise
from normdeploy.ort.settings import WEB  # noqa: E402 - likewise
from normdeploy.verification import verify  # noqa: E402 - likewise
from normdeploy.verification.record.answers import Measurement  # noqa: E402 - likewise
from normdeploy.verification.sides.sessions import Setting  # noqa: E402 - likewise
from normdeploy.web.host import web_host  # noqa: E402 - likewise

ZOO = (
    *("resnet18", "densenet121", "mobilenetv3_small_050", "efficientnet_b0", "swin_tiny_patch4_window7_224"),
    *("convnext_atto", "BertModel", "GPT2LMHeadModel", "LlamaForCausalLM", "Wav2Vec2Model"),
    *("SegformerForSemanticSegmentation", "DetrForObjectDetection"),
)
CPU = Setting().provider


def judged(one: Measurement) -> float:
    """Return the error over what rounding explains, of the whole or, where the network amplifies it, of its parts."""
    return one.ratio if one.in_parts is None else one.in_parts


def row_of(name: str, level: str) -> dict[str, Any]:
    """Export one network, judge it under both runtimes and return the row."""
    lines = {line.name: line for path in ("zoo_timm.txt", "zoo_transformers.txt") for line in read_list(HERE / path)}
    model, example = made(lines[name]) if name in lines else network(name)
    row: dict[str, Any] = {"name": name, "from": "zoo" if name in lines else "reference"}
    with tempfile.TemporaryDirectory() as folder, web_host() as host:
        path = Path(folder) / "net.onnx"
        # the batch is dynamic by default; a recipe says what else is
        shapes = None if name in lines else example.dynamic_shapes
        nd.export(model, example.args, path, kwargs=example.kwargs, dynamic_shapes=shapes, verify=False)
        row["bytes"] = path.stat().st_size
        both = (Setting(), Setting(provider=WEB))
        verdict = verify(
            model, path, args=example.args, kwargs=example.kwargs, dynamic_shapes=shapes, level=level, settings=both
        )
        row |= {"versions": host.versions, "status": verdict.status, "reasons": verdict.reasons}
    for provider in (CPU, WEB):
        word = str(Setting(provider=provider)).partition(" ")[0]
        found = [one for one in verdict.measurements if one.setting.partition(" ")[0] == word]
        row[provider] = {"runs": len(found), "worst": max(map(judged, found), default=None)}
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| network | from | file, MB | verdict | outputs judged in the browser | worst there | worst on the CPU |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['name']} | | | {row['error']} | | | |")
            continue
        web, cpu = row[WEB], row[CPU]
        size = f"{row['bytes'] / 1e6:.2f}"
        worst = [("–" if one["worst"] is None else f"{one['worst']:.2f}") for one in (web, cpu)]
        lines.append(
            f"| {row['name']} | {row['from']} | {size} | {row['status']} | {web['runs']} | {worst[0]} | {worst[1]} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Make the rows that are not there yet, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("web.jsonl"))
    parser.add_argument("--level", default="default", choices=("quick", "default", "thorough"))
    parser.add_argument("--table", action="store_true", help="print the rows of OUT, make none")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    if options.table:
        print(table(rows))
        return 0
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # the libraries' own
    for name in options.names or [*reference_names(), *ZOO]:
        if any(row["name"] == name for row in rows):
            continue
        try:
            row = row_of(name, options.level)
        except NormdeployError as error:
            row = {"name": name, "error": " ".join(str(error).split())}
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row)[:400], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
