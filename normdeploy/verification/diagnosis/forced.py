"""Operators run on their own on right inputs (teacher forcing): the first, or the fewest, that the runtime errs in.

What every operator reads is taken from the file in float64, rounded to the precision it is stored in, so that no
operator's error reaches another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array, Arrays
from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator, bare_proto, module_path
from normdeploy.verification.bounds.criteria import rms
from normdeploy.verification.diagnosis.bundle import write_bundle
from normdeploy.verification.diagnosis.exported import MOST_VALUES
from normdeploy.verification.family_case import Case
from normdeploy.verification.record.answers import Localization
from normdeploy.verification.sides.exact_agreement import is_float
from normdeploy.verification.sides.flat_values import SMALLEST_NORMAL, UNIT_ROUNDOFF, run_evaluator
from normdeploy.verification.sides.sessions import Setting, open_session, run_session
from normdeploy.verification.sides.subgraph import subgraph
from normdeploy.verification.sides.subject import Subject

_TOLERANCE = 64.0
"""An operator alone may err by this many u of its result's RMS before it is suspected; bfloat16 errs by 65536."""


class Forced:
    """The file's operators under one runtime setting, each on right inputs.

    Args:
        subject: the file. case: the model's inputs. setting: how it is run.
        folder: where a bundle may be written; None writes none.
    """

    def __init__(self, subject: Subject, case: Case, setting: Setting, folder: Path | None) -> None:
        self._subject, self._case, self._setting, self._folder = subject, case, setting, folder
        self._u = UNIT_ROUNDOFF[case.precision]

    @cached_property
    def _truth(self) -> Arrays:
        names = [str(v.name) for node in self._subject.model.graph for v in node.outputs if v.name]
        return run_evaluator(self._subject.evaluator, self._case.family.feeds, fetch=names[:MOST_VALUES])

    @cached_property
    def _values(self) -> Arrays:
        values = {name: _as_stored(self._subject.model, name, array) for name, array in self._truth.items()}
        return values | {name: np.asarray(array) for name, array in self._case.family.feeds.items()}

    def first_bad(self, found: Localization) -> Localization:
        """Find the first operator whose own error exceeds its own noise.

        Args:
            found: what is known of the failure.
        """
        window: list[
            ir.Node
        ] = []  # nodes whose result cannot leave the runtime (bfloat16) are judged with the next one
        for node in self._subject.model.graph:
            name = str(node.outputs[0].name)
            if node.op_type == "Constant" or name not in self._truth or not is_float(self._truth[name]):
                continue
            window.append(node)
            error, expected = self._alone(window)
            if error is None or expected is None:
                continue
            size = rms(expected[np.isfinite(expected)])
            if error > _TOLERANCE * self._u * size + SMALLEST_NORMAL[self._case.precision]:
                found = self._located(found, window, expected)
                return replace(found, value=name, stored=f"{found.op} alone {_loss(error, size)}")
            window = []
        return found

    def shrunk(self, found: Localization) -> Localization:
        """Find the smallest run of operators that fails.

        Args:
            found: what is known of the failure.
        """
        nodes = [n for n in self._subject.model.graph if n.op_type != "Constant"]
        if sum(bool(v.name) for n in self._subject.model.graph for v in n.outputs) > MOST_VALUES:
            return found
        end = next((i for i in range(len(nodes)) if self._bad(nodes[: i + 1]) is not None), None)
        if end is None:
            return found
        start = next(i for i in range(end, -1, -1) if self._bad(nodes[i : end + 1]) is not None)
        expected = self._bad(nodes[start : end + 1])
        assert expected is not None
        return self._located(found, nodes[start : end + 1], expected)

    def _bad(self, nodes: Sequence[ir.Node]) -> Array | None:
        """Return what some operators should give, where they do not."""
        if not is_float(self._truth[str(nodes[-1].outputs[0].name)]):
            return None
        error, expected = self._alone(nodes)
        if error is None or expected is None:
            return None
        return expected if error > _TOLERANCE * self._u * rms(expected[np.isfinite(expected)]) else None

    def _alone(self, nodes: Sequence[ir.Node]) -> tuple[float | None, Array | None]:
        """Run some nodes on right inputs; return the last one's RMS error against float64 on them, and the truth.

        (None, None) where the runtime cannot run them on their own.
        """
        name = str(nodes[-1].outputs[0].name)
        small, feeds = self._cut_out(nodes, name)
        expected = run_evaluator(Evaluator(small), feeds)[name]
        try:
            session = open_session(bare_proto(small).SerializeToString(), self._setting)
            got = np.asarray(run_session(session, feeds, [name])[0], np.float64)
        except GraphError:
            return None, None
        if got.shape != expected.shape:
            return float("inf"), expected
        finite = np.isfinite(got) & np.isfinite(expected)
        return rms(got[finite] - expected[finite]), expected

    def _cut_out(self, nodes: Sequence[ir.Node], name: str) -> tuple[ir.Model, Arrays]:
        small = subgraph(self._subject.model, nodes, [name], self._values)
        return small, {str(v.name): self._values[str(v.name)] for v in small.graph.inputs}

    def _located(self, found: Localization, nodes: Sequence[ir.Node], expected: Array) -> Localization:
        """Name some operators as the site, and keep them as a bundle."""
        found = replace(found, where=module_path(nodes[0]), op="+".join(n.op_type for n in nodes))
        if self._folder is None:
            return found
        name = str(nodes[-1].outputs[0].name)
        small, feeds = self._cut_out(nodes, name)
        finite = expected[np.isfinite(expected)]
        bound = _TOLERANCE * self._u * float(np.abs(finite).max(initial=0.0))
        command = write_bundle(
            self._folder,
            small,
            feeds,
            {name: expected.astype(self._values[name].dtype)},
            {name: bound},
            self._setting,
            note=f"{name} is computed wrongly by the runtime",
        )
        return replace(found, bundle=str(self._folder), rerun=command)


def _loss(error: float, size: float) -> str:
    """Say how wrong a result is whose RMS error and RMS size are known; an infinite error is another shape."""
    if not np.isfinite(error):
        return "has another shape than the operator's definition gives it"
    return f"keeps about {round(-np.log2(error / size)) if size else 0} bits of mantissa"


def _as_stored(model: ir.Model, name: str, array: Array) -> Array:
    """Round a float64 value to the dtype it has in the file; float32 where that is not declared."""
    if array.dtype != np.float64:
        return array
    for node in model.graph:
        for value in node.outputs:
            if value.name != name:
                continue
            dtype = ir.DataType(node.attributes.get_int("to", 1)) if node.op_type == "Cast" else value.dtype
            if dtype is not None:
                with np.errstate(over="ignore"):  # what the type does not hold is infinite in the file too
                    return np.asarray(array.astype(dtype.numpy()))
    return array.astype(np.float32)
