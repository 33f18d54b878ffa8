"""What quantization costs, in the verdict: a number with an interval, of the reference against itself without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.graph.operators.qonnx import DOMAINS
from normdeploy.verification.record.measured import in_plain_data

pytestmark = pytest.mark.filterwarnings("ignore:.*(is|are) deprecated.*")


class Rounded(nn.Module):
    """A linear layer whose input and weight are quantized by functions."""

    def __init__(self, *, step: float = 0.1) -> None:
        super().__init__()
        self.step = step
        self.linear = nn.Linear(6, 4)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(4, 6, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.fake_quantize_per_tensor_affine(x, self.step, 0, -128, 127)
        weight = torch.fake_quantize_per_tensor_affine(self.linear.weight, self.step, 0, -128, 127)
        return nn.functional.linear(x, weight, self.linear.bias)


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 6)).astype(np.float32)


def found(verdict: nd.Verdict) -> dict[str, float]:
    [check] = [check for check in verdict.checks if check.name == "quantization"]
    assert check.status == "note"
    assert f"{check.measured.value:.2%}" in check.detail
    return in_plain_data(check.measured)


def test_it_is_the_modules_own_error_against_floats_on_the_users_rows(tmp_path: Path) -> None:
    model, x = Rounded().eval(), rows(60)
    nd.export(model, torch.from_numpy(x[:4]), tmp_path / "q.onnx")
    verdict = nd.verify(model, tmp_path / "q.onnx", args=torch.from_numpy(x[:4]), data={"x": x})
    measured = found(verdict)
    assert 8 <= measured["rows"] <= 60
    x = x[: int(measured["rows"])]  # a level looks at so many
    whole = x.astype(np.float64) @ model.linear.weight.detach().double().numpy().T + model.linear.bias.detach().numpy()
    with torch.no_grad():
        error = model(torch.from_numpy(x)).numpy() - whole
    assert measured["value"] == pytest.approx(np.linalg.norm(error) / np.linalg.norm(whole), rel=1e-3)
    assert measured["low"] < measured["value"] < measured["high"]
    assert measured["user"]
    assert verdict.status == "pass", verdict.summary()


def test_a_finer_step_costs_less_and_a_network_without_quantizers_says_nothing(tmp_path: Path) -> None:
    x = torch.from_numpy(rows(4))
    costs = []
    for step in (0.3, 0.03):
        result = nd.export(Rounded(step=step).eval(), x, tmp_path / f"{step}.onnx")
        assert result.verdict is not None
        costs.append(found(result.verdict)["value"])
    assert costs[1] < 0.3 * costs[0]
    plain = nd.export(nn.Linear(6, 4).eval(), x, tmp_path / "plain.onnx").verdict
    assert plain is not None
    assert not [check for check in plain.checks if check.name == "quantization"]


@pytest.mark.parametrize("form", ["qdq", "qonnx"])
def test_a_files_quantizers_are_left_out_clipped_ones_and_those_of_weights_too(tmp_path: Path, form: str) -> None:
    weight = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    values = {"w": weight, "s": np.float32(0.2), "z": np.int8(0), "low": np.int8(-7), "high": np.int8(7)}
    make, nodes = helper.make_node, []
    if form == "qonnx":
        values |= {"z": np.float32(0), "bits": np.float32(4)}
        quant = {"domain": DOMAINS[0], "signed": 1, "narrow": 1}
        nodes += [make("Quant", [name, "s", "z", "bits"], [f"{name}d"], **quant) for name in ("x", "w")]
    else:
        for name in ("x", "w"):
            nodes += [
                make("QuantizeLinear", [name, "s", "z"], [f"{name}q"]),
                make("Clip", [f"{name}q", "low", "high"], [f"{name}c"]),
                make("DequantizeLinear", [f"{name}c", "s", "z"], [f"{name}d"]),
            ]
    nodes.append(make("MatMul", ["xd", "wd"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    opsets = [helper.make_opsetid("", 18), *([helper.make_opsetid(DOMAINS[0], 1)] if form == "qonnx" else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "q.onnx")
    result = nd.fold(tmp_path / "q.onnx", tmp_path / "out.onnx")
    assert result.verdict is not None
    x = rows(50)
    measured = found(nd.verify(tmp_path / "q.onnx", tmp_path / "out.onnx", data={"x": x}))
    x = x[: int(measured["rows"])]
    xd, wd = (np.clip(np.round(a.astype(np.float64) / np.float32(0.2)), -7, 7) * np.float32(0.2) for a in (x, weight))
    whole = x.astype(np.float64) @ weight
    assert measured["value"] == pytest.approx(np.linalg.norm(xd @ wd - whole) / np.linalg.norm(whole), rel=1e-6)
