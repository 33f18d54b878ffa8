"""Ledger rows of recognised normalizations."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from normdeploy.graph import module_path
from normdeploy.graph.traits import Trait, has
from normdeploy.rewrite.ledger import LedgerRow
from normdeploy.rewrite.recognise.batch_statistics import REASON
from normdeploy.rewrite.recognise.emit import kind_of
from normdeploy.rewrite.recognise.largest_norm import Found, Missed
from normdeploy.rewrite.recognise.norm_grammar import REDUCTIONS

_DYNAMIC_COUNT = (
    "its variance is divided by n - 1 and n is dynamic, which no operator says: the fewest passes; exported with "
    "static sizes it is one operator"
)
_SPELLED = "RMSNormalization needs operator set 23, {}: the six operators that onnxruntime fuses"
_TWO_PASS = "E[x^2] - E[x]^2 equals the two-pass form in real numbers only; the operator loses fewer digits"


def stock_row(node: ir.Node) -> LedgerRow:
    """Return the row of a norm that already was one operator."""
    site = tuple(str(value.name) for value in node.outputs[:1])
    detail = _stock_detail(node)
    return LedgerRow(module_path(node), node.op_type, "fused", node.op_type, "already one operator", site, detail)


def _stock_detail(node: ir.Node) -> dict[str, Any]:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return {}
    rank = len(x.shape)
    first = 2
    if has(node, Trait.BY_ROW):
        axis = node.attributes.get_int("axis", -1)
        first = axis % rank
    return {
        "x": str(x.name),
        "axes": tuple(range(first, rank)),
        "split": None,
        "width": 1,
        "centred": has(node, Trait.CENTRES),
        "outside": False,
        "epsilon": node.attributes.get_float("epsilon", 1e-5),
        "operator": True,
    }


def _site(found: Found | Missed) -> tuple[str, ...]:
    return (str(found.y.name),)


def _detail(found: Found) -> dict[str, Any]:
    norm = found.norm
    return {
        "x": str(found.region.x.name),
        "axes": norm.blocks.axes,
        "split": norm.blocks.split,
        "width": norm.blocks.width,
        "centred": norm.centred,
        "outside": norm.outside,
        "epsilon": norm.epsilon,
        "correction": norm.correction,
        "bare": found.bare,
        "operator": any(has(node, Trait.NORMALIZES) for node in found.region.between(found.y)),
    }


def _kind(found: Found) -> str:
    return kind_of(found.norm, list(found.region.x.shape or ()), instance=found.instance)


def fused_row(where: str, found: Found, nodes: list[ir.Node], note: str, *, spelled: str = "") -> LedgerRow:
    """Return the row of a norm written as one operator, or as the shortest form there is.

    Args:
        where: module path.
        found: what was recognised.
        nodes: the operators that stand for it.
        note: what an approximation costs; empty where the form is exact.
        spelled: why the graph may not have RMSNormalization, where it is spelled out.
    """
    kind = _kind(found)
    into = next((node.op_type for node in nodes if has(node, Trait.NORMALIZES)), "its shortest form")
    notes = [note] if note else []
    if spelled:
        into = "its shortest form"
        notes.append(_SPELLED.format(spelled))
    if found.norm.outside and not note:
        notes.append("epsilon is outside the root: exact short form; approximate=True allows LayerNormalization")
    if found.norm.correction:
        notes.append(_DYNAMIC_COUNT)
    single_pass = _has_single_pass_variance(found)
    if single_pass:
        notes.append(_TWO_PASS)
    detail = _detail(found) | {"approximate": bool(note), "single_pass": single_pass}
    return LedgerRow(where, kind, "fused", into, "; ".join(notes), _site(found), detail)


def _has_single_pass_variance(found: Found) -> bool:
    """Tell whether the variance is computed from the mean of squares of x itself, with the mean taken off after."""
    if not found.norm.centred:
        return False
    inside = found.region.between(found.y)
    if any(has(node, Trait.NORMALIZES) for node in inside):
        return False
    means = {output for node in inside if node.op_type in REDUCTIONS for output in node.outputs}
    return any(
        node.op_type == "Sub" and all(value in means or _is_square(value, means) for value in node.inputs if value)
        for node in inside
    )


def _is_square(value: ir.Value | None, means: set[ir.Value]) -> bool:
    producer = None if value is None else value.producer()
    if producer is None or producer.op_type not in ("Mul", "Pow"):
        return False
    return any(item in means for item in producer.inputs)


def kept_row(seed: ir.Node, found: Found, reason: str) -> LedgerRow:
    """Return the row of a norm that is recognised and stays as written."""
    return LedgerRow(module_path(seed), _kind(found), "kept", "", reason, _site(found), _detail(found))


def companions_row(seed: ir.Node, found: Found) -> LedgerRow:
    """Return the row of a norm that is recognised and takes its statistics over the batch."""
    return LedgerRow(module_path(seed), "batch statistics", "kept", "", REASON, _site(found), _detail(found))


def repeated_row(root: ir.Node, found: Found, into: str) -> LedgerRow:
    """Return the row of a norm of values that another one has normalized: the two are one normalization.

    Args:
        root: takes the root of its statistics. found: both together. into: module path of the one that stands for them.
    """
    reason = "it normalizes what is normalized already: the two are one normalization, with an epsilon of both"
    return LedgerRow(module_path(root), _kind(found), "merged", into, reason, (str(root.outputs[0].name),))


def missed_row(seed: ir.Node, missed: Missed) -> LedgerRow:
    """Return the row of what behaves like a normalization and is none of ours."""
    reason = f"it normalizes, but is no normalization with an operator of its own: {missed.reason}; left as written"
    return LedgerRow(module_path(seed), "normalization", "kept", "", reason, _site(missed))


def training_row(node: ir.Node) -> LedgerRow:
    """Return the row of a BatchNormalization that computes its own statistics."""
    site = tuple(str(value.name) for value in node.outputs[:1])
    return LedgerRow(module_path(node), "batch statistics", "kept", "", REASON, site)


def unshaped_row(seed: ir.Node) -> LedgerRow:
    """Return the row of what looks like a normalization and has an input of unknown rank."""
    x = seed.inputs[0]
    reason = (
        f"it takes a root of a mean, but the rank of {'' if x is None else x.name!r} is not known, so that it cannot "
        "be probed; declare the shapes of the graph's inputs, or run onnx's shape inference first"
    )
    return LedgerRow(module_path(seed), "normalization", "kept", "", reason, (str(seed.outputs[0].name),))
