"""A process of its own for an adapter: a tool that ends its process ends this one, and the case is named.

One case name per line comes in; one outcome in JSON per line goes out, on the descriptor that standard output was.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path


def main() -> None:
    """Judge what comes in until nothing does."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what tools print is no answer
        warnings.simplefilter("ignore")
        from normdeploy.conformance.adapters import adapter_named
        from normdeploy.conformance.case_outcome import judge
        from normdeploy.conformance.cases import all_cases

        adapter = adapter_named(sys.argv[1])
        for line in sys.stdin:
            outcome = judge(all_cases()[line.rstrip("\n")], adapter, Path(sys.argv[2]))
            answers.write(json.dumps(outcome.to_dict()) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
