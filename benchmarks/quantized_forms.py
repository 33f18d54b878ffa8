"""What becomes of networks with BatchNorm in every form in which the field quantizes them.

It prints the table of docs/quantization.md.

Per form and network: exported (a module) or folded (a file), verified at the level "default", and the maps and
normalizations that are left, with their reasons.

    python benchmarks/quantized_forms.py [--only qcdq fx-prepared] [--networks chain] [--torchao FOLDER]

``--torchao`` is a folder that holds torchao where it is not installed (``pip install --target FOLDER --no-deps
torchao``); without either, its two rows say so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from quantized_networks import FORMS, NETWORKS, make, rows

import normdeploy as nd
from normdeploy.errors import NormdeployError, VerificationError


@dataclass(frozen=True)
class Outcome:
    """What became of one network in one form: a verdict (or an error's class), rows in the ledger, what was left."""

    verdict: str
    folded: int
    kept: tuple[str, ...]
    why: tuple[str, ...] = ()


def outcome(form: str, network: str, folder: Path) -> Outcome:
    """Export or fold one network in one form."""
    subject = make(form, network, folder)
    target = folder / "out.onnx"
    try:
        if isinstance(subject, Path):
            result = nd.fold(subject, target)
        else:
            result = nd.export(subject, rows(network, 4, 99), target)
    except VerificationError as error:
        return Outcome(error.verdict.status, 0, (), tuple(error.verdict.reasons))
    except NormdeployError as error:
        return Outcome(type(error).__name__, 0, (), (str(error),))
    kept = tuple(row.reason for row in result.ledger.kept)
    return Outcome(result.verdict.status, len(result.ledger) - len(kept), kept, tuple(result.verdict.reasons))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--torchao", help="a folder that holds torchao")
    parser.add_argument("--traceback", action="store_true", help="show where what is no error of ours was raised")
    chosen = parser.parse_args()
    if chosen.torchao:
        sys.path.append(chosen.torchao)
    warnings.simplefilter("ignore")
    print("| form | " + " | ".join(chosen.networks) + " | what is left, and why |")
    print("|---|" + "---|" * (len(chosen.networks) + 1))
    for form in chosen.only:
        cells, why = [], Counter[str]()
        for network in chosen.networks:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = outcome(form, network, Path(folder))
                except Exception as error:  # the table says it, whatever it is
                    if chosen.traceback:
                        traceback.print_exc()
                    found = Outcome(type(error).__name__, 0, (), (str(error).splitlines()[0],))
            left = f", {len(found.kept)} left" if found.kept else ""
            cells.append(f"{found.verdict} ({found.folded} folded{left})" if found.folded or left else found.verdict)
            why.update(found.kept or found.why)
        text = "; ".join(f"{count} x {reason}" if count > 1 else reason for reason, count in why.most_common())
        print(f"| {FORMS[form].what} | {' | '.join(cells)} | {text} |", flush=True)


if __name__ == "__main__":
    main()
