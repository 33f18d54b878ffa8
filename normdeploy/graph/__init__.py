"""Room: graph. ONNX files as onnx_ir, exact constants, module paths, and evaluation in float64."""

from normdeploy.graph.constant_parts import Parts, Reader
from normdeploy.graph.evaluate import Evaluator, Hook
from normdeploy.graph.evaluated_region import evaluate_alike, evaluate_region
from normdeploy.graph.exact import (
    AFFINE_DOMAIN,
    FLOATS,
    ExactTensor,
    compress,
    constant64,
    constant_tensor,
    contracted,
    is_constant,
    parts64,
    round_once,
    tensor64,
)
from normdeploy.graph.model_check import check_proto
from normdeploy.graph.onnx_files import (
    bare_proto,
    input_names,
    load_graph,
    save_graph,
    strip_traces,
    weight_bytes,
)
from normdeploy.graph.operator_evaluation import evaluate_node
from normdeploy.graph.scopes import WHERE, in_root, module_path

__all__ = [
    "AFFINE_DOMAIN",
    "FLOATS",
    "WHERE",
    "Evaluator",
    "ExactTensor",
    "Hook",
    "Parts",
    "Reader",
    "bare_proto",
    "check_proto",
    "compress",
    "constant64",
    "constant_tensor",
    "contracted",
    "evaluate_alike",
    "evaluate_node",
    "evaluate_region",
    "in_root",
    "input_names",
    "is_constant",
    "load_graph",
    "module_path",
    "parts64",
    "round_once",
    "save_graph",
    "strip_traces",
    "tensor64",
    "weight_bytes",
]
