"""What becomes of networks with BatchNorm in every form in which the field quantizes them.

It prints the tables of docs/quantization.md.

Per form and network: exported (a module) or folded (a file), verified at the level "default". The first table says the
verdict, and how many normalizations were folded and left; a number in brackets is a reason, listed below it without the
names of operators. The second says which outputs a runtime's optimizer flipped: how many of 1000 elements, and how far
the furthest run was off, in units of simulated flips (``normdeploy/verification/judging/flips.py`` allows FEW).

    python benchmarks/quantized_forms.py [--only qcdq fx-prepared] [--networks chain] [--torchao FOLDER]

``--torchao`` is a folder that holds torchao where it is not installed (``pip install --target FOLDER --no-deps
torchao``); without either, its two rows say so.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

from quantized_networks import FORMS, NETWORKS, make, rows

import normdeploy as nd
from normdeploy.errors import NormdeployError, VerificationError
from normdeploy.verification import Verdict
from normdeploy.verification.record.measured import Flipped


@dataclass(frozen=True)
class Outcome:
    """What became of one network in one form.

    Args:
        verdict: its status, or an error's class.
        folded, kept: rows of the ledger. why: reasons of what was kept, or of the verdict.
        flips: what was flipped, in words.
    """

    verdict: str
    folded: int = 0
    kept: int = 0
    why: tuple[str, ...] = ()
    flips: str = ""

    def cell(self, reasons: list[str]) -> str:
        """Return the words of the table; reasons that are new are added to the list."""
        counts = [f"{count} {word}" for word, count in (("folded", self.folded), ("left", self.kept)) if count]
        numbers = []
        for reason in dict.fromkeys(re.sub(r" '[^']*'", "", text) for text in self.why):
            if reason not in reasons:
                reasons.append(reason)
            numbers.append(reasons.index(reason) + 1)
        marks = " " + " ".join(f"[{number}]" for number in sorted(numbers)) if numbers else ""
        return f"{self.verdict}{', ' if counts else ''}{', '.join(counts)}{marks}"


def flips_of(verdict: Verdict) -> str:
    """Say how much of the outputs was flipped, and how far off it was."""
    measured = [check.measured for check in verdict.checks]
    found = [one for one in measured if isinstance(one, Flipped) and one.size]
    if not found:
        return "none"
    share = 1000 * sum(one.flips for one in found) / sum(one.size for one in found)
    return f"{share:.2g}, {max(one.ratio for one in found):.2g}"


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
        return Outcome(error.verdict.status, why=tuple(error.verdict.reasons), flips=flips_of(error.verdict))
    except NormdeployError as error:
        return Outcome(type(error).__name__, why=(str(error),))
    kept = tuple(row.reason for row in result.ledger.kept)
    folded, why = len(result.ledger) - len(kept), kept or tuple(result.verdict.reasons)
    return Outcome(result.verdict.status, folded, len(kept), why, flips_of(result.verdict))


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
    head = " | ".join(chosen.networks)
    print(f"| form | {head} |\n|---|{'---|' * len(chosen.networks)}")
    reasons: list[str] = []
    flips: list[str] = []
    for form in chosen.only:
        found = [found_of(form, network, show=chosen.traceback) for network in chosen.networks]
        print(f"| {FORMS[form].what} | {' | '.join(one.cell(reasons) for one in found)} |", flush=True)
        if any(one.flips not in ("", "none") for one in found):
            flips.append(f"| {FORMS[form].what} | {' | '.join(one.flips for one in found)} |")
    print("\n" + "\n".join(f"- [{number}] {reason}" for number, reason in enumerate(reasons, 1)))
    print(f"\n| flipped | {head} |\n|---|{'---|' * len(chosen.networks)}")
    print("\n".join(flips))


def found_of(form: str, network: str, *, show: bool) -> Outcome:
    """Return what became of a network in a form, whatever it was."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return outcome(form, network, Path(folder))
        except Exception as error:  # the table says it, whatever it is
            if show:
                traceback.print_exc()
            return Outcome(type(error).__name__, why=(one_line(error),))


def one_line(error: Exception) -> str:
    """Return the line of an error's message that names what is missing, or the first."""
    lines = [re.sub(r"\x1b\[[0-9;]*m|<[^>]*>: *", "", line) for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "aten." in line), lines[0] if lines else "")


if __name__ == "__main__":
    main()
