"""The two sides of a comparison: a reference that has a float64 truth, and the file with its runtime sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import onnx_ir as ir
import torch
from torch import nn

from normdeploy.exporting.eager import uncompiled
from normdeploy.exporting.module.forward import flatten_outputs
from normdeploy.exporting.module.ieee import ieee_float32
from normdeploy.exporting.module.mode import evaluation_mode
from normdeploy.exporting.quantized.quantizer_mode import QuantizerMode
from normdeploy.exporting.quantized.quantizers import Arithmetic
from normdeploy.graph import Evaluator
from normdeploy.nn.as_numpy import to_numpy
from normdeploy.nn.contents import Before
from normdeploy.nn.promoted import LOW_FLOATS
from normdeploy.verification.sides.double import Seen, float64_mode
from normdeploy.verification.sides.flat_values import Feeds, Signature, run_evaluator
from normdeploy.verification.sides.quantized_module import WithoutQuantizers, quantizers_in_double, quantizes


class Refused(Exception):
    """The user's module raised on some inputs; the cause is its own error."""

    def __str__(self) -> str:
        return f"{type(self.__cause__).__name__}: {self.__cause__}"


class Reference(Protocol):
    """What the file is compared with."""

    name: str
    graph: ir.Model | None
    """The reference as a graph before any folding; None where none could be made."""
    output_names: Sequence[str]
    """What the reference calls its outputs, in order; of a module known once it ran."""
    has_truth: bool
    """False where no float64 evaluation exists; the verdict is then at most weak."""

    def truth(self, feeds: Feeds) -> list[Any]:
        """Return the float64 outputs (integers and booleans in their own dtypes), in order."""
        ...

    def native(self, feeds: Feeds) -> list[Any]:
        """Return the outputs in the model's own precision, as its user runs it."""
        ...

    def ready(self) -> AbstractContextManager[Any]:
        """Return the context in which the other methods may be called."""
        ...


class EagerReference:
    """A torch module, in float64 and in its own precision.

    Args:
        model: the module; it is put in evaluation mode by :meth:`ready` and given back as it was.
        signature: how named feeds become its arguments.
        graph: the module traced, before any folding.

    Attributes:
        answers_precision: whether float64 runs tell a module that asks the dtype of its own precision.
    """

    has_truth = True

    def __init__(self, model: nn.Module, signature: Signature, graph: ir.Model | None) -> None:
        self.model, self.signature, self.graph = model, signature, graph
        self.name = type(model).__name__
        self.written: set[str] = set()
        self.output_names: Sequence[str] = ()
        self.precision, self.answers_precision = _precision(model), False
        self._before: Before | None = None

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Put the module in evaluation mode and float32 for the block; what a run assigns or writes is taken back.

        A run outside of such a block prepares itself; the block only saves doing it for every run.
        """
        if self._before is not None:
            yield
            return
        with ieee_float32(), uncompiled(), evaluation_mode(self.model) as mode:
            self._before = Before(self.model, mode.reached)
            try:
                yield
            finally:
                self._before = None

    def _outputs(self, feeds: Feeds, mode: AbstractContextManager[Any]) -> list[Any]:
        args, kwargs = self.signature.bind(feeds)
        with self.ready(), torch.no_grad():
            assert self._before is not None
            try:
                with mode:
                    try:
                        result = self.model(*args, **kwargs)
                    except Exception as error:  # a user's module raises whatever it likes
                        raise Refused from error
                    outputs = flatten_outputs(result)
                    self.output_names = outputs.names
                    tensors = [t.detach() for t in outputs.tensors]
                return [to_numpy(t) for t in tensors]  # what a tensor's dtype is, not what the mode answers
            finally:
                self._before.restore()  # each run finds the state that the file holds

    def native(self, feeds: Feeds) -> list[Any]:
        """Return the module's outputs in its own precision.

        Raises:
            Refused: the module raised.
        """
        return self._outputs(feeds, nullcontext())

    def under(self, feeds: Feeds, mode: AbstractContextManager[Any]) -> list[Any]:
        """Return the module's outputs with a mode of torch around its calls.

        Raises:
            Refused: the module raised.
        """
        return self._outputs(feeds, mode)

    def truth(self, feeds: Feeds, *, seen: Seen | None = None) -> list[Any]:
        """Return the module's outputs with every float promoted to float64.

        Args:
            feeds: the inputs. seen: called with each tensor that a call into torch returns, and those that it read.

        Raises:
            Refused: the module raised.
        """
        return self._outputs(feeds, self._double(seen))

    def unquantized(self, feeds: Feeds) -> list[Any] | None:
        """Return the module's outputs in float64 without its quantizers; None where it has none.

        Raises:
            Refused: the module raised.
        """
        if not quantizes(self.graph):
            return None
        without = WithoutQuantizers()
        outputs = self._outputs(feeds, self._double_by(without))
        return outputs if without.left_out else None

    @contextmanager
    def _double_by(self, arithmetic: Arithmetic) -> Iterator[None]:
        with float64_mode(self.precision, answers=self.answers_precision), QuantizerMode(arithmetic):
            yield

    @contextmanager
    def _double(self, seen: Seen | None) -> Iterator[None]:
        beside = quantizers_in_double(self.model) if quantizes(self.graph) else nullcontext()
        with float64_mode(self.precision, seen, answers=self.answers_precision) as mode, beside:
            yield
        self.written |= mode.written


def _precision(model: nn.Module) -> torch.dtype:
    """Return the precision that a module runs in: the first of its parameters' that is not float64, if one is not."""
    floats = [p.dtype for p in model.parameters() if p.dtype in LOW_FLOATS or p.dtype == torch.float64]
    return next((dtype for dtype in floats if dtype in LOW_FLOATS), floats[0] if floats else torch.float32)


class TracedReference:
    """A module that runs in its own precision only: its traced graph in float64 stands for its truth.

    Args:
        module: the module, with a graph.
    """

    has_truth = False

    def __init__(self, module: EagerReference) -> None:
        assert module.graph is not None
        self._module = module
        self._evaluator = Evaluator(module.graph)
        self.name = module.name
        self.graph: ir.Model | None = module.graph
        self.output_names = module.output_names

    def ready(self) -> AbstractContextManager[Any]:
        """Prepare the module."""
        return self._module.ready()

    def truth(self, feeds: Feeds) -> list[Any]:
        """Return the traced graph's outputs in float64."""
        return list(run_evaluator(self._evaluator, feeds).values())

    def native(self, feeds: Feeds) -> list[Any]:
        """Return the module's outputs in its own precision."""
        return self._module.native(feeds)
