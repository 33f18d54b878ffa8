"""Copies of one map in several bodies: whether each of them takes its copy, and the one ledger row for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from normdeploy.graph import module_path
from normdeploy.rewrite.affine.affine_node import adopt_origins, origins_of, set_taken
from normdeploy.rewrite.gauge.changed_values import takers_of
from normdeploy.rewrite.gauge.remove_maps import MoveAffine


def takers_in(engine: MoveAffine, copies: Mapping[ir.Graph, ir.Node]) -> dict[ir.Node, None] | tuple[ir.Graph, str]:
    """Return what takes the copies; the body and the reason where one has to stay. The bodies stay as they are.

    Args:
        engine: is asked for each body.
        copies: of one map, by body.
    """
    takers: dict[ir.Node, None] = {}
    for body, copy in copies.items():
        plan = engine.settled(body)
        if copy not in plan.gone:
            return body, str(plan.stays.get(copy, "it only takes a half"))
        takers |= dict.fromkeys(takers_of(copy, plan))
    return takers


def answer_for(node: ir.Node, copy: ir.Node, takers: Iterable[ir.Node]) -> None:
    """Let one of a map's copies answer for the map's ledger rows, and name what took all of them."""
    adopt_origins(copy, origins_of(node))
    set_taken(copy, "", dict.fromkeys(map(module_path, takers)))
