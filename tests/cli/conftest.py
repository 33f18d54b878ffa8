"""One tiny model, exported once for all tests of the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from normdeploy.building import measure_step
from normdeploy.cli.app import app
from normdeploy.runtime import benchmark
from normdeploy.runtime.memory import Footprint

MODEL = '''
import torch
from torch import nn


class Net(nn.Module):
    """(N, 3, 6, 6) -> (N, 4)."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))
'''


@pytest.fixture(autouse=True)
def _quick_searches(short_turns: None) -> None:
    """In this room nothing asks of times."""


@pytest.fixture(scope="session", autouse=True)
def _plain_exports() -> Iterator[None]:
    """Let builds of one architecture be timed beside one export of torch's own, 0.3 s each, whatever their weights."""
    made: dict[tuple[str, str], bytes] = {}
    torchs = measure_step.plain_export

    def once(module: torch.nn.Module, feeds: Any, specs: Any, folder: Path) -> Path:
        key = repr(module), repr(specs)
        if key not in made:
            made[key] = torchs(module, feeds, specs, folder).read_bytes()
        path = folder / "plain.onnx"
        path.write_bytes(made[key])
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure_step, "plain_export", once)
        yield


@pytest.fixture
def known_footprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no process for each contestant's memory, 2 s each with torch: tests/runtime/test_benchmark.py does."""
    for name in ("measure_footprint", "measure_module_footprint"):
        monkeypatch.setattr(
            benchmark, name, lambda *_: Footprint(peak_bytes=2, added_bytes=1, load_s=0.5, first_run_s=0.1)
        )


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run a command line in this process."""

    def call(*words: object) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words])

    return call


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with net.py, its weights net.pt and net.safetensors, x.npy, and the exported net.onnx."""
    import numpy as np
    from safetensors.torch import save_file

    from normdeploy.parsing.sources import build

    folder = tmp_path_factory.mktemp("home")
    (folder / "net.py").write_text(MODEL)
    torch.manual_seed(0)
    model = build(f"{folder}/net.py:Net")
    model.norm.running_mean.uniform_(-1, 1)
    model.norm.running_var.uniform_(0.5, 2)
    with torch.no_grad():
        model.norm.weight.uniform_(0.5, 2)
        model.norm.bias.uniform_(-1, 1)
    save_file(model.state_dict(), folder / "net.safetensors")
    torch.save(model.state_dict(), folder / "net.pt")
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((7, 3, 6, 6), dtype=np.float32))
    words = ["export", f"{folder}/net.py:Net", "--weights", f"{folder}/net.safetensors", "--quick"]
    words += ["--input", "x=float32:batchx3x6x6", "-o", f"{folder}/net.onnx"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return folder
