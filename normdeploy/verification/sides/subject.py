"""The file under verification: its graph in float64 and its runtime sessions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator, input_names, load_graph, weight_bytes
from normdeploy.graph.operators.evaluation_limits import TooMuchError
from normdeploy.graph.walk import nodes_in, nodes_of
from normdeploy.onnxfile.model import Copied, ModelFile
from normdeploy.ort.ort_format import ORT_FORMAT
from normdeploy.rewrite.infer import infer_missing_types
from normdeploy.verification.sides.declared_shapes import DeclaredShapes
from normdeploy.verification.sides.flat_values import Feeds, run_evaluator
from normdeploy.verification.sides.sessions import Setting, open_session, require_run, run_session
from normdeploy.verification.sides.watch import Watch

_LARGE = 256 * 1024**2
"""Bytes of weights above which one session is open at a time."""

_SIZED_BY_NUMBERS = frozenset({"Loop", "Range", "ConstantOfShape", "Tile", "Pad"})
"""Operators that numbers of the graph make long or large (:mod:`normdeploy.graph.operators.evaluation_limits`)."""


class Subject:
    """The file under verification: its graph in float64 and its runtime sessions, opened once per setting.

    Args:
        file: the ONNX file, or a copy of it.
        called: what messages call it, where it is a copy. read: it, where it was read already.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | Copied,
        *,
        called: str | os.PathLike[str] | None = None,
        read: ModelFile | None = None,
    ) -> None:
        self._file = file if isinstance(file, Copied) else Path(file)
        self.model = load_graph(self.path if read is None else read.path, called=called, read=read)
        self.declared = DeclaredShapes(self.model.graph)  # beside what each run returns
        infer_missing_types(self.model)  # files of ours do not carry them, and what can be looked into hangs on them
        self.evaluator = Evaluator(self.model)
        self.input_names: Sequence[str] = input_names(self.model)
        self.output_names: Sequence[str] = self.evaluator.output_names
        self.watch: Watch | None = None  # sees what operators return in each run in float64
        self._sessions: dict[Setting, Any] = {}
        self._ran: dict[Setting, tuple[Feeds, Sequence[str], list[Any]]] = {}
        dequantizes = any(node.op_type == "DequantizeLinear" for node in nodes_of(self.model))
        self._dequantizes = None if self.model.functions else dequantizes  # which of those run is not looked into
        # Each session holds its own copy of the weights: of a large file, one is open at a time
        self._large = weight_bytes(self.model) > _LARGE

    @property
    def path(self) -> Path:
        """The file, for what takes no bytes."""
        return self._file.path if isinstance(self._file, Copied) else self._file

    def arrange(self, names: Sequence[str]) -> None:
        """Return outputs in another order from now on: the reference's."""
        self.output_names = list(names)

    def session(self, setting: Setting) -> Any:
        """Return the onnxruntime session for a setting."""
        if setting not in self._sessions:
            if self._large:
                self._sessions.clear()
            runs = self._file.runs if isinstance(self._file, Copied) else self._file
            if setting.provider == ORT_FORMAT:
                runs = self.path  # what is converted is the model that a file is read as
            require_run(self.model)
            self._sessions[setting] = open_session(runs, setting, dequantizes=self._dequantizes)
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
            self.declared.see(feeds, names, found)
        return list(known[2])

    def require_bounded(self, feeds: Feeds) -> None:
        """Refuse a file with loops whose evaluation asks for too much, before a runtime is at it for years.

        Raises:
            TooMuchError: it does.
        """
        if not any(node.op_type in _SIZED_BY_NUMBERS for node in nodes_in(self.model.graph)):
            return
        try:
            self.logic(feeds)
        except TooMuchError:
            raise
        except GraphError:
            return  # what cannot be evaluated here is the runtime's to refuse

    def logic(self, feeds: Feeds) -> list[Any]:
        """Return the outputs of the emitted graph in float64, in the order of ``output_names``."""
        watch = self.watch
        if watch is not None:
            watch.begin(feeds)
        seen = {} if watch is None else {"hook": watch, "entered": watch.enter}
        found = run_evaluator(self.evaluator, feeds, **seen)
        return [found[name] for name in self.output_names]
