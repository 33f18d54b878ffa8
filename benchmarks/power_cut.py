"""kill -9 at moments drawn by chance, in build, train, fold, tune and predict: what is left, and whether it goes on.

    nice -n 10 python benchmarks/power_cut.py            # 200 kills
    python benchmarks/power_cut.py --kills 4 fold train  # a quick look

Each command runs once undisturbed in a folder of its own. Then it is killed, again and again in fresh folders: half of
the kills strike after a share of the processor time that the undisturbed run took, drawn evenly (a busy machine moves
nothing), half at one of its operations on files in the folder (opened, renamed, removed, made), drawn evenly among
them, because these are few and near each other. Of both halves every second run begins with nothing there, the others
with the outputs of an earlier run, which the command replaces. Every third kill strikes the main process alone; then
all its processes must end by themselves.

After each kill: the inputs are as they were; every file that is not hidden is an input, the old output byte by byte,
or a new one that is whole (it loads, it parses, it ends). Then the same command runs to its end, with what lets it
replace outputs, and leaves exactly the files that the undisturbed run left, each whole; those that do not depend on
the clock byte by byte the same. Commands are started by fork from a process that has imported everything: imports
write nothing, and would take most of the moments.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

for _name, _value in {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}.items():
    os.environ.setdefault(_name, _value)  # read when torch is imported

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import torch  # noqa: E402
from onnx import parser  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from normdeploy.cli.app import app  # noqa: E402

IMPORTED = """
    matplotlib.pyplot onnxruntime torch.onnx normdeploy.building.recipe_build normdeploy.building.export_step
    normdeploy.exporting.trace
    normdeploy.rewrite normdeploy.verification.core normdeploy.runtime.bulk.predict_files normdeploy.train.from_recipe
""".split()  # noqa: SIM905 - a list to read
RECIPE = """
[model]
source = "net.py:make"
weights = "net.safetensors"
[data]
files = "rows.csv"
[train]
epochs = 4
batch_size = 32
[export]
inputs = ["x=float32:batchx3"]
[verify]
level = "quick"
[bench]
repeats = 3
threads = 1
"""
NET = """
from torch import nn

def make():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
"""
GRAPH = """<ir_version: 8, opset_import: ["" : 17]> f (float[n,3,8,8] x) => (float[n,3,8,8] y)
<float[3,3,1,1] w = {1, 2, 3, -1, 0.5, 0, 2, 1, 1}, float[3] g = {1, 2, 0.5}, float[3] b = {0, 1, -1},
 float[3] m = {0.1, 0, 2}, float[3] v = {1, 0.5, 2}>
{ c = Conv (x, w) r = BatchNormalization (c, g, b, m, v) y = Relu (r) }"""
TIMED = (".report.json", ".report.html", ".plan.json", ".history.json", ".png")
"""Outputs that hold times: whole is all that is asked of a second one."""


@dataclass
class Case:
    """A command that is killed.

    Args:
        words: the command line.
        again: what is added where its outputs are there already.
        inputs: file name to content.
    """

    words: list[str]
    again: list[str]
    inputs: dict[str, bytes] = field(default_factory=dict)


def cases() -> dict[str, Case]:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 3))
    lines = ["a,b,c,y", *(f"{a:.4f},{b:.4f},{c:.4f},{int(a > b)}" for a, b, c in rows)]
    recipe = {"net.toml": RECIPE.encode(), "net.py": NET.encode(), "rows.csv": "\n".join(lines).encode()}
    graph = {"in.onnx": parser.parse_model(GRAPH).SerializeToString()}
    table = "\n".join(",".join(f"{x:.3f}" for x in row) for row in rng.standard_normal((4000, 192)))
    return {
        "train": Case(["train", "net.toml", "--history"], ["--overwrite"], recipe),
        "build": Case(["build", "net.toml"], ["--train"], recipe),
        "fold": Case(["fold", "in.onnx", "-o", "out.onnx", "--quick"], ["--overwrite"], graph),
        "tune": Case(
            ["tune", "in.onnx", "--seconds", "0.1", "--time-limit", "1", "--batch", "1"], ["--overwrite"], graph
        ),
        "predict": Case(
            ["predict", "in.onnx", "rows.csv", "-o", "out.csv", "--batch", "16", "--no-header"],
            ["--overwrite"],
            {**graph, "rows.csv": f"{table}\n".encode()},
        ),
    }


def start(folder: Path, words: list[str], log: Path, at_event: int = 0, count: Path | None = None) -> int:
    """Run a command in a child process and a session of its own; return its id.

    Args:
        at_event: die at this operation on a file in the folder, the first is 1; 0 for never.
        count: where to write how many such operations there were.
    """
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        with log.open("a") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        events = [0]
        _watch(folder, at_event, events)
        try:
            code = int(app([*words], standalone_mode=False) or 0)
        except SystemExit as stop:
            code = int(stop.code or 0)
        if count is not None:
            count.write_text(str(events[0]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _watch(folder: Path, at_event: int, events: list[int]) -> None:
    names = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate")
    parts = (str(folder), "rows", ".onnx", ".json", ".safetensors", ".checkpoint", ".part", "lock", "made")

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event not in names or not args or not isinstance(args[0], (str, bytes, os.PathLike)):
            return
        path = os.fsdecode(args[0])
        if path.startswith(str(folder)) or (not path.startswith("/") and any(part in path for part in parts)):
            events[0] += 1
            if events[0] == at_event:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def cpu_seconds(process: int) -> float:
    """Return the processor time that a process has taken; infinity where it has ended."""
    try:
        return time.clock_gettime((~process << 3) | 2)  # the clock of a process, as Linux numbers them
    except OSError:
        return float("inf")


def ended(process: int) -> bool:
    """Tell whether a child has ended; its exit code stays to be asked for."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def session_members(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def content(path: Path) -> bytes:
    """Return a file's bytes; of weights the tensors alone, because the header says how long training took."""
    read = path.read_bytes()
    return read[8 + int.from_bytes(read[:8], "little") :] if path.suffix == ".safetensors" else read


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(content(path)).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def whole(path: Path) -> None:
    """Raise where a file is not whole."""
    name = path.name
    if name.endswith(".onnx"):
        model = onnx.load(path)
        onnx.checker.check_model(model)
    elif name.endswith(".json"):
        json.loads(path.read_text())
    elif name.endswith(".html"):
        if not path.read_text().rstrip().endswith("</html>"):
            raise ValueError("the page is cut")
    elif name.endswith(".safetensors"):
        load_file(path)
    elif name.endswith(".checkpoint"):
        torch.load(path, weights_only=True)
    elif name.endswith(".png"):
        if not path.read_bytes().endswith(b"IEND\xaeB`\x82"):
            raise ValueError("the picture is cut")
    elif name.endswith(".csv"):
        if not path.read_bytes().endswith(b"\n"):
            raise ValueError("the table is cut")
    else:
        raise ValueError("nobody named this file")


def visible(name: str) -> bool:
    """Tell outputs from what unfinished work keeps for the next run, or leaves for it to remove."""
    return not any(part.startswith(".") or part.endswith((".partial", ".checkpoint")) for part in name.split("/"))


def same(one: str, other: dict[str, str], found: dict[str, str]) -> bool:
    return one.endswith(TIMED) or other[one] == found[one]


def experiment(name: str, case: Case, kills: int, rng: random.Random, base: Path) -> dict[str, object]:
    log, count = base / f"{name}.log", base / f"{name}.count"
    first = base / f"{name}-undisturbed"
    first.mkdir()
    for file, content in case.inputs.items():
        (first / file).write_bytes(content)
    usage = os.times()
    code = wait(start(first, case.words, log, count=count))
    took = os.times().children_user + os.times().children_system - usage.children_user - usage.children_system
    if code:
        raise RuntimeError(f"{name} ends with {code} undisturbed:\n{log.read_text()[-3000:]}")
    final, events = digests(first), int(count.read_text())
    row: dict[str, object] = {
        "command": name, "seconds": round(took, 1), "operations": events, "kills": 0, "ended before": 0,
        "killed alone": 0, "old": 0, "new": 0, "absent": 0, "unfinished state": 0, "faults": [],
    }  # fmt: skip

    def add(key: str, number: int = 1) -> None:
        row[key] = int(row[key]) + number  # type: ignore[call-overload]

    def fault(words: str) -> None:
        row["faults"].append(f"kill {number}: {words}")  # type: ignore[attr-defined]
        print(f"{name}: kill {number}: {words}", file=sys.stderr, flush=True)

    number = 0
    while int(row["kills"]) < kills and number < 3 * kills:  # type: ignore[call-overload]
        number += 1
        folder = base / f"{name}-{number}"
        by_event, outputs_there, alone = number % 2 == 0, number % 4 > 1, number % 3 == 0
        if outputs_there:
            shutil.copytree(first, folder, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir()
            for file, content in case.inputs.items():
                (folder / file).write_bytes(content)
        words = [*case.words, *(case.again if outputs_there else ())]
        before = digests(folder)
        share, event = rng.random(), rng.randint(1, max(events, 1))
        process = start(folder, words, log, at_event=event if by_event else 0)
        if not by_event:
            while cpu_seconds(process) < share * took and not ended(process):
                time.sleep(0.002)
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL) if alone else os.killpg(process, signal.SIGKILL)
        code = wait(process)
        if code != -signal.SIGKILL:
            add("ended before")
            shutil.rmtree(folder)
            continue
        add("kills")
        if alone or by_event:
            add("killed alone")
            until = time.monotonic() + 120
            while (left := session_members(process)) and time.monotonic() < until:
                time.sleep(0.05)
            if left:
                fault(f"processes are left: {left}")
                os.killpg(process, signal.SIGKILL)
        after = digests(folder)
        hidden = [file for file in after if not visible(file)]
        add("unfinished state", bool(hidden))
        for file in case.inputs:
            if after.get(file) != before[file]:
                fault(f"the input {file} is not what it was")
        for file in {*final, *after} - {*case.inputs, *hidden}:
            if file not in after:
                add("absent")
                if outputs_there and file in before:
                    fault(f"{file} is gone")
            elif after[file] == before.get(file):
                add("old")
            else:
                add("new")
                try:
                    whole(folder / file)
                except Exception as error:
                    fault(f"{file} is not whole: {error!r}"[:300])
        missing = {file for file in final if file not in after}
        rerun = [*case.words, *(case.again if outputs_there or len(missing) < len(final) - len(case.inputs) else ())]
        if name in ("train", "build") and not outputs_there:
            rerun = case.words  # as it was begun: what was done counts
        if code := wait(start(folder, rerun, log)):
            fault(f"the rerun ends with {code}: " + " ".join(log.read_text()[-400:].split()))
            continue
        again = digests(folder)
        if litter := sorted({*again} - {*final}):
            fault(f"litter: {litter}")
        if lost := sorted({*final} - {*again}):
            fault(f"the rerun did not make {lost}")
        for file in {*final} & {*again}:
            if not same(file, final, again):
                fault(f"{file} is another than the undisturbed run's")
        shutil.rmtree(folder)
    return row


def main() -> None:
    argument_parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    argument_parser.add_argument("commands", nargs="*", help="train, build, fold, tune, predict; all by default")
    argument_parser.add_argument("--kills", type=int, default=40, help="of each command")
    argument_parser.add_argument("--seed", type=int, default=0)
    options = argument_parser.parse_args()
    torch.set_num_threads(1)
    for name in IMPORTED:
        importlib.import_module(name)
    known: dict[str, Case] = cases()
    rows = []
    with tempfile.TemporaryDirectory(prefix="power-cut-") as base:
        for name in options.commands or known:
            rows.append(experiment(name, known[name], options.kills, random.Random(options.seed), Path(base)))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    columns = [key for key in rows[0] if key != "faults"]
    print(f"| {' | '.join(columns)} | faults |\n|{'---|' * (len(columns) + 1)}")
    for row in rows:
        print("| " + " | ".join(str(row[key]) for key in columns) + f" | {len(row['faults'])} |")  # type: ignore[arg-type]
    print(f"\n{sum(row['kills'] for row in rows)} kills")  # type: ignore[misc]


if __name__ == "__main__":
    main()
