"""Joined operators and guards that never act are seen through: such files are confirmed for every input."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper, parser
from onnxruntime_outputs import run_onnxruntime
from optimized_files import operators, optimized
from skip_norms import loses_digits
from torch import Tensor, nn
from torch.nn import functional

from normdeploy.graph import Evaluator
from normdeploy.verification import verify
from normdeploy.verification.derivation.side.joined_operators import write_out
from normdeploy.verification.derivation.side.nan_guards import take_out_guards

DOMAIN = "com.microsoft"
WIDTH, HEADS = 8, 2


class Block(nn.Module):
    """Attention and a feed-forward layer, each with its norm behind the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.reshape(*part.shape[:2], HEADS, -1).transpose(1, 2) for part in self.rows(x).chunk(3, dim=-1))
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.first(x + self.out(attended))
        result: Tensor = self.second(x + self.narrow(functional.gelu(self.wide(x))))
        return result


@dataclass
class Files:
    model: nn.Module
    x: Tensor
    plain: Path
    joined: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(), Block()).eval(), torch.randn(2, 5, WIDTH)
    folder = tmp_path_factory.mktemp("plainly")
    shapes = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(
        model, (x,), folder / "a.onnx", dynamo=True, verbose=False, external_data=False, dynamic_shapes=shapes
    )
    optimized(folder / "a.onnx", folder / "b.onnx", "extended")
    return Files(model, x, folder / "a.onnx", folder / "b.onnx")


@pytest.mark.skipif(loses_digits(), reason="this onnxruntime computes its joined norms wrongly")
def test_a_file_with_joined_operators_is_confirmed_for_every_input(files: Files) -> None:
    joined = operators(onnx.load(files.joined), DOMAIN)
    assert joined >= {"BiasGelu", "FusedMatMul", "SkipLayerNormalization"}
    verdict = verify(files.plain, files.joined, level="quick")
    assert verdict.status == "pass", verdict.summary()
    assert verdict.check("derivation").status == "pass", verdict.summary()


class Masked(nn.Module):
    """Attention whose mask is written as the lowest number; torch's export writes a guard all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("mask", torch.ones(5, 5, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.reshape(*part.shape[:2], HEADS, -1).transpose(1, 2) for part in self.rows(x).chunk(3, dim=-1))
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


def test_torchs_guard_behind_a_softmax_is_seen_never_to_act(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, x = Masked().eval(), torch.randn(2, 5, WIDTH)
    path = tmp_path / "net.onnx"
    torch.onnx.export(model, (x,), path, dynamo=True, verbose=False, external_data=False)
    proto = onnx.load(path)
    (guard,) = [node for node in proto.graph.node if node.op_type == "Where"]
    (asked,) = [node for node in proto.graph.node if node.op_type == "IsNaN"]
    for node in proto.graph.node:
        node.input[:] = [asked.input[0] if name == guard.output[0] else name for name in node.input]
    proto.graph.node.remove(guard)
    proto.graph.node.remove(asked)
    onnx.save(proto, tmp_path / "without.onnx")
    for reference, judged in ((path, "without.onnx"), (tmp_path / "without.onnx", "net.onnx")):
        verdict = verify(reference, tmp_path / judged, level="quick")
        assert verdict.status == "pass", verdict.summary()
        assert verdict.check("derivation").status == "pass", verdict.summary()


class Causal(nn.Module):
    """Two layers of attention to what came before, a cube between them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("seen", torch.ones(5, 5).tril().bool())

    def forward(self, x: Tensor) -> Tensor:
        for rows in (self.one, self.other):
            q, k, v = (part[:, None] for part in rows(x).chunk(3, dim=-1))
            x = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.seen)[:, 0]
            x = x + 0.1 * x**3
        return x


def test_guards_that_never_act_are_not_asked_to_where_a_mask_is_another(tmp_path: Path) -> None:
    """torch's own export hides by -3.4e38 where the module hides by -inf, which samples judge, and guards as well."""
    torch.manual_seed(1)
    model, x = Causal().eval(), torch.randn(2, 5, WIDTH)
    torch.onnx.export(model, (x,), tmp_path / "net.onnx", dynamo=True, verbose=False, external_data=False)
    assert "IsNaN" in {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}
    verdict = verify(model, tmp_path / "net.onnx", args=(x,), level="quick")
    assert (verdict.status, verdict.check("derivation").status) == ("pass", "note"), verdict.summary()


@pytest.mark.parametrize("what", ["epsilon", "alpha", "bias", "gamma"])
def test_what_a_joined_operator_does_wrong_is_found(files: Files, tmp_path: Path, what: str) -> None:
    proto = onnx.load(files.joined)
    nodes = [n for n in proto.graph.node if n.domain == DOMAIN]
    stored = {t.name: t for t in proto.graph.initializer}
    if what in ("epsilon", "alpha"):
        (attribute, *_) = [a for n in nodes for a in n.attribute if a.name == what]
        attribute.f *= 1.001 if what == "alpha" else 3
    else:
        kind, place = {"bias": ("BiasGelu", 1), "gamma": ("SkipLayerNormalization", 2)}[what]
        (tensor, *_) = [stored[n.input[place]] for n in nodes if n.op_type == kind]
        array = numpy_helper.to_array(tensor).copy()
        array[1] *= np.float32(1.001)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(proto, tmp_path / "wrong.onnx")
    verdict = verify(files.plain, tmp_path / "wrong.onnx", level="quick")
    assert verdict.status == "fail", verdict.summary()


F32 = np.float32
JOINED = {
    "BiasGelu": ("y = com.microsoft.BiasGelu(x, c)", {"c": (4,)}),
    "FastGelu": ("y = com.microsoft.FastGelu(x, c)", {"c": (4,)}),
    "Gelu": ("y = com.microsoft.Gelu(x)", {}),
    "BiasGelu, spelled out": ("y = com.microsoft.BiasGelu(x, c)", {"c": (4,)}),
    "FastGelu, spelled out": ("y = com.microsoft.FastGelu(x, c)", {"c": (4,)}),
    "QuickGelu": ("y = com.microsoft.QuickGelu<alpha=1.5>(x)", {}),
    "FusedMatMul": ("y = com.microsoft.FusedMatMul<alpha=0.7,transB=1>(x, w)", {"w": (5, 4)}),
    "FusedMatMul, left": ("y = com.microsoft.FusedMatMul<transA=1>(x, w)", {"w": (3, 5)}),
    "FusedGemm": (
        'y = com.microsoft.FusedGemm<alpha=0.5,transB=1,activation="LeakyRelu",activation_alpha=0.2>(x, w, c)',
        {"w": (5, 4), "c": (5,)},
    ),
    **{
        f"FusedGemm, {name}": (f'y = com.microsoft.FusedGemm<transB=1,activation="{name}"{given}>(x, w)', {"w": (5, 4)})
        for name, given in {
            "Elu": ",activation_alpha=0.7",
            "HardSigmoid": ",activation_alpha=0.3,activation_beta=0.4",
            "Selu": ",activation_alpha=1.6,activation_gamma=1.1",
            "Softplus": "",
            "Softsign": "",
            "ThresholdedRelu": ",activation_alpha=0.3",
        }.items()
    },
    "SkipLayerNormalization": (
        "y, m, i, t = com.microsoft.SkipLayerNormalization<epsilon=1e-2>(x, z, s, b, c)",
        {"z": (3, 4), "s": (4,), "b": (4,), "c": (4,)},
    ),
    "SkipLayerNormalization, alone": (
        "y = com.microsoft.SkipLayerNormalization<epsilon=1e-2>(x, z, s, b)",
        {"z": (3, 4), "s": (4,), "b": (4,)},
    ),
    "SkipSimplifiedLayerNormalization": (
        "y, m, i, t = com.microsoft.SkipSimplifiedLayerNormalization<epsilon=1e-2>(x, z, s, c)",
        {"z": (3, 4), "s": (4,), "c": (4,)},
    ),
    "FusedConv": (
        'y = com.microsoft.FusedConv<activation="Clip",activation_params=[-0.5, 0.5],pads=[1,1,1,1]>(x, w, c)',
        {"w": (2, 1, 3, 3), "c": (2,)},
    ),
    "FusedConv, sum": (
        'y = com.microsoft.FusedConv<activation="HardSigmoid",activation_params=[0.3, 0.4]>(x, w, c, z)',
        {"w": (2, 1, 1, 1), "c": (2,), "z": (1, 2, 3, 4)},
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_what_is_written_out_is_what_onnxruntime_computes(name: str) -> None:
    body, shapes = JOINED[name]
    rng = np.random.default_rng(1)
    shape = (1, 1, 3, 4) if "Conv" in name else (3, 4) if "Gemm" in name or "Skip" not in name else (1, 3, 4)
    declared = ",".join(map(str, shape))
    constants = {key: rng.normal(size=size).astype(F32) for key, size in shapes.items()}
    if "Skip" in name:
        constants["z"] = constants["z"][None]
    shown = "float[a,b,c] t" if " t = " in body else ""
    opset = 17 if "spelled" in name else 23  # Gelu is an operator from 20 on
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> g (float[{declared}] x) => '
        f"(float[{'m,' * (len(shape) - 1)}n] y{', ' + shown if shown else ''}) {{ {body} }}"
    )
    proto.graph.initializer.extend(numpy_helper.from_array(a, key) for key, a in constants.items())
    x = rng.normal(size=shape).astype(F32)
    want = run_onnxruntime(proto, {"x": x})
    model = ir.from_proto(proto)
    between = write_out(model)
    assert not [node for node in model.graph if node.domain == DOMAIN]
    own = {name for node in proto.graph.node for name in node.output}
    assert between == {str(node.outputs[0].name) for node in model.graph} - own
    have = Evaluator(model).run({"x": x})
    for output, y in zip(proto.graph.output, want, strict=True):
        np.testing.assert_allclose(have[output.name].numpy(), y, rtol=2e-5, atol=2e-6)


GUARD = "p = Softmax(s) n = IsNaN(p) y = Where(n, zero, p)"


@pytest.mark.parametrize(
    ("body", "gone"),
    [
        ("q = MatMul(x, w) s = Add(q, finite)", 2),
        ("q = MatMul(x, w) c = Cast<to=1>(ids) r = Mul(c, finite) s = Add(q, r)", 2),
        ("q = MatMul(x, w) s = Add(q, closed)", 0),  # a mask of -inf
        ("q = MatMul(x, w) s = Add(q, x)", 0),  # a mask of floats that is fed
        ("q = MatMul(x, w) s = Log(q)", 0),
        ("s = LayerNormalization(x, row)", 2),
        ("s = LayerNormalization<epsilon=0.0>(x, row)", 0),
        ("q = MatMul(x, w) s = Div(q, w)", 2),
        ("q = MatMul(x, w) three = Constant<value_float=3.0>() s = Pow(q, three)", 2),
        ("q = MatMul(x, w) half = Constant<value_float=0.5>() s = Pow(q, half)", 0),
        ("q = MatMul(x, w) under = Constant<value_float=-2.0>() s = Pow(q, under)", 0),
        ("q = MatMul(x, w) z = Sub(w, w) s = Div(q, zero)", 0),
    ],
)
def test_a_guard_goes_where_scores_are_real_numbers(body: str, gone: int) -> None:
    proto = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> g (float[4,4] x, int64[4,4] ids) => (float[4,4] y) '
        f"{{ {body} {GUARD} }}"
    )
    arrays = {
        "w": np.ones((4, 4), F32), "finite": np.full((4, 4), -3e38, F32), "zero": F32(0), "row": np.ones(4, F32),
        "closed": np.array([[0, 0, 0, -np.inf]], F32),
    }  # fmt: skip
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), key) for key, a in arrays.items())
    onnx.checker.check_model(proto, full_check=True)
    model = ir.from_proto(proto)
    assert take_out_guards(model) == gone
    assert ("IsNaN" in {node.op_type for node in model.graph}) == (not gone)
    assert [value.name for value in model.graph.outputs] == ["y"]


def written(folder: Path, name: str, body: str, opset: int, **constants: np.ndarray) -> Path:
    imports = f'["": {opset}, "com.microsoft": 1]'
    proto = parser.parse_model(
        f"<ir_version: 8, opset_import: {imports}> g (float[b,4] x) => (float[b,4] y) {{ {body} }}"
    )
    proto.graph.initializer.extend(numpy_helper.from_array(a, key) for key, a in constants.items())
    onnx.save(proto, folder / name)
    return folder / name


SPELLED = {
    "SimplifiedLayerNormalization": (
        "q = Pow(x, two) m = ReduceMean<axes=[-1]>(q) v = Add(m, e) r = Sqrt(v) n = Div(x, r) y = Mul(n, s)",
        "y = SimplifiedLayerNormalization<axis=-1, epsilon=%s>(x, s)",
    ),
    "SkipSimplifiedLayerNormalization": (
        "z = Tanh(x) a = Add(x, z) q = Pow(a, two) m = ReduceMean<axes=[-1]>(q) v = Add(m, e) r = Sqrt(v) "
        "n = Div(a, r) y = Mul(n, s)",
        "z = Tanh(x) y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon=%s>(x, z, s)",
    ),
    "LayerNormalization": (
        "u = ReduceMean<axes=[-1]>(x) d = Sub(x, u) q = Mul(d, d) m = ReduceMean<axes=[-1]>(q) v = Add(m, e) "
        "r = Sqrt(v) n = Div(d, r) y = Mul(n, s)",
        "y = LayerNormalization<axis=-1, epsilon=%s>(x, s, zeros)",
    ),
    "QuickGelu": (
        "g = Sigmoid(x) h = Mul(x, g) y = Mul(h, s)",
        "h = com.microsoft.QuickGelu<alpha=%s>(x) y = Mul(h, s)",
    ),
}
"""What onnxruntime's transformer optimizer reads, and what it writes, at operator sets that lack such an operator."""


@pytest.mark.parametrize("opset", [13, 16])
@pytest.mark.parametrize("name", SPELLED)
@pytest.mark.parametrize("wrong", [False, True])
def test_norms_that_the_operator_set_lacks(tmp_path: Path, name: str, opset: int, wrong: bool) -> None:
    spelled, joined = SPELLED[name]
    number = 1.0 if name == "QuickGelu" else 0.01
    constants = {
        "s": np.array([0.5, 2, 1.5, -1], F32), "e": F32(0.01), "two": F32(2), "zeros": np.zeros(4, F32),
    }  # fmt: skip
    own = written(tmp_path, "own.onnx", spelled, opset, **constants)
    its = written(tmp_path, "its.onnx", joined % (number * (1.1 if wrong else 1)), opset, **constants)
    verdict = verify(own, its, level="quick")
    assert verdict.status == ("fail" if wrong else "pass"), verdict.summary()
    assert verdict.check("derivation").status == "pass" or wrong, verdict.summary()
