"""``predict`` against a plain onnxruntime loop of the same batch size that reads, runs and writes the same files.

The plain loop is what one would write by hand: it holds all data in memory, checks nothing, and loses all when killed.
Both run in turns in one process; what counts is the processor's time, of all threads, which a busy machine does not
lengthen as it does the clock's. The ratio is the median over the rounds, with their range. Peak memory comes from a
process each.

    python benchmarks/predict_cost.py [npy csv parquet jpeg] [--rows 1000000] [--images 600] [--batch 64] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from onnx import numpy_helper
from PIL import Image

from normdeploy.runtime import predict
from normdeploy.runtime.memory import peak_resident_bytes

KINDS = ("npy", "csv", "parquet", "jpeg")
FEATURES, SIDE = 16, 224
TABLE = """<ir_version: 10, opset_import: ["" : 20]>
net (float[batch, 16] x) => (float[batch, 2] y) { a = Gemm(x, A, b) r = Relu(a) y = Gemm(r, C, d) }"""
PICTURE = """<ir_version: 10, opset_import: ["" : 20]>
net (float[batch, 3, 224, 224] x) => (float[batch, 8] y) {
    a = Conv <strides = [8, 8]> (x, A) r = Relu(a) p = GlobalAveragePool(r) f = Flatten(p) y = Gemm(f, C, d) }"""


def write_model(path: Path, text: str, **shapes: tuple[int, ...]) -> None:
    model, draw = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name, shape in shapes.items():
        model.graph.initializer.append(numpy_helper.from_array(draw.normal(size=shape).astype(np.float32), name))
    onnx.save(model, path)


def make_data(folder: Path, kinds: list[str], rows: int, images: int) -> None:
    draw = np.random.default_rng(1)
    if "jpeg" in kinds:
        write_model(folder / "jpeg.onnx", PICTURE, A=(16, 3, 8, 8), C=(16, 8), d=(8,))
        (folder / "data.jpeg").mkdir()
        for at in range(images):
            coarse = Image.fromarray(draw.integers(0, 256, (16, 20, 3), dtype=np.uint8))
            coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / "data.jpeg" / f"{at:05}.jpeg", quality=90)
    x = draw.normal(size=(rows, FEATURES)).astype(np.float32)
    table = pa.table({f"c{at}": x[:, at] for at in range(FEATURES)})
    for kind in set(kinds) - {"jpeg"}:
        write_model(folder / f"{kind}.onnx", TABLE, A=(FEATURES, 32), b=(32,), C=(32, 2), d=(2,))
        if kind == "npy":
            np.save(folder / "data.npy", x)
        elif kind == "csv":
            pacsv.write_csv(table, folder / "data.csv")
        else:
            pq.write_table(table, folder / "data.parquet", row_group_size=rows)


def plain(kind: str, folder: Path, out: Path, batch: int) -> None:
    session = ort.InferenceSession(str(folder / f"{kind}.onnx"))
    if kind == "jpeg":
        parts, paths = [], sorted((folder / "data.jpeg").iterdir())
        for first in range(0, len(paths), batch):
            pixels = []
            for path in paths[first : first + batch]:
                image = Image.open(path).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
                pixels.append((np.asarray(image, np.float32) / 255).transpose(2, 0, 1))
            parts.append(session.run(None, {"x": np.stack(pixels)})[0])
        np.savez(out, y=np.concatenate(parts), key=[path.name for path in paths])
        return
    if kind == "npy":
        x = np.load(folder / "data.npy")
    else:
        path = folder / f"data.{kind}"
        table = pacsv.read_csv(path) if kind == "csv" else pq.read_table(path)
        x = np.stack([column.to_numpy() for column in table.columns], axis=1).astype(np.float32)
    y = np.concatenate([session.run(None, {"x": x[at : at + batch]})[0] for at in range(0, len(x), batch)])
    if kind == "npy":
        np.save(out, y)
        return
    result = pa.table({"row": np.arange(len(y)), **{f"y.{at}": y[:, at] for at in range(y.shape[1])}})
    if kind == "csv":
        pacsv.write_csv(result, out)
    else:
        pq.write_table(result, out)


def ours(kind: str, folder: Path, out: Path, batch: int) -> None:
    predict(folder / f"{kind}.onnx", folder / f"data.{kind}", out, batch_size=batch, overwrite=True)


def timed(work: Callable[..., None], *arguments: object) -> float:
    started = time.process_time()
    work(*arguments)
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--once", nargs=2, metavar=("WHO", "FOLDER"), help="run one contender and print its peak memory"
    )
    given = parser.parse_args()
    if given.once:
        who, folder = given.once
        (ours if who == "ours" else plain)(
            given.kinds[0], Path(folder), Path(folder) / f"once{SUFFIX[given.kinds[0]]}", given.batch
        )
        print(peak_resident_bytes())
        return
    print(
        "| data | plain loop, s | predict, s | ratio (range) | peak memory, MB: plain, predict |\n|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder, given.kinds, given.rows, given.images)
        for kind in given.kinds:
            outs = [folder / f"{who}{SUFFIX[kind]}" for who in ("plain", "ours")]
            pairs = []
            for turn in range(given.rounds + 1):
                order = [(plain, outs[0]), (ours, outs[1])]
                times = {
                    work: timed(work, kind, folder, out, given.batch) for work, out in order[:: 1 - 2 * (turn % 2)]
                }
                if turn:  # the first warms the page cache
                    pairs.append((times[plain], times[ours]))
            ratios = [b / a for a, b in pairs]
            peaks = []
            for who in ("plain", "ours"):
                command = [sys.executable, __file__, kind, "--batch", str(given.batch), "--once", who, name]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                peaks.append(f"{int(done.stdout) / 1e6:.0f}")
            medians = [f"{statistics.median(values):.2f}" for values in zip(*pairs, strict=True)]
            print(
                f"| {kind} | {' | '.join(medians)} | {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f}-{max(ratios):.2f}) | {', '.join(peaks)} |",
                flush=True,
            )


SUFFIX = {"npy": ".npy", "csv": ".csv", "parquet": ".parquet", "jpeg": ".npz"}

if __name__ == "__main__":
    main()
