"""Compare batch and layer normalization on real data; every number of docs/batch-or-layer.md comes from here.

    python docs/norm_experiment.py worked       the formulas on four rows of two numbers
    python docs/norm_experiment.py curves       the same network with each, trained on digits
    python docs/norm_experiment.py batch-size   its accuracy against the size of the training batch
    python docs/norm_experiment.py statistics   running averages, population statistics and torch's update_bn
    python docs/norm_experiment.py deployment   what remains of each after export, and how long it takes

Each command prints its table and keeps the numbers in docs/norms/NAME.json, from which docs/make_norm_pictures.py
draws the pictures and fills in the tables of the page.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from normdeploy.nn import BatchNorm, LayerNorm, recalibrate
from normdeploy.train import Splits, batches, fit, score, train_settings
from normdeploy.train.digits import digits, shift_pixels

FOLDER = Path(__file__).with_name("norms")
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": nn.Identity,  # which takes and ignores the width
    "batch": BatchNorm,
    "layer": LayerNorm,
}
SEEDS = (0, 1, 2)


class Perceptron(nn.Module):
    """Five hidden layers of 64, each linear, normalization, ReLU: (N, 1, 8, 8) pixels -> (N, 10) logits.

    Args:
        norm: a key of ``NORMS``.
    """

    def __init__(self, norm: str, width: int = 64, depth: int = 5) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), NORMS[norm](width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.layers(x)


def worked() -> dict[str, Any]:
    """Compute the two formulas on the same four samples of two features."""
    x = torch.tensor(
        [[0.87717015, 0.7769747], [0.12235527, 0.6907834], [0.6839817, 0.23128869], [0.56366396, 0.3721697]]
    )
    batch, layer = BatchNorm(2, affine=False), LayerNorm(2, elementwise_affine=False)
    return {
        "input": x.tolist(),
        "column_means": x.mean(0).tolist(),
        "column_deviations": x.std(0, correction=0).tolist(),
        "row_means": x.mean(1).tolist(),
        "batch": batch(x).tolist(),
        "layer": layer(x).tolist(),
        "batch_of_first_two": BatchNorm(2, affine=False)(x[:2]).tolist(),
        "layer_of_first_two": layer(x[:2]).tolist(),
    }


def curves() -> dict[str, Any]:
    """Train the perceptron with each normalization and keep what happened in each epoch."""
    splits = digits()
    result: dict[str, Any] = {}
    for norm in NORMS:
        runs = [_trained(norm, splits, epochs=30, batch_size=64, seed=seed) for seed in SEEDS]
        epochs = [[epoch.valid_loss for epoch in run.history.epochs] for run in runs]
        steps_to = [next((n for n, loss in enumerate(run, 1) if loss < 0.2), None) for run in epochs]
        result[norm] = {
            "valid_loss": [statistics.mean(losses) for losses in zip(*epochs, strict=True)],
            "epochs_to_loss_0.2": steps_to,
            "test_accuracy": [run.test.accuracy for run in runs],
            "seconds": statistics.mean(run.seconds for run in runs),
        }
    return result


def batch_size() -> dict[str, Any]:
    """Train with batches of 2 to 256 samples, eight epochs each."""
    splits = digits()
    sizes = (2, 4, 8, 16, 64, 256)
    return {
        "sizes": sizes,
        **{
            norm: [
                [_trained(norm, splits, epochs=8, batch_size=size, seed=seed).test.accuracy for seed in SEEDS]
                for size in sizes
            ]
            for norm in NORMS
        },
    }


def population() -> dict[str, Any]:
    """Compare the running average with both ways of computing statistics afterwards, for trainings of three lengths."""
    splits = digits()
    rows = []
    for name, epochs, size in (("after 1 epoch", 1, 64), ("after 3 epochs", 3, 64), ("after 30 epochs", 30, 64)):
        for seed in SEEDS:
            model = _trained("batch", splits, epochs=epochs, batch_size=size, seed=seed).model
            exact, averaged, unshifted = copy.deepcopy(model), copy.deepcopy(model), copy.deepcopy(model)
            generator = torch.Generator().manual_seed(seed)
            # as training saw them: shifted by up to a pixel
            parts = [shift_pixels(part.inputs, generator) for part in batches(splits.train, size)]
            distances = recalibrate(exact, parts)
            _update_bn(averaged, parts)
            recalibrate(unshifted, [part.inputs for part in batches(splits.train, size)])
            rows.append(
                {
                    "when": name,
                    "seed": seed,
                    "running": score(model, splits.test).accuracy,
                    "running_loss": score(model, splits.test).loss,
                    "population": score(exact, splits.test).accuracy,
                    "population_loss": score(exact, splits.test).loss,
                    "update_bn": score(averaged, splits.test).accuracy,
                    "update_bn_loss": score(averaged, splits.test).loss,
                    "running_mean_distance": max(row.mean_distance for row in distances),
                    "running_deviation_distance": max(row.deviation_distance for row in distances),
                    "unshifted": score(unshifted, splits.test).accuracy,
                    "unshifted_loss": score(unshifted, splits.test).loss,
                    **_distance("update_bn", averaged, exact),
                    **_distance("unshifted", unshifted, exact),
                }
            )
    return {"rows": rows, "last_batch": len(splits.train) % 64, "batches": len(parts)}


def _update_bn(model: nn.Module, parts: list[Tensor]) -> None:
    """Run torch's own ``update_bn``, which knows stock modules only: ours are exchanged for them and back."""
    own = {name: module for name, module in model.named_modules() if isinstance(module, BatchNorm)}
    for name, module in own.items():
        model.set_submodule(name, module.to_torch(1))
    torch.optim.swa_utils.update_bn(parts, model)
    for name, module in own.items():
        module.load_state_dict(model.get_submodule(name).state_dict())
        model.set_submodule(name, module)
    model.eval()


def _distance(name: str, found: nn.Module, exact: nn.Module) -> dict[str, float]:
    """Return the largest root mean square distance over layers, in units of the exact deviation."""
    means, deviations = [], []
    for a, b in zip(found.modules(), exact.modules(), strict=True):
        if isinstance(a, BatchNorm) and isinstance(b, BatchNorm):
            assert a.running_mean is not None
            assert a.running_var is not None
            assert b.running_mean is not None
            assert b.running_var is not None
            alive = b.running_var > 0
            unit = b.running_var[alive].sqrt()
            means.append(float(((a.running_mean - b.running_mean)[alive] / unit).square().mean().sqrt()))
            deviations.append(float((a.running_var[alive].sqrt() / unit - 1).square().mean().sqrt()))
    return {f"{name}_mean_distance": max(means), f"{name}_deviation_distance": max(deviations)}


def deployment() -> dict[str, Any]:
    """Export the trained perceptron with each normalization, folded and as traced; time all of them in one run."""
    import normdeploy
    from normdeploy.building.report_numbers import file_facts
    from normdeploy.runtime import Predictor, Settings

    splits = digits()
    result: dict[str, Any] = {}
    contenders: dict[str, Callable[[Tensor], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for norm in NORMS:
            model = _trained(norm, splits, epochs=30, batch_size=64, seed=0).model
            traced, ours = Path(folder) / f"{norm}-traced.onnx", Path(folder) / f"{norm}.onnx"
            x = splits.test.inputs[:2]
            normdeploy.export(model, x, traced, fold=False, verify=False)
            done = normdeploy.export(model, x, ours)
            assert done.verdict is not None
            result[norm] = {"verdict": done.verdict.status, "traced": file_facts(traced), "ours": file_facts(ours)}
            contenders[f"{norm}, eager torch"] = model
            for kind, path in (("as traced", traced), ("normdeploy", ours)):
                contenders[f"{norm}, {kind}"] = _runner(Predictor(path, Settings(threads=1)))
        for size in (1, 64):
            _time(result, contenders, splits.test.inputs[:size])
    return result


def _runner(predictor: Any) -> Callable[[Tensor], object]:
    backend = predictor.backend
    return lambda x: backend.run({backend.inputs[0].name: x.numpy()})


def _time(result: dict[str, Any], contenders: dict[str, Callable[[Tensor], object]], x: Tensor) -> None:
    """Time every contender on ``x``, interleaved, and put the medians, in microseconds, beside what else is known."""
    from normdeploy.runtime import measure_latency

    torch.set_num_threads(1)
    with torch.inference_mode():
        measured = measure_latency({name: partial(call, x) for name, call in contenders.items()}, rounds=200)
    for norm, held in result.items():
        times = {name.removeprefix(f"{norm}, "): row for name, row in measured.items() if name.startswith(f"{norm}, ")}
        held.setdefault("microseconds", {})[str(len(x))] = {kind: row.median * 1e6 for kind, row in times.items()}


def _trained(norm: str, splits: Splits, *, epochs: int, batch_size: int, seed: int) -> Any:
    settings = train_settings(epochs=epochs, batch_size=batch_size, lr=3e-3, seed=seed)
    return fit(lambda: Perceptron(norm), splits, settings, device="cpu", show=False)


EXPERIMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "worked": worked,
    "curves": curves,
    "batch-size": batch_size,
    "statistics": population,
    "deployment": deployment,
}


def main(name: str) -> None:
    """Run one experiment, keep its numbers and print its table."""
    from norm_tables import rows_of

    FOLDER.mkdir(exist_ok=True)
    found = EXPERIMENTS[name]()
    (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    header, rows = rows_of(name, found)
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in EXPERIMENTS:
        raise SystemExit(__doc__)
    main(sys.argv[1])
