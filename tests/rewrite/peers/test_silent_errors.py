"""Where other folders are silently wrong: ours is right on each case; each peer's error is shown where it is installed.

A peer that a later version mended is skipped with its version, so that no claim outlives its truth.
"""

from __future__ import annotations

import copy
import importlib
import shutil
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx import parser
from torch import nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import RewriteResult, rewrite

LEVELS = (
    ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
)

CASES = {
    "transposed channel": ("x: n,6,6", "p = MatMul (x, w)\n q = Transpose <perm = [0, 2, 1]> (p)\n y = BN (q)", (6, 6)),
    "reshaped channel": (
        "x: n,6,6",
        "p = MatMul (x, w)\n q = Transpose <perm = [0, 2, 1]> (p)\n r = Reshape (q, rows)\n y = BN (r)",
        (6, 6),
    ),
    "transposed convolution": ("x: n,6,5,5", "p = ConvTranspose (x, w)\n y = BN (p)", (6, 6, 3, 3)),
    "grouped transposed": ("x: n,6,5,5", "p = ConvTranspose <group = 2> (x, w)\n y = BN (p)", (6, 3, 3, 3)),
    "shared convolution": (
        "x: n,6,5,5",
        "p = Conv (x, w)\n h = Sigmoid (x)\n q = Conv (h, w)\n r = BN (p)\n s = BN2 (q)\n y = Add (r, s)",
        (6, 6, 3, 3),
    ),
    "convolution read twice": (
        "x: n,6,5,5",
        "p = Conv (x, w)\n h = Sigmoid (p)\n r = BN (p)\n y = Add (r, h)",
        (6, 6, 3, 3),
    ),
    "counted zeros": (
        "x: n,6,5,5",
        "p = Conv (x, w)\n"
        "q = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (p)\n y = BN (q)",
        (6, 6, 1, 1),
    ),
    "zero padding": ("x: n,6,5,5", "p = BN (x)\n y = Conv <pads = [1, 1, 1, 1]> (p, w)", (6, 6, 3, 3)),
    "beta": ("x: n,6", "p = Gemm <alpha = 0.5, beta = 3.0> (x, w, b)\n y = BN (p)", (6, 6)),
}


def build(case: str) -> onnx.ModelProto:
    """Return a case as a model with random weights; BN stands for a BatchNormalization with its own statistics."""
    header, body, shape = CASES[case]
    body = body.replace("BN2 (q)", "BatchNormalization (q, g2, b, m, v)")
    for name in "pqrx":
        body = body.replace(f"BN ({name})", f"BatchNormalization ({name}, g, b, m, v)")
    dims = header.split(": ")[1]
    result = "a,b" if "rows" in body else ",".join("abcd"[: dims.count(",") + 1])
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> agraph (float[{dims}] x) => (float[{result}] y) {{ {body} }}'
    )
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal(shape), "b": rng.standard_normal(6), "m": rng.standard_normal(6)}
    weights |= {name: rng.random(6) + 0.5 for name in ("g", "g2", "v")}
    used = {name for node in proto.graph.node for name in node.input}
    for name, array in weights.items():
        if name in used:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    if "rows" in used:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1, 6]), "rows"))
    return proto


def relative(got: np.ndarray | torch.Tensor, expected: np.ndarray | torch.Tensor) -> float:
    got, expected = np.asarray(got, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert got.shape == expected.shape
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def session(proto: onnx.ModelProto, level: ort.GraphOptimizationLevel) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 3
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def right(model: ir.Model, feeds: dict[str, np.ndarray], expected: np.ndarray) -> RewriteResult:
    """Assert that our rewriting is right in float64 and in the runtime at every level."""
    result = rewrite(model)
    name = str(result.model.graph.outputs[0].name)
    assert relative(Evaluator(result.model).run(feeds)[name].numpy(), expected) <= 1e-10
    for level in LEVELS:
        got = session(ir.to_proto(result.model), level).run([name], feeds)[0]
        assert relative(got, expected) <= 2e-5, level
    return result


@pytest.mark.parametrize("case", CASES)
def test_ours_is_right(case):
    model = ir.from_proto(build(case))
    dims = [dim if isinstance(dim, int) else 2 for dim in model.graph.inputs[0].shape]
    feeds = {"x": np.random.default_rng(1).standard_normal(dims).astype(np.float32)}
    result = right(model, feeds, Evaluator(model).run(feeds)["y"].numpy())
    folds = {"transposed convolution", "grouped transposed", "beta"}
    if case in folds:
        assert [row.action for row in result.ledger] == ["folded"]
        assert "BatchNormalization" not in {node.op_type for node in result.model.graph}
    if case == "counted zeros":
        assert "zeros" in result.ledger.kept[0].reason
    if case == "zero padding":
        assert "pads with zeros" in result.ledger.kept[0].reason
    if case == "convolution read twice":
        assert "Sigmoid" in result.ledger.kept[0].reason


@pytest.mark.parametrize("case", ["transposed channel", "reshaped channel"])
def test_onnxruntime_follows_no_channel_through_transposes(case):
    proto = build(case)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 6, 6)).astype(np.float32)}
    errors = [relative(session(proto, level).run(None, feeds)[0], _truth(proto, feeds)) for level in LEVELS]
    if max(errors) < 1e-4:
        pytest.skip(f"onnxruntime {ort.__version__} is right here; earlier ones were off by 1.4 to 1.8")
    assert max(errors) > 0.1


def _truth(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return Evaluator(ir.from_proto(proto)).run(feeds)["y"].numpy()


def padded_maximum(opset: int) -> onnx.ModelProto:
    """Return zeros around a negative image, then a maximum: the border is 0, not the image's largest value."""
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}]>
        agraph (float[n,3,6,6] x) => (float[n,3,7,7] y) <int64[8] pads = {{0, 0, 1, 1, 0, 0, 1, 1}}>
        {{ h = Pad (x, pads)
          y = MaxPool <kernel_shape = [2, 2]> (h) }}"""
    )


@pytest.mark.parametrize("opset", [13, 18, 21])
def test_zeros_in_front_of_a_maximum(opset):
    proto = padded_maximum(opset)
    x = -np.random.default_rng(0).uniform(1, 2, (2, 3, 6, 6)).astype(np.float32)
    inside = np.maximum.reduce([x[:, :, i : i + 5, j : j + 5] for i in (0, 1) for j in (0, 1)])
    expected = np.zeros((2, 3, 7, 7))
    expected[:, :, 1:6, 1:6] = inside
    right(ir.from_proto(proto), {"x": x}, expected)
    error = relative(session(proto, LEVELS[-1]).run(None, {"x": x})[0], expected)
    if error < 1e-4:
        pytest.skip(f"onnxruntime {ort.__version__} is right here; 1.31 moved the zeros into the pool")
    assert error > 0.5


def statistics(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for part in module.modules():
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            part.running_mean.normal_(generator=generator)
            part.running_var.uniform_(0.5, 2.0, generator=generator)
            part.weight.data.uniform_(0.5, 1.5, generator=generator)
            part.bias.data.normal_(generator=generator)
    return module.eval()


class OverTokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x):
        return self.norm(self.linear(x))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.first, self.second = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.first(self.conv(x)) + torch.relu(self.second(self.conv(x + 1)))


class ReadTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + torch.relu(y)


MODULES = {
    "a norm over the tokens": (OverTokens, (2, 6, 6)),
    "one convolution, two norms": (Shared, (2, 3, 6, 6)),
    "a convolution read twice": (ReadTwice, (2, 3, 6, 6)),
}


@pytest.mark.parametrize("case", MODULES)
def test_ours_is_right_on_torch_modules(case):
    module, shape = MODULES[case]
    torch.manual_seed(0)
    module, x = statistics(module()), torch.randn(shape)
    with torch.no_grad():
        expected = copy.deepcopy(module).double()(x.double()).numpy()
    traced = trace(module, (x,))
    right(traced.model, traced.feeds, expected)


@pytest.mark.parametrize("case", ["a norm over the tokens", "one convolution, two norms"])
def test_torch_fx_fuse_is_wrong(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations on import
        optimization = importlib.import_module("torch.fx.experimental.optimization")
        module, shape = MODULES[case]
        torch.manual_seed(0)
        module, x = statistics(module()), torch.randn(shape)
        with torch.no_grad():
            error = relative(optimization.fuse(copy.deepcopy(module))(x), module(x))
    if error < 1e-4:
        pytest.skip(f"torch {torch.__version__} is right here; earlier ones were not")
    assert error > 0.1


@pytest.mark.parametrize("case", ["one convolution, two norms", "a convolution read twice"])
def test_pt2e_is_wrong(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            utils = importlib.import_module("torch.ao.quantization.pt2e.utils")
        except ModuleNotFoundError:
            utils = pytest.importorskip("torchao.quantization.pt2e.utils", reason="pt2e (torchao) is not installed")
        module, shape = MODULES[case]
        torch.manual_seed(0)
        module, x = statistics(module()), torch.randn(shape)
        program = torch.export.export(module, (x,)).module()
        utils._fuse_conv_bn_(program)
        with torch.no_grad():
            assert relative(program(x), module(x)) > 0.1


def test_torch_fuses_no_grouped_transposed_convolution():
    conv, norm = statistics(nn.Sequential(nn.ConvTranspose2d(4, 4, 3, groups=2), nn.BatchNorm2d(4)))
    with pytest.raises(RuntimeError):
        nn.utils.fusion.fuse_conv_bn_eval(conv, norm, transpose=True)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
def test_inductor_scales_the_wrong_axis_of_a_transposed_convolution(groups):
    if shutil.which("g++") is None:
        pytest.skip("inductor needs g++")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = importlib.import_module("torch._inductor.config")
        torch.manual_seed(0)
        module = statistics(nn.Sequential(nn.ConvTranspose2d(4, 4, 3, groups=groups), nn.BatchNorm2d(4)))
        x = torch.randn(2, 4, 5, 5)
        with torch.no_grad(), config.patch(freezing=True):
            error = relative(torch.compile(module)(x), module(x))
        torch._dynamo.reset()
    if error < 1e-4:
        pytest.skip(f"torch {torch.__version__} is right here; 2.13 was not")
    assert error > 0.05


def test_a_model_left_in_training_mode():
    torch.manual_seed(0)
    module = statistics(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))).train()
    x = torch.randn(2, 3, 6, 6)
    training = copy.deepcopy(module)(x).detach().numpy()
    evaluation = copy.deepcopy(module).double().eval()(x.double()).detach().numpy()
    assert relative(training, evaluation) > 0.3
    # torch.onnx folds it as if it were in evaluation, without a word
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(copy.deepcopy(module), (x,), dynamo=True, optimize=True, verbose=False)
    name = program.model.graph.inputs[0].name
    got = session(program.model_proto, LEVELS[-1]).run(None, {name: x.numpy()})[0]
    assert relative(got, training) > 0.3
    # ours makes evaluation mode certain, says so, and gives it back
    traced = trace(module, (x,))
    assert traced.mode is not None
    assert any("training mode" in note for note in traced.notes), traced.notes
    assert module.training
    right(traced.model, traced.feeds, evaluation)


def test_a_norm_in_training_mode_inside_a_graph_is_not_folded():
    model = ir.from_onnx_text("""<ir_version: 8, opset_import: ["" : 17]>
    agraph (float[n,2,4,4] x) => (float[n,2,4,4] y)
    <float[2] g = {1, 2}, float[2] b = {3, 4}, float[2,2,1,1] w = {1, 2, 3, 4}>
    { c = Conv (x, w)
      y, m, v = BatchNormalization <training_mode = 1> (c, g, b, b, g) }""")
    result = rewrite(model)
    assert [node.op_type for node in result.model.graph] == ["Conv", "BatchNormalization"]
    assert [row.action for row in result.ledger] == ["kept"]


class OverChannels(nn.Module):
    """A LayerNorm written by hand over the channels of (N, C, H, W)."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(6, 1, 1) + 0.5), nn.Parameter(torch.randn(6, 1, 1))

    def forward(self, x):
        deviation = x - x.mean(1, keepdim=True)
        variance = deviation.pow(2).mean(1, keepdim=True)
        return deviation / torch.sqrt(variance + 2.0**-20) * self.scale + self.shift


def test_a_layer_norm_over_channels(tmp_path):
    torch.manual_seed(0)
    module = OverChannels()
    x = torch.randn(2, 6, 5, 6) * (torch.rand(2, 1, 5, 6) * 3 + 0.1)
    with torch.no_grad():
        expected = copy.deepcopy(module).double()(x.double()).numpy()
    traced = trace(module, (x,))
    proto = ir.to_proto(traced.model)
    result = right(traced.model, traced.feeds, expected)
    assert [row.action for row in result.ledger] == ["fused"]
    # onnxruntime.transformers fuses it over the axes from 1 on
    onnx.save(proto, tmp_path / "norm.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
        optimized = optimizer.optimize_model(str(tmp_path / "norm.onnx"), model_type="bert", opt_level=0)
    got = session(optimized.model, LEVELS[0]).run(None, traced.feeds)[0]
    error = relative(got, expected)
    if error < 1e-4:
        pytest.skip(f"onnxruntime {ort.__version__} is right here; 1.31 was off by 0.45")
    assert error > 0.1


def test_zero_variance_in_float16():
    rng = np.random.default_rng(0)
    model = ir.from_onnx_text("""<ir_version: 8, opset_import: ["" : 17]>
    agraph (float16[n,3,6,6] x) => (float16[n,4,4,4] y) {
        c = Conv (x, w)
        y = BatchNormalization <epsilon = 1e-8> (c, g, b, m, v)
    }""")
    weights = {"w": rng.standard_normal((4, 3, 3, 3)) * 1e-4, "g": np.ones(4), "b": np.ones(4), "m": np.zeros(4)}
    weights["v"] = np.zeros(4)
    for value in {value for node in model.graph for value in node.inputs if value is not None}:
        if value.name in weights:
            value.const_value = ir.tensor(weights[value.name].astype(np.float16), name=value.name)
            value.dtype, value.shape = ir.DataType.FLOAT16, ir.Shape(weights[value.name].shape)
            model.graph.register_initializer(value)
    feeds = {"x": rng.standard_normal((2, 3, 6, 6)).astype(np.float16)}
    result = rewrite(model)
    assert [node.op_type for node in result.model.graph] == ["Conv"]
    assert all(np.isfinite(value.const_value.numpy()).all() for value in result.model.graph.initializers.values())
    got, expected = (Evaluator(graph).run(feeds)["y"].numpy() for graph in (result.model, model))
    assert relative(got, expected) <= 1e-10
    # a folder that computes in the weights' dtype divides by zero: epsilon vanishes in float16
    conv, norm = nn.Conv2d(3, 4, 3, bias=False).half(), nn.BatchNorm2d(4, eps=1e-8).half().eval()
    norm.running_var.zero_()
    assert not torch.isfinite(nn.utils.fusion.fuse_conv_bn_eval(conv.eval(), norm).weight).all()


UNFOLDED = {
    "weight_norm over 8192 elements": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Conv2d(32, 40, 3)), nn.BatchNorm2d(40)
    ),
    "InstanceNorm with running statistics": lambda: nn.Sequential(
        nn.Conv2d(32, 40, 3), nn.InstanceNorm2d(40, affine=True, track_running_stats=True)
    ),
}


@pytest.mark.parametrize("case", UNFOLDED)
def test_what_the_exporter_leaves_unfolded(case):
    torch.manual_seed(0)
    module, x = statistics(UNFOLDED[case]()), torch.randn(2, 32, 6, 6)
    module[1].running_mean.normal_()
    with torch.no_grad():
        expected = copy.deepcopy(module).double()(x.double()).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, (x,), dynamo=True, optimize=True, verbose=False)
    assert "BatchNormalization" in {node.op_type for node in program.model.graph}
    traced = trace(module, (x,))
    result = right(traced.model, traced.feeds, expected)
    assert [node.op_type for node in result.model.graph] == ["Conv"]


@pytest.mark.parametrize("peer", ["onnxslim", "onnxsim", "openvino", "onnxscript"])
@pytest.mark.parametrize("case", CASES)
def test_other_folders_on_the_same_cases(peer, case):
    """Not a claim of ours: what peers do on these graphs, so that a new error of theirs is seen here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip(peer, reason=f"{peer} is not installed (extra: peers)")
        proto = build(case)
        dims = [d.dim_value or 2 for d in proto.graph.input[0].type.tensor_type.shape.dim]
        feeds = {"x": np.random.default_rng(1).standard_normal(dims).astype(np.float32)}
        if peer == "openvino":
            compiled = module.compile_model(
                module.Core().read_model(proto.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
            )
            got = compiled(feeds)[0]
        else:
            if peer == "onnxslim":
                folded = module.slim(proto)
            elif peer == "onnxsim":
                folded = module.simplify(proto)[0]
            else:
                optimizer = importlib.import_module("onnxscript.optimizer")
                rewriter = importlib.import_module("onnxscript.rewriter")
                folded = rewriter.rewrite(optimizer.optimize(proto))
            got = session(folded, LEVELS[0]).run(None, feeds)[0]
    assert relative(got, _truth(proto, feeds)) <= 2e-5
