"""Fuzz what normdeploy reads: graphs, recipes, plans, certificates, derivations, weights, tables.

    pip install atheris
    python -m benchmarks.fuzzing fold --runs 20000 --corpus corpus/fold
    python -m benchmarks.fuzzing --list

An input may be refused with an error of ours, and nothing else: another exception, more than 20 seconds, more
than 4 GB, or (fold) a graph that computes something else afterwards is a finding. Findings are collected by where they
arise, with the input of the first of each, in CORPUS/findings; the last line is a row of JSON.

atheris guides by coverage of this package's own code; inputs that reach new code are kept in CORPUS.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["normdeploy"]):
    from benchmarks.fuzzing.targets import TARGETS
    from normdeploy.errors import NormdeployError


class Findings:
    """What went wrong, by where it arises.

    Args:
        folder: where the inputs are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.places, self.count, self.refused = folder, dict[str, int](), 0, 0
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, error: BaseException, content: bytes) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "normdeploy" in frame.filename] or frames
        place = f"{type(error).__name__} {Path(ours[-1].filename).name}:{ours[-1].lineno} {str(error)[:120]}"
        key = place.partition(" ")[0] + f"-{Path(ours[-1].filename).stem}-{ours[-1].lineno}"
        if key not in self.places:
            (self.folder / key).write_bytes(content)
            print(f"finding: {place}", file=sys.stderr, flush=True)
        self.places[key] = self.places.get(key, 0) + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", choices=sorted(TARGETS))
    parser.add_argument("--list", action="store_true", help="print the targets")
    parser.add_argument("--runs", type=int, default=10000)
    parser.add_argument("--corpus", type=Path, default=Path("corpus"))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.list or options.target is None:
        print("\n".join(sorted(TARGETS)))
        return
    warnings.simplefilter("ignore")
    target = TARGETS[options.target]
    findings = Findings(options.corpus / "findings")
    for number, seed in enumerate(target.seeds()):
        (options.corpus / f"seed-{number}").write_bytes(seed)

    def once(content: bytes) -> None:
        findings.count += 1
        try:
            target.read(content)
        except NormdeployError:
            findings.refused += 1
        except Exception as error:
            findings.add(error, content)
        if findings.count == options.runs:  # libFuzzer ends the process itself
            _report(options.target, findings)

    limits = [f"-runs={options.runs}", f"-seed={options.seed}", "-timeout=20", "-rss_limit_mb=4096", "-max_len=65536"]
    words = [sys.argv[0], *limits, f"-artifact_prefix={findings.folder}/", str(options.corpus)]
    if target.mutate is not None:
        atheris.Setup(words, once, custom_mutator=target.mutate)
    else:
        atheris.Setup(words, once)
    atheris.Fuzz()


def _report(name: str, findings: Findings) -> None:
    row = {"target": name, "inputs": findings.count, "refused": findings.refused, "findings": findings.places}
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
