"""Mutants: deliberate errors at one normalization site, as the errors people and tools really make.

Each is a function from the site's inputs to its wrong output, in float64. Where a mutant provably computes the same
function up to one rounding of the site's own operator, it says so: no check can or need tell it apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import AFFINE_DOMAIN, evaluate_node
from normdeploy.graph.traits import Trait, has, is_standard

Values = Sequence[Tensor | None]
Apply = Callable[[Values], Tensor]
Opset = Mapping[str, int] | None

BATCH_NORM = "BatchNormalization"
INSTANCE_NORM = "InstanceNormalization"


def is_norm(node: ir.Node | None) -> bool:
    """Tell whether an operator normalizes and scales: by statistics of its input, or by stored ones."""
    weighed = has(node, Trait.NORMALIZES) and has(node, Trait.WEIGHS)
    return weighed or (node is not None and is_standard(node, BATCH_NORM))


@dataclass(frozen=True)
class Mutant:
    """One deliberate error.

    Args:
        name: what was done. apply: the site's wrong output from its inputs.
        words: the mistake as it would be described to its maker; the name by default.
        affine: for whatever the site reads first, the wrong output is one affine map of it, as the right one is.
        statistics: returns what the site would have to read for its right output to be the wrong one, where that
            depends on what it reads first.
        same: tells from the other values that the site reads whether the wrong output is the right one, whatever it
            reads first.
        nothing: it changes nothing: the wrong output is the right one, whatever the site reads.
        between_rows: it takes something from another row: where a row has no neighbour it changes nothing.
    """

    name: str
    apply: Apply
    words: str = ""
    affine: bool = False
    statistics: Callable[[Values], Values] | None = None
    same: Callable[[Values], bool] | None = None
    nothing: bool = False
    between_rows: bool = False

    @property
    def proven_at_once(self) -> bool:
        """True where what is seen of one family can show that it is the right function for every input."""
        return self.affine or self.same is not None


@dataclass(eq=False)
class Site:
    """One normalization in the reference's graph.

    Args:
        where: module path. node: its operator. inputs: names of the values it reads ("" where absent).
        output: name of the value that a mutant replaces (for a border mutant, the convolution's). mutants: to try.
        right: computes the right output, where that is not the node itself.
        epsilon: its epsilon; 0 where it has none.
        opset: operator set versions of the whole graph, where the node stands in the body of an If, Loop or Scan: it
            has no value of the main graph then, and mutants take the operator's place wherever the body runs.
    """

    where: str
    node: ir.Node
    inputs: tuple[str, ...]
    output: str
    mutants: list[Mutant] = field(default_factory=list)
    right: Apply | None = None
    epsilon: float = 0.0
    opset: Opset = None

    @property
    def inner(self) -> bool:
        """True in the body of a control flow operator."""
        return self.opset is not None

    @property
    def is_affine(self) -> bool:
        """True for an affine map, which is no operator of ONNX."""
        return self.node.domain == AFFINE_DOMAIN

    @property
    def is_epsilon(self) -> bool:
        """True for the sum that adds a norm's epsilon, where the norm is spelled out."""
        return not self.is_affine and self.node.op_type == "Add"

    @property
    def kind(self) -> str:
        """The operator in ONNX words, for people."""
        return "affine map" if self.is_affine else "epsilon" if self.is_epsilon else self.node.op_type

    def clean(self, values: Values) -> Tensor:
        """Return the site's right output."""
        if self.right is not None:
            return self.right(values)
        return evaluate_node(self.node, list(values), opset_imports=self.opset or opsets(self.node))[0]


def mutants_of(node: ir.Node, opset: Opset) -> list[Mutant]:
    """Return the mutants of a normalization; none of any other operator."""
    if not is_norm(node):
        return []
    if node.op_type == BATCH_NORM:
        return _batch_mutants(node, opset)
    if has(node, Trait.BY_ROW):
        return _row_mutants(node, opset)
    return _grouped_mutants(node, opset)


def _with(node: ir.Node, opset: Opset, **attributes: float) -> Apply:
    """Evaluate a node with some attributes changed."""
    changed = [ir.AttrFloat32(name, value) for name, value in attributes.items()]
    kept = [a for a in node.attributes.values() if a.name not in attributes]
    # Operators with a torch mapping read their inputs from the list; the node must not become a user of the graph's
    unconnected = [None] * len(node.inputs)
    other = ir.Node(node.domain, node.op_type, unconnected, [*kept, *changed], num_outputs=1, version=node.version)
    return lambda values: evaluate_node(other, list(values), opset_imports=opset)[0]


def opsets(node: ir.Node) -> dict[str, int] | None:
    """Return the operator set versions of a node's graph."""
    graph = node.graph
    return dict(graph.opset_imports) if isinstance(graph, ir.Graph) else None


def _changed_input(node: ir.Node, opset: Opset, index: int, change: Callable[[Tensor], Tensor]) -> Apply:
    """Evaluate a node with one input changed."""

    def apply(values: Values) -> Tensor:
        wrong = list(values)
        value = wrong[index]
        if value is not None:
            wrong[index] = change(value)
        return evaluate_node(node, wrong, opset_imports=opset)[0]

    return apply


def _changing(name: str, node: ir.Node, opset: Opset, index: int, change: Callable[[Tensor], Tensor]) -> Mutant:
    """Return the mutant that changes one input of a node."""

    def same(values: Values) -> bool:
        value = values[index]
        return value is None or torch.equal(change(value), value)

    return Mutant(name, _changed_input(node, opset, index, change), same=same)


def _rolled(tensor: Tensor) -> Tensor:
    return torch.roll(tensor, 1, 0) if tensor.dim() else tensor  # one number for all has no neighbour


NO_EPSILON = 1e-20
"""Below this an epsilon stands for none (it keeps a zero variance finite, no more)."""


def _epsilon_mutants(node: ir.Node, opset: Opset, *, affine: bool = False) -> list[Mutant]:
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    if epsilon < NO_EPSILON:
        return [Mutant("epsilon 1e-5 in place of 0", _with(node, opset, epsilon=1e-5), affine=affine)]
    return [
        Mutant(name, _with(node, opset, epsilon=wrong), epsilon_words(wrong, epsilon), affine)
        for name, wrong in (("epsilon x10", epsilon * 10), ("epsilon /10", epsilon / 10), ("epsilon 0", 0.0))
    ]


def epsilon_words(wrong: float, right: float) -> str:
    """Describe a wrong epsilon."""
    return f"epsilon {wrong:.3g}; the module says {right:.3g}"


def _batch_mutants(node: ir.Node, opset: Opset) -> list[Mutant]:

    def both_rolled(values: Values) -> Tensor:
        x, scale, shift, mean, var = values[:5]
        assert mean is not None
        assert var is not None
        return evaluate_node(node, [x, scale, shift, _rolled(mean), _rolled(var)], opset_imports=opset)[0]

    def batch_statistics(values: Values) -> Values:
        x, scale, shift = values[:3]
        assert x is not None
        axes = [axis for axis in range(x.dim()) if axis != 1]
        variance = (x - x.mean(axes, keepdim=True)).square().mean(axes)  # torch's own warns of a batch without rows
        return [x, scale, shift, x.mean(axes), variance]

    def by_batch(values: Values) -> Tensor:
        return evaluate_node(node, list(batch_statistics(values)), opset_imports=opset)[0]

    changed: list[tuple[str, Apply]] = [
        ("variance with the other correction (n = 32)", _changed_input(node, opset, 4, lambda v: v * (32 / 31))),
        ("shift dropped", _changed_input(node, opset, 2, torch.zeros_like)),
        ("scale dropped", _changed_input(node, opset, 1, torch.ones_like)),
        ("stale running mean (zeros)", _changed_input(node, opset, 3, torch.zeros_like)),
        ("stale running variance (ones)", _changed_input(node, opset, 4, torch.ones_like)),
        ("a neighbouring channel's statistics", both_rolled),
    ]
    return [
        *_epsilon_mutants(node, opset, affine=True),
        *(Mutant(name, apply, affine=True) for name, apply in changed),
        Mutant("batch statistics in place of running ones", by_batch, statistics=batch_statistics),
    ]


def _row_mutants(node: ir.Node, opset: Opset) -> list[Mutant]:
    centred = has(node, Trait.CENTRES)

    def axes_of(x: Tensor) -> list[int]:
        return list(range(node.attributes.get_int("axis", -1) % x.dim(), x.dim()))

    def other_correction(values: Values) -> Tensor:
        x = values[0]
        assert x is not None
        n = math.prod(x.shape[axis] for axis in axes_of(x))
        factor = math.sqrt((n - 1) / n) if n > 1 else 0.0
        shift = values[2] if len(values) > 2 else None
        y = evaluate_node(node, list(values), opset_imports=opset)[0]
        return y * factor if shift is None else (y - shift) * factor + shift

    def neighbours(values: Values) -> Tensor:
        x = values[0]
        assert x is not None
        axes = axes_of(x)
        epsilon = node.attributes.get_float("epsilon", 1e-5)
        lead = next((axis for axis in range(axes[0] - 1, -1, -1) if x.shape[axis] > 1), None)
        if lead is None:  # one row has no neighbour; written out it would differ by float64's rounding
            return evaluate_node(node, list(values), opset_imports=opset)[0]
        mean = x.mean(axes, keepdim=True) if centred else torch.zeros_like(x.mean(axes, keepdim=True))
        var = (x - mean).square().mean(axes, keepdim=True)
        y = (x - mean.roll(1, lead)) / torch.sqrt(var.roll(1, lead) + epsilon)
        return _scaled(y, values)

    def other_centring(values: Values) -> Tensor:
        x = values[0]
        assert x is not None
        axes = axes_of(x)
        epsilon = node.attributes.get_float("epsilon", 1e-5)
        if centred:  # RMSNorm in place of LayerNorm
            y = x / torch.sqrt(x.square().mean(axes, keepdim=True) + epsilon)
        else:
            mean = x.mean(axes, keepdim=True)
            y = (x - mean) / torch.sqrt((x - mean).square().mean(axes, keepdim=True) + epsilon)
        return _scaled(y, values)

    mutants = [
        *_epsilon_mutants(node, opset),
        Mutant("variance with the other correction", other_correction),
        Mutant("mean not subtracted" if centred else "mean subtracted", other_centring),
        Mutant("a neighbouring row's statistics", neighbours, between_rows=True),
    ]
    if len(node.inputs) > 1:
        mutants.append(_changing("scale dropped", node, opset, 1, torch.ones_like))
        mutants.append(_changing("a neighbouring channel's scale", node, opset, 1, _rolled))
    if len(node.inputs) > 2:
        mutants.append(_changing("shift dropped", node, opset, 2, torch.zeros_like))
    return mutants


def _scaled(y: Tensor, values: Values) -> Tensor:
    scale = values[1] if len(values) > 1 else None
    shift = values[2] if len(values) > 2 else None
    y = y if scale is None else y * scale
    return y if shift is None else y + shift


def _grouped_mutants(node: ir.Node, opset: Opset) -> list[Mutant]:
    groups = node.attributes.get_int("num_groups", 0)

    def other_correction(values: Values) -> Tensor:
        x, scale, shift = values[:3]
        assert x is not None
        assert scale is not None
        assert shift is not None
        n = math.prod(x.shape[2:]) * (x.shape[1] // groups if groups else 1)
        factor = math.sqrt((n - 1) / n) if n > 1 else 0.0
        return evaluate_node(node, [x, scale * factor, shift], opset_imports=opset)[0]

    return [
        *_epsilon_mutants(node, opset),
        Mutant("variance with the other correction", other_correction),
        _changing("scale dropped", node, opset, 1, torch.ones_like),
        _changing("a neighbouring channel's scale", node, opset, 1, _rolled),
        _changing("shift dropped", node, opset, 2, torch.zeros_like),
    ]
