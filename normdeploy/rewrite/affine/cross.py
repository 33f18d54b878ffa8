"""What all crossing rules share: an operator stays as it is while the map moves from one side of it to the other."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.rewrite.affine.plan import BackwardPlan, ForwardPlan, Region


def pass_back(node: ir.Node, index: int, position: int, plan: BackwardPlan) -> BackwardPlan:
    """Return the plan of an operator whose input ``position`` carries the map, and so its output ``index`` does."""

    def build(region: Region) -> ir.Value:
        inputs = list(node.inputs)
        inputs[position] = plan.build(region)
        return region.replace(node, inputs).outputs[index]

    return BackwardPlan(build, (*plan.old, node), plan.into, plan.cost)


def pass_on(node: ir.Node, position: int, plan: ForwardPlan, *, index: int = 0) -> ForwardPlan:
    """Return the plan of an operator that reads the raw value and lets the readers of its result do the rest."""

    def build(region: Region, raw: ir.Value) -> None:
        inputs = list(node.inputs)
        inputs[position] = raw
        plan.build(region, region.replace(node, inputs).outputs[index])

    return ForwardPlan(build, (node, *plan.old), plan.into, plan.cost)
