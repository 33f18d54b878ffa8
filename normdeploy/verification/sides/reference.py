"""The two sides of a comparison: a reference that has a float64 truth, and the file with its runtime sessions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

from normdeploy.errors import GraphError, InputError
from normdeploy.exporting.forward import flatten_outputs
from normdeploy.exporting.mode import evaluation_mode
from normdeploy.graph import Evaluator, input_names, load_graph, save_graph, weight_bytes
from normdeploy.graph.operators.limits import TooMuchError
from normdeploy.graph.operators.qonnx import QONNX
from normdeploy.inputs import require_memory
from normdeploy.nn.object_walk import Snapshot
from normdeploy.rewrite.infer import infer_missing_types
from normdeploy.rewrite.qonnx import LowerQonnx
from normdeploy.verification.bounds.criteria import UNIT_ROUNDOFF
from normdeploy.verification.sides.double import LOW_FLOATS, float64_mode
from normdeploy.verification.sides.quantized import quantizers_in_double, quantizes
from normdeploy.verification.sides.sessions import Setting, open_session, run_session
from normdeploy.verification.sides.values import Arrays, Feeds, Signature, to_numpy

_LARGE = 256 * 1024**2

_AGREES = 1e-3
"""Relative distance, in float32, of a reference's float64 outputs from its own run that needs no explanation."""

_ROUNDINGS = 1e3
"""How much further apart they may be than the graph in float32 is from it in float64; a misread operator is 1e5."""


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
    """

    has_truth = True

    def __init__(self, model: nn.Module, signature: Signature, graph: ir.Model | None) -> None:
        self.model, self.signature, self.graph = model, signature, graph
        self.name = type(model).__name__
        self.written: set[str] = set()
        self.output_names: Sequence[str] = ()
        self._native = next((p.dtype for p in model.parameters() if p.dtype in LOW_FLOATS), torch.float32)
        self._snapshot: Snapshot | None = None

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Put the module in evaluation mode for the block; what a run assigns to its objects is taken back.

        A run outside of such a block prepares itself; the block only saves doing it for every run.
        """
        if self._snapshot is not None:
            yield
            return
        with evaluation_mode(self.model):
            self._snapshot = Snapshot(self.model)
            try:
                yield
            finally:
                self._snapshot = None

    def _outputs(self, feeds: Feeds, mode: AbstractContextManager[Any]) -> list[Any]:
        args, kwargs = self.signature.bind(feeds)
        with self.ready(), torch.no_grad():
            assert self._snapshot is not None
            try:
                with mode:
                    try:
                        result = self.model(*args, **kwargs)
                    except Exception as error:  # a user's module raises whatever it likes
                        raise Refused from error
                    outputs = flatten_outputs(result)
                    self.output_names = outputs.names
                    return [to_numpy(t) for t in outputs.tensors]
            finally:
                self._snapshot.restore()

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

    def truth(self, feeds: Feeds) -> list[Any]:
        """Return the module's outputs with every float promoted to float64.

        Raises:
            Refused: the module raised.
        """
        return self._outputs(feeds, self._double())

    @contextmanager
    def _double(self) -> Iterator[None]:
        beside = quantizers_in_double(self.model) if quantizes(self.graph) else nullcontext()
        with float64_mode(self._native) as mode, beside:
            yield
        self.written |= mode.written


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


class GraphReference:
    """An ONNX graph: float64 through the evaluator, its own precision through onnxruntime without optimization.

    The file is run as it is given; quantizers of QONNX, for which no runtime has a kernel, are written in standard
    operators for the run, and the float64 evaluation is of their own definition. Its float64 meaning is that of its own
    operator sets, and counts only where it agrees with that run: what differs by more than the same graph's rounding
    explains was misread here.

    Args:
        source: path or model.
        workspace: a folder for a model that is not on disk.
        called: what messages call it, where ``source`` is a copy.
    """

    has_truth = True

    def __init__(
        self,
        source: str | os.PathLike[str] | ir.Model,
        workspace: Path,
        *,
        called: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(source, ir.Model):
            self.path = workspace / "reference.onnx"
            self.graph: ir.Model | None = source
            save_graph(source.clone(), self.path, overwrite=True)
            self.name = source.graph.name or "ir.Model"
        else:
            self.path = Path(source)
            self.graph = load_graph(self.path, called=called)
            infer_missing_types(self.graph)
            self.name = self.path.name
        self._evaluator = Evaluator(self.graph)
        self._run_as = _runnable(self.graph, self.path, workspace)
        self._session: Any = None
        self._ran: tuple[Feeds, list[Any]] | None = None
        self._coarse = Evaluator(self.graph, dtype=torch.float32)
        self.input_names = input_names(self.graph)
        self.output_names: Sequence[str] = self._evaluator.output_names

    def ready(self) -> AbstractContextManager[Any]:
        """Nothing to prepare."""
        return nullcontext()

    def truth(self, feeds: Feeds) -> list[Any]:
        """Return the graph's outputs in float64.

        Raises:
            GraphError: an operator cannot be evaluated, or the result is not what onnxruntime computes of the file.
        """
        found = run_evaluator(self._evaluator, feeds)
        truth = [found[name] for name in self.output_names]
        self._require_agreement(feeds, truth)
        return truth

    def native(self, feeds: Feeds) -> list[Any]:
        """Return onnxruntime's outputs of the file as it is, unoptimized."""
        if self._ran is None or self._ran[0] is not feeds:
            if self._session is None:
                self._session = open_session(self._run_as, Setting(level="disabled"))
            self._ran = feeds, run_session(self._session, feeds, self.output_names)
        return list(self._ran[1])

    def _require_agreement(self, feeds: Feeds, truth: list[Any]) -> None:
        """Hold the float64 outputs against the file's own run, in units of what rounding does to this graph."""
        native = self.native(feeds)
        far = [i for i, (y, o) in enumerate(zip(truth, native, strict=True)) if distance(y, o) > _AGREES * _unit(o)]
        if not far:
            return
        # in float32, and with inputs moved by a rounding, which shows where a tie decides
        rng = np.random.default_rng(0)
        coarse = [run_evaluator(self._coarse, moved) for moved in (feeds, *(_jittered(feeds, rng) for _ in range(3)))]
        for i in far:
            rounding = max(distance(truth[i], run[self.output_names[i]]) for run in coarse)
            allowed = _ROUNDINGS * _unit(native[i]) * rounding
            if distance(truth[i], native[i]) > allowed:
                raise GraphError(
                    f"output {self.output_names[i]!r} of {self.name} differs from what onnxruntime computes of the "
                    f"file by {distance(truth[i], native[i]):.2g} of its size, which rounding does not explain: an "
                    "operator of it means something else here; expected agreement with the file as it is"
                )


def _runnable(graph: ir.Model, path: Path, workspace: Path) -> Path:
    """Return the file to run for a graph: its own, or one without the operators that no runtime knows."""
    if not any((node.domain, node.op_type) in QONNX for node in graph.graph.all_nodes()):
        return path
    lowered = graph.clone()
    LowerQonnx()(lowered)
    return save_graph(lowered, workspace / "runnable.onnx", overwrite=True)


def distance(truth: Any, found: Any) -> float:
    """Return |truth - found| / |truth| in the 2-norm; the share of unequal elements where they are no floats.

    Elements that are not finite on either side are left out; other shapes are as far as can be.
    """
    y, o = np.asarray(truth), np.asarray(found)
    if y.shape != o.shape:
        return float("inf")
    if y.dtype.kind != "f":
        return float(np.mean(y != o)) if y.size else 0.0
    y, o = y.astype(np.float64), o.astype(np.float64)
    kept = np.isfinite(y) & np.isfinite(o)
    size = float(np.linalg.norm(y[kept]))
    difference = float(np.linalg.norm(y[kept] - o[kept]))
    return difference / size if size > 0 else difference


def _jittered(feeds: Feeds, rng: np.random.Generator) -> Arrays:
    """Return inputs whose floats are moved by some roundings of float32."""
    moved: Arrays = {}
    for name, array in feeds.items():
        moved[name] = array
        if np.asarray(array).dtype.kind == "f":
            x = np.asarray(array, np.float64)
            size = np.abs(x) + np.abs(x).mean() if x.size else x
            moved[name] = x + 4 * UNIT_ROUNDOFF["float32"] * size * rng.standard_normal(x.shape)
    return moved


def _unit(native: Any) -> float:
    """Return the rounding of an output's precision in units of float32's."""
    return UNIT_ROUNDOFF.get(np.asarray(native).dtype.name, UNIT_ROUNDOFF["float32"]) / UNIT_ROUNDOFF["float32"]


_SIZED_BY_NUMBERS = frozenset({"Loop", "Range", "ConstantOfShape", "Tile", "Pad"})
"""Operators that numbers of the graph make long or large (:mod:`normdeploy.graph.operators.limits`)."""


class Subject:
    """The file under verification: its graph in float64 and its runtime sessions, opened once per setting.

    Args:
        path: the ONNX file.
        called: what messages call it, where ``path`` is a copy.
    """

    def __init__(self, path: str | os.PathLike[str], *, called: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path)
        self.model = load_graph(self.path, called=called)
        infer_missing_types(self.model)  # files of ours do not carry them, and what can be looked into hangs on them
        self.evaluator = Evaluator(self.model)
        self.input_names: Sequence[str] = input_names(self.model)
        self.output_names: Sequence[str] = self.evaluator.output_names
        self._sessions: dict[Setting, Any] = {}
        self._ran: dict[Setting, tuple[Feeds, Sequence[str], list[Any]]] = {}
        # Each session holds its own copy of the weights: of a large file, one is open at a time
        self._large = weight_bytes(self.model) > _LARGE

    def arrange(self, names: Sequence[str]) -> None:
        """Return outputs in another order from now on: the reference's."""
        self.output_names = list(names)

    def session(self, setting: Setting) -> Any:
        """Return the onnxruntime session for a setting."""
        if setting not in self._sessions:
            if self._large:
                self._sessions.clear()
            self._sessions[setting] = open_session(self.path, setting)
        return self._sessions[setting]

    def close(self, setting: Setting) -> None:
        """Free the session of a setting: each holds its own copy of the weights."""
        self._sessions.pop(setting, None)
        self._ran.pop(setting, None)

    def release(self) -> None:
        """Free the sessions of a large file while none is needed."""
        if self._large:
            self._sessions.clear()

    def run(self, feeds: Feeds, setting: Setting, *, anew: bool = False) -> list[Any]:
        """Return the outputs under one runtime setting, in the order of ``output_names``.

        Args:
            anew: run it, though the last run was of these very feeds.
        """
        known = self._ran.get(setting)
        if anew or known is None or known[0] is not feeds or known[1] != self.output_names:
            names = self.output_names
            found = run_session(self.session(setting), {n: feeds[n] for n in self.input_names}, names)
            known = self._ran[setting] = feeds, names, found
        return list(known[2])

    def require_bounded(self, feeds: Feeds) -> None:
        """Refuse a file with loops whose evaluation asks for too much, before a runtime is at it for years.

        Raises:
            TooMuchError: it does.
        """
        if not any(node.op_type in _SIZED_BY_NUMBERS for node in self.model.graph.all_nodes()):
            return
        try:
            self.logic(feeds)
        except TooMuchError:
            raise
        except GraphError:
            return  # what cannot be evaluated here is the runtime's to refuse

    def logic(self, feeds: Feeds) -> list[Any]:
        """Return the outputs of the emitted graph in float64, in the order of ``output_names``."""
        found = run_evaluator(self.evaluator, feeds)
        return [found[name] for name in self.output_names]


def run_evaluator(evaluator: Evaluator, feeds: Feeds, **options: Any) -> Arrays:
    """Evaluate and return NumPy arrays, without gradients."""
    with torch.no_grad():
        return {k: to_numpy(v) for k, v in evaluator.run(dict(feeds), **options).items()}


def example_from_file(model: ir.Model, *, seed: int = 0, sizes: Mapping[str, int] | None = None) -> Arrays:
    """Return random inputs of a graph's declared dtypes and shapes, for references that bring no example.

    Args:
        model: the graph.
        seed: of the random numbers.
        sizes: size per dynamic dimension's name; by default 3 for one that is some input's first, 8 elsewhere.

    Raises:
        InputError: an input's dtype or rank is not declared.
    """
    rng = np.random.default_rng(seed)
    feeds: Arrays = {}
    first = {str(v.shape[0]) for v in model.graph.inputs if v.shape and not isinstance(v.shape[0], int)}
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        if value.dtype is None or value.shape is None:
            raise InputError(
                f"input {value.name!r} declares no dtype or shape; expected both in the graph: "
                "pass example inputs (args)"
            )
        shape = []
        for axis, dim in enumerate(value.shape):
            if isinstance(dim, int):
                shape.append(dim)
            else:
                shape.append((sizes or {}).get(str(dim.value), 3 if axis == 0 or str(dim) in first else 8))
        dtype = value.dtype.numpy()
        name = str(value.name)
        require_memory(f"input {name!r}", shape)
        if np.issubdtype(dtype, np.floating) or value.dtype.is_floating_point():
            feeds[name] = rng.standard_normal(shape).astype(dtype)
        elif dtype == np.bool_:
            feeds[name] = rng.random(shape) < 0.5
        else:
            feeds[name] = rng.integers(0, 2, shape).astype(dtype)
    return feeds
