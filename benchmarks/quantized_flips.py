"""How far a runtime's flips move an output, in units of simulated ones; and how far damage does.

The verifier takes an output's error for flips at quantizers (``normdeploy/verification/judging/flips.py``) where, among
other things, it is at most FEW times what turning the 1 % of values nearest to a tie makes. This measures that ratio,
without the limit, over the forms and networks of ``quantized_networks.py``: of the files as they are, and of files
damaged on purpose. Each row says the largest ratio that the verifier saw in any run on any inputs, and the verdict.

    python benchmarks/quantized_flips.py [--only qcdq] [--networks chain] [--torchao FOLDER] [--undamaged]
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from quantized_networks import FORMS, NETWORKS, make, rows

import normdeploy as nd
from normdeploy.errors import NormdeployError, VerificationError
from normdeploy.verification.judging import flips
from normdeploy.verification.record.measured import Flipped

Damage = Callable[[np.ndarray, str], np.ndarray | None]


def _integer(array: np.ndarray, name: str) -> np.ndarray | None:
    """One step on the integers of one output channel of a weight."""
    del name
    if array.dtype != np.int8 or array.ndim < 2:
        return None
    moved = array.copy()
    moved[0] = np.where(moved[0] < 127, moved[0] + 1, 126)
    return moved


def _bias(array: np.ndarray, name: str) -> np.ndarray | None:
    """A tenth of its largest value on one number of a bias."""
    if array.dtype != np.float32 or array.ndim != 1 or "scale" in name or "step" in name:
        return None
    moved = array.copy()
    moved[0] += np.float32(0.1) * np.abs(array).max()
    return moved


def _scale(array: np.ndarray, name: str) -> np.ndarray | None:
    """1 % on the step of one channel, or of a tensor."""
    if array.dtype != np.float32 or array.ndim > 1 or not ("scale" in name or "step" in name):
        return None
    moved = np.array(array)
    moved.reshape(-1)[0] *= np.float32(1.01)
    return moved


DAMAGE: dict[str, Damage] = {"an integer of a channel": _integer, "a bias by a tenth": _bias, "a step by 1 %": _scale}


def damaged(path: Path, target: Path) -> Iterator[str]:
    """Write the file with the first constant that each damage fits; yield its name, one at a time."""
    for name, damage in DAMAGE.items():
        model = onnx.load(path)
        for tensor in model.graph.initializer:
            moved = damage(numpy_helper.to_array(tensor), tensor.name)
            if moved is not None:
                tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
                onnx.save(model, target)
                yield name
                break


def ratio(verdict: Any) -> str:
    """Return the largest ratio, and how many elements were off."""
    seen = [check for check in verdict.checks if check.name == "grid"]
    found = [check.measured.ratio for check in seen if isinstance(check.measured, Flipped)]
    return f"{max(found):.3g}" if found else "none off"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--torchao", help="a folder that holds torchao")
    parser.add_argument("--undamaged", action="store_true", help="the files as they are, no others")
    chosen = parser.parse_args()
    if chosen.torchao:
        sys.path.append(chosen.torchao)
    warnings.simplefilter("ignore")
    limit, flips.FEW = flips.FEW, math.inf
    print(f"FEW is {limit:g}\n\n| form | network | file | ratio | verdict without the limit |\n|---|---|---|---|---|")
    for form in chosen.only:
        for network in chosen.networks:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                target, broken = folder / "out.onnx", folder / "damaged.onnx"
                try:
                    subject = make(form, network, folder)
                    if isinstance(subject, Path):
                        verdict = nd.fold(subject, target).verdict
                    else:
                        verdict = nd.export(subject, rows(network, 4, 99), target).verdict
                except VerificationError as error:
                    verdict = error.verdict
                except (NormdeployError, RuntimeError, ImportError) as error:
                    print(f"| {form} | {network} | none | | {type(error).__name__} |", flush=True)
                    continue
                print(f"| {form} | {network} | as it is | {ratio(verdict)} | {verdict.status} |", flush=True)
                if chosen.undamaged or not target.exists():
                    continue
                example = None if isinstance(subject, Path) else rows(network, 4, 99)
                for what in damaged(target, broken):
                    found = nd.verify(subject, broken, args=example, level="quick")
                    print(f"| {form} | {network} | {what} | {ratio(found)} | {found.status} |", flush=True)


if __name__ == "__main__":
    main()
