"""Operators that draw random numbers: judged where they make no difference, an answer of ours where they do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser

import normdeploy as nd
from normdeploy.errors import GraphError, InputError, NormdeployError
from normdeploy.graph import Evaluator, load_graph

SCALED = "xs = Mul(x, s)"
PLAIN = f"{SCALED} y = Identity(xs)"
DEAD = {
    "like": "r = RandomUniformLike(x) z = Mul(r, zero) xs = Mul(x, s) y = Add(xs, z)",
    "zero first": "r = RandomNormalLike(x) z = Mul(zero, r) xs = Mul(x, s) y = Sub(xs, z)",
    "of a shape": "r = RandomNormal<shape = [1, 4]>() z = Mul(r, zero) xs = Mul(x, s) y = Add(xs, z)",
    "moved": "r = RandomUniformLike(x) c = Cast<to = 1>(r) n = Neg(c) z = Mul(n, zero) xs = Mul(x, s) y = Add(xs, z)",
    "drawn with chances": "p = Sigmoid(x) r = Bernoulli(p) z = Mul(r, zero) xs = Mul(x, s) y = Add(xs, z)",
    "tiled": "r = RandomNormal<shape = [1, 2]>() t = Tile(r, twice) z = Mul(t, zero) xs = Mul(x, s) y = Add(xs, z)",
    "its size alone": "r = RandomUniformLike(x) d = Shape(r) xs = Mul(x, s) y = Reshape(xs, d)",
    "read by nothing": f"r = RandomUniformLike(x) {PLAIN}",
}
LIVE = {
    "added": "r = RandomUniformLike(x) xs = Mul(x, s) y = Add(xs, r)",
    "times nearly zero": "r = RandomUniformLike(x) z = Mul(r, tiny) xs = Mul(x, s) y = Add(xs, z)",
    "divided into zero": "r = RandomUniformLike(x) z = Div(zero, r) xs = Mul(x, s) y = Add(xs, z)",
    "also added": "r = RandomUniformLike(x) z = Mul(r, zero) a = Add(z, r) xs = Mul(x, s) y = Add(xs, a)",
    "infinite": "r = RandomNormalLike<scale = 1e38>(x) z = Mul(r, zero) xs = Mul(x, s) y = Add(xs, z)",
}


def write(path: Path, body: str) -> Path:
    lines = body.replace(") ", ")\n")
    header = '<ir_version: 9, opset_import: ["" : 20]> g (float[n,4] x) => (float[n,4] y)'
    model = parser.parse_model(f"{header} {{ {lines} }}")
    constants = {"s": [1, 2, 3, 4], "zero": 0, "tiny": 1e-30}
    model.graph.initializer.extend(numpy_helper.from_array(np.float32(v), k) for k, v in constants.items())
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "twice"))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("name", DEAD)
def test_what_zeros_multiply_is_judged(tmp_path: Path, name: str):
    plain, random = write(tmp_path / "p.onnx", PLAIN), write(tmp_path / "r.onnx", DEAD[name])
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert np.array_equal(Evaluator(load_graph(random)).run({"x": x})["y"], x * [1, 2, 3, 4])
    for reference, file in ((random, random), (plain, random), (random, plain)):
        verdict = nd.verify(reference, file, level="quick")
        assert verdict.status in ("pass", "weak"), verdict.summary()
        assert not [check for check in verdict.checks if check.name == "logic" and check.status != "pass"]
    assert nd.fold(random, tmp_path / "o.onnx").path.is_file()


@pytest.mark.parametrize("name", LIVE)
def test_what_reaches_an_output_is_no_pass_and_no_raise(tmp_path: Path, name: str):
    plain, random = write(tmp_path / "p.onnx", PLAIN), write(tmp_path / "r.onnx", LIVE[name])
    with pytest.raises(GraphError, match=r"is random, and what it draws reaches an output; expected .* remove it"):
        Evaluator(load_graph(random)).run({"x": np.ones((2, 4), np.float32)})
    for reference in (random, plain):
        verdict = nd.verify(reference, random, level="quick")
        assert verdict.status in ("error", "fail", "weak"), verdict.summary()
        assert "is random" in verdict.summary()
    assert nd.verify(random, plain, level="quick").status == "error"


@pytest.mark.parametrize("form", ["array", "mapping", "list"])
def test_a_tensor_of_bfloat16_is_data(tmp_path: Path, form: str):
    path = write(tmp_path / "p.onnx", PLAIN)
    x = torch.randn(6, 4).bfloat16().requires_grad_()
    data = {"array": x, "mapping": {"x": x}, "list": [x, x]}[form]
    verdict = nd.verify(path, path, data=data, level="quick")
    assert verdict.status == "pass", verdict.summary()
    assert nd.verify(path, path, args={"x": x.float()}, level="quick").status == "pass"


@pytest.mark.parametrize(
    "bad", [torch.zeros(6, 4).to(torch.float8_e4m3fn), torch.zeros(6, 4).to_sparse(), [[1], [1, 2]], object()]
)
def test_what_is_no_array_is_an_error_of_ours(tmp_path: Path, bad: object):
    path = write(tmp_path / "p.onnx", PLAIN)
    with pytest.raises(InputError, match="data for 'x'"):
        nd.verify(path, path, data={"x": bad}, level="quick")
    with pytest.raises(InputError, match="args for 'x'"):
        nd.verify(path, path, args={"x": bad}, level="quick")
    with pytest.raises(NormdeployError, match="'x'"):
        nd.tune(path, data={"x": bad})


def test_bfloat16_for_tune_is_refused_with_the_inputs_type(tmp_path: Path):
    path = write(tmp_path / "p.onnx", PLAIN)
    with pytest.raises(InputError, match=r"bfloat16.*expected x: float32"):
        nd.tune(path, data=torch.zeros(6, 4).bfloat16())


def test_a_failure_says_that_the_file_draws(tmp_path: Path) -> None:
    """Places in a drawn order are integers: nothing is measured that could tell them from wrong ones."""
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[n, 9] x) => (int64[n, 9] y)'
    body = "r = RandomUniformLike (x) s = Add (r, x) t, y = TopK <axis = 1> (s, k)"
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(f"{head} <int64[1] k = {{9}}> {{ {body} }}"), path)

    class Shuffled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.topk(x + torch.rand_like(x), 9).indices

    verdict = nd.verify(Shuffled(), path, args=(torch.zeros(2, 9),), level="quick")
    assert verdict.status == "fail"
    assert "what RandomUniformLike" in verdict.check("rounding").detail
    assert "draws nothing in evaluation" in verdict.check("rounding").detail
