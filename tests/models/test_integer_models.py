"""The three networks on integers: no float between their layers, and the network's own integers on every test image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto
from onnxruntime_outputs import run_onnxruntime

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.parsing.recipe import load_recipe
from normdeploy.parsing.sources import build
from normdeploy.rewrite import rewrite
from normdeploy.train import load_weights
from normdeploy.train.from_recipe import recipe_data
from normdeploy.verification.derivation.checker import check_derivation

EXPORT = Path(__file__).parents[2] / "export"
FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16}


@pytest.fixture(scope="module", params=["digits_binary", "digits_int4", "digits_int8"])
def network(request):
    recipe = load_recipe(EXPORT / f"{request.param}.toml")
    assert recipe.export.integer
    model = build(recipe.model.source, recipe.model.arguments, folder=recipe.folder)
    load_weights(model, recipe.weights_path)
    model.eval()
    source = trace(model, (torch.rand(3, 1, 8, 8),), input_names=["image"], output_names=["logits"]).model
    return source, rewrite(source, integer=True), recipe_data(recipe).test.inputs.numpy()


def types_of(proto):
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*inferred.value_info, *inferred.input, *inferred.output)}
    return kinds | {tensor.name: tensor.data_type for tensor in inferred.initializer}


def test_nothing_between_layers_is_a_float(network):
    _, result, _ = network
    proto = ir.to_proto(result.model)
    kinds, nodes = types_of(proto), list(proto.graph.node)
    sums = [i for i, node in enumerate(nodes) if node.op_type in ("ConvInteger", "MatMulInteger")]
    assert len(sums) == 4
    between = nodes[sums[0] : sums[-1] + 1]
    assert not [n.op_type for n in between if any(kinds[v] in FLOATS for v in (*n.input, *n.output) if v)]
    assert not {"Conv", "Gemm", "MatMul"} & {node.op_type for node in nodes}
    fused = [row for row in result.ledger if row.kind == "quantizer" and row.action == "fused"]
    assert len(fused) == 3
    assert all("equal on every accumulator from" in row.reason for row in fused)


def test_every_operator_is_confirmed_for_every_input_by_the_checker(network):
    """It shares no code with the rewriting: sums and levels are proven again, on every integer of their ranges."""
    source, result, _ = network
    sizes = [{"image": (3, 1, 8, 8)}, {"image": (7, 1, 8, 8)}]
    file = ir.from_proto(ir.to_proto(result.model))
    report = check_derivation(source, file, result.derivation, sizes)
    assert report.confirmed
    assert not report.open
    proven = [row for row in report.rows if row.identity == "equal on every integer of the range"]
    assert len(proven) >= 6  # two operators at least for each of three quantizers


def test_every_test_image_gives_what_the_network_in_float64_gives(network):
    source, result, images = network
    got = run_onnxruntime(result.model, {"image": images})[0]
    expected = Evaluator(source).run({"image": torch.from_numpy(images).double()})["logits"].numpy()
    # one flipped integer inside would move a logit by far more than the rounding of the last map
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
