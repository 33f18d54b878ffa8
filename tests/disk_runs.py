"""The commands that write, each on a disk that refuses: run by tests/test_refusing_disks.py in mounts of its own.

One process imports everything and each command is a fork of it. A read-only folder is a bind mount; a full one a tmpfs
that a file of ours fills up to the room that is asked for.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import parser
from test_killed_build import NET, RECIPE

from normdeploy.cli import main

GRAPH = """<ir_version: 8, opset_import: ["" : 17]> f (float[n,3,8,8] x) => (float[n,3,8,8] y)
<float[3,3,1,1] w = {1, 2, 3, -1, 0.5, 0, 2, 1, 1}, float[3] g = {1, 2, 0.5}, float[3] b = {0, 1, -1},
 float[3] m = {0.1, 0, 2}, float[3] v = {1, 0.5, 2}>
{ c = Conv (x, w) r = BatchNormalization (c, g, b, m, v) y = Relu (r) }"""
COMMANDS = {
    "train": "train net.toml --overwrite",
    "build": "build net.toml --train",
    "fold": "fold in.onnx -o out.onnx --quick --overwrite",
    "tune": "tune in.onnx --seconds 0.1 --time-limit 0.01 --batch 1 --overwrite",
    "predict": "predict in.onnx rows.csv -o out.csv --no-header --overwrite",
    "package": "package in.onnx --web --overwrite",
}
LOADED = [
    "onnxscript", "matplotlib.figure",
    *(f"normdeploy.{room}" for room in ("building.recipe_build", "runtime.bulk", "runtime.tuning", "train")),
]  # fmt: skip
OLD = ("net.safetensors", "out.onnx", "out.csv", "in.plan.json")
"""Outputs of an earlier run, which the commands may replace: of these no byte may be lost."""
DISKS: Mapping[str, int | None] = {"read-only": None, "full": 0, "nearly full": 4096}
"""Room in bytes; None for a folder that cannot be written at all."""
_BALLAST, _SIZE = "ballast", 1 << 20
_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS of the kernel


@dataclass
class Ended:
    """What became of a command.

    Args:
        code: its exit code.
        said: what it printed.
        gone: files that are no longer as they were.
        new: what lies there now and did not.
    """

    code: int
    said: str
    gone: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


def contents() -> dict[str, bytes]:
    """Return what lies in the folder of each command: file name to content."""
    rows = np.random.default_rng(0).standard_normal((200, 192))
    table = "\n".join(",".join(f"{x:.3f}" for x in row) for row in rows)
    made = {"net.toml": RECIPE, "net.py": NET, "rows.csv": f"{table}\n", **dict.fromkeys(OLD, "of an earlier run")}
    return {"in.onnx": parser.parse_model(GRAPH).SerializeToString(), **{k: v.encode() for k, v in made.items()}}


def refusing(folder: Path, room: int | None) -> None:
    """Make a folder that holds :func:`contents` one that takes no more than ``room``."""
    folder.mkdir()
    if room is not None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", folder], check=True)
    for name, content in contents().items():
        (folder / name).write_bytes(content)
    if room is None:
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        return
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    (folder / _BALLAST).write_bytes(bytes(free - room))


def seen(folder: Path) -> dict[str, str]:
    """Return a digest of every file below a folder, and "" for every folder."""
    paths = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): "" if p.is_dir() else hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def run(words: list[str], folder: Path, log: Path) -> Ended:
    """Run a command in a fork of this process."""
    before, child = seen(folder), os.fork()
    if not child:
        code = 70
        try:
            os.chdir(folder)
            with log.open("w") as stream:
                os.dup2(stream.fileno(), 1)
                os.dup2(stream.fileno(), 2)
            sys.argv[1:] = words
            main()
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    after = seen(folder)
    gone = sorted(name for name in before if after.get(name) != before[name])
    return Ended(code, log.read_text(), gone, sorted(after.keys() - before.keys()))


def leave_the_mounts_of_others() -> None:
    """Give this process, and what it starts, mounts of its own (``os.unshare`` is of Python 3.12)."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def all_of_them(place: str) -> None:
    """Run every command on every disk, and print, as JSON, what became of each."""
    leave_the_mounts_of_others()
    sys.dont_write_bytecode = True
    for name in LOADED:  # before the disks refuse, and once for all forks
        importlib.import_module(name)
    found = {}
    for disk, room in DISKS.items():
        for name, line in COMMANDS.items():
            key = f"{name} {disk}"
            folder = Path(place, key.replace(" ", "-"))
            refusing(folder, room)
            found[key] = vars(run(line.split(), folder, Path(place, f"{key}.log")))
    sys.stdout.write(json.dumps(found))
