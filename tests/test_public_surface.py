"""The public names and signatures, pinned; the rooms' import order; imports that stay light."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from package_imports import imported

import normdeploy as nd
from normdeploy.verification.record.certificate import certify

PACKAGE = Path(nd.__file__).parent
REQUIRED = inspect.Parameter.empty
GIVEN_NAMES = {"__init__.py", "__main__.py", "conftest.py"}

SIGNATURES = {
    "export": {
        "model": REQUIRED, "args": REQUIRED, "path": REQUIRED, "kwargs": None, "input_names": None,
        "output_names": None, "dynamic_shapes": None, "opset_version": None, "fold": True, "approximate": False,
        "integer": False, "dtype": "float32", "verify": True, "seed": 0, "overwrite": False, "progress": None,
    },
    "fold": {
        "source": REQUIRED, "path": REQUIRED, "opset_version": None, "integer": False, "verify": True,
        "overwrite": False, "progress": None,
    },
    "inspect": {"model_or_path": REQUIRED, "args": None},
    "verify": {
        "model_or_onnx": REQUIRED, "path": REQUIRED, "args": None, "kwargs": None, "data": None, "seed": 0,
        "level": "default", "budget": None, "runtime": "cpu", "progress": None,
    },
    "tune": {
        "path": REQUIRED, "data": None, "reference": None, "budget": None, "batch_size": 8, "sizes": None,
        "seconds": 40.0, "time_limit": 900.0, "precedence": True, "overwrite": False, "progress": None,
    },
    "load": {"path": REQUIRED, "plan": None},
    "diff": {
        "first": REQUIRED, "second": REQUIRED, "inputs": None, "sizes": None, "batch": 4, "run": True, "seed": 0,
    },
    "bench": {
        "path": REQUIRED, "against": (), "inputs": None, "sizes": None, "batch_sizes": (1, 8), "threads": None,
        "seconds": 5.0, "rounds": None, "plan": None, "peers": None, "memory": True, "seed": 0, "progress": None,
    },
    "package": {
        "path": REQUIRED, "folder": REQUIRED, "name": None, "max_batch_size": 64, "plan": None,
        "inputs": None, "sizes": None, "serving": None, "overwrite": False,
    },
}  # fmt: skip


def test_names() -> None:
    assert nd.__all__ == [
        "BenchResult", "Difference", "ExportResult", "Finding", "Findings", "FoldResult", "Ledger", "LedgerRow",
        "NormdeployError", "Plan",
        "Predictor", "Verdict", "VerificationError",
        "bench", "diff", "export", "fold", "inspect", "load", "package", "tune", "verify",
    ]  # fmt: skip
    for name in nd.__all__:
        assert getattr(nd, name).__module__.startswith("normdeploy.")
    assert [name for name in dir(nd) if not name.startswith("_")] == sorted(nd.__all__)


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_signatures(name: str) -> None:
    parameters = inspect.signature(getattr(nd, name)).parameters
    assert {key: value.default for key, value in parameters.items()} == SIGNATURES[name]
    positional = [key for key, value in parameters.items() if value.kind is value.POSITIONAL_OR_KEYWORD]
    expected = [key for key, default in SIGNATURES[name].items() if default is REQUIRED]
    assert positional == (["model_or_path", "args"] if name == "inspect" else expected)


def test_no_room_has_the_name_of_a_public_function() -> None:
    """Importing a subpackage binds it on the package, in place of a function of that name."""
    assert not set(nd.__all__) & {path.stem for path in PACKAGE.iterdir()}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'exprot'"):
        nd.exprot  # noqa: B018 - the access is what raises


@pytest.mark.parametrize(
    "code",
    [
        "import normdeploy, normdeploy.errors, normdeploy.files, normdeploy.ort.installed",
        "import normdeploy.testing, normdeploy.testing.plugin",
        "from normdeploy.parsing.recipe import load_recipe; from normdeploy.parsing.inputs import parse_inputs",
        "import sys; sys.argv = ['normdeploy', '--help']\nfrom normdeploy.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0",
        "import sys; sys.argv = ['normdeploy', 'export', '--help']\nfrom normdeploy.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0",
    ],
)
def test_light_imports(code: str) -> None:
    heavy = "{'torch', 'onnx', 'onnx_ir', 'onnxscript', 'onnxruntime', 'numpy', 'matplotlib', 'jinja2', 'sklearn'}"
    code += f"\nimport sys\nloaded = {heavy} & set(sys.modules)\nassert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# Each room imports only rooms before it; `rewrite.ledger` and `verification.record.verdict` are plain data that others
# may name.
ROOMS = [
    "array_types", "errors", "unfinished", "files", "images", "damaged_files", "onnxfile", "intervals", "budget", "ort",
    "web", "parsing", "report",
    "graph", "nn", "train", "exporting", "rewrite", "inspection", "verification", "testing", "runtime", "compare",
    "proven", "writing", "api", "building", "conformance", "cli", "__main__",
]  # fmt: skip


def imports_of(path: Path) -> set[str]:
    """Names of the rooms a file imports when it runs."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("normdeploy.")} & set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_rooms_before_them(room: str) -> None:
    files = sorted((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    wrong = {str(path.relative_to(PACKAGE)): later for path in files if (later := imports_of(path) - allowed)}
    assert not wrong


def test_every_module_is_in_a_room() -> None:
    found = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert found - {"__init__"} == set(ROOMS)


def test_no_module_is_over_300_lines() -> None:
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path: length for path, length in lengths.items() if length > 300} == {}


@pytest.mark.parametrize("folder", ["normdeploy", "tests", "benchmarks", "models"])
def test_no_two_files_have_one_name(folder: str) -> None:
    """Files are looked for by their names; Python and pytest give these three."""
    names = [path.name for path in (PACKAGE.parent / folder).rglob("*.py")]
    assert [name for name, count in Counter(names).items() if count > 1 and name not in GIVEN_NAMES] == []


def test_a_worker_that_only_predicts_waits_for_neither_torch_nor_onnx() -> None:
    code = "import sys\nfrom normdeploy.runtime import Settings, load\n"
    code += "loaded = {'torch', 'onnx', 'onnx_ir'} & set(sys.modules)\nassert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_what_is_done_with_files_alone_waits_for_no_exporter() -> None:
    """torch's exporter and its compiler take as long to load as all the rest, 3 s."""
    code = "import sys, normdeploy.proven, normdeploy.inspection, normdeploy.verification.core, normdeploy.compare\n"
    code += "from normdeploy.runtime import tune\n"
    code += "loaded = {'torch._dynamo', 'torch.onnx', 'onnxscript'} & set(sys.modules)\nassert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


CERTIFIED = """
import sys
import numpy as np
import normdeploy as nd
for net in sys.argv[1].split(","):
    assert nd.load(net)(np.ones((2, 3), np.float32)).shape == (2, 3)
from normdeploy.cli import main
for command in sys.argv[2:]:
    sys.argv = ["normdeploy", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (command, end.code)
    loaded = {"torch", "onnx", "onnx_ir", "onnxscript"} & set(sys.modules)
    assert not loaded, (command, loaded)
"""


@pytest.mark.usefixtures("short_turns")
def test_running_a_certified_file_imports_neither_torch_nor_onnx(tmp_path: Path) -> None:
    """In one file, and with its data beside it; with a plan, and without."""
    nets = {beside: tmp_path / str(beside) / "net.onnx" for beside in (False, True)}
    np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
    commands: list[str] = []
    for beside, net in nets.items():
        text = '<ir_version: 10, opset_import: ["" : 20]> net (float[n, 3] x) => (float[n, 3] y)'
        text += "{ y = Add(x, weight) }"
        model = onnx.parser.parse_model(text)
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "weight"))
        net.parent.mkdir()
        onnx.save(model, net, save_as_external_data=beside, location="net.data", size_threshold=0)
        assert net.with_name("net.data").exists() == beside
        certify(net, nd.Verdict("pass"))
        nd.tune(net, seconds=0.1, overwrite=True)
        commands += [
            f"run {net} --plan {net.with_name('net.plan.json')}",
            f"predict {net} {tmp_path}/x.npy -o {net.with_name('y.npy')}",
            f"verify {net}",
        ]
    words = [sys.executable, "-c", CERTIFIED, ",".join(map(str, nets.values()))]
    subprocess.run([*words, *commands], check=True, stdout=subprocess.DEVNULL)
    for net in nets.values():
        net.with_name("net.plan.json").unlink()  # else it is found and used
    subprocess.run([*words, *(f"run {net}" for net in nets.values())], check=True, stdout=subprocess.DEVNULL)
