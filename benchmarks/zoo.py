"""Networks that nobody here wrote: what is folded, what stays, what it costs, whether it is proven, how far off it is.

    python -m benchmarks.zoo [LIST ...] [--only NAME ...] [--out zoo.jsonl] [--level default] [--limit 900] [--retry]
    python -m benchmarks.zoo [LIST ...] [--out zoo.jsonl] --table verdicts|folds|kept

A LIST names networks by their factories (benchmarks/zoo_lines.py has the grammar); without one, zoo_timm.txt and
zoo_transformers.txt beside this file: architectures of timm (``pip install --no-deps timm``) and transformers (extra
``zoo``), built from configurations, nothing downloaded. Scales and shifts are drawn and BatchNorms have the statistics
of forward passes in training mode; all seeds are fixed.

Each network is measured in a process of its own with one thread, so that one that ends its process is a row that says
how: after --limit seconds of processor time (a time-out), by a signal, or by an error. Rows go to OUT as they are
measured, as JSON lines; what is there already is not measured again, but with --retry what is no pass. "export" is
torch.onnx.export as anyone calls it; seconds are those of the processor, so that a busy machine measures what an idle
one does; "peak" is the resident memory while tracing, rewriting and verifying, less what was resident before.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))  # as when it is run by its path

import zoo_table  # noqa: E402 - found by the line above
from zoo_row import measure  # noqa: E402 - likewise
from zoo_run import arguments, measure_all, rows_of  # noqa: E402 - likewise

TABLES = {"verdicts": zoo_table.verdicts, "folds": zoo_table.folds, "kept": zoo_table.kept}


def main() -> int:
    """Measure what is not measured yet, or print a table of what is."""
    parser = arguments(__doc__, "zoo.jsonl", TABLES)
    parser.add_argument("--level", default="default", choices=("quick", "default", "thorough"))
    parser.add_argument("--retry", action="store_true", help="measure again what is no pass")
    options = parser.parse_args()
    if options.table:
        print(TABLES[options.table](rows_of(options)))
        return 0
    measure_all(
        options,
        partial(measure, level=options.level),
        say=zoo_table.verdict_cell,
        again=lambda row: options.retry and row.get("verdict") != "pass",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
