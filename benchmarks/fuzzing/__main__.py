"""Fuzz what normdeploy reads: graphs, recipes, plans, certificates, derivations, weights, tables, images.

    pip install atheris
    python -m benchmarks.fuzzing fold --runs 20000 --corpus corpus
    nice -n 10 python -m benchmarks.fuzzing --corpus corpus     # every target, 100,000 inputs and more
    python -m benchmarks.fuzzing --list

An input may be refused with an error of ours, and nothing else: another exception, more than 20 seconds of processor
time, more than 4 GB, or (fold) a graph that computes something else afterwards is a finding. Findings are collected by
where they arise, with the input of the first of each, in CORPUS/TARGET/findings. Each target has a process of its own;
one that dies (a crash of native code, memory, a loop without an end) is named as such. A table is printed at the end.

atheris guides by coverage of this package's own code; inputs that reach new code are kept in CORPUS/TARGET.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["normdeploy"]):
    from benchmarks.fuzzing.fuzzed_calls import TARGETS, Target
    from normdeploy.errors import NormdeployError

_SECONDS, _KEPT = 20, 1000


class SlowError(Exception):
    """An input took too much processor time."""


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
        place = f"{type(error).__name__} {Path(ours[-1].filename).name}:{ours[-1].lineno}"
        key = place.replace(" ", "-").replace(":", "-")
        if place not in self.places:
            (self.folder / key).write_bytes(content)
            print(f"finding: {place} {str(error)[:120]}", file=sys.stderr, flush=True)
        self.places[place] = self.places.get(place, 0) + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="all of them by default")
    parser.add_argument("--list", action="store_true", help="print the targets")
    parser.add_argument("--runs", type=int, help="inputs of each target; by default what benchmarks/fuzzing says")
    parser.add_argument("--corpus", type=Path, default=Path("corpus"))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.list:
        print("\n".join(TARGETS))
        return
    warnings.simplefilter("ignore")
    rows = []
    for name in options.targets or TARGETS:
        row = _run(name, options.runs or TARGETS[name].runs, options.corpus / name, options.seed)
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    columns = ("target", "inputs", "refused", "findings", "processor s", "peak MB")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        shown = {**row, "findings": sum(row["findings"].values())}
        print("| " + " | ".join(str(shown[column]) for column in columns) + " |")
    print(f"\n{sum(row['inputs'] for row in rows):,} inputs together")


def _run(name: str, runs: int, corpus: Path, seed: int) -> dict[str, Any]:
    """Fuzz one target in a process of its own, because libFuzzer ends the one that it runs in."""
    findings = Findings(corpus / "findings")
    result = corpus / "findings" / "result.json"
    result.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        with (corpus / "findings" / "log.txt").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            _fuzz(name, TARGETS[name], findings, runs, corpus, seed)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if result.exists():
        return dict(json.loads(result.read_text()))
    empty = {"target": name, "inputs": 0, "refused": 0, "processor s": 0, "peak MB": 0}
    return {**empty, "findings": {f"its process ended with {code}": 1}}


def _fuzz(name: str, target: Target, findings: Findings, runs: int, corpus: Path, seed: int) -> None:
    for number, content in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(content)

    refused, accepted = set[int](), target.seeds()

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        """Change mostly what was accepted: what is refused early stays so, and would be most of the corpus."""
        if hash(content) in refused and seed % 8:
            content = accepted[seed % len(accepted)]
        return target.mutate(content, most, seed) if target.mutate is not None else content

    def once(content: bytes) -> None:
        findings.count += 1
        started = time.process_time()
        try:
            target.read(content)
            if time.process_time() - started > _SECONDS:
                raise SlowError(f"more than {_SECONDS} s")
            if len(accepted) < _KEPT:
                accepted.append(content)
        except NormdeployError:
            findings.refused += 1
            refused.add(hash(content))
        except Exception as error:
            findings.add(error, content)
        if findings.count == runs:  # libFuzzer ends the process itself
            spent = resource.getrusage(resource.RUSAGE_SELF)
            row = {
                "target": name,
                "inputs": findings.count,
                "refused": findings.refused,
                "findings": findings.places,
                "processor s": round(spent.ru_utime + spent.ru_stime),
                "peak MB": spent.ru_maxrss // 1024,
            }
            (findings.folder / "result.json").write_text(json.dumps(row))

    # by the clock a busy machine makes anything slow: that limit is for what never ends
    limits = [f"-runs={runs}", f"-seed={seed}", "-timeout=900", "-rss_limit_mb=4096", "-max_len=65536"]
    words = [sys.argv[0], *limits, f"-artifact_prefix={findings.folder}/", str(corpus)]
    if target.mutate is not None:
        atheris.Setup(words, once, custom_mutator=mutate)
    else:
        atheris.Setup(words, once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
