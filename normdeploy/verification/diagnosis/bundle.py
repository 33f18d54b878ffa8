"""The bundle of a failure: the smallest failing subgraph with inputs and expected outputs, and one command to rerun it.

::

    bundle/
        model.onnx
        test_data_set_0/input_0.pb ... output_0.pb ...      ONNX's own test layout
        settings.json                                       level, provider, disabled optimizers, bounds per output
        run.py                                              python run.py: needs numpy, onnx and onnxruntime only;
                                                            of a failure elsewhere, normdeploy too
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx import numpy_helper

from normdeploy.array_types import Array
from normdeploy.errors import GraphError, UsageError
from normdeploy.files import storage
from normdeploy.graph import bare_proto
from normdeploy.ort.byte_products import product_entries
from normdeploy.ort.levels import LEVEL_NAMES
from normdeploy.ort.settings import CPU
from normdeploy.unfinished import private_folder
from normdeploy.verification.sides.sessions import RUNTIMES, Setting

_RUN = '''"""Rerun this failure: python run.py. Prints the largest error per output; exits with 1 above a bound."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
{imports}
from onnx import numpy_helper

here = Path(__file__).resolve().parent
settings = json.loads((here / "settings.json").read_text())
data = here / "test_data_set_0"


def read(path):
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return tensor.name, numpy_helper.to_array(tensor)


feeds = dict(read(path) for path in sorted(data.glob("input_*.pb")))
expected = dict(read(path) for path in sorted(data.glob("output_*.pb")))
{run}
bad = False
for name, got in zip(expected, found):
    want, bound = expected[name], settings["bounds"][name]
    if want.shape != got.shape or want.dtype != got.dtype:
        print(f"{name}: {got.dtype}{got.shape}, expected {want.dtype}{want.shape}")
        bad = True
        continue
    if want.dtype.kind == "f":
        same = (want == got) | (np.isnan(want) & np.isnan(got))
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.abs(got.astype(np.float64) - want.astype(np.float64)))
        worst = float("inf") if np.isnan(error).any() else float(error.max(initial=0.0))
    else:
        worst = float((want != got).sum())
    print(f"{name}: error {worst:.6g}, bound {bound:.6g}")
    bad = bad or not worst <= bound
sys.exit(1 if bad else 0)
'''
_HERE = (
    "import onnxruntime as ort",
    """options = ort.SessionOptions()
options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, settings["level"])
options.intra_op_num_threads = settings["threads"]
for key, value in settings["config"]:
    options.add_session_config_entry(key, value)
session = ort.InferenceSession(
    str(here / "model.onnx"), options, providers=settings["providers"], disabled_optimizers=settings["disabled"] or None
)
found = session.run(list(expected), feeds)""",
)
_ELSEWHERE = (
    """from normdeploy.verification.sides.sessions import Setting, open_session
from normdeploy.verification.runtimes import judged_under""",
    """with judged_under(settings["runtime"]):
    config = tuple((key, value) for key, value in settings["config"])
    chosen = settings["name"], settings["providers"][0], settings["threads"], tuple(settings["disabled"]), config
    found = open_session(here / "model.onnx", Setting(*chosen)).run(list(expected), feeds)""",
)


def write_bundle(
    folder: str | os.PathLike[str],
    model: ir.Model,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    bounds: Mapping[str, float],
    setting: Setting,
    *,
    note: str = "",
) -> str:
    """Write a bundle; return the command that reruns it.

    Args:
        folder: a new or empty folder. model: the failing subgraph. inputs, expected: by name.
        bounds: largest allowed absolute error per output. setting: how to run it. note: what failed, in words.

    Raises:
        UsageError: the folder holds other files.
        GraphError: the subgraph is not valid ONNX.
        StorageError: the disk is full, read-only or not ours to write; nothing is left then.
    """
    target = Path(folder)
    if target.exists() and any(target.iterdir()):
        raise UsageError(f"{target} is not empty; expected a new folder for the failure's bundle: choose another")
    proto = bare_proto(model)
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise GraphError(f"the failing subgraph is not valid ONNX: {error}") from error
    content = proto.SerializeToString()
    own = product_entries(content).items() if setting.provider == CPU else ()  # elsewhere `open_session` gives it
    settings: dict[str, Any] = {
        "level": LEVEL_NAMES[setting.level],
        "name": setting.level,
        "runtime": next((name for name, provider in RUNTIMES.items() if provider == setting.provider), "cpu"),
        "providers": list(dict.fromkeys([setting.provider, "CPUExecutionProvider"])),
        "threads": setting.threads,
        "disabled": list(setting.disabled),
        "config": [list(pair) for pair in (*own, *setting.config)],
        "bounds": {name: float(bound) for name, bound in bounds.items()},
        "note": note,
    }
    imports, run = _HERE if setting.provider == CPU else _ELSEWHERE
    script = _RUN.replace("{imports}", imports).replace("{run}", run)
    with storage(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with private_folder(target.absolute()) as temporary:  # "." has no name
            made = temporary / "new"
            data = made / "test_data_set_0"
            data.mkdir(parents=True)
            (made / "model.onnx").write_bytes(content)
            for stem, arrays in (("input", inputs), ("output", expected)):
                for number, (name, array) in enumerate(arrays.items()):
                    tensor = numpy_helper.from_array(array, name)
                    (data / f"{stem}_{number}.pb").write_bytes(tensor.SerializeToString())
            (made / "settings.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
            (made / "run.py").write_text(script, encoding="utf-8")
            target.mkdir(exist_ok=True)
            for part in made.iterdir():
                part.rename(target / part.name)
    return f"python {target / 'run.py'}"
