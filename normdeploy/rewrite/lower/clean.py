"""Last things: unread nodes and constants leave, node names are unique."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common

from normdeploy.graph import AFFINE_DOMAIN
from normdeploy.graph.walk import graphs_of, nodes_of
from normdeploy.rewrite.rewrite_context import GUARD, OWN_AFFINE, STATISTIC


class Clean(ir.passes.InPlacePass):
    """Remove what nothing reads (graph inputs and outputs stay) and make node names unique."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Clean the model."""
        removed = common.RemoveUnusedNodesPass()(model).modified
        for imports in (model.opset_imports, *(graph.opset_imports for graph in graphs_of(model))):
            imports.pop(AFFINE_DOMAIN, None)
        for node in nodes_of(model):
            for key in (STATISTIC, OWN_AFFINE, GUARD):
                node.metadata_props.pop(key, None)
        seen: set[str] = set()
        renamed = False
        for node in nodes_of(model):
            if not node.name:
                continue
            name, count = node.name, 1
            while name in seen:
                name, count = f"{node.name}_{count}", count + 1
            seen.add(name)
            if name != node.name:
                node.name = name
                renamed = True
        return ir.passes.PassResult(model, removed or renamed)
