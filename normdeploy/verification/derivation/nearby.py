"""What a value of the file may stand for where no hint says it: values of the source computed of the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph.operator_evaluation import OPERATOR_ERRORS
from normdeploy.verification.derivation.regions.analytic import confirm_analytic
from normdeploy.verification.derivation.regions.over_rows import over_rows_nearby
from normdeploy.verification.derivation.related.relation import Proof, Relation, Target, identity
from normdeploy.verification.derivation.related.unrounded import Constants
from normdeploy.verification.derivation.side.affine_laws import back
from normdeploy.verification.derivation.side.movement import first_moved

_MOST_REGIONS = 8
"""How many values are tried as results of a region, which takes evaluations."""


def nearby(relation: Relation, node: ir.Node, value: ir.Value) -> Iterator[Target]:
    """Return values of the source of one shape and type with a value of the file, nearest first, and its rows.

    Args:
        relation: what is known. node: of the file. value: its result.
    """
    mapped = [step.value for step in back(relation.file, value) if step.nodes]
    scaled = [w for v in mapped for w, _ in relation.by_file.get(v, ())]  # by a factor that the source has in front
    read = [*(v for v in node.inputs if v is not None), *first_moved(value, relation.by_file)]
    read += [step.value for v in read for step in back(relation.file, v)]
    for w in (*scaled, *relation.near(read)):
        rank = relation.rank(w)
        if rank is not None and relation.alike(w, value):
            yield identity(w, rank)
    yield from over_rows_nearby(relation, read, value)


def region_nearby(relation: Relation, value: ir.Value, targets: Sequence[Target], constants: Constants) -> Proof | None:
    """Return the proof that what is computed there is a region of the source, where no operator fits by itself.

    Args:
        relation: what is known. value: of the file. targets: what it may stand for, nearest first.
        constants: unrounded ones of the file.
    """
    for target in [target for target in targets if not target.rows][:_MOST_REGIONS]:
        try:
            found = confirm_analytic(relation, value, target, constants)
        except (GraphError, *OPERATOR_ERRORS):  # operands that contradict each other prove nothing
            continue
        if isinstance(found, Proof):
            return found
    return None
