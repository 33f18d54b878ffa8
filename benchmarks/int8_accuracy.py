"""What static int8 loses on held-out data, and what equalization, corrected biases and statistics give back.

Per recipe of the repository: the network's accuracy in float32, and in int8 (onnxruntime, static QDQ, weights per
channel), calibrated on 128 samples of the training split. Then how many points less that is than float32 has, and the
relative error of the scores, all with 95 % intervals over the same samples: those of the test and validation splits.
No gradient and no range saw either. The validation split chose the epoch of the float network, which may flatter that
one, so that what int8 loses is rather overstated.

    python benchmarks/int8_accuracy.py [export/mobilenet.toml ...] [--calibration 128]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import normdeploy as nd
from normdeploy.budget import parse_budget
from normdeploy.building.recipe_model import load_trained, recipe_example
from normdeploy.intervals import Interval, share, share_difference
from normdeploy.ort.settings import Settings
from normdeploy.parsing.recipe import load_recipe
from normdeploy.runtime import this_machine
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.tuning.int8 import CORRECTIONS, INT8_RECIPES, Quantizer
from normdeploy.train.from_recipe import recipe_data


def scores(path: Path, rows: np.ndarray) -> np.ndarray:
    """Return what the file makes of the rows."""
    backend = open_backend(path, Settings())
    name = backend.inputs[0].name
    outputs = [backend.run({name: rows[at : at + 64]})[0] for at in range(0, len(rows), 64)]
    return np.concatenate(outputs)


def percent(found: Interval) -> str:
    """Write a share as "97.77 (95.67 to 98.87)", in percent."""
    return Interval(100 * found.value, 100 * found.low, 100 * found.high).words(".2f")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).parents[1]
    parser.add_argument("recipes", nargs="*", type=Path, default=[root / "export" / "mobilenet.toml"])
    parser.add_argument("--calibration", type=int, default=128, metavar="N")
    chosen = parser.parse_args()
    print("| network | variant | held-out accuracy, % | less than float32, points | error of scores, % |")
    print("|---|---|---|---|---|")
    for path in chosen.recipes:
        recipe = load_recipe(path)
        model, splits = load_trained(recipe), recipe_data(recipe)
        rows = np.concatenate([part.inputs.numpy() for part in (splits.test, splits.valid)])
        targets = np.concatenate([part.targets.numpy() for part in (splits.test, splits.valid)])
        with tempfile.TemporaryDirectory() as name:
            file = Path(name) / "net.onnx"
            example = recipe_example(recipe, model)
            nd.export(model, example.args, file, dynamic_shapes=example.dynamic_shapes, verify=False)
            truth = scores(file, rows)
            whole = truth.argmax(-1) == targets
            accuracy = share(int(whole.sum()), whole.size)
            print(f"| {recipe.name} | float32, {len(rows)} samples | {percent(accuracy)} | | |", flush=True)
            entry = open_backend(file, Settings()).inputs[0].name
            some = splits.train.head(chosen.calibration).inputs.numpy()
            quantizer = Quantizer(file, [{entry: some[at : at + 32]} for at in range(0, len(some), 32)], this_machine())
            bases = [one for one in INT8_RECIPES if one.every_operator]
            for variant in (v for base in bases for v in (base, *(base.with_correction(kind) for kind in CORRECTIONS))):
                quantizer.write(file.with_name("int8.onnx"), variant)
                found = scores(file.with_name("int8.onnx"), rows)
                hits = found.argmax(-1) == targets
                lost, kept = share_difference(whole, hits), share(int(hits.sum()), hits.size)
                error = parse_budget("rel=1%").interval([found], [truth])
                cells = " | ".join(percent(one) for one in (kept, lost, error))
                print(f"| {recipe.name} | {variant.name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
