"""Report which lines of the rules tests ran, and which of the rules' refusals they reached.

``coverage run -m pytest tests/rewrite`` records it, ``python tests/rule_coverage.py`` reports it. A refusal is a clause
that a user reads after an operator's name (see refusal_reasons.py); it is reached where a line of the call that gives
it ran. Two clauses of one call, as in ``a if b else c``, count together.
"""

from __future__ import annotations

import sys
from pathlib import Path

from coverage import Coverage
from refusal_reasons import refusals

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "normdeploy" / "rewrite"


def main() -> int:
    """Print both reports; return 1 where nothing was recorded."""
    measured = Coverage()
    measured.load()
    recorded = measured.get_data()
    if not any(Path(name).is_relative_to(RULES) for name in recorded.measured_files()):
        print(f"no lines of {RULES} are recorded: coverage run -m pytest tests/rewrite", file=sys.stderr)
        return 1
    measured.report(include=[f"{RULES}/*"], show_missing=True, skip_covered=True)
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
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
