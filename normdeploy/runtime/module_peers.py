"""torch modules in a benchmark: eager, with channels last, compiled; and plainly exported."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normdeploy.array_types import Array
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.contestant import CHANNELS_LAST, COMPILED, EAGER, Prepared

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = [
    "CHANNELS_LAST", "COMPILED", "EAGER", "ModuleContestant", "ModuleSource", "plain_export", "quiet_torch",
    "torch_threads",
]  # fmt: skip


_TALKATIVE = (
    "torch.onnx._internal.exporter._registration",  # that torchvision is not installed
    "onnxscript",  # what its optimizer could not evaluate, and leaves as it is
)


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
        from normdeploy.exporting.module.load_weights import load_weights
        from normdeploy.nn.weight_files import read_weights
        from normdeploy.parsing.sources import build

        if self.module is not None:
            return self.module
        module: nn.Module = build(self.source, self.arguments)
        if self.weights is not None:
            load_weights(module, read_weights(self.weights, unsafe_pickle=self.unsafe_pickle))
        return module

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict that another process in the same folder builds the module from."""
        from normdeploy.parsing.sources import source_file, split_source

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
        module: in evaluation mode. It is moved to the device; who owns it moves it back.
        compiled: with torch.compile.
        origin: how another process can build it; None for a module that was given as an object.
        device: where it runs: that of the file it is compared with.
        channels_last: its convolutions in the layout that many kernels prefer; in a copy of the module.
    """

    name: str
    module: nn.Module
    compiled: bool
    origin: ModuleSource | None = None
    device: str = "cpu"
    channels_last: bool = False

    def prepare(self, feeds: Mapping[str, Array], threads: int) -> Prepared:  # noqa: ARG002 - set globally per cell
        """Return what calls the module on ``feeds``; compiles at once where asked to."""
        import torch

        from normdeploy.nn.unregistered import move

        module = copy.deepcopy(self.module) if self.channels_last else self.module
        move(module, self.device)
        args, kwargs = module_arguments(module, feeds)
        place = self._placed
        args, kwargs = tuple(map(place, args)), {name: place(tensor) for name, tensor in kwargs.items()}
        if self.channels_last:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # its stub lacks this form
        function: Callable[..., Any] = module

        def call() -> Any:
            # no_grad: freezing needs it off, and inference_mode's tensors cannot be frozen
            with torch.no_grad():
                result = function(*args, **kwargs)
            if self.device != "cpu":
                torch.cuda.synchronize(self.device)
            return result

        def fetch() -> Sequence[Array]:
            leaves = torch.utils._pytree.tree_leaves(call())
            return [leaf.cpu().numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]

        if self.compiled:
            with quiet_torch():
                torch.compiler.reset()
                function = torch.compile(module, dynamic=False)
                with torch._inductor.config.patch(freezing=True):
                    call()
        return Prepared(call, fetch)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        import torch

        last = self.channels_last and tensor.ndim == 4
        there = tensor.to(self.device)
        return there.contiguous(memory_format=torch.channels_last) if last else there


def has_convolution(module: nn.Module) -> bool:
    """Whether a layout of images matters: some parameter has four axes."""
    return any(parameter.ndim == 4 for parameter in module.parameters())


def device_of(module: nn.Module) -> torch.device:
    """Return where a module's first tensor lies."""
    import itertools

    import torch

    first = next(itertools.chain(module.parameters(), module.buffers()), None)
    return torch.device("cpu") if first is None else first.device


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads, and multiply in float32 on a GPU too, as what it is compared with does."""
    import torch

    from normdeploy.exporting.module.ieee import ieee_float32

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with ieee_float32():
            yield
    finally:
        torch.set_num_threads(before)


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
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


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
