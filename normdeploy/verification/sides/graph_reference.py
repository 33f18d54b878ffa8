"""An ONNX graph as the reference: run as it is, and in float64 with the meaning of its own operator sets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Arrays
from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator, input_names, load_graph, save_graph
from normdeploy.graph.operators.qonnx import QONNX
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import nodes_in
from normdeploy.rewrite.infer import infer_missing_types
from normdeploy.rewrite.qonnx_to_standard import LowerQonnx
from normdeploy.verification.sides.declared_shapes import DeclaredShapes
from normdeploy.verification.sides.exact_agreement import is_float
from normdeploy.verification.sides.flat_values import UNIT_ROUNDOFF, Feeds, run_evaluator
from normdeploy.verification.sides.function_accuracy import FUNCTIONS
from normdeploy.verification.sides.grids import unquantized
from normdeploy.verification.sides.kernels import known_kernels
from normdeploy.verification.sides.sessions import Setting, open_session, require_run, run_session

_AGREES = 1e-3
"""Relative distance, in float32, of a reference's float64 outputs from its own run that needs no explanation."""

_ROUNDINGS = 1e3
"""How much further apart they may be than the graph in float32 is from it in float64; a misread operator is 1e5."""

_NARROW_ROUNDINGS = 64.0
"""The same of a graph that computes in float16 or bfloat16 somewhere: in units of that rounding, and of what it does to
the outputs where the inputs are moved by it."""


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
            self.name = self.path.name
        self.declared = DeclaredShapes(self.graph.graph).outputs
        if not isinstance(source, ir.Model):
            infer_missing_types(self.graph)
        self._evaluator = Evaluator(self.graph)
        self._run_as = _runnable(self.graph, self.path, workspace)
        self._session: Any = None
        self._ran: tuple[Feeds, list[Any]] | None = None
        self._coarse = Evaluator(self.graph, dtype=torch.float32)
        self._roundoff = _coarsest(self.graph)
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

    def unquantized(self, feeds: Feeds) -> list[Any] | None:
        """Return the graph's outputs in float64 without its quantizers; None where it has none."""
        stand_ins = unquantized(self._evaluator)
        if not stand_ins:
            return None
        found = run_evaluator(self._evaluator, feeds, stand_ins=stand_ins)
        return [found[name] for name in self.output_names]

    def native(self, feeds: Feeds) -> list[Any]:
        """Return onnxruntime's outputs of the file as it is, unoptimized."""
        if self._ran is None or self._ran[0] is not feeds:
            if self._session is None:
                if self.graph is not None:
                    require_run(self.graph)
                self._session = open_session(self._run_as, Setting(level="disable"))
            self._ran = feeds, run_session(self._session, feeds, self.output_names)
        return list(self._ran[1])

    def _require_agreement(self, feeds: Feeds, truth: list[Any]) -> None:
        """Hold the float64 outputs against the file's own run, in units of what rounding does to this graph."""
        native = self.native(feeds)
        near = max(_AGREES, _NARROW_ROUNDINGS * self._roundoff)
        far = [i for i, (y, o) in enumerate(zip(truth, native, strict=True)) if distance(y, o) > near]
        if not far:
            return
        apart = {i: distance(truth[i], native[i]) for i in far}
        for allowed, run in self._rounded_runs(feeds):
            apart = {i: d for i, d in apart.items() if d > allowed * distance(truth[i], run[self.output_names[i]])}
            if not apart:
                return
        i = min(apart)
        assert self.graph is not None
        known = known_kernels(self.graph.graph)
        raise GraphError(
            f"output {self.output_names[i]!r} of {self.name} differs from what onnxruntime computes of the "
            f"file by {apart[i]:.2g} of its size, which rounding does not explain: "
            + (f"{known}; or " if known else "")
            + "an operator of it means something else here; expected agreement with the file as it is"
        )

    def _rounded_runs(self, feeds: Feeds) -> Iterator[tuple[float, Arrays]]:
        """Yield runs that rounding moved, each with how many times its distance from float64 explains.

        The first is in float32; then inputs and results are moved, the further the less often they were enough. What
        follows smoothly is then allowed the same; a TopK of all but equal scores turns sooner or later.
        """
        rng, single = np.random.default_rng(0), UNIT_ROUNDOFF["float32"]
        yield _ROUNDINGS, run_evaluator(self._coarse, feeds)
        for further in (1.0, 8.0, 64.0):
            for seed, moved in enumerate(_jittered(feeds, rng, further * single)):
                hook = _rounding(further * single, seed)
                yield _ROUNDINGS / further, run_evaluator(self._coarse, moved, hook=hook)
            for moved in _jittered(feeds, rng, further * self._roundoff) if self._roundoff > single else ():
                yield _NARROW_ROUNDINGS / further, run_evaluator(self._evaluator, moved)


def _rounding(unit: float, seed: int) -> Callable[[ir.Node, list[Tensor]], list[Tensor]]:
    """Return what moves every float that an operator computes by some roundings of ``unit``.

    A function whose kernel is accurate absolutely alone (exp(x) - 1 for an Elu near 0) is moved by that.
    """
    generator = torch.Generator().manual_seed(seed)

    def moved(node: ir.Node, results: list[Tensor]) -> list[Tensor]:
        if has(node, Trait.EXACT):
            return results
        often, least = FUNCTIONS.get(node.op_type, (1.0, 0.0))
        return [
            x + often * unit * x.abs().clamp(min=least) * torch.randn(x.shape, generator=generator, dtype=x.dtype)
            if x.is_floating_point()
            else x
            for x in results
        ]

    return moved


def _runnable(graph: ir.Model, path: Path, workspace: Path) -> Path:
    """Return the file to run for a graph: its own, or one without the operators that no runtime knows."""
    if not any((node.domain, node.op_type) in QONNX for node in nodes_in(graph.graph)):
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


def _jittered(feeds: Feeds, rng: np.random.Generator, unit: float) -> Iterator[Arrays]:
    """Yield inputs whose floats are moved by some roundings of ``unit``, in three ways."""
    for _ in range(3):
        moved: Arrays = dict(feeds)
        for name, array in feeds.items():
            if is_float(np.asarray(array)):
                x = np.asarray(array).astype(np.float64)
                size = np.abs(x) + np.abs(x).mean() if x.size else x
                moved[name] = x + 4 * unit * size * rng.standard_normal(x.shape)
        yield moved


def _coarsest(model: ir.Model) -> float:
    """Return the rounding of the coarsest float type that a graph computes in; that of float32 at least."""
    made = [value.dtype for node in nodes_in(model.graph) for value in node.outputs]
    targets = [node.attributes.get_int("to", 0) for node in nodes_in(model.graph) if is_standard(node, "Cast")]
    kinds = {*made, *map(ir.DataType, targets)} & {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
    return max([UNIT_ROUNDOFF["float32"], *(UNIT_ROUNDOFF[kind.numpy().name] for kind in kinds if kind is not None)])
