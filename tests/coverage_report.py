"""Report which lines of the package tests ran, room by room, and which of the rules' refusals they reached.

``coverage run -m pytest`` records it, with ``-n auto`` and for any of the tests, in every process that they start;
``python tests/coverage_report.py`` reports it. With ``--lines`` it names the lines that none ran. A refusal is a clause
that a user reads after an operator's name (see refusal_reasons.py); it is reached where a line of the call that gives
it ran. Two clauses of one call, as in ``a if b else c``, count together.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from coverage import Coverage, CoverageData
from refusal_reasons import refusals

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "normdeploy"
RULES = PACKAGE / "rewrite"


def rooms() -> dict[str, list[Path]]:
    """Return the modules of each room; those beside the rooms are told together."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        found.setdefault(inside.parts[0] if len(inside.parts) > 1 else "beside the rooms", []).append(path)
    return found


def report_lines(measured: Coverage, *, named: bool) -> None:
    """Print how many lines of each room ran, and with ``named`` the numbers of those that did not."""
    total, never = 0, 0
    print("| room | lines | never run | run |\n|---|---|---|---|")
    places: list[str] = []
    for room, paths in rooms().items():
        lines = missed = 0
        for path in paths:
            _, statements, _, missing, text = measured.analysis2(str(path))
            lines, missed = lines + len(statements), missed + len(missing)
            places += [f"{path.relative_to(ROOT)}: {text}"] if missing else []
        print(f"| `{room}` | {lines:,} | {missed:,} | {1 - missed / max(lines, 1):.1%} |")
        total, never = total + lines, never + missed
    print(f"| all | {total:,} | {never:,} | {1 - never / total:.1%} |")
    if named:
        print("\nnever run:\n" + "\n".join(places))


def report_refusals(recorded: CoverageData) -> None:
    """Print how many of the rules' refusals were reached, and the others."""
    reached, missed = 0, []
    for path in sorted(RULES.rglob("*.py")):
        ran = set(recorded.lines(str(path)) or ())
        for refusal in refusals(path):
            if ran.intersection(refusal.lines):
                reached += 1
            else:
                missed.append(f"{path.relative_to(ROOT)}:{refusal.lines[0]}: {refusal.clause}")
    print(f"\nrefusals reached: {reached} of {reached + len(missed)}")
    print("".join(f"  not reached: {line}\n" for line in missed), end="")


def main() -> int:
    """Print both reports; return 1 where nothing was recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", action="store_true", help="name the lines that no test ran")
    named = parser.parse_args().lines
    measured = Coverage()
    if any(ROOT.glob(".coverage.*")):  # one of each process, joined to what is there
        measured.load()
        measured.combine()
        measured.save()
    else:
        measured.load()
    recorded = measured.get_data()
    if not recorded.measured_files():
        print(f"no lines of {PACKAGE} are recorded: coverage run -m pytest -n auto", file=sys.stderr)
        return 1
    report_lines(measured, named=named)
    report_refusals(recorded)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
