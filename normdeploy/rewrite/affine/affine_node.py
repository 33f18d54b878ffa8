"""The internal operator ``normdeploy.Affine(x, s, t)``: y = s * x + t, with s and t exact constants of x's rank.

One node stands for any spelling of a channel-wise affine map (see :mod:`.affine_map`). It lives between recognition and
lowering only. Each remembers its origins: the ledger rows it answers for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import onnx_ir as ir

from normdeploy.graph import AFFINE_DOMAIN, constant_tensor, tensor64
from normdeploy.graph.edit import put_exact
from normdeploy.rewrite.affine.affine_map import AffineMap
from normdeploy.rewrite.ledger import Action, Ledger, LedgerRow

AFFINE = "Affine"

_MAP = "normdeploy.map"
_ORIGINS = "normdeploy.origins"
_WRITTEN = "normdeploy.written"
_REASON = "normdeploy.reason"
_CHAIN = "normdeploy.chain"
_TAKEN = "normdeploy.taken"


@dataclass(frozen=True)
class Origin:
    """One normalization or affine map of the input graph, for which one ledger row is due.

    Args:
        where: module path or node name.
        kind: "BatchNormalization" or "affine map".
        site: names of the region's output values in the input graph.
        detail: float64 facts for other rooms.
        part: it belongs to a normalization that has its own row; it gets one only if it leaves.
    """

    where: str
    kind: str
    site: tuple[str, ...]
    detail: dict[str, Any] = field(default_factory=dict, compare=False)
    part: bool = False

    def row(self, action: Action, into: str = "", reason: str = "", chain: tuple[str, ...] = ()) -> LedgerRow:
        """Return the ledger row that settles this origin."""
        return LedgerRow(self.where, self.kind, action, into, reason, self.site, self.detail, chain)


@dataclass(frozen=True)
class Step:
    """One operator of an affine map as its author wrote it; ``None`` in ``inputs`` stands for the running value."""

    op_type: str
    inputs: tuple[ir.Value | None, ...]
    attributes: tuple[ir.Attr, ...]
    name: str | None
    metadata: tuple[tuple[str, str], ...]


def is_affine(node: ir.Node | None) -> bool:
    """Tell whether a node is our internal Affine."""
    return node is not None and node.domain == AFFINE_DOMAIN and node.op_type == AFFINE


def affine_map(node: ir.Node) -> AffineMap:
    """Return the map of an Affine node; computed once for the constants that it reads."""
    tensors = constant_tensor(node.inputs[1]), constant_tensor(node.inputs[2])
    held, mapping = node.meta.get(_MAP, ((None, None), None))
    if mapping is not None and held[0] is tensors[0] and held[1] is tensors[1]:
        return cast("AffineMap", mapping)
    if tensors[0] is None or tensors[1] is None:
        raise TypeError(f"Affine {node.name!r} has operands that are no constants; expected exact initializers")
    found = AffineMap(tensor64(tensors[0]), tensor64(tensors[1]))
    node.meta[_MAP] = tensors, found
    return found


def origins_of(node: ir.Node) -> tuple[Origin, ...]:
    """Return the ledger rows an Affine answers for, the one that names it first."""
    return tuple(node.meta.get(_ORIGINS, ()))


def written_of(node: ir.Node) -> tuple[Step, ...]:
    """Return the operators as their author wrote them; empty once the map was composed or moved."""
    return tuple(node.meta.get(_WRITTEN, ()))


def forget_written(node: ir.Node) -> None:
    """Note that a map was composed: what its author wrote says it no longer."""
    node.meta[_WRITTEN] = ()


def set_reason(node: ir.Node, reason: str, chain: Iterable[str] = ()) -> None:
    """Remember why nothing absorbed this Affine, and the chain of ties that says so, for the ledger."""
    node.meta[_REASON], node.meta[_CHAIN] = reason, tuple(chain)


def reason_of(node: ir.Node) -> str:
    """Return why nothing absorbed this Affine so far; empty if nobody tried."""
    reason = str(node.meta.get(_REASON, ""))
    half, names = node.meta.get(_TAKEN, ("", ()))
    where = f"went into {', '.join(names)}" if names else "is undone, or not seen, behind it"
    taken = f"its {half} {where}" if half else ""
    return "; ".join(part for part in (taken, reason) if part)


def set_taken(node: ir.Node, half: str, names: Iterable[str]) -> None:
    """Remember which half of the map was absorbed ("scale"), and by what; part of the reason from now on."""
    node.meta[_TAKEN] = (half, tuple(names))


def taken_by(node: ir.Node) -> tuple[str, ...]:
    """Return what absorbed a half of the map before."""
    return tuple(node.meta.get(_TAKEN, ("", ()))[1])


def settle(ledger: Ledger, node: ir.Node, action: Action, into: str = "", reason: str = "") -> None:
    """Write the ledger rows of an Affine that leaves the graph (or stays for good).

    Args:
        ledger: gets one row per origin.
        node: the Affine; must be settled once only.
        action: what became of it. For "kept" the first origin is kept and the others were folded into it.
        into: what took it.
        reason: for "kept", why.
    """
    origins = origins_of(node)
    node.meta[_ORIGINS] = ()
    for index, origin in enumerate(origins):
        if action == "kept" and origin.part:
            continue
        if action == "kept" and index > 0:
            ledger.add(origin.row("folded", origins[0].where, "composed with the affine map next to it"))
        else:
            chain = tuple(node.meta.get(_CHAIN, ())) if action == "kept" else ()
            ledger.add(origin.row(action, into, reason, chain))


def adopt_origins(node: ir.Node, origins: Iterable[Origin]) -> None:
    """Make an Affine answer for further ledger rows."""
    node.meta[_ORIGINS] = (*origins_of(node), *origins)


def new_affine(
    graph: ir.Graph,
    x: ir.Value,
    mapping: AffineMap,
    *,
    like: ir.Node,
    origins: Iterable[Origin],
    written: Sequence[Step] = (),
    output: ir.Value | None = None,
) -> ir.Node:
    """Make an Affine node (not inserted) that computes ``mapping`` of ``x``.

    Args:
        graph: where its constants are registered.
        x: input of known rank.
        mapping: the map; its rank is x's.
        like: the node it stands for, which gives name and metadata.
        origins: the ledger rows it answers for.
        written: the operators as written, where lowering may bring them back.
        output: the value whose type and shape the result has; ``like``'s first output by default.
    """
    dtype = x.dtype
    if dtype is None:
        raise TypeError(f"value {x.name!r} has no type; expected a float tensor")
    shown = output if output is not None else like.outputs[0]
    hint = like.name or shown.name or "affine"
    scale = put_exact(graph, lambda: mapping.scale, mapping.scale.shape, dtype, f"{hint}.scale")
    shift = put_exact(graph, lambda: mapping.shift, mapping.shift.shape, dtype, f"{hint}.shift")
    node = ir.Node(
        AFFINE_DOMAIN,
        AFFINE,
        [x, scale, shift],
        outputs=[ir.Value(shape=shown.shape, type=shown.type)],
        name=like.name,
        metadata_props=dict(like.metadata_props),
    )
    node.meta[_ORIGINS] = tuple(origins)
    node.meta[_WRITTEN] = tuple(written)
    return node
