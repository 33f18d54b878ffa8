"""Both sides of a comparison behind a cut: the reference's graph, the file's, and what is fed to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array, Arrays
from normdeploy.graph import Evaluator, bare_proto
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.check_context import Context
from normdeploy.verification.family_case import Case, make_case
from normdeploy.verification.samples.family import Family
from normdeploy.verification.sides.flat_values import Feeds, run_evaluator
from normdeploy.verification.sides.part_reference import PartReference
from normdeploy.verification.sides.sessions import Setting, open_session, run_session


@dataclass
class CutFile:
    """The file behind a cut, its sessions, and the names of its outputs in the reference's order."""

    model: ir.Model
    names: Sequence[str]

    def __post_init__(self) -> None:
        self.evaluator = Evaluator(self.model)
        self._bytes = bare_proto(self.model).SerializeToString()
        self._sessions: dict[Setting, Any] = {}

    @property
    def output_names(self) -> Sequence[str]:
        """Names of the outputs, in the reference's order."""
        return self.names

    def run(self, feeds: Feeds, setting: Setting) -> list[Array]:
        """Return the outputs under one runtime setting."""
        if setting not in self._sessions:
            self._sessions[setting] = open_session(self._bytes, setting)
        return run_session(self._sessions[setting], feeds, self.names)

    def logic(self, feeds: Feeds) -> list[Array]:
        """Return the outputs in float64."""
        found = run_evaluator(self.evaluator, feeds)
        return [found[name] for name in self.names]


@dataclass
class Cut:
    """One site's input cut in all three graphs.

    Args:
        where: the site. names: of the cut value in each graph. value: what the model computes there.
        reference, mutated: the reference's graph and the one the mutants are made in. file: the file's.
        share: of all operators, those behind the cut.
    """

    where: str
    names: tuple[str, ...]
    value: Array
    reference: PartReference
    mutated: Evaluator
    file: CutFile
    noisy: NoisyGraph
    base: Case
    share: float = 1.0

    def case(self, context: Context, name: str, value: Array, *, runs: int = 0, exact: bool = False) -> Case:
        """Evaluate the reference on one value at the site.

        Args:
            runs: with noise, the level's number by default. exact: in float64 also where one run is much work.
        """
        stored = value.astype(np.float32)
        feeds: Arrays = {**self.base.family.feeds, **dict.fromkeys(self.names, stored)}
        family = Family(f"{name} at {self.where}", feeds)
        return make_case(
            self.reference,
            self.noisy,
            family,
            self.base.names,
            runs=runs or context.noise_runs,
            seed=context.seed,
            precision=context.precision,
            fast=context.heavy and not exact,
        )
