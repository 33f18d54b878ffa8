"""Mutants of which a file on integers is the right file, too.

Thresholds are integers, and many errors in front of them move none across an accumulator: an epsilon ten times too
small gives the same comparisons, so that no input can tell, and nothing is wrong. Shown by writing the mutant into the
reference's graph, rewriting that, and finding every operator and every number of the file again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import NormdeployError
from normdeploy.graph import constant_tensor
from normdeploy.graph.edit import put_constant
from normdeploy.graph.traits import kind_of
from normdeploy.rewrite import rewrite
from normdeploy.rewrite.integer import sums_integers
from normdeploy.verification.check_context import Context
from normdeploy.verification.mutation.mutants import BATCH_NORM, Mutant, Site
from normdeploy.verification.mutation.rerun import CleanRun

_RANK = 5
"""Inputs of a BatchNormalization."""


def same_file(context: Context, clean: CleanRun, site: Site, mutant: Mutant) -> str:
    """Return in a sentence that a mutant's own file is this one; "" where it is another, or none was made.

    Args:
        clean: a run of the reference's canonical graph, kept at the site. site, mutant: what survived.
    """
    if context.canonical is None or site.inner or not mutant.affine or site.node.op_type != BATCH_NORM:
        return ""
    if not sums_integers(context.subject.model):
        return ""
    wrong = _mutated(context.canonical, site, mutant, clean.inputs(site))
    opset = context.subject.model.opset_imports.get("")
    try:
        made = rewrite(wrong, highest_opset=opset, integer=True).model
    except NormdeployError:
        return ""
    if not same_graph(made, context.subject.model):
        return ""
    return "undetectable and harmless here: its own file has the same integers and numbers as this one, all of them"


def _mutated(canonical: ir.Model, site: Site, mutant: Mutant, values: Sequence[Tensor | None]) -> ir.Model:
    """Return the graph with a BatchNormalization that computes what the mutant does."""
    model = canonical.clone()
    node = next(node for node in model.graph if any(output.name == site.output for output in node.outputs))
    x = values[0]
    assert x is not None
    with torch.no_grad():
        shift = mutant.apply([torch.zeros_like(x), *values[1:]])
        scale = mutant.apply([torch.ones_like(x), *values[1:]]) - shift
    channels = [array.movedim(1, 0).reshape(array.shape[1], -1)[:, 0].numpy() for array in (scale, shift)]
    plain = [np.zeros(len(channels[0])), np.ones(len(channels[0]))]
    for index, array in zip(range(1, _RANK), (*channels, *plain), strict=True):
        name = f"{site.output}.mutant.{index}"
        node.replace_input_with(index, put_constant(model.graph, array, name, ir.DataType.DOUBLE))
    node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 0.0)
    return model


def same_graph(made: ir.Model, file: ir.Model) -> bool:
    """Tell whether two graphs have the same operators, wired alike, with the same stored numbers."""
    if len(made.graph.outputs) != len(file.graph.outputs):
        return False
    seen: set[tuple[ir.Value, ir.Value]] = set()
    pending = list(zip(made.graph.outputs, file.graph.outputs, strict=True))
    while pending:
        pair = pending.pop()
        if pair in seen:
            continue
        seen.add(pair)
        tensors = [constant_tensor(value) for value in pair]
        if tensors[0] is not None and tensors[1] is not None:
            a, b = tensors[0].numpy(), tensors[1].numpy()
            if a.dtype != b.dtype or not np.array_equal(a, b):
                return False
            continue
        nodes = [value.producer() for value in pair]
        if nodes[0] is None or nodes[1] is None:
            if nodes[0] is not nodes[1] or tensors[0] is not tensors[1] or pair[0].name != pair[1].name:
                return False
            continue
        if _described(nodes[0]) != _described(nodes[1]) or pair[0].index() != pair[1].index():
            return False
        for one, other in zip(nodes[0].inputs, nodes[1].inputs, strict=True):
            if one is not None and other is not None:
                pending.append((one, other))
            elif one is not other:
                return False
    return True


def _described(node: ir.Node) -> tuple[object, ...]:
    attributes = {
        name: str(np.float32(attribute.value)) if attribute.type == ir.AttributeType.FLOAT else str(attribute.value)
        for name, attribute in node.attributes.items()
    }
    return (*kind_of(node), len(node.inputs), attributes)
