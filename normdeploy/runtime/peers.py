"""The other ways to run the same network: eager and compiled torch, plain export, onnxslim, onnxsim, OpenVINO.

Every maker returns what it needs to be timed or raises; a peer that is not installed, or that fails on this network,
is skipped by name with the reason, and never silently.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normdeploy.errors import GraphError, MissingDependencyError, UsageError
from normdeploy.runtime.backend import Array, TensorSpec, open_backend
from normdeploy.runtime.machine import reduced_precision, this_machine
from normdeploy.runtime.providers import float32_options
from normdeploy.runtime.settings import CPU, OPENVINO_RUNTIME, Settings

if TYPE_CHECKING:
    from torch import nn

EAGER, COMPILED = "torch eager", "torch.compile"
PLAIN, SLIM, SIMPLIFIED, OPENVINO, OPENVINO_EXACT = (
    "torch.onnx + onnxruntime",
    "onnxslim + onnxruntime",
    "onnxsim + onnxruntime",
    "OpenVINO",
    "OpenVINO, told float32",
)
PEERS = (EAGER, COMPILED, PLAIN, SLIM, SIMPLIFIED, OPENVINO, OPENVINO_EXACT)

Run = Callable[[], Sequence[Array]]


@dataclass(frozen=True)
class FileContestant:
    """An ONNX file under settings; the thread count is set per cell of the sweep."""

    name: str
    path: Path
    settings: Settings

    def with_threads(self, threads: int) -> Settings:
        """Return its settings with another thread count."""
        return Settings.from_dict({**self.settings.to_dict(), "threads": threads})

    def prepare(self, feeds: Mapping[str, Array], threads: int) -> Run:
        """Load the file and return a function that runs it on ``feeds``."""
        backend = open_backend(self.path, self.with_threads(threads))
        return lambda: backend.run(feeds)


@dataclass(frozen=True)
class ModuleSource:
    """How a torch module is built, here or in another process.

    Args:
        source: SOURCE, as ``path/to/file.py:Name`` or ``package.module:Name``.
        arguments: of the class or function.
        weights: the file of its trained weights, if any.
        unsafe_pickle: that file may hold Python objects.
        module: the module, where it has been built already.
    """

    source: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    weights: Path | None = None
    unsafe_pickle: bool = False
    module: nn.Module | None = None

    def build(self) -> nn.Module:
        """Return the module; build it first where that was not done.

        Raises:
            SourceError: it cannot be built.
            WeightsError: the weights do not fit.
        """
        from normdeploy.export.weights import load_weights, read_weights
        from normdeploy.sources import build

        if self.module is not None:
            return self.module
        module: nn.Module = build(self.source, self.arguments)
        if self.weights is not None:
            load_weights(module, read_weights(self.weights, unsafe_pickle=self.unsafe_pickle))
        return module

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict that another process in the same folder builds the module from."""
        from normdeploy.sources import source_file, split_source

        file = source_file(self.source)
        return {
            "source": self.source if file is None else f"{file}:{split_source(self.source)[1]}",
            "arguments": dict(self.arguments),
            "weights": None if self.weights is None else str(self.weights.absolute()),
            "unsafe_pickle": self.unsafe_pickle,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModuleSource:
        """Build from ``to_dict``'s form."""
        weights = values["weights"]
        return cls(**{**values, "weights": None if weights is None else Path(weights)})


@dataclass(frozen=True)
class ModuleContestant:
    """A torch module, eager or compiled with freezing (weights as constants, which lets inductor fold).

    Args:
        name: for the table.
        module: in evaluation mode.
        compiled: with torch.compile.
        origin: how another process can build it; None for a module that was given as an object.
    """

    name: str
    module: nn.Module
    compiled: bool
    origin: ModuleSource | None = None

    def prepare(self, feeds: Mapping[str, Array], threads: int) -> Run:  # noqa: ARG002 - set globally per cell
        """Return a function that calls the module on ``feeds``; compiles at once where asked to."""
        import torch

        args, kwargs = module_arguments(self.module, feeds)
        function: Callable[..., Any] = self.module

        def run() -> Sequence[Array]:
            # no_grad: freezing needs it off, and inference_mode's tensors cannot be frozen
            with torch.no_grad():
                result = function(*args, **kwargs)
            return [value.numpy() for value in torch.utils._pytree.tree_leaves(result) if hasattr(value, "numpy")]

        if self.compiled:
            with quiet_torch():
                torch.compiler.reset()
                function = torch.compile(self.module, dynamic=False)
                with torch._inductor.config.patch(freezing=True):
                    run()
        return run


def module_arguments(module: nn.Module, feeds: Mapping[str, Array]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the feeds as the module's arguments: by name where ``forward`` has all the names, else in order."""
    import inspect

    import torch

    tensors = {name: torch.from_numpy(np.array(array)) for name, array in feeds.items()}
    parameters = inspect.signature(module.forward).parameters
    if all(name in parameters for name in tensors):
        return (), tensors
    return tuple(tensors.values()), {}


@contextlib.contextmanager
def quiet_torch() -> Iterator[None]:
    """Silence what torch's compiler and exporter say about themselves while a peer is being made."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        registration.setLevel(level)


def plain_export(module: nn.Module, feeds: Mapping[str, Array], specs: Sequence[TensorSpec], folder: Path) -> Path:
    """Write the module with ``torch.onnx.export`` and nothing else; the baseline everybody has.

    Args:
        module: in evaluation mode.
        feeds: example inputs of a batch of at least 2.
        specs: the inputs of the model it is compared with; words there become dynamic dimensions here.
        folder: where to write.
    """
    import torch

    args, kwargs = module_arguments(module, feeds)
    dynamic = {
        spec.name: {axis: torch.export.Dim.DYNAMIC for axis, size in enumerate(spec.shape) if not isinstance(size, int)}
        for spec in specs
    }
    shapes: Any = dynamic if kwargs else tuple(dynamic.values())
    path = folder / "plain.onnx"
    with quiet_torch(), torch.no_grad():
        torch.onnx.export(
            module,
            args,
            str(path),
            kwargs=kwargs,
            dynamo=True,
            external_data=False,
            verbose=False,
            input_names=[spec.name for spec in specs],
            dynamic_shapes=shapes,
        )
    return path


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingDependencyError(f"{package} is not installed; expected the extra: pip install 'normdeploy[peers]'")


def slimmed(path: Path, folder: Path) -> Path:
    """Write what onnxslim makes of ``path``."""
    _require("onnxslim")
    import onnx
    import onnxslim

    target = folder / f"{path.stem}.slim.onnx"
    result = onnxslim.slim(str(path))
    if result is None:
        raise GraphError("onnxslim returned nothing")
    onnx.save(result, target)
    return target


def simplified(path: Path, folder: Path) -> Path:
    """Write what onnxsim makes of ``path``."""
    _require("onnxsim")
    import onnx
    import onnxsim

    target = folder / f"{path.stem}.sim.onnx"
    result, same = onnxsim.simplify(onnx.load(path))
    if not same:
        raise GraphError("onnxsim's own check found its result different")
    onnx.save(result, target)
    return target


def _told_float32(path: Path, label: str) -> FileContestant:
    if not reduced_precision(this_machine()):
        raise UsageError(f"the same as {OPENVINO} here: this processor computes in no less than float32")
    settings = Settings(provider=OPENVINO_RUNTIME, options=float32_options(OPENVINO_RUNTIME))
    return FileContestant(OPENVINO_EXACT + label, path, settings)


def file_peers(
    path: Path, folder: Path, label: str, wanted: Sequence[str]
) -> Iterator[FileContestant | tuple[str, str]]:
    """Yield the peers that start from an ONNX file; a (name, reason) pair for each that is skipped.

    Args:
        path: the plain ONNX file.
        folder: where derived files are written.
        label: appended to the names where there are several references; may be empty.
        wanted: which of `PEERS`.
    """
    makers: dict[str, Callable[[], FileContestant]] = {
        PLAIN: lambda: FileContestant(PLAIN + label, path, Settings(provider=CPU)),
        SLIM: lambda: FileContestant(SLIM + label, slimmed(path, folder), Settings(provider=CPU)),
        SIMPLIFIED: lambda: FileContestant(SIMPLIFIED + label, simplified(path, folder), Settings(provider=CPU)),
        OPENVINO: lambda: FileContestant(OPENVINO + label, path, Settings(provider=OPENVINO_RUNTIME)),
        OPENVINO_EXACT: lambda: _told_float32(path, label),
    }
    for name, make in makers.items():
        if name not in wanted:
            continue
        try:
            if name in (OPENVINO, OPENVINO_EXACT):
                _require("openvino")
            yield make()
        except Exception as error:  # a peer may fail in any way on a network; the benchmark goes on and says so
            yield name + label, f"{type(error).__name__}: {str(error).splitlines()[0]}"
