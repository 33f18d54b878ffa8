"""The norm of a gathered row is a row of the normed table: norm(table[i]) = norm(table)[i].

An embedding that goes straight into a LayerNormalization or RMSNormalization over its last axis needs no norm at run
time: the table is normed once, row by row, in float64.

Conditions:
1. Gather along axis 0 from a constant table [V, D]; the norm spans D, and its scale and bias are constants;
2. nothing else reads the gathered rows, and nothing reads the norm's statistics;
3. where others read the table too (a tied head), the copy must cost less than the pass it saves.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Floats
from normdeploy.graph import evaluate_node, is_constant, module_path, tensor64
from normdeploy.graph.edit import is_read, only_reader, share_names
from normdeploy.graph.exact import FLOATS
from normdeploy.graph.operator_inputs import array_of, optional, shape_of
from normdeploy.graph.traits import Trait, has
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.affine import bytes_moved
from normdeploy.rewrite.affine.constant import copy_cost
from normdeploy.rewrite.affine.replacement import Region
from normdeploy.rewrite.rewrite_context import RewritePass


class NormTables(RewritePass):
    """Norm constant tables in place of the rows gathered from them.

    Args:
        context: its ledger row of the norm changes from kept or fused to folded; each change is checked.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every norm once."""
        share_names(model)
        modified = False
        for graph in graphs_of(model):
            for node in list(graph):
                if has(node, Trait.BY_ROW):
                    modified |= self._fold(graph, node)
        return ir.passes.PassResult(model, modified)

    def _fold(self, graph: ir.Graph, norm: ir.Node) -> bool:
        gather = _gather_in_front(graph, norm)
        if gather is None:
            return False
        table = gather.inputs[0]
        assert table is not None
        if copy_cost(table, gather) >= bytes_moved.pass_bytes(norm.outputs[0]):
            return False
        parameters = [value for value in (optional(norm, 1), optional(norm, 2)) if value is not None]
        operands = [torch.from_numpy(np.array(array_of(value))) for value in parameters]
        rows = table.const_value
        assert rows is not None
        imports = dict(graph.opset_imports)

        def compute() -> Floats:
            normed = evaluate_node(norm_form, [torch.from_numpy(np.array(tensor64(rows))), *operands],
                                   opset_imports=imports)[0]  # fmt: skip
            return normed.numpy()

        norm_form = ir.Node("", norm.op_type, [None] * (1 + len(operands)), list(_last_axis(norm)), num_outputs=1)
        region = Region(graph, before=[gather, norm])
        new_table = region.constant(compute, shape_of(table), rows.dtype, name=str(table.name), succeeds=table)
        new = region.replace(gather, [new_table, *gather.inputs[1:]])
        site, output = module_path(norm), str(norm.outputs[0].name)
        region.same(norm.outputs[0], new.outputs[0])
        indices = gather.inputs[1]
        assert indices is not None
        region.commit(self.context, "norm of a table", site, {indices: self._few(indices, shape_of(table)[0])})
        self._settle(output, module_path(gather))
        return True

    def _few(self, indices: ir.Value, rows: int) -> torch.Tensor:
        """Draw a few indices: two along each axis."""
        rank = 0 if indices.shape is None else indices.shape.rank()
        return torch.from_numpy(self.context.rng.integers(0, rows, [2] * rank))

    def _settle(self, output: str, into: str) -> None:
        rows = self.context.ledger.rows
        for index, row in enumerate(rows):
            if output in row.site:
                rows[index] = replace(row, action="folded", into=into, reason="the table is normed")


def _last_axis(norm: ir.Node) -> list[ir.Attr]:
    """Return the norm's attributes for a table of rank 2."""
    return [attr for name, attr in norm.attributes.items() if name != "axis"] + [ir.AttrInt64("axis", -1)]


def _gather_in_front(graph: ir.Graph, norm: ir.Node) -> ir.Node | None:
    source = norm.inputs[0]
    gather = None if source is None else source.producer()
    if gather is None or gather.op_type != "Gather" or gather.graph is not graph or source is None:
        return None
    if only_reader(source) is None or source.shape is None:
        return None
    if is_read(*norm.outputs[1:]):
        return None
    table = gather.inputs[0]
    if not is_constant(table) or table is None or table.dtype not in FLOATS or len(shape_of(table)) != 2:
        return None
    rank = source.shape.rank()
    if gather.attributes.get_int("axis", 0) % 2 != 0 or norm.attributes.get_int("axis", -1) % rank != rank - 1:
        return None
    return gather if all(is_constant(value) for value in norm.inputs[1:] if value is not None) else None
