"""Sites that are no operator of their own: hand-written affine maps, and epsilons spelled out as constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import AFFINE_DOMAIN, constant64, evaluate_node, module_path
from normdeploy.graph.exponents import POWERS
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.rewrite.affine import RecogniseAffine
from normdeploy.rewrite.affine.affine_operators import Match, match
from normdeploy.rewrite.rewrite_context import RewriteContext
from normdeploy.verification.mutation.mutant_sites import border_sites
from normdeploy.verification.mutation.mutants import BATCH_NORM, Apply, Mutant, Site, Values, epsilon_words, is_norm

_LARGEST_EPSILON = 1e-2


def affine_sites(canonical: ir.Model) -> list[Site]:
    """Return the channel-wise affine maps of a graph that are spelled out in several operators.

    They are found by the same recognition that folds them; BatchNormalization operators are sites of their own.
    """
    plain = (node for node in canonical.graph if not is_standard(node, BATCH_NORM))
    if not any(isinstance(match(node), Match) for node in plain):
        return []
    recognised = canonical.clone()
    RecogniseAffine(RewriteContext(check=False), norms=False)(recognised)
    producers = {str(o.name): node for node in canonical.graph for o in node.outputs}
    sites = []
    for node in recognised.graph:
        output = str(node.outputs[0].name)
        if node.domain != AFFINE_DOMAIN or output not in producers or is_norm(producers[output]):
            continue
        x, scale, shift = node.inputs[0], constant64(node.inputs[1]), constant64(node.inputs[2])
        if x is None or scale is None or shift is None or (x.name not in producers and not x.is_graph_input()):
            continue
        s, t = torch.from_numpy(scale.copy()), torch.from_numpy(shift.copy())
        wrong = {
            "scale dropped": (torch.ones_like(s), t),
            "shift dropped": (s, torch.zeros_like(t)),
            "scale off by one in 1000": (s * 1.001, t),
            "a neighbouring channel's constants": (_rolled(s), _rolled(t)),
        }
        mutants = [
            Mutant(name, _affine(node, *by), affine=True, nothing=all(map(torch.equal, by, (s, t))))
            for name, by in wrong.items()
        ]
        sites.append(Site(module_path(node), node, (str(x.name),), output, mutants, right=_affine(node, s, t)))
        sites += border_sites(node, module_path(node), (str(x.name),), _affine(node, s, t))
    return sites


def _affine(node: ir.Node, s: Tensor, t: Tensor) -> Apply:
    return lambda values: evaluate_node(node, [values[0], s, t])[0]


def _rolled(tensor: Tensor) -> Tensor:
    if tensor.numel() < 2:
        return tensor
    return torch.roll(tensor, 1, max(range(tensor.dim()), key=lambda a: tensor.shape[a]))


def epsilon_sites(traced: ir.Model, known: Mapping[str, Sequence[float]]) -> list[Site]:
    """Return every spelled-out epsilon: a small constant added to what goes under a root or a division.

    Args:
        traced: the graph as written.
        known: epsilons by module path that are mutated elsewhere, as operators' attributes.
    """
    sites = []
    for node in traced.graph:
        if node.op_type != "Add":
            continue
        elsewhere = known.get(module_path(node), ())
        for value, other in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
            epsilon = constant64(value)
            if (
                other is None
                or epsilon is None
                or epsilon.size != 1
                or not 0 < float(epsilon.item()) <= _LARGEST_EPSILON
            ):
                continue
            if not _goes_under_root(node.outputs[0]):
                continue
            e = float(epsilon.item())
            if any(0.4 <= other_epsilon / e <= 2.5 for other_epsilon in elsewhere):
                break  # the same one in other units: a correction of the variance divides it by n / (n - 1) <= 2
            mutants = [
                Mutant("epsilon x10", _plus(e * 10), epsilon_words(e * 10, e)),
                Mutant("epsilon /10", _plus(e / 10), epsilon_words(e / 10, e)),
                Mutant("epsilon 0", _plus(0.0), epsilon_words(0.0, e)),
            ]
            output = str(node.outputs[0].name)
            sites.append(Site(module_path(node), node, (str(other.name),), output, mutants, right=_plus(e), epsilon=e))
            break
    return sites


def _plus(constant: float) -> Apply:
    def apply(values: Values) -> Tensor:
        assert values[0] is not None
        return values[0] + constant

    return apply


def _goes_under_root(value: ir.Value, depth: int = 0) -> bool:
    for user, index in value.uses():
        if user.op_type in POWERS or (user.op_type == "Div" and index == 1):
            return True
        if has(user, Trait.MOVES | Trait.CONVERTS) and depth < 3 and _goes_under_root(user.outputs[0], depth + 1):
            return True
    return False
